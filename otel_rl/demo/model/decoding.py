"""Many prompts completed side by side: one prefill each, then one token for all per step."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from otel_rl.demo.model.blocks import NoFreeBlock
from otel_rl.demo.model.cache import KvCache, Sequences
from otel_rl.demo.model.sampling import Choice, choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_rl.demo.model.parameters import Parameters

__all__ = ["DecodeBatch", "Job", "Pace"]

Pace = Callable[[], AbstractContextManager[None]]
"""Makes a context around a piece of computing."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Job:
    """What to complete, and how.

    Attributes:
        prompt: Token ids.
        samples: Completions wanted.
        max_tokens: A completion is cut off after so many.
        temperature: Of the sampling.
        top_p: Of the sampling.
    """

    prompt: Sequence[int]
    samples: int
    max_tokens: int
    temperature: float
    top_p: float

    def fits(self, cache: KvCache) -> bool:
        """Whether the cache has room for the prompt of all samples."""
        return Sequences.fits(cache, self.prompt, rows=self.samples)


@dataclass(slots=True)
class _Row:
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)


class DecodeBatch:
    """Jobs that are decoded together. Ask ``fits`` for each job before it is added.

    When the cache is full, the job that was added last is thrown out, as inference servers do, and
    has to be added to a later batch from the beginning. A job that is alone needs its longest rows
    to fit.

    Attributes:
        first_token_s: ``time.perf_counter()`` when the first tokens stood.
        tokens: Generated so far.
        preempted: Places of the jobs that were thrown out.
    """

    def __init__(
        self, cache: KvCache, parameters: Parameters, end: int, rng: np.random.Generator
    ) -> None:
        self.first_token_s = 0.0
        self.tokens = 0
        self.preempted: set[int] = set()
        self._cache = cache
        self._parameters = parameters
        self._end = end
        self._rng = rng
        self._jobs: list[Job] = []
        self._rows: list[_Row] = []
        self._sequences: list[Sequences] = []

    def add(self, job: Job) -> None:
        """Reserve the job's room and compute its prompt."""
        self._jobs.append(job)
        room = len(job.prompt) + job.max_tokens
        self._sequences.append(Sequences(self._cache, job.prompt, rows=job.samples, room=room))
        self._sequences[-1].prefill(self._parameters)

    def run(self, pace: Pace = nullcontext) -> None:
        """Sample until every completion has ended or reached its limit.

        Args:
            pace: Makes a context around the computing of each token.
        """
        logits = np.concatenate([each.logits for each in self._sequences])
        slots = _stack([each.slots() for each in self._sequences])
        of_job = self._per_row(range(len(self._jobs))).astype(np.int64)
        length = self._per_row([len(job.prompt) for job in self._jobs]).astype(np.int64)
        limit = self._per_row([job.max_tokens for job in self._jobs])
        temperature = self._per_row([job.temperature for job in self._jobs]).astype(np.float32)
        top_p = self._per_row([job.top_p for job in self._jobs]).astype(np.float32)
        self._rows = [_Row() for _ in slots]
        alive = np.arange(len(slots))
        made = 0
        while True:
            choice = choose(logits, temperature[alive], top_p[alive], self._rng)
            made += 1
            self._keep(alive, choice)
            if made == 1:
                self.first_token_s = time.perf_counter()
            going = (choice.tokens != self._end) & (made < limit[alive])
            last = np.zeros(len(slots), np.int64)
            last[alive] = choice.tokens
            alive, changed = self._make_room(alive[going], of_job, made)
            if not len(alive):
                return
            if changed:
                slots = _stack([each.slots() for each in self._sequences])
            with pace():
                logits = self._cache.extend(
                    self._parameters,
                    last[alive][:, None],
                    length[alive] + made - 1,
                    slots[alive],
                )

    def completions(self, job: int) -> tuple[tuple[int, ...], ...]:
        """Token ids of every sample of a job, by the job's place; not of one thrown out."""
        return tuple(tuple(row.tokens) for row in self._of(job))

    def log_probabilities(self, job: int) -> tuple[tuple[float, ...], ...]:
        """One per token of :meth:`completions`, under the policy at temperature 1."""
        return tuple(tuple(row.log_probabilities) for row in self._of(job))

    def _make_room(self, alive: Rows, of_job: Rows, made: int) -> tuple[Rows, bool]:
        """Room for one more token of each row. Who is done gives back; the last job may have to.

        Args:
            alive: Rows that have not ended.
            of_job: Of each row, its job.
            made: Tokens that each of them has so far.

        Returns:
            The rows that go on, and whether any row has got or lost room.
        """
        changed = False
        for job in set(range(len(self._jobs))).difference(of_job[alive].tolist()):
            self._sequences[job].release()
        for job in np.unique(of_job[alive]).tolist():
            length = len(self._jobs[job].prompt) + made
            while job in of_job[alive]:
                rows = alive[of_job[alive] == job] - np.searchsorted(of_job, job)
                try:
                    changed |= self._sequences[job].grow(rows.tolist(), length)
                    break
                except NoFreeBlock:
                    last = int(of_job[alive[-1]])
                    self.preempted.add(last)
                    self._sequences[last].release()
                    alive, changed = alive[of_job[alive] != last], True
        return alive, changed

    def release(self) -> None:
        """Give the room back. What may be reused stays in the cache until room is needed."""
        for each in self._sequences:
            each.release()

    def _keep(self, alive: npt.NDArray[np.int64], choice: Choice) -> None:
        self.tokens += len(alive)
        for row, token, log_probability in zip(
            alive.tolist(), choice.tokens.tolist(), choice.log_probabilities.tolist(), strict=True
        ):
            self._rows[row].tokens.append(token)
            self._rows[row].log_probabilities.append(log_probability)

    def _of(self, job: int) -> list[_Row]:
        before = sum(each.samples for each in self._jobs[:job])
        return self._rows[before : before + self._jobs[job].samples]

    def _per_row(self, values: Sequence[float]) -> npt.NDArray[np.float64 | np.int64]:
        return np.repeat(np.array(values), [job.samples for job in self._jobs])


def _stack(tables: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Tables of different lengths as one; what is added on the right is never visible."""
    longest = max(table.shape[1] for table in tables)
    return np.concatenate(
        [np.pad(table, ((0, 0), (0, longest - table.shape[1]))) for table in tables]
    )
