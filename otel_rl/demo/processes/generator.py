"""Process: samples completions from the newest available policy.

It represents a third-party inference server: it uses OpenTelemetry's API and not otel_rl. Its
telemetry gets into the run because the API is configured from outside.
"""

import itertools
import queue
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from otel_rl.demo.decoding import DecodeBatch, Job, KvCache
from otel_rl.demo.faults import Kind
from otel_rl.demo.generator_metrics import GeneratorMetrics, observe_process
from otel_rl.demo.messages import (
    Carrier,
    Completions,
    Finished,
    NewerThan,
    Request,
    Serving,
    Weights,
)
from otel_rl.demo.rpc import ControlClient, Remote
from otel_rl.demo.task import END, encode
from otel_rl.demo.transformer import Parameters


@dataclass(slots=True)
class _Task:
    """Running request of this replica."""

    request: Request
    arrived_s: float
    started_s: float
    job: Job
    tokenize_s: float
    span: Span


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Waiting request; its span is open if it was preempted."""

    request: Request
    arrived_s: float
    span: Span | None = None


class Generator:
    """Replica: a queue, a policy with its KV cache, and connections to the reward workers."""

    def __init__(self, control: ControlClient, metrics: GeneratorMetrics) -> None:
        settings = control.start.settings
        self._control = control
        self._metrics = metrics
        self._tracer = trace.get_tracer("otel_rl.demo.processes.generator")
        self._shape = settings.shape
        self._batch_limit = settings.batch_limit
        # A restarted replica must not repeat the samples of its predecessor.
        self._rng = np.random.default_rng([settings.seed, control.index, time.time_ns()])
        self._waiting: deque[_Waiting] = deque()
        self._least_cache_tokens = settings.request_tokens
        self._whole_cache_tokens = settings.cache_tokens
        self._version = 0
        self._pulled: SpanContext | None = None
        with metrics.phase("model_load"):
            checkpoint = Path(control.start.checkpoint).read_bytes()
            self._policy = Parameters.from_bytes(self._shape, checkpoint)
            self._cache = KvCache(settings.cache_tokens)
        metrics.phases()
        metrics.cache(self._cache)
        metrics.preemptions.add(0)
        metrics.policy_version.set(self._version)
        self._faults = control.faults
        self._served = 0
        self._sent = {digest(self._policy.to_bytes())}
        self._weight_store = Remote(control.address("weight_store"))
        travel = self._faults.message_travels
        self._reward_workers = itertools.cycle(
            [Remote(control.address("reward", i), travel) for i in range(settings.reward_workers)]
        )

    def run(self) -> None:
        self._control.send(Serving())
        begun_s = time.perf_counter()
        while True:
            waiting_s = time.perf_counter()
            with self._metrics.phase("sync_coordination"):
                going_on = self._wait_for_requests()
            idle_s = time.perf_counter() - waiting_s
            if not going_on:
                return
            with self._metrics.phase("weight_sync"):
                self._refresh_policy()
            self._serve_one_batch()
            # The next round begins here, and includes the reporting of this one.
            duration_s, begun_s = time.perf_counter() - begun_s, time.perf_counter()
            self._metrics.round(duration_s=duration_s, idle_s=idle_s)

    def _wait_for_requests(self) -> bool:
        """Take the arrived requests, at least one; False after Stop."""
        while True:
            try:
                message = self._control.inbox.get(block=not self._waiting)
            except queue.Empty:
                return True
            if message is None:
                return False
            if isinstance(message, Request):
                self._waiting.append(_Waiting(message, time.perf_counter()))
                self._metrics.queue_depth.add(1)

    def _refresh_policy(self) -> None:
        begun_ns = time.time_ns()
        with self._metrics.phase("weight_pull"):
            skipped = int(self._faults.size(Kind.STALE_POLICY) or 1) - 1
            newer = self._weight_store.call(NewerThan(self._version + skipped))
        if isinstance(newer, Weights):
            if self._faults.size(Kind.STALE_SERVER) is None:
                self._policy = Parameters.from_bytes(self._shape, newer.flat)
            self._check_weights(newer.stamp)
            self._version = newer.version
            self._metrics.policy_updates.add(1)
            self._metrics.policy_version.set(newer.version)
            self._pulled = self._close_pull(newer, begun_ns)

    def _check_weights(self, stamp: str) -> None:
        """Compare the weights that are served with what the trainer has signed."""
        sent, found = stamp.partition(";d=")[2], digest(self._policy.to_bytes())
        state = "equal" if found == sent else "stale" if found in self._sent else "different"
        self._sent.add(sent)
        self._metrics.weights_checked.add(1, {"rl.weights.state": state})

    def _close_pull(self, weights: Weights, begun_ns: int) -> SpanContext:
        """Record a span of the weight pull, linked to the trainer's push."""
        # A stamp begins with W3C trace context.
        traceparent = weights.stamp.partition(";")[0]
        context = propagate.extract({"traceparent": traceparent})
        push = trace.get_current_span(context).get_span_context()
        pull = self._tracer.start_span(
            "rl.sync",
            kind=SpanKind.CONSUMER,
            links=[Link(push)],
            attributes={"rl.policy.version": weights.version},
            start_time=begun_ns,
        )
        pull.end()
        return pull.get_span_context()

    def _serve_one_batch(self) -> None:
        self._lose_cache()
        batch = DecodeBatch(self._cache, self._policy, END, self._rng)
        tasks: list[_Task] = []
        while self._waiting and len(tasks) < self._batch_limit:
            waiting = self._waiting[0]
            request, arrived_s = waiting.request, waiting.arrived_s
            with self._metrics.phase("tokenize"):
                begun_s = time.perf_counter()
                prompt = encode(request.prompt)
                tokenize_s = time.perf_counter() - begun_s
            job = Job(
                prompt, request.samples, request.max_tokens, request.temperature, request.top_p
            )
            if not self._cache.has_room(len(prompt)):
                break
            self._waiting.popleft()
            self._metrics.queue_depth.add(-1)
            started_s = time.perf_counter()
            self._metrics.queue_duration.record(started_s - arrived_s)
            span = waiting.span or self._open_span(request)
            tasks.append(_Task(request, arrived_s, started_s, job, tokenize_s, span))
            with self._metrics.phase("action_select"), self._pace():
                batch.add(job)
        self._metrics.running.add(len(tasks))
        self._metrics.cache(self._cache)
        with self._metrics.phase("action_select"):
            batch.run(self._pace)
        finished_s = time.perf_counter()
        batch.release()
        self._metrics.cache(self._cache)
        for place in sorted(batch.preempted, reverse=True):
            self._wait_again(tasks[place])
        done = [place for place in range(len(tasks)) if place not in batch.preempted]
        for place in done:  # delivery is not part of sampling
            tasks[place].span.end()
        for place in done:
            task, tokens = tasks[place], batch.completions(place)
            with self._metrics.phase("replay"):
                self._deliver(task, tokens, batch.log_probabilities(place))
            self._record(task, tokens, batch.first_token_s, finished_s)
            self._served += 1
            limit = self._faults.size(Kind.CRASH_LOOP)
            if limit is not None and self._served >= limit:
                raise MemoryError("out of memory")

    def _pace(self) -> AbstractContextManager[None]:
        return self._faults.slowed(Kind.SLOW_GENERATION)

    def _wait_again(self, task: _Task) -> None:
        """Put a preempted request first in the queue, to be computed again from the beginning."""
        task.span.add_event("preempted")
        self._waiting.appendleft(_Waiting(task.request, task.arrived_s, task.span))
        self._metrics.running.add(-1)
        self._metrics.queue_depth.add(1)
        self._metrics.preemptions.add(1)

    def _lose_cache(self) -> None:
        """Shrink the cache, as if another process used the device's memory."""
        cache, factor = self._cache, self._faults.size(Kind.KV_THRASH)
        if factor is None or cache.limit_tokens < self._whole_cache_tokens:
            return
        cache.limit_tokens = max(self._least_cache_tokens, round(cache.limit_tokens / factor))

    def _open_span(self, request: Request) -> Span:
        return self._tracer.start_span(
            "rl.sample",
            context=propagate.extract(request.context),
            kind=SpanKind.CONSUMER,
            links=None if self._pulled is None else [Link(self._pulled)],
            attributes={"rl.policy.version": self._version, "rl.sample.count": request.samples},
        )

    def _deliver(
        self,
        task: _Task,
        tokens: tuple[tuple[int, ...], ...],
        log_probabilities: tuple[tuple[float, ...], ...],
    ) -> None:
        sampled = trace.set_span_in_context(task.span)
        with self._tracer.start_as_current_span(
            "replay", sampled, SpanKind.PRODUCER, attributes={"rl.phase": "replay"}
        ):
            next(self._reward_workers).call(
                Completions(
                    prompt=task.request.prompt,
                    prompt_tokens=tuple(task.job.prompt),
                    tokens=tokens,
                    log_probabilities=log_probabilities,
                    policy_version=self._version,
                    origin=_carried(sampled),
                    context=_carried(),
                )
            )
        self._control.send(Finished(task.request.number, sum(map(len, tokens))))

    def _record(
        self,
        task: _Task,
        tokens: tuple[tuple[int, ...], ...],
        first_token_s: float,
        finished_s: float,
    ) -> None:
        metrics = self._metrics
        lengths = [len(each) for each in tokens]
        metrics.running.add(-1)
        metrics.requests.add(1)
        metrics.samples.add(len(tokens))
        metrics.tokens.add(sum(lengths))
        metrics.sampling(task.request)
        metrics.tokenize_duration.record(task.tokenize_s)
        metrics.prompt_tokens.record(len(task.job.prompt))
        for length in lengths:
            metrics.response_tokens.record(length)
        metrics.first_token.record(first_token_s - task.arrived_s)
        metrics.request_duration.record(finished_s - task.arrived_s)
        metrics.sample_duration.record(finished_s - task.started_s)
        if max(lengths) > 1:
            metrics.per_token.record((finished_s - first_token_s) / (max(lengths) - 1))


def digest(flat: bytes) -> str:
    """Return that of ``otel_rl.lineage`` as a server without otel_rl computes it, of one array."""
    values = np.frombuffer(flat, np.float32)
    hashed = blake2b(f"0:{len(values)}\n".encode(), digest_size=8)
    if len(values) > 4096:
        values = values[:: -(-len(values) // 4096) | 1]
    bits = values.copy().view(np.uint32).astype(np.uint64)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    near[np.isnan(values)] = 0x7FC0
    hashed.update(near.astype("<u2").tobytes())
    return hashed.hexdigest()


def _carried(context: Context | None = None) -> Carrier:
    """Return a context, by default the current one, as the carrier of a message."""
    carrier: Carrier = {}
    propagate.inject(carrier, context)
    return carrier


def main() -> None:
    control = ControlClient("generator")
    observe_process()
    Generator(control, GeneratorMetrics()).run()


if __name__ == "__main__":
    main()
