"""Completes many prompts in parallel: one prefill each, then one token for all per step.

The keys and values of a token are computed once. The samples of a job share those of its prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from otel_rl.demo.model.transformer import Tape, forward, rms_norm, softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_rl.demo.model.parameters import Floats, Parameters

__all__ = ["Choice", "DecodeBatch", "Job", "KvCache", "Pace", "choose"]

Pace = Callable[[], AbstractContextManager[None]]
"""Makes a context around a computation."""

Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class KvCache:
    """Room for the keys and values of a limited number of tokens, in use by one batch at a time.

    Attributes:
        limit_tokens: Capacity.
        used_tokens: Tokens of the running batch.
        queried_tokens: Prompt tokens of all samples so far.
        hit_tokens: Of these, tokens that another sample of the job had computed.
    """

    limit_tokens: int
    used_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0

    @property
    def free_tokens(self) -> int:
        """Tokens for which there is room."""
        return self.limit_tokens - self.used_tokens


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

    @property
    def room(self) -> int:
        """Tokens of a completion of full length, with its prompt."""
        return len(self.prompt) + self.max_tokens


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
        preempted: Indices of the preempted jobs.
    """

    def __init__(
        self, cache: KvCache, parameters: Parameters, end: int, rng: np.random.Generator
    ) -> None:
        self.first_token_s = 0.0
        self.preempted: set[int] = set()
        self._cache = cache
        self._parameters = parameters
        self._end = end
        self._rng = rng
        self._jobs: list[Job] = []
        self._prompts: list[tuple[Floats, Tape]] = []  # logits, and what they came from
        self._held: list[int] = []  # tokens of each job in the cache
        self._rows: list[_Row] = []

    def fits(self, job: Job) -> bool:
        """Report whether the cache has room for the prompt. Later it may be too full."""
        return len(job.prompt) <= self._cache.free_tokens

    def add(self, job: Job) -> None:
        """Compute the job's prompt."""
        prompt = len(job.prompt)
        self._cache.used_tokens += prompt
        self._cache.queried_tokens += job.samples * prompt
        self._cache.hit_tokens += (job.samples - 1) * prompt
        self._prompts.append(forward(self._parameters, np.array([job.prompt])))
        self._held.append(prompt)
        self._jobs.append(job)
        self._rows += [_Row() for _ in range(job.samples)]

    def run(self, pace: Pace = nullcontext) -> None:
        """Sample until every completion has ended or reached its limit.

        Args:
            pace: Makes a context around the computation of each token.
        """
        jobs = self._jobs
        of_job = np.repeat(np.arange(len(jobs)), [job.samples for job in jobs])
        length = np.array([len(job.prompt) for job in jobs])[of_job]
        limit = np.array([job.max_tokens for job in jobs])[of_job]
        temperature = np.array([job.temperature for job in jobs], np.float32)[of_job]
        top_p = np.array([job.top_p for job in jobs], np.float32)[of_job]
        logits: Floats = np.stack([each[0, -1] for each, _ in self._prompts])[of_job]
        keys, values = self._keys_and_values(of_job)
        alive = np.arange(len(of_job))
        for made in count(1):
            choice = choose(logits, temperature[alive], top_p[alive], self._rng)
            self._keep(alive, choice)
            if made == 1:
                self.first_token_s = time.perf_counter()
            going = (choice.tokens != self._end) & (made < limit[alive])
            going[going] = self._make_room(of_job[alive[going]])
            alive = alive[going]
            if not len(alive):
                return
            with pace():
                places = length[alive] + made - 1
                logits = self._extend(choice.tokens[going], alive, places, keys, values=values)

    def completions(self, job: int) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of every sample of a job, by the job's index."""
        return tuple(tuple(row.tokens) for row in self._of(job))

    def log_probabilities(self, job: int) -> tuple[tuple[float, ...], ...]:
        """Return one per token of :meth:`completions`, under the policy at temperature 1."""
        return tuple(tuple(row.log_probabilities) for row in self._of(job))

    def _keys_and_values(self, of_job: Rows) -> tuple[Floats, Floats]:
        """Return room for all tokens, (layers, rows, heads, length, head width), with prompts."""
        shape = self._parameters.shape
        room = max(job.room for job in self._jobs)
        keys = np.zeros((shape.layers, len(of_job), shape.heads, room, shape.head_width), "f4")
        values = np.zeros_like(keys)
        for job, (_, tape) in enumerate(self._prompts):
            prompt = len(self._jobs[job].prompt)
            for layer, block in enumerate(tape.blocks):
                keys[layer, of_job == job, :, :prompt] = block.keys
                values[layer, of_job == job, :, :prompt] = block.values
        return keys, values

    def _make_room(self, of_job: Rows) -> npt.NDArray[np.bool_]:
        """Take room for one more token of each row that goes on, if need be from the last job.

        Args:
            of_job: Job of each of these rows.

        Returns:
            Which of them have room.
        """
        goes_on = np.ones(len(of_job), bool)
        for job in set(range(len(self._jobs))).difference(of_job.tolist()):
            self._release(job)
        while goes_on.sum() > self._cache.free_tokens:
            last = int(of_job[goes_on].max())
            self.preempted.add(last)
            self._release(last)
            goes_on &= of_job != last
        for job in of_job[goes_on].tolist():
            self._held[job] += 1
        self._cache.used_tokens += int(goes_on.sum())
        return goes_on

    def _release(self, job: int) -> None:
        self._cache.used_tokens -= self._held[job]
        self._held[job] = 0

    def _extend(
        self, tokens: Rows, rows: Rows, places: Rows, keys: Floats, *, values: Floats
    ) -> Floats:
        """Run one new token of each row, keep its keys and values, and return the logits."""
        parameters = self._parameters
        shape = parameters.shape
        visible = np.arange(int(places.max()) + 1) <= places[:, None]
        stream = parameters.tokens[tokens] + parameters.positions[places]
        for layer, block in enumerate(parameters.blocks):
            entering, _ = rms_norm(stream, block.attention_gain)
            projected = (entering @ block.query_key_value).reshape(
                len(rows), 3, shape.heads, shape.head_width
            )
            keys[layer, rows, :, places] = projected[:, 1]
            values[layer, rows, :, places] = projected[:, 2]
            known = keys[layer, rows, :, : visible.shape[1]]
            scores = (known @ projected[:, 0, :, :, None])[..., 0] * shape.head_width**-0.5
            attention = softmax(np.where(visible[:, None], scores, np.float32(-1e9)))
            mixed = attention[:, :, None] @ values[layer, rows, :, : visible.shape[1]]
            stream = stream + mixed.reshape(len(rows), shape.width) @ block.attention_out
            mlp_input, _ = rms_norm(stream, block.mlp_gain)
            stream = stream + np.maximum(mlp_input @ block.mlp_in, 0) @ block.mlp_out
        final_input, _ = rms_norm(stream, parameters.final_gain)
        logits: Floats = final_input @ parameters.head
        return logits

    def _keep(self, alive: Rows, choice: Choice) -> None:
        for row, token, log_probability in zip(
            alive.tolist(), choice.tokens.tolist(), choice.log_probabilities.tolist(), strict=True
        ):
            self._rows[row].tokens.append(token)
            self._rows[row].log_probabilities.append(log_probability)

    def _of(self, job: int) -> list[_Row]:
        before = sum(each.samples for each in self._jobs[:job])
        return self._rows[before : before + self._jobs[job].samples]


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
