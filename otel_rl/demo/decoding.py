"""Completes many prompts in parallel: one prefill each, then one token for all per step.

The next token of each sequence is sampled with its own temperature and top-p. Keys and values are
computed once per token. The samples of a job share those of their prompt, so that it is computed
once, whatever their number.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otel_rl.demo.transformer import Floats, Parameters, Shape, rms_norm, softmax

Pace = Callable[[], AbstractContextManager[None]]
"""Makes a context around a computation."""

Rows = npt.NDArray[np.int64]

BLOCK_TOKENS = 4  # inference servers count a prompt as shared up to its last whole block


def choose(
    logits: Floats, temperature: Floats, top_p: Floats, rng: np.random.Generator
) -> tuple[Rows, Floats]:
    """Sample one token per row.

    Args:
        logits: (rows, vocabulary).
        temperature: Per row, > 0.
        top_p: Per row, in (0, 1]: limits sampling to the smallest set of likeliest tokens that
            reaches this probability.
        rng: Source of randomness.

    Returns:
        Token ids, (rows,), and their log-probabilities under the policy itself (temperature 1, no
        top-p), as GRPO's ratio needs.
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
    return tokens, np.log(softmax(logits)[rows, tokens] + 1e-20)


class CacheFull(Exception):
    """There is no room: admit fewer sequences."""


class KvCache:
    """Room for the keys and values of a limited number of tokens. One thread.

    Attributes:
        limit_tokens: The room.
        used_tokens: Of running sequences.
        queried_tokens: Prompt tokens of all samples so far.
        hit_tokens: Those of them that another sample of the job had computed.
    """

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.used_tokens = 0
        self.queried_tokens = 0
        self.hit_tokens = 0

    def has_room(self, tokens: int) -> bool:
        return self.used_tokens + tokens <= self.limit_tokens

    def take(self, tokens: int) -> None:
        """Hold so many more tokens, a negative number of them to give some back.

        Raises:
            CacheFull: There is no room for them.
        """
        if not self.has_room(tokens):
            raise CacheFull
        self.used_tokens += tokens


class _KeysValues:
    """Keys and values of some rows, each (rows, length, heads, head width)."""

    def __init__(self, shape: Shape, *, rows: int, length: int) -> None:
        room = (rows, length, shape.heads, shape.head_width)
        self.keys = np.zeros(room, np.float32)
        self.values = np.zeros(room, np.float32)

    def extend(self, parameters: Parameters, rows: Rows, tokens: Rows, start: Rows) -> Floats:
        """Run new tokens of some rows, and keep their keys and values.

        Args:
            parameters: The policy; the same one that computed what the rows have so far.
            rows: (n,) which rows.
            tokens: (n, new) token ids.
            start: (n,) number of tokens that each of the rows has.

        Returns:
            Logits after the last new token, (n, vocabulary).
        """
        places = start[:, None] + np.arange(tokens.shape[1])
        entered = parameters.tokens[tokens] + parameters.positions[places]
        stream = self._attend(parameters, entered, rows, places)
        mlp_input, _ = rms_norm(stream, parameters.mlp_gain)
        stream = stream + np.maximum(mlp_input @ parameters.mlp_in, 0) @ parameters.mlp_out
        final_input, _ = rms_norm(stream[:, -1], parameters.final_gain)
        logits: Floats = final_input @ parameters.head
        return logits

    def _attend(self, parameters: Parameters, entered: Floats, rows: Rows, places: Rows) -> Floats:
        n, new, width = entered.shape
        heads, head_width = self.keys.shape[2:]
        attention_input, _ = rms_norm(entered, parameters.attention_gain)
        projected = attention_input @ parameters.query_key_value
        projected = projected.reshape(n, new, 3, heads, head_width)
        self.keys[rows[:, None], places] = projected[:, :, 1]
        self.values[rows[:, None], places] = projected[:, :, 2]
        length = int(places.max()) + 1
        queries = projected[:, :, 0].transpose(0, 2, 1, 3)
        keys = self.keys[rows, :length].transpose(0, 2, 3, 1)
        values = self.values[rows, :length].transpose(0, 2, 1, 3)
        scores = queries @ keys * head_width**-0.5
        visible = np.arange(length) <= places[:, :, None]
        scores = np.where(visible[:, None], scores, scores.dtype.type(-1e9))
        mixed = (softmax(scores) @ values).transpose(0, 2, 1, 3).reshape(n, new, width)
        left: Floats = entered + mixed @ parameters.attention_out
        return left


@dataclass(frozen=True, slots=True)
class Job:
    """Completions of one prompt, which is given as token ids."""

    prompt: Sequence[int]
    samples: int
    max_tokens: int
    temperature: float
    top_p: float


@dataclass(slots=True)
class _Running:
    """Job in a batch.

    Attributes:
        prefix: Keys and values of its prompt, in one row.
        logits: After the prompt, (1, vocabulary).
        held_tokens: Of the cache: those of the prompt, which all samples share, and of the samples.
    """

    job: Job
    prefix: _KeysValues
    logits: Floats
    held_tokens: int
    tokens: list[list[int]]
    log_probabilities: list[list[float]]


