"""Rollouts of a run by identity, for the page: those in flight, and those that have ended.

    rl.rollout.progress ─> in flight ─ end, or end of its worker ─┐
    rl.rollout.sample ───────────────────────────────────────────> finished ─ commit ─> Log.ROLLOUTS

A finished rollout is stored as a *head*, by which it is found, and separately its texts. So the
heads of 100,000 rollouts are read without the texts. The rollouts in flight are one part of a log,
written when it has changed.
"""

import json
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from otel_rl.bridge.journal.log import Appended, KeptParts
from otel_rl.bridge.journal.state import (
    Count,
    Int64,
    Number,
    StateRefused,
    Stored,
    compress,
    decode,
    decompress,
    encode,
)
from otel_rl.bridge.rows.series.streams import WorkerStanding, WorkerState
from otel_rl.records import TextSample, Value, Worker
from otel_rl.semconv.outcomes import Outcome

MAX_IN_FLIGHT: Final = 4_096
"""Of a run. They are written anew whenever one of them makes progress: up to 1 MB."""

ANSWERS: Final = ("messages", "completion", "response", "answer", "output")
"""Fields with what a policy has said; the first that a sample has counts."""

_PART: Final = 256
"""Rollouts whose texts are read together."""

_MAX_ENDED: Final = 8_192
"""Ended ones that are remembered: progress that was overtaken by its end does not revive them."""

_MAX_NAME: Final = 128
_MAX_BEGINNING: Final = 96
_LENGTH: Final = struct.Struct(">II")

_IDS: Final = ("id", "rollout_id", "_ng_rollout_id")
"""The last is NeMo Gym's."""

Identity = tuple[str, int]


class InFlight(Stored):
    """A rollout that has begun and not ended.

    Attributes:
        role: Role of the rollout's worker.
        worker: ``<role>/<index>``.
        instance: ``service.instance.id`` of the worker.
        stage: Current phase, or stage that the program named; empty between two.
        begun_ns: Time at which the rollout began, by the worker's clock.
        progress_ns: Time of the last change of the stage, by the worker's clock.
        shift_ns: Nanoseconds to add to these times to compare them with other workers'.
    """

    id: str
    attempt: Int64
    role: str
    worker: str
    instance: str
    stage: str
    begun_ns: Int64
    progress_ns: Int64
    shift_ns: Int64 = 0
    step: Int64 | None = None
    environment: str = ""
    group: str = ""
    prompt: str = ""

    @property
    def identity(self) -> Identity:
        return self.id, self.attempt


class Head(Stored, gc=False):
    """Fields by which a finished rollout is found; empty or None where the sample lacks them.

    Attributes:
        id: Empty for a sample without identity.
        prompt: Digest of the prompt; 0 without one.
        answer: Digest of the answer; 0 without one.
        length: Length of the answer, in characters.
        table: Tracker key of the rollout's table.
        worker: ``<role>/<index>``.
    """

    id: str
    attempt: Int64
    step: Int64 | None
    time_ns: Int64
    reward: Number | None
    advantage: Number | None
    outcome: str
    reason: str
    environment: str
    group: str
    prompt: Int64
    beginning: str
    answer: Int64
    length: Count
    table: str
    worker: str


class KeptRollouts(KeptParts):
    """Stored rollouts of a run: the parts hold the finished ones.

    Attributes:
        forgotten: Number of finished rollouts that were forgotten.
        open_ns: Number of the last written part with rollouts in flight; 0 before one.
        unshown: Number of rollouts that found no room among those in flight.
    """

    forgotten: Count = 0
    open_ns: Int64 = 0
    unshown: Count = 0


class Finished(NamedTuple):
    """A finished rollout before it is stored."""

    head: Head
    fields: Mapping[str, Value]


