"""What HTTP and gRPC have in common: who may, how much at once, admit, hand on, answer, count."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from otel_rl.bridge.counters import Counter, Counters, Outcome, Where
from otel_rl.bridge.receive.admit import Admitted, admit, memory_of
from otel_rl.bridge.receive.body import Held, InFlight
from otel_rl.bridge.receive.experiments import Experiments, Newcomers
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.otlp_json import memory_of_json, parse_json
from otel_rl.bridge.receive.overflow import Overflow
from otel_rl.bridge.receive.parsing import Parsing
from otel_rl.bridge.receive.refusals import MAX_MESSAGE_BYTES, shorten
from otel_rl.bridge.receive.rules import Problem
from otel_rl.bridge.receive.shares import Shares, token_of
from otel_rl.bridge.receive.signals import SIGNALS, ExportRequest
from otel_rl.bridge.receive.status import UNFORESEEN, Answer, answer_to
from otel_rl.bridge.receive.tokens import AuthSettings, Grant, Tokens
from otel_rl.bridge.receive.turns import Turns
from otel_rl.bridge.receive.wire import worst_bytes
from otel_rl.errors import MalformedRequest
from otel_rl.records import Batch, ExperimentKey, Signal

__all__ = ["Intake"]

_log = logging.getLogger(__name__)

_MESSAGES_PER_OBJECT = 2  # what one object of JSON costs in memory and time, at least

# Large requests that wait take at most one thread in so many: the others are for all that come.
_THREADS_OF_ONE_LARGE = 8

_LOG_INTERVAL_S = 60.0  # a sender retries every second; its error is worth one line a minute


class Intake:
    """Takes requests from any thread and hands what is admitted to ``accept``.

    One for all servers of a bridge, so that its bounds hold for all of them together.

    Args:
        accept: Makes the batches of a request durable before it returns. Called from many threads
            at once, so that those which wait for the disk together share one fsync. Raises
            JournalFull or JournalClosed where it cannot; then the sender tries again.
        limits: Bounds on requests.
        counters: Counts every request and what is in it.
        clock_ns: The bridge's own clock.
        tokens: Says who may write what; nobody is asked if not given.
        experiments: Bounds their number.
        overflow: Points that were dropped after their request was answered.
        problem: Why nothing can be taken until a person does something; empty if it can.
        shares: What each token has of the bounds.
    """

    def __init__(
        self,
        *,
        accept: Callable[[Sequence[Batch]], None],
        limits: ReceiveLimits,
        counters: Counters,
        clock_ns: Callable[[], int] = time.time_ns,
        tokens: Tokens | None = None,
        experiments: Experiments | None = None,
        overflow: Overflow | None = None,
        problem: Callable[[], str] = str,
        shares: Shares | None = None,
    ) -> None:
        self.problem = problem
        self.limits = limits
        self._accept = accept
        self._counters = counters
        self._clock_ns = clock_ns
        self._tokens = tokens or Tokens(AuthSettings())
        self._overflow = overflow or Overflow()
        self._experiments = experiments or Experiments(limits.max_experiments, shares=shares)
        self._in_flight = InFlight(
            limits.max_in_flight_bytes,
            shares,
            # The largest request is there as it came and decompressed.
            for_all_bytes=2 * limits.max_body_bytes,
        )
        cores = os.cpu_count() or 1
        self._unpacking = Turns(cores)
        self._parsing = Parsing(
            limits.max_parsing_bytes,
            cores=cores,
            max_waiting=max(1, limits.max_concurrent_requests // _THREADS_OF_ONE_LARGE),
            timeout_s=limits.body_timeout_s,
        )
        # _lock guards _next_log_s.
        self._lock = threading.Lock()
        self._next_log_s = 0.0

    @property
    def wants_token(self) -> bool:
        """Whether a request needs a bearer token."""
        return self._tokens.are_needed

    def grant(self, authorization: str | None) -> Grant | None:
        """What a request may write, by its ``Authorization``; None for anything.

        Raises:
            Unauthenticated: It has no token that is known.
        """
        return self._tokens.grant(authorization)

    def hold(self, grant: Grant | None = None) -> AbstractContextManager[Held]:
        """A request's share of the bytes in flight, given back at the end of the block."""
        return self._in_flight.hold(token_of(grant))

    def take(
        self,
        signal: Signal,
        unpack: Callable[[], ExportRequest | bytes],
        grant: Grant | None = None,
        *,
        is_json: bool = False,
    ) -> Admitted:
        """Admit a request and make it durable. Blocks for the disk.

        Counts what is in it once it is durable: what is sent again because of an error is not
        counted twice.

        Args:
            signal: Whose request it is.
            unpack: Gives the request as protobuf bytes, as JSON or as a message. Few are called at
                a time.
            grant: What it may write.
            is_json: Whether it is JSON.

        Raises:
            RequestError: The sender should not send this again.
            Overloaded: The sender should send this again.
            JournalError: The sender should send this again.
        """
        now_ns = self._clock_ns()
        token = token_of(grant)
        with self._unpacking.turn(token):
            unpacked = unpack()
        payload = unpacked if isinstance(unpacked, bytes) else unpacked.SerializeToString()
        with self._experiments.request(token) as newcomers:
            memory_bytes, is_weighed = self._memory_of(signal, payload, is_json=is_json)
            admission = partial(_problem, grant, newcomers)
            with self._parsing.hold(memory_bytes):
                request = self._from_json(signal, payload) if is_json else payload
                admitted = admit(
                    signal, request, self.limits, now_ns, admission, is_weighed=is_weighed
                )
            if admitted.batches:
                self._accept(admitted.batches)
                newcomers.keep(batch.experiment for batch in admitted.batches)
        self._count(signal, admitted)
        points, message = self._overflow.take(admitted.batches)
        if not points:
            return admitted
        message = shorten(f"{message} {admitted.message}".rstrip(), MAX_MESSAGE_BYTES)
        return replace(admitted, dropped_earlier=points, message=message)

    def count(self, outcome: Outcome) -> None:
        """Count a request that never came as far as ``take``."""
        self._counters.add(Counter.REQUESTS, reason=outcome)

    def answer(self, error: Exception, where: Where) -> tuple[Answer, str]:
        """How to answer a request that ended in ``error``, and in what words. Counts it.

        An error that nobody foresaw is logged, at most once a minute, and not described to the
        sender: it may hold anything.
        """
        answer = answer_to(error)
        self.count(answer.outcome)
        if answer is not UNFORESEEN:
            return answer, str(error)
        self._counters.add(Counter.EXCEPTIONS, reason=where)
        if self._may_log():
            _log.error("A request failed unexpectedly, the sender will retry.", exc_info=error)
        return answer, "The bridge failed to store the request. Its log says why."

    def _memory_of(self, signal: Signal, payload: bytes, *, is_json: bool) -> tuple[int, bool]:
        """What a request will take when it is parsed, in bytes, and whether it was counted.

        Large ones are counted by turns.
        """
        if is_json:
            return memory_of_json(payload, max_objects=self._max_objects), False
        most = worst_bytes(len(payload))
        if self._parsing.is_small(most):
            return most, False
        with self._parsing.look(len(payload)):
            try:
                return memory_of(signal, payload, self.limits), True
            except MalformedRequest:
                return most, False  # some of it may be readable

    def _from_json(self, signal: Signal, payload: bytes) -> ExportRequest:
        return parse_json(signal, payload, max_objects=self._max_objects)

    @property
    def _max_objects(self) -> int:
        return max(1, self.limits.max_messages_per_request // _MESSAGES_PER_OBJECT)

    def _count(self, signal: Signal, admitted: Admitted) -> None:
        spec = SIGNALS[signal]
        self.count(Outcome.PARTIAL if admitted.message else Outcome.OK)
        self._counters.add(spec.accepted_counter, admitted.accepted)
        self._counters.add(Counter.LOGS_IGNORED, admitted.ignored)
        for (run, reason), n in admitted.refused_of_runs.items():
            # A run that is only ever refused is none, and would be remembered for ever.
            known = run if run is not None and self._experiments.knows(run) else None
            self._counters.add(spec.refused_counter, n, reason=reason, run=known)
        for reason, n in admitted.exemplars_refused.items():
            self._counters.add(Counter.EXEMPLARS_REFUSED, n, reason=reason)

    def _may_log(self) -> bool:
        now_s = time.monotonic()
        with self._lock:
            if now_s < self._next_log_s:
                return False
            self._next_log_s = now_s + _LOG_INTERVAL_S
            return True


def _problem(grant: Grant | None, newcomers: Newcomers, key: ExperimentKey) -> Problem:
    """Why nothing of ``key`` is taken: it is not the sender's to write, or there is no room."""
    forbidden = grant.problem(key) if grant is not None else None
    return forbidden or newcomers.problem(key)
