"""Rollouts of a run by identity: those in flight, and those that have ended, for the page.

    rl.rollout.progress ─> in flight ─ end, or end of its worker ─┐
    rl.rollout.sample ───────────────────────────────────────────> finished ─ commit ─> Log.ROLLOUTS

A finished one is stored as a *head*, by which it is found, and apart from it its texts. So the
heads of 100,000 rollouts are read without the texts. What is in flight is one part of a log,
written when it has changed.
"""

import json
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, NamedTuple

from msgspec import field

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

__all__ = [
    "ANSWERS",
    "MAX_IN_FLIGHT",
    "Finished",
    "Head",
    "InFlight",
    "KeptRollouts",
    "Part",
    "Rollouts",
    "encoded",
    "head_of",
    "identity_of",
    "parts_of",
    "read_in_flight",
]

MAX_IN_FLIGHT: Final = 4_096
"""Of a run. They are written anew whenever one of them makes progress: up to 1 MB."""

ANSWERS: Final = ("messages", "completion", "response", "answer", "output")
"""Fields with what a policy has said; the first that a sample has counts."""

_PART: Final = 256
"""Rollouts whose texts are read together."""

_MAX_PARTS: Final = 64
"""Sizes that are remembered: so much of the oldest goes at a time."""

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
        role: Of its worker.
        worker: ``<role>/<index>``.
        instance: Of its worker.
        stage: Phase, or what the program named; empty between two.
        begun_ns: By the worker's clock.
        progress_ns: Last change of the stage, by the worker's clock.
        shift_ns: What is added to these times to compare them with other workers'.
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
    """What a finished rollout is found by; empty and None where it does not say.

    Attributes:
        id: Empty for a sample without identity.
        prompt: Digest of the prompt; 0 without one.
        beginning: Of the prompt.
        answer: Digest of the answer; 0 without one.
        length: Of the answer, in characters.
        table: Tracker key of its table.
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


class KeptRollouts(Stored):
    """What the journal has of the rollouts of a run.

    Attributes:
        parts: Newest time, bytes and rollouts of each part of the log, or of merged parts.
        forgotten_ns: Finished rollouts up to this time are not kept any more.
        forgotten: Number of these.
        open_ns: Number of the last written part with those in flight; 0 before one.
        unshown: Rollouts that found no room among those in flight.
    """

    parts: list[tuple[Int64, Count, Count]] = field(default_factory=list)
    forgotten_ns: Int64 = 0
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
        kept: What the journal has; None for a new run.

    Attributes:
        kept: What is stored.
        newly_unshown: Rollouts that found no room in flight since this was read.
        newly_forgotten: Finished ones that were forgotten since this was read.
        newly_folded: Finished ones that a tracker's table has no room for, since this was read.
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
        """Take the progress of one. What is older than what is known changes nothing."""
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
        """Take a finished one, or a further record of it."""
        identity = identity_of(sample.fields)
        if identity is not None:
            if self._open.pop(identity, None) is not None:
                self._has_changed = True
            _remember(self._ended, identity, sample.time_ns)
        name = f"{worker.role}/{worker.label}"
        head = head_of(sample.fields, identity, sample.step, sample.time_ns, table, name)
        self._finished.append(Finished(head, sample.fields))

    def end_lost(self, states: Mapping[Worker, WorkerState], now_ns: int) -> None:
        """End those whose worker has ended or is lost. One that comes back takes them up again."""
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

    def take_finished(self, now_ns: int, max_bytes: int) -> tuple[int, bytes] | None:
        """Return the finished ones since the last call as a part of the log."""
        finished, self._finished = self._finished, []
        if not finished or not max_bytes:
            return None
        parts = self.kept.parts
        now_ns = max(now_ns, parts[-1][0] + 1 if parts else 0)
        body = encoded(finished)
        parts.append((now_ns, len(body), len(finished)))
        if len(parts) > _MAX_PARTS:
            sizes = [one[1] + other[1] for one, other in pairwise(parts)]
            place = sizes.index(min(sizes))
            newest_ns, _, number = parts[place + 1]
            parts[place] = newest_ns, sizes[place], parts[place][2] + number
            del parts[place + 1]
        total = sum(size for _, size, _ in parts)
        while total > max_bytes and len(parts) > 1:
            self.kept.forgotten_ns, size, number = parts.pop(0)
            self.kept.forgotten += number
            self.newly_forgotten += number
            total -= size
        return now_ns, body

    def take_open(self, now_ns: int) -> tuple[int, bytes] | None:
        """Return those in flight as a part that replaces the one before; None without a change."""
        if not self._has_changed:
            return None
        self._has_changed = False
        self.kept.open_ns = max(now_ns, self.kept.open_ns + 1)
        return self.kept.open_ns, compress(encode(self.in_flight))

    def restore_open(self, body: bytes) -> None:
        self._open = {one.identity: one for one in read_in_flight(body)}


def identity_of(fields: Mapping[str, Value]) -> Identity | None:
    """Return id and attempt of a sample; None without an id."""
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
    """Some finished rollouts as they are stored; the texts are compressed.

    Attributes:
        heads: In order.
        texts: Decoded by ``fields``.
    """

    heads: Sequence[Head]
    texts: bytes

    def raw(self) -> bytes:
        """Return the texts as they are encoded; nothing if they cannot be read."""
        try:
            return decompress(self.texts)
        except StateRefused:
            return b""

    def fields(self) -> Sequence[Mapping[str, Any]]:
        """Return the fields of each.

        Raises:
            StateRefused: The bytes are something else.
        """
        return decode(decompress(self.texts), list[dict[str, Any]])


def parts_of(body: bytes) -> Iterator[Part]:
    """Yield the parts of a record of the log.

    Raises:
        StateRefused: The bytes are something else.
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
    """Return what a sample of these fields is found by."""
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
    """Return the beginning of a prompt, of a conversation that of its last message."""
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