class Rollouts:
    """Rollouts of one run. One thread.

    Args:
        kept: Stored rollouts of the run; None for a new run.

    Attributes:
        kept: Rollouts as they are stored.
        newly_unshown: Number of rollouts that found no room in flight since this was last read.
        newly_forgotten: Number of finished rollouts that were forgotten since this was last read.
        newly_folded: Number of finished rollouts without room in a tracker's table since this was
            last read.
    """

    def __init__(self, kept: KeptRollouts | None = None) -> None:
        self.kept = kept or KeptRollouts()
        self.newly_unshown = self.newly_forgotten = self.newly_folded = 0
        self._open: dict[Identity, InFlight] = {}
        self._unshown: OrderedDict[Identity, int] = OrderedDict()
        self._ended: OrderedDict[Identity, int] = OrderedDict()
        self._finished: list[Finished] = []
        self._has_changed = False

    @property
    def in_flight(self) -> Sequence[InFlight]:
        return [*self._open.values()]

    def progress(self, sample: TextSample, worker: WorkerState) -> None:
        """Record the progress of a rollout.

        A report older than the known progress changes nothing.
        """
        identity = identity_of(sample.fields)
        begun_ns = _ns(sample.fields.get("begun_ns"), sample.time_ns)
        if identity is None or begun_ns <= self._ended.get(identity, 0):
            return
        known = self._open.get(identity)
        if known is None and len(self._open) >= MAX_IN_FLIGHT:
            if identity not in self._unshown:
                self.newly_unshown += 1
                self.kept.unshown += 1
                _remember(self._unshown, identity, begun_ns)
            return
        progress_ns = _ns(sample.fields.get("progress_ns"), sample.time_ns)
        if known is not None and known.progress_ns > progress_ns:
            return
        told = InFlight(
            *identity,
            worker.role,
            f"{worker.role}/{worker.label}",
            sample.worker.instance,
            _name(sample.fields.get("stage")),
            begun_ns,
            progress_ns,
            worker.shift_ns,
            sample.step,
            _name(sample.fields.get("environment")),
            _name(sample.fields.get("group")),
            _text(sample.fields.get("prompt"))[: 2 * _MAX_NAME],
        )
        if told != known:  # a worker tells those without progress again and again
            self._open[identity] = told
            self._has_changed = True

    def finish(self, sample: TextSample, worker: WorkerState, table: str) -> None:
        """Record a finished rollout, or a further record of one."""
        identity = identity_of(sample.fields)
        if identity is not None:
            if self._open.pop(identity, None) is not None:
                self._has_changed = True
            _remember(self._ended, identity, sample.time_ns)
        name = f"{worker.role}/{worker.label}"
        head = head_of(sample.fields, identity, sample.step, sample.time_ns, table, name)
        self._finished.append(Finished(head, sample.fields))

    def end_lost(self, states: Mapping[Worker, WorkerState], now_ns: int) -> None:
        """End rollouts whose worker has ended or is lost. A worker that returns resumes its own."""
        if not self._open:
            return
        living = {
            (worker.role, worker.instance)
            for worker, state in states.items()
            if state.standing in {WorkerStanding.NEW, WorkerStanding.ALIVE}
        }
        for one in self.in_flight:
            if (one.role, one.instance) in living:
                continue
            del self._open[one.identity]
            self._has_changed = True
            fields: dict[str, Value] = {
                "id": one.id,
                "attempt": one.attempt,
                "prompt": one.prompt,
                "environment": one.environment,
                "group": one.group,
                "outcome": str(Outcome.CANCELLED),
                "reason": f"its worker {one.worker} ended in {one.stage or 'no stage'}",
            }
            fields = {name: value for name, value in fields.items() if value != ""}
            head = head_of(fields, one.identity, one.step, now_ns, "", one.worker)
            self._finished.append(Finished(head, fields))

    def take_finished(self, now_ns: int, max_bytes: int) -> Appended | None:
        """Return the rollouts that finished since the last call as a part of the log."""
        finished, self._finished = self._finished, []
        if not finished or not max_bytes:
            return None
        now_ns, body = self.kept.next_ns(now_ns), encoded(finished)
        forgotten = self.kept.keep(now_ns, len(body), len(finished), max_bytes)
        self.kept.forgotten += forgotten
        self.newly_forgotten += forgotten
        return Appended(now_ns, body)

    def take_open(self, now_ns: int) -> Appended | None:
        """Return rollouts in flight as a part that replaces the last one; None if none changed."""
        if not self._has_changed:
            return None
        self._has_changed = False
        self.kept.open_ns = max(now_ns, self.kept.open_ns + 1)
        return Appended(self.kept.open_ns, compress(encode(self.in_flight)))

    def restore_open(self, body: bytes) -> None:
        self._open = {one.identity: one for one in read_in_flight(body)}


