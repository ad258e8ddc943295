"""Common path of HTTP and gRPC: authorise, bound, parse, validate, store, answer, count."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from otel_rl.bridge.counters import Counter, Counters, Outcome, Refusal, Where
from otel_rl.bridge.once_a_minute import OnceAMinute
from otel_rl.bridge.otlp.columns import InDoubt
from otel_rl.bridge.receive.answers import UNFORESEEN, Answer, Overflow, answer_to
from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.experiments import Experiments, Newcomers
from otel_rl.bridge.receive.gate import Gate, Held, InFlight, Sender
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.otlp_json import parse_json
from otel_rl.bridge.receive.refused_items import MAX_MESSAGE_BYTES, shorten
from otel_rl.bridge.receive.rules import Problem
from otel_rl.bridge.receive.signal_specs import SIGNALS, ExportRequest
from otel_rl.bridge.receive.tokens import Grant, Tokens, token_of
from otel_rl.bridge.receive.validate import Admission, Validated, validate, validate_known
from otel_rl.errors import Unauthenticated
from otel_rl.records import Batch, ExperimentKey, Signal

_log = logging.getLogger(__name__)

# A request of usual size. If all in it is known, it takes about a millisecond; one that costs most
# for its size, 15. So few are read in a round of the event loop, and the rest in threads, by turns.
_SHORT_BYTES = 16 << 10
_ROUND_S = 0.01

_MESSAGES_PER_OBJECT = 2  # lower bound of the cost of one JSON object in memory and time

# Parts of the largest request: a token may have a quarter in work, and no request counts as less
# than a sixteenth. A thread holds the interpreter while it parses, so more at once make none
# faster, and each, with the event loop and the row thread, waits for the others to get to it.
_OWN, _LEAST = 4, 16

# JSON becomes objects of Python, which take more time and memory than protobuf.
_WEIGHT_OF_JSON = 8

_TOLD = frozenset({Refusal.NO_EXPERIMENT, Refusal.NOT_ALLOWED, Refusal.WRONG_TEAM})


class _Round(threading.local):
    """One round of a server's event loop.

    Attributes:
        spent_s: CPU time that the round has spent on reading requests.
    """

    spent_s = 0.0

    def end(self) -> None:
        self.spent_s = 0.0


@dataclass(frozen=True, slots=True)
class Storage:
    """Destination of the batches of requests.

    Attributes:
        keep: Makes the batches of a request durable, and completes a future, which is not
            cancelled. If it cannot, the error is JournalFull or JournalClosed; the sender then
            retries.
        problem: Returns why nothing is stored until an operator acts; empty if all is well.
        name: Returns the name under which a sender's run is stored; None if names stay the
            senders'.
    """

    keep: Callable[[Sequence[Batch]], Future[None]]
    problem: Callable[[], str] = str
    name: Callable[[ExperimentKey], ExperimentKey] | None = None


class IngestPipeline:
    """Takes requests from any thread and hands validated batches to the storage.

    All servers of a bridge share one pipeline, so that its bounds hold for all of them together.

    Args:
        tokens: Known tokens; None requires no token.
        experiments: Bounds the number of experiments.
        overflow: Points that were dropped after their request was answered.
        audit: Log of who writes which run.

    Attributes:
        notice: Text that an operator should see though requests are accepted; empty for none.
    """

    notice = ""

    def __init__(
        self,
        storage: Storage,
        limits: ReceiveLimits,
        counters: Counters,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        tokens: Tokens | None = None,
        experiments: Experiments | None = None,
        overflow: Overflow | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.storage = storage
        self.limits = limits
        self.tokens = tokens or Tokens(())
        self._names: dict[ExperimentKey, ExperimentKey] = {}
        self._counters = counters
        self._clock_ns = clock_ns
        self._overflow = overflow or Overflow()
        self._audit = audit or Audit()
        shares = self.tokens.shares
        self._experiments = experiments or Experiments(limits.max_experiments, shares=shares)
        self._in_flight = InFlight(
            limits.max_in_flight_bytes,
            shares,
            # The largest request is held both compressed and decompressed.
            for_all_bytes=2 * limits.max_body_bytes,
        )
        largest = limits.max_body_bytes
        self._gate = Gate(lambda _: largest // _OWN, least=largest // _LEAST)
        self._threads = ThreadPoolExecutor(
            limits.max_concurrent_requests, thread_name_prefix="otel-rl-intake"
        )
        self._storing: set[Future[None]] = set()
        self._round = _Round()
        self._log_lines = OnceAMinute()  # by reason, address and token

    def settle(self) -> None:
        wait([*self._storing])

    def close(self) -> None:
        self._threads.shutdown()

    def grant_to(self, host: str, target: str, authorization: str | None) -> Grant | None:
        """Return an export's grant, see ``Tokens.grant``; log senders without a known token."""
        try:
            grant = self.tokens.grant(authorization)
            if grant is not None and not grant.may_write:
                raise Unauthenticated(f"The bearer token of team {grant.name} may only read.")
        except Unauthenticated as exc:
            if self._log_lines.is_due("unauthenticated", host, exc.args[0]):
                _log.warning(
                    "A request from %s to %s is refused: %s Its sender loses the data, and so may "
                    "others; see `otel-rl help security`.",
                    host,
                    target,
                    exc.args[0],
                )
            raise
        return grant

    def hold(self, grant: Grant | None = None) -> AbstractContextManager[Held]:
        """Account for a request's bytes in flight until the end of the block."""
        return self._in_flight.hold(token_of(grant))

    async def unpacked(self, unpack: Callable[[], bytes], n_bytes: int, sender: Sender) -> bytes:
        """Return the result of ``unpack``, run in a thread when it is the sender's turn."""
        return await self._gate.run(sender, n_bytes, self._threads, unpack)

    async def taken(
        self,
        signal: Signal,
        payload: bytes,
        grant: Grant | None,
        *,
        is_json: bool = False,
        sender: Sender,
    ) -> Validated:
        """Do the same as ``take`` on an event loop.

        A short request that only has known identities is read at once: reading takes less time than
        handing it to a thread. Any other request is read in a thread when it is the sender's turn.
        """
        now_ns = self._clock_ns()
        with self._experiments.request(token_of(grant)) as newcomers:
            found = None
            if signal is Signal.METRICS and not is_json and len(payload) <= _SHORT_BYTES:
                found = self._read_if_known(payload, grant, now_ns)
            if found is None:
                admission = partial(_problem, grant, newcomers)
                read = partial(self._read, signal, payload, now_ns, admission, is_json=is_json)
                weight = len(payload) * (_WEIGHT_OF_JSON if is_json else 1)
                found = await self._gate.run(sender, weight, self._threads, read)
            runs, admitted = found
            if admitted.batches:
                await self._stored(admitted.batches)
                newcomers.keep(runs)
                self._audit.wrote(
                    grant,
                    sender[1],
                    signal=signal,
                    runs=[batch.experiment for batch in admitted.batches],
                    shares=self.tokens.shares,
                )
        return self._counted(signal, admitted, sender)

    def _read_if_known(
        self, payload: bytes, grant: Grant | None, now_ns: int
    ) -> tuple[Sequence[ExperimentKey], Validated] | None:
        """Read a request on the event loop; None if it is in doubt or the round has no time."""
        this_round = self._round
        if this_round.spent_s >= _ROUND_S:
            return None
        begun_s = time.thread_time()  # not the wait for other threads
        try:
            admission = partial(self._problem_if_known, grant)
            return self._named(validate_known(payload, self.limits, now_ns, admission))
        except InDoubt:
            return None
        finally:
            if not this_round.spent_s:
                asyncio.get_running_loop().call_soon(this_round.end)
            this_round.spent_s += time.thread_time() - begun_s

    async def _stored(self, batches: Sequence[Batch]) -> None:
        storing = self.storage.keep(batches)
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        try:
            await asyncio.wrap_future(storing)
        finally:
            del storing  # an error holds this frame, and with it the request

    def take(
        self,
        signal: Signal,
        payload: bytes,
        grant: Grant | None = None,
        *,
        is_json: bool = False,
        accept: Callable[[Sequence[Batch]], object] | None = None,
    ) -> Validated:
        """Validate a request and make it durable. Blocks for the disk.

        Items are counted once they are durable, so a retry after an error is not counted twice.

        Args:
            accept: Takes the batches of the request in place of the storage.

        Raises:
            RequestError: The sender should not send this again.
            Overloaded: The sender should send this again.
            JournalError: The sender should send this again.
        """
        now_ns = self._clock_ns()
        with self._experiments.request(token_of(grant)) as newcomers:
            admission = partial(_problem, grant, newcomers)
            runs, admitted = self._read(signal, payload, now_ns, admission, is_json=is_json)
            if admitted.batches:
                if accept is None:
                    self.storage.keep(admitted.batches).result()
                else:
                    accept(admitted.batches)
                newcomers.keep(runs)
        return self._counted(signal, admitted, (token_of(grant),))

    def _read(
        self,
        signal: Signal,
        payload: bytes,
        now_ns: int,
        admission: Admission,
        *,
        is_json: bool,
    ) -> tuple[Sequence[ExperimentKey], Validated]:
        request: ExportRequest | bytes = payload
        if is_json:
            request = parse_json(signal, payload, max_objects=self._max_objects)
        return self._named(validate(signal, request, self.limits, now_ns, admission))

    def _named(self, validated: Validated) -> tuple[Sequence[ExperimentKey], Validated]:
        """Return a request's runs under their sent and stored names, and the renamed result."""
        sent = dict.fromkeys(batch.experiment for batch in validated.batches)
        name = self.storage.name
        if name is None:
            return [*sent], validated
        for key in sent:
            if key not in self._names:
                self._names[key] = name(key)
        names = self._names
        if all(names[key] == key for key in sent):
            return [*sent], validated
        return [*sent, *(names[key] for key in sent)], replace(
            validated,
            batches=[replace(one, experiment=names[one.experiment]) for one in validated.batches],
            refused_of_runs={
                (None if run is None else names.get(run, run), reason): n
                for (run, reason), n in validated.refused_of_runs.items()
            },
        )

    def _counted(self, signal: Signal, admitted: Validated, sender: Sender) -> Validated:
        """Count a durable request, and add the losses of earlier requests to its answer."""
        self._count(signal, admitted, sender)
        points, message = self._overflow.take(admitted.batches)
        if not points:
            return admitted
        message = shorten(f"{message} {admitted.message}".rstrip(), MAX_MESSAGE_BYTES)
        return replace(admitted, dropped_earlier=points, message=message)

    def count(self, outcome: Outcome) -> None:
        self._counters.add(Counter.REQUESTS, reason=outcome)

    def count_failure(self, where: Where) -> None:
        self._counters.add(Counter.EXCEPTIONS, reason=where)

    def answer(self, error: BaseException, where: Where) -> tuple[Answer, str]:
        """Return the answer and its message for a request that ended in ``error``, and count it.

        An unforeseen error is logged, at most once a minute, and not described to the sender,
        because its text may contain anything.
        """
        answer = answer_to(error)
        self.count(answer.outcome)
        if answer is not UNFORESEEN:
            return answer, str(error)
        self.count_failure(where)
        if self._log_lines.is_due("unforeseen"):
            _log.error("A request failed unexpectedly, the sender will retry.", exc_info=error)
        return answer, "The bridge failed to store the request. See its log."

    def _problem_if_known(self, grant: Grant | None, key: ExperimentKey, team: str) -> Problem:
        """Return why nothing of a known run is accepted, without waiting.

        Raises:
            InDoubt: The run is not known.
        """
        if not self._experiments.knows(key) or (self.storage.name and key not in self._names):
            raise InDoubt
        return grant.problem(key, team) if grant is not None else None

    @property
    def _max_objects(self) -> int:
        return max(1, self.limits.max_messages_per_request // _MESSAGES_PER_OBJECT)

    def _count(self, signal: Signal, admitted: Validated, sender: Sender) -> None:
        spec = SIGNALS[signal]
        self.count(Outcome.PARTIAL if admitted.message else Outcome.OK)
        self._counters.add(spec.accepted_counter, admitted.accepted)
        if admitted.ignored:
            self._counters.add(Counter.LOGS_IGNORED, admitted.ignored)
        for (run, reason), n in admitted.refused_of_runs.items():
            # An unknown run is only ever refused, and would be kept in memory for ever.
            known = run if run is not None and self._experiments.knows(run) else None
            self._counters.add(spec.refused_counter, n, reason=reason, run=known)
        for reason, n in admitted.exemplars_refused.items():
            self._counters.add(Counter.EXEMPLARS_REFUSED, n, reason=reason)

        # No run shows it, and many senders do not print what they are answered.
        reasons = {reason for _, reason in admitted.refused_of_runs} & _TOLD
        token, host = (*sender, "")[:2]
        if any(self._log_lines.is_due(reason, host, token) for reason in reasons):
            _log.warning(
                "A part of a request from %s with %s is refused: %s",
                host or "an inbox",
                f"token {token}" if token else "no token",
                admitted.message,
            )


def _problem(grant: Grant | None, newcomers: Newcomers, key: ExperimentKey, team: str) -> Problem:
    """Return why nothing of ``key`` is accepted: not granted to the sender, or no room."""
    if grant is None:
        return newcomers.problem(key)
    return grant.problem(key, team) or newcomers.problem(key, grant.team(team))
