"""Written steps of the roles of a run: those that have a row, for samples that come late.

They are logged beside the state of a run, as points are in ``dedup_log.py``: a thousand steps are
too much to be written again with every commit. The log has parts. A part holds the steps that were
written since the one before, and names those that were taken again; it is needed as long as one of
its steps is as it says.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.steps.open_step import OpenStep

__all__ = ["StepLog", "StepLogs", "WrittenSteps"]

_MOST_STEPS: Final = 1_000
"""Of a role. Fast loops make twenty steps a second: a worker may be a minute behind."""

_MOST_BYTES: Final = 16 << 20
"""Of a role, encoded."""

_MOST_WASTE_BYTES: Final = 1 << 20
"""Of logged steps that were written again since, beside as many bytes as are needed."""

_ANY_GROUP: Final = 1 << 62


class StepLog(NamedTuple):
    """Part of the log, to be stored beside the state and passed to ``StepLogs.restore``.

    Attributes:
        number: Of the part.
        body: Opaque.
    """

    number: int
    body: bytes


@dataclass(slots=True)
class WrittenSteps:
    """Written steps of one role, within bounds: beyond them the lowest step is left.

    Attributes:
        left_through: The highest step that was left.
        size_bytes: Of the steps that are in the log.
    """

    left_through: int | None = None
    size_bytes: int = field(default=0, init=False)
    # Encoded, with the part of the log that each is in.
    _logged: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    # Since the last part of the log; None for a logged step that is written no more.
    _changes: dict[int, OpenStep | None] = field(default_factory=dict)
    _fresh: int = 0

    def __len__(self) -> int:
        return len(self._logged) + self._fresh

    def put(self, step: int, written: OpenStep, most: int) -> None:
        """Add a step that has a row now, of which there are at most so many."""
        self._drop(step)
        self._changes[step] = written
        self._fresh += 1
        while len(self) > min(most, _MOST_STEPS):
            self._leave_lowest()

    def take(self, step: int) -> OpenStep | None:
        """Remove and return a step; None if it is not here."""
        fresh = self._changes.get(step)
        if fresh is not None:
            self._drop(step)
            return fresh
        if step not in self._logged:
            return None
        body, _ = self._logged[step]
        self._drop(step)
        return OpenStep.from_wire(wire.decode(body, wire.WrittenStep).step, _ANY_GROUP)

    def has_left(self, step: int) -> bool:
        """Return whether a step that is not here may have had a row."""
        return self.left_through is not None and step <= self.left_through

    def leave_through(self, step: int | None) -> None:
        """Record that steps through this one may have had rows, beside those that are here."""
        if step is not None:
            self.left_through = max(step, step if self.left_through is None else self.left_through)

    def drop_from(self, first: int) -> None:
        """Remove the steps from this one on: they are of a previous pass."""
        for step in [step for step in self._steps() if step >= first]:
            self._drop(step)

    def take_changes(self, number: int, *, whole: bool) -> Iterator[tuple[int, bytes | None]]:
        """Yield the steps for a part of the log, encoded; None for those that are here no more.

        Args:
            number: Of the part.
            whole: All that are here.
        """
        changes, self._changes, self._fresh = self._changes, {}, 0
        if whole:
            changes = {**dict.fromkeys(self._logged), **changes}
        for step, written in changes.items():
            body = None
            if written is not None:
                body = wire.encode(wire.WrittenStep(wire.VERSION, written.to_wire()))
                self._keep(step, body, number)
            elif whole and step in self._logged:
                body, _ = self._logged[step]
                self._logged[step] = body, number
            yield step, body
        while self.size_bytes > _MOST_BYTES:
            self._leave_lowest()

    def restore(self, step: int, body: bytes | None, number: int, groups: int) -> None:
        """Restore a step of part ``number`` of the log, of a run with so many groups."""
        if body is None:
            self._drop(step)
        else:
            OpenStep.from_wire(wire.decode(body, wire.WrittenStep).step, groups)
            self._keep(step, body, number)
        self._changes.clear()

    def parts(self) -> Iterable[int]:
        """Yield the part of the log that each step is in."""
        return (number for _, number in self._logged.values())

    def _steps(self) -> list[int]:
        fresh = [step for step, written in self._changes.items() if written is not None]
        return [*self._logged, *fresh]

    def _leave_lowest(self) -> None:
        lowest = min(self._steps())
        self._drop(lowest)
        self.leave_through(lowest)

    def _keep(self, step: int, body: bytes, number: int) -> None:
        before, _ = self._logged.get(step, (b"", 0))
        self._logged[step] = body, number
        self.size_bytes += len(body) - len(before)

    def _drop(self, step: int) -> None:
        if self._changes.pop(step, None) is not None:
            self._fresh -= 1
        if step in self._logged:
            body, _ = self._logged.pop(step)
            self.size_bytes -= len(body)
            self._changes[step] = None


class StepLogs:
    """Log of the written steps of all roles of a run.

    Attributes:
        forgotten: The last part that is not needed any more; 0 for none.
    """

    def __init__(self) -> None:
        self.forgotten = 0
        self._next = 1
        # Bytes of the steps in each part, needed or not.
        self._sizes: dict[int, int] = {}

    def take(self, roles: Mapping[str, WrittenSteps]) -> StepLog | None:
        """Return the part of the changes since the last call; None without any."""
        number = self._next
        needed = sum(role.size_bytes for role in roles.values())
        whole = sum(self._sizes.values()) > 2 * needed + _MOST_WASTE_BYTES
        steps = [
            (name, step, body)
            for name, role in roles.items()
            for step, body in role.take_changes(number, whole=whole)
        ]
        if not steps:
            return None
        self._next += 1
        self._sizes[number] = sum(len(body) for _, _, body in steps if body)
        first = min((part for role in roles.values() for part in role.parts()), default=number)
        for part in [part for part in self._sizes if part < first]:
            del self._sizes[part]
            self.forgotten = max(self.forgotten, part)
        return StepLog(number, wire.encode(wire.StepPart(wire.VERSION, number, steps)))

    def restore(self, body: bytes, roles: Mapping[str, WrittenSteps], groups: int) -> None:
        """Restore a part, in the order of their numbers.

        Args:
            body: The part.
            roles: Of the run's state.
            groups: Number of its groups.

        Raises:
            StateRefused: It is something else.
        """
        part = wire.decode(body, wire.StepPart)
        self._next = max(self._next, part.number + 1)
        self._sizes[part.number] = sum(len(step) for _, _, step in part.steps if step)
        with wire.refusing():
            for name, step, written in part.steps:
                roles[name].restore(step, written, part.number, groups)