def identity_of(fields: Mapping[str, Value]) -> Identity | None:
    """Return id and attempt of a sample; None if it has no id."""
    for name in _IDS:
        given = fields.get(name)
        if isinstance(given, str | int) and not isinstance(given, bool) and given != "":
            attempt = fields.get("attempt")
            if not isinstance(attempt, int):
                of_gym = fields.get("_ng_attempt_index")
                attempt = of_gym + 1 if isinstance(of_gym, int) else 1
            return str(given)[:_MAX_NAME], max(-(1 << 62), min(attempt, 1 << 62))
    return None


class Part(NamedTuple):
    """Several finished rollouts as they are stored; the texts are compressed.

    Attributes:
        heads: Heads of the rollouts, in order.
        texts: Compressed texts, which ``fields`` decodes.
    """

    heads: Sequence[Head]
    texts: bytes

    def raw(self) -> bytes:
        """Return the encoded texts; nothing if they cannot be read."""
        try:
            return decompress(self.texts)
        except StateRefused:
            return b""

    def fields(self) -> Sequence[Mapping[str, Any]]:
        """Return the fields of each rollout.

        Raises:
            StateRefused: The bytes are not texts of rollouts.
        """
        return decode(decompress(self.texts), list[dict[str, Any]])


def parts_of(body: bytes) -> Iterator[Part]:
    """Yield the parts of a record of the log.

    Raises:
        StateRefused: The bytes are not a record of the log.
    """
    place = 0
    while place < len(body):
        if len(body) < place + _LENGTH.size:
            raise StateRefused("it breaks off")
        heads, texts = _LENGTH.unpack_from(body, place)
        place += _LENGTH.size
        if len(body) < place + heads + texts:
            raise StateRefused("it breaks off")
        found = decode(decompress(body[place : place + heads]), list[Head])
        yield Part(found, body[place + heads : place + heads + texts])
        place += heads + texts


def read_in_flight(body: bytes) -> Sequence[InFlight]:
    """Undo ``Rollouts.take_open``."""
    return decode(decompress(body), list[InFlight])


def encoded(finished: Sequence[Finished]) -> bytes:
    """Encode a record of the log, see ``parts_of``."""
    return b"".join(_part(finished[at : at + _PART]) for at in range(0, len(finished), _PART))


def _part(some: Sequence[Finished]) -> bytes:
    heads = compress(encode([one.head for one in some]))
    texts = compress(encode([dict(one.fields) for one in some]))
    return _LENGTH.pack(len(heads), len(texts)) + heads + texts


def head_of(
    fields: Mapping[str, Value],
    identity: Identity | None,
    step: int | None,
    time_ns: int,
    table: str,
    worker: str,
) -> Head:
    prompt = fields.get("prompt")
    answer = next((fields[name] for name in ANSWERS if fields.get(name) is not None), None)
    given = fields.get("step")
    if step is None and isinstance(given, int) and -(1 << 63) <= given < 1 << 63:
        step = given
    return Head(
        *(identity or ("", 1)),
        step,
        time_ns,
        _number(fields.get("reward")),
        _number(fields.get("advantage")),
        _name(fields.get("outcome")),
        _name(fields.get("reason")),
        _name(fields.get("environment")),
        _name(fields.get("group")),
        0 if prompt is None else _digest(prompt),
        "" if prompt is None else _beginning(_text(prompt)),
        0 if answer is None else _digest(answer),
        0 if answer is None else len(_text(answer)),
        table,
        worker,
    )


def _beginning(prompt: str) -> str:
    """Return the beginning of a prompt; for a conversation, that of its last message."""
    if prompt.startswith("["):
        try:
            last = json.loads(prompt)[-1]["content"]
        except (ValueError, LookupError, TypeError, RecursionError):
            last = None
        if isinstance(last, str):
            prompt = last
    return " ".join(prompt[: 2 * _MAX_BEGINNING].split())[:_MAX_BEGINNING]


def _number(value: Value) -> float | None:
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return None
    return None


def _text(value: Value) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _name(value: Value) -> str:
    return _text(value)[:_MAX_NAME]


def _digest(value: Value) -> int:
    text = _text(value).encode(errors="replace")
    return (int.from_bytes(blake2b(text, digest_size=8).digest()) >> 2) + 1


def _ns(value: Value, default_ns: int) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 63 else default_ns


def _remember(known: "OrderedDict[Identity, int]", identity: Identity, time_ns: int) -> None:
    known[identity] = time_ns
    known.move_to_end(identity)
    while len(known) > _MAX_ENDED:
        known.popitem(last=False)