class DecodeBatch:
    """Jobs that are decoded together. Check the room for its prompt before adding a job.

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
        self._running: list[_Running] = []

    def add(self, job: Job) -> None:
        """Reserve the room of the prompt and compute it.

        Raises:
            CacheFull: The cache has no room.
        """
        cache, length = self._cache, len(job.prompt)
        cache.take(length)
        cache.queried_tokens += job.samples * length
        cache.hit_tokens += (job.samples - 1) * ((length - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        prefix = _KeysValues(self._parameters.shape, rows=1, length=length)
        tokens = np.array([job.prompt], np.int64)
        logits = prefix.extend(self._parameters, _zeros(1), tokens, _zeros(1))
        nothing: tuple[list[list[int]], list[list[float]]] = (
            [[] for _ in range(job.samples)],
            [[] for _ in range(job.samples)],
        )
        self._running.append(_Running(job, prefix, logits, length, *nothing))

    def run(self, pace: Pace = nullcontext) -> None:
        """Sample until every completion has ended or reached its limit.

        Args:
            pace: Makes a context around the computation of each token.
        """
        kept = self._prompts()
        logits = np.concatenate(
            [np.repeat(one.logits, one.job.samples, axis=0) for one in self._running]
        )
        jobs = [one.job for one in self._running]
        of_job = self._per_row(range(len(jobs))).astype(np.int64)
        sample = np.concatenate([np.arange(job.samples) for job in jobs])
        length = self._per_row([len(job.prompt) for job in jobs]).astype(np.int64)
        limit = self._per_row([job.max_tokens for job in jobs])
        temperature = self._per_row([job.temperature for job in jobs]).astype(np.float32)
        top_p = self._per_row([job.top_p for job in jobs]).astype(np.float32)
        alive = np.arange(len(of_job))
        made = 0
        while True:
            chosen, log_probabilities = choose(logits, temperature[alive], top_p[alive], self._rng)
            made += 1
            if made == 1:
                self.first_token_s = time.perf_counter()
            for row, token, log_probability in zip(
                alive.tolist(), chosen, log_probabilities, strict=True
            ):
                one = self._running[of_job[row]]
                one.tokens[sample[row]].append(int(token))
                one.log_probabilities[sample[row]].append(float(log_probability))
            going = (chosen != self._end) & (made < limit[alive])
            last = _zeros(len(of_job))
            last[alive] = chosen
            alive = self._make_room(alive[going], of_job)
            if not len(alive):
                return
            with pace():
                logits = kept.extend(
                    self._parameters, alive, last[alive][:, None], length[alive] + made - 1
                )

    def completions(self, job: int) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of every sample of a job, by the job's index."""
        return tuple(map(tuple, self._running[job].tokens))

    def log_probabilities(self, job: int) -> tuple[tuple[float, ...], ...]:
        """Return one per token of :meth:`completions`, under the policy at temperature 1."""
        return tuple(map(tuple, self._running[job].log_probabilities))

    def release(self) -> None:
        for one in self._running:
            self._release(one)

    def _prompts(self) -> _KeysValues:
        """Return room for all rows to their longest, with the prompt of each."""
        longest = max(len(one.job.prompt) + one.job.max_tokens for one in self._running)
        rows = sum(one.job.samples for one in self._running)
        kept = _KeysValues(self._parameters.shape, rows=rows, length=longest)
        row = 0
        for one in self._running:
            place = slice(row, row + one.job.samples), slice(len(one.job.prompt))
            kept.keys[place] = one.prefix.keys
            kept.values[place] = one.prefix.values
            row += one.job.samples
        return kept

    def _make_room(self, alive: Rows, of_job: Rows) -> Rows:
        """Make room for one more token of each row; the last job gives way in a full cache.

        Args:
            alive: Rows that have not ended.
            of_job: Job of each row.

        Returns:
            The remaining rows.
        """
        for place, one in enumerate(self._running):
            if place not in of_job[alive]:
                self._release(one)
        for place, one in enumerate(self._running):
            while rows := int(np.count_nonzero(of_job[alive] == place)):
                try:
                    self._cache.take(rows)
                except CacheFull:
                    last = int(of_job[alive[-1]])
                    self.preempted.add(last)
                    self._release(self._running[last])
                    alive = alive[of_job[alive] != last]
                    continue
                one.held_tokens += rows
                break
        return alive

    def _release(self, one: _Running) -> None:
        self._cache.take(-one.held_tokens)
        one.held_tokens = 0

    def _per_row(self, values: Sequence[float]) -> npt.NDArray[np.float64 | np.int64]:
        return np.repeat(np.array(values), [one.job.samples for one in self._running])


def _zeros(rows: int) -> Rows:
    return np.zeros(rows, np.int64)
