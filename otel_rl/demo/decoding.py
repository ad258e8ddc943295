"""Completes many prompts in parallel: one prefill each, then one token for all per step.

The next token of each sequence is sampled with its own temperature and top-p.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from otel_rl.demo.kv_cache import KvCache, NoFreeBlock, Sequences
from otel_rl.demo.transformer import Floats, Parameters, softmax

__all__ = ["Choice", "DecodeBatch", "Job", "Pace", "choose"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One token per sequence.

    Attributes:
        tokens: Token ids, (rows,).
        log_probabilities: Under the policy itself (temperature 1, no top-p), as GRPO's ratio needs.
    """

    tokens: npt.NDArray[np.int64]
    log_probabilities: Floats


def choose(logits: Floats, temperature: Floats, top_p: Floats, rng: np.random.Generator) -> Choice:
    """Sample one token per row.

    Args:
        logits: (rows, vocabulary).
        temperature: Per row, > 0.
        top_p: Per row, in (0, 1]: limits sampling to the smallest set of likeliest tokens that
            reaches this probability.
        rng: Source of randomness.
    """
    rows = np.arange(len(logits))
    tempered = softmax(logits / temperature[:, None])
    order = np.argsort(-tempered, axis=-1)
    descending = np.take_along_axis(tempered, order, axis=-1)
    before = np.cumsum(descending, axis=-1) - descending
    kept = np.where(before < top_p[:, None], descending, 0.0)
    threshold = rng.random((len(logits), 1)) * kept.sum(axis=-1, keepdims=True)
    place = (np.cumsum(kept, axis=-1) <= threshold).sum(axis=-1)
    # A threshold rounded up to the whole sum would point past the last kept token.
    place = np.minimum(place, (kept > 0).sum(axis=-1) - 1)
    tokens = order[rows, place]
    return Choice(tokens, np.log(softmax(logits)[rows, tokens] + 1e-20))


Pace = Callable[[], AbstractContextManager[None]]
"""Makes a context around a computation."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Job:
    """Completion job.

    Attributes:
        prompt: Token ids.
        samples: Number of completions.
        max_tokens: Length limit of a completion.
        temperature: Of the sampling.
        top_p: Of the sampling.
    """

    prompt: Sequence[int]
    samples: int
    max_tokens: int
    temperature: float
    top_p: float

    def fits(self, cache: KvCache) -> bool:
        """Report whether the cache has room for the prompt of all samples."""
        return Sequences.fits(cache, self.prompt, rows=self.samples)


@dataclass(slots=True)
class _Row:
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)


class DecodeBatch:
    """Jobs that are decoded together. Check ``fits`` before adding a job.

    When the cache is full, the job added last is preempted, as in inference servers, and must be
    added to a later batch from the beginning. A single job needs room for its longest rows.

    Attributes:
        first_token_s: ``time.perf_counter()`` after the first tokens.
        tokens: Generated so far.
        preempted: Indices of the preempted jobs.
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
            pace: Makes a context around the computation of each token.
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
        """Return the token ids of every sample of a job, by the job's index; none if preempted."""
        return tuple(tuple(row.tokens) for row in self._of(job))

    def log_probabilities(self, job: int) -> tuple[tuple[float, ...], ...]:
        """Return one per token of :meth:`completions`, under the policy at temperature 1."""
        return tuple(tuple(row.log_probabilities) for row in self._of(job))

    def _make_room(self, alive: Rows, of_job: Rows, made: int) -> tuple[Rows, bool]:
        """Make room for one more token of each row; ended rows, then the last job, release theirs.

        Args:
            alive: Rows that have not ended.
            of_job: Job of each row.
            made: Number of tokens of each row so far.

        Returns:
            The remaining rows, and True if a row's room changed.
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
        """Release the room. Reusable blocks stay in the cache until the space is needed."""
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
    """Stack tables of different lengths; the padding on the right is never visible."""
    longest = max(table.shape[1] for table in tables)
    return np.concatenate(
        [np.pad(table, ((0, 0), (0, longest - table.shape[1]))) for table in tables]
    )
