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
from otel_rl.bridge.rows.steps.open_step import OpenStep, StepRow

__all__ = ["StepLog", "StepLogs", "WrittenSteps"]

_MOST_STEPS: Final = 1_000
"""Of a role. Fast loops make twenty steps a second: a worker may be a minute behind."""

_MOST_WASTE_BYTES: Final = 64 << 10
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
class _Written:
    """A step, encoded.

    Attributes:
        body: Without its row.
        row: That it has had. Whether the run has the row is known only after ``put``.
        part: Of the log that the step is in; 0 for none.
    """

    body: bytes
    row: StepRow | None
    part: int = 0

    def to_wire(self) -> tuple[bytes, wire.StepRow | None]:
        return self.body, None if self.row is None else self.row.to_wire()


@dataclass(slots=True)
class WrittenSteps:
    """Written steps of one role, within bounds: beyond them the lowest step is left.

    Attributes:
        left_through: The highest step that was left.
        size_bytes: Of the steps that are here.
    """

    left_through: int | None = None
    size_bytes: int = field(default=0, init=False)
    _steps: dict[int, _Written] = field(default_factory=dict)
    # Put or removed since the last part of the log.
    _changed: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._steps)

    def put(self, step: int, written: OpenStep, *, most: int, most_bytes: int) -> None:
        """Add a step that has a row now. The object becomes this one's.

        Args:
            step: Its number.
            written: The step.
            most: Number of steps to keep, at most.
            most_bytes: Of the steps to keep, encoded.
        """
        row, written.row = written.row, None
        body = wire.encode(wire.WrittenStep(wire.VERSION, written.to_wire()))
        self._keep(step, _Written(body, row))
        while len(self) > min(most, _MOST_STEPS) or self.size_bytes > most_bytes:
            lowest = min(self._steps)
            self._drop(lowest)
            self.leave_through(lowest)

    def take(self, step: int) -> OpenStep | None:
        """Remove and return a step; None if it is not here."""
        found = self._steps.get(step)
        if found is None:
            return None
        self._drop(step)
        taken = OpenStep.from_wire(wire.decode(found.body, wire.WrittenStep).step, _ANY_GROUP)
        taken.row = found.row
        return taken

    def has_left(self, step: int) -> bool:
        """Return whether a step that is not here may have had a row."""
        return self.left_through is not None and step <= self.left_through

    def leave_through(self, step: int | None) -> None:
        """Record that steps through this one may have had rows, beside those that are here."""
        if step is not None:
            self.left_through = max(step, step if self.left_through is None else self.left_through)

    def drop_from(self, first: int) -> None:
        """Remove the steps from this one on: they are of a previous pass."""
        for step in [step for step in self._steps if step >= first]:
            self._drop(step)

    def take_changes(self, number: int, *, whole: bool) -> Iterator[tuple[int, _Written | None]]:
        """Yield the steps for a part of the log; None for those that are here no more.

        Args:
            number: Of the part.
            whole: All that are here.
        """
        changed, self._changed = self._changed, set()
        for step in sorted(changed | self._steps.keys() if whole else changed):
            written = self._steps.get(step)
            if written is not None:
                written.part = number
            yield step, written

    def restore(
        self, step: int, kept: tuple[bytes, wire.StepRow | None] | None, part: int, groups: int
    ) -> None:
        """Restore a step of a part of the log, of a run with so many groups."""
        if kept is None:
            self._drop(step)
        else:
            body, row = kept
            OpenStep.from_wire(wire.decode(body, wire.WrittenStep).step, groups)
            restored = None if row is None else StepRow.from_wire(row)
            self._keep(step, _Written(body, restored, part))
        self._changed.clear()

    def parts(self) -> Iterable[int]:
        """Yield the part of the log that each step is in."""
        return (written.part for written in self._steps.values())

    def _keep(self, step: int, written: _Written) -> None:
        self._drop(step)
        self._steps[step] = written
        self.size_bytes += len(written.body)
        self._changed.add(step)

    def _drop(self, step: int) -> None:
        """Remove a step, also from the log, which may have it from before the last ``take``."""
        written = self._steps.pop(step, None)
        if written is not None:
            self.size_bytes -= len(written.body)
            self._changed.add(step)


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
            (name, step, None if written is None else written.to_wire())
            for name, role in roles.items()
            for step, written in role.take_changes(number, whole=whole)
        ]
        if not steps:
            return None
        self._next += 1
        self._sizes[number] = _size(steps)
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
        self._sizes[part.number] = _size(part.steps)
        with wire.refusing():
            for name, step, written in part.steps:
                roles[name].restore(step, written, part.number, groups)


def _size(steps: Iterable[tuple[str, int, tuple[bytes, wire.StepRow | None] | None]]) -> int:
    return sum(len(written[0]) for _, _, written in steps if written is not None)
