"""Written steps of the roles of a run: those that have a row, for samples that come late.

They are logged beside the state of a run, as points are in ``dedup_log.py``: a thousand steps are
too much to be written again with every commit. The log has parts. A part holds the steps that were
written since the one before, and names those that were taken again; it is needed as long as one of
its steps is as it says.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_rl.bridge.journal.state import Count, Int64, Stored, decode, encode, refusing
from otel_rl.bridge.rows.steps.step import OpenStep, StepRow

__all__ = ["LogPart", "StepLog", "StepLogs", "WrittenSteps"]

_MOST_STEPS: Final = 1_000
"""Steps of a role. Fast loops make twenty steps a second: a worker may be a minute behind."""

_MOST_WASTE_BYTES: Final = 64 << 10
"""Size of logged steps that were written again since, beside as many bytes as are needed."""


class StepLog(NamedTuple):
    """Part of the log, to be stored beside the state and passed to ``StepLogs.restore``."""

    number: int
    body: bytes


@dataclass(slots=True)
class _Written:
    """A step, encoded.

    Attributes:
        body: Without its row.
        row: The row that it has had. Whether the run has it is known only after ``put``.
        part: Number of the log's part with the step; 0 for none.
    """

    body: bytes
    row: StepRow | None
    part: int = 0


class WrittenSteps(Stored, dict=True):
    """Written steps of one role, within bounds: beyond them the lowest step is left.

    Stored without the steps, which are in the log.

    Attributes:
        left_through: The highest step that was left.
        size_bytes: Size of the steps that are here.
        unrestored: Number of steps that are to be restored from the log.
    """

    left_through: Int64 | None = None
    _number: Count = 0  # of the steps that are here

    def __post_init__(self) -> None:
        self.unrestored, self._number = self._number, 0
        self.size_bytes = 0
        self._steps: dict[int, _Written] = {}
        # Put or removed since the last part of the log.
        self._changed: set[int] = set()

    def __len__(self) -> int:
        return self._number

    def put(self, step: int, written: OpenStep, *, most: int, most_bytes: int) -> None:
        """Add a step that has a row now. The object becomes this one's."""
        row, written.row = written.row, None
        self._keep(step, _Written(encode(written), row))
        while len(self) > min(most, _MOST_STEPS) or self.size_bytes > most_bytes:
            lowest = min(self._steps)
            self._drop(lowest)
            self.leave_through(lowest)

    def take(self, step: int) -> OpenStep | None:
        found = self._steps.get(step)
        if found is None:
            return None
        self._drop(step)
        taken = decode(found.body, OpenStep)
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
        """Yield the steps for a part of the log; None for those that are here no more."""
        changed, self._changed = self._changed, set()
        for step in sorted(changed | self._steps.keys() if whole else changed):
            written = self._steps.get(step)
            if written is not None:
                written.part = number
            yield step, written

    def restore(
        self, step: int, kept: tuple[bytes, StepRow | None] | None, part: int, groups: int
    ) -> None:
        """Restore a step of a part of the log, of a run with so many groups."""
        if kept is None:
            self._drop(step)
        else:
            body, row = kept
            decode(body, OpenStep).check(groups)
            self._keep(step, _Written(body, row, part))
        self._changed.clear()

    def parts(self) -> Iterable[int]:
        return (written.part for written in self._steps.values())

    def _keep(self, step: int, written: _Written) -> None:
        self._drop(step)
        self._steps[step] = written
        self._number += 1
        self.size_bytes += len(written.body)
        self._changed.add(step)

    def _drop(self, step: int) -> None:
        """Remove a step, also from the log, which may have it from before the last ``take``."""
        written = self._steps.pop(step, None)
        if written is not None:
            self._number -= 1
            self.size_bytes -= len(written.body)
            self._changed.add(step)


class LogPart(Stored):
    """Part of the log: role, number and encoded step with its row; None where it is left."""

    number: Count
    steps: Sequence[tuple[str, Int64, tuple[bytes, StepRow | None] | None]]


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
            (name, step, None if written is None else (written.body, written.row))
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
        return StepLog(number, encode(LogPart(number, steps)))

    def restore(self, body: bytes, roles: Mapping[str, WrittenSteps], groups: int) -> None:
        """Restore a part, in the order of their numbers.

        Raises:
            StateRefused: It is something else.
        """
        part = decode(body, LogPart)
        self._next = max(self._next, part.number + 1)
        self._sizes[part.number] = _size(part.steps)
        with refusing():
            for name, step, written in part.steps:
                roles[name].restore(step, written, part.number, groups)


def _size(steps: Iterable[tuple[str, int, tuple[bytes, StepRow | None] | None]]) -> int:
    return sum(len(written[0]) for _, _, written in steps if written is not None)
