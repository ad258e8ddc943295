"""Steps of a run's roles that have a row, kept for samples that come late.

Written steps are logged beside the state of a run, as points are in ``dedup_log.py``: a thousand
steps are too much to be written again with every commit. A part of the log holds the steps that
were written since the part before, and names the steps that were removed again; the part is needed
as long as one of its steps is unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl.bridge.journal.log import Appended
from otel_rl.bridge.journal.state import Count, Int64, Stored, decode, encode, refusing
from otel_rl.bridge.rows.steps.step import OpenStep, StepRow

_MOST_STEPS: Final = 1_000
"""Steps of a role. Fast loops make twenty steps a second: a worker may be a minute behind."""

_MOST_WASTE_BYTES: Final = 64 << 10
"""Size of logged steps that were written again since, beside as many bytes as are needed."""


@dataclass(slots=True)
class _Written:
    """An encoded step.

    Attributes:
        body: The step without its row.
        row: The row that the step has got. Whether the run has stored it is known only after
            ``put``.
        part: Number of the log's part that has the step; 0 for none.
    """

    body: bytes
    row: StepRow | None
    part: int = 0


class WrittenSteps(Stored, dict=True):
    """Written steps of one role, within bounds: beyond them the lowest step is left out.

    The object is stored without its steps, which are in the log.

    Attributes:
        left_through: The highest step that was left out.
        unrestored: Number of steps that are still to be restored from the log.
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
        """Add a step that has a row now. The caller gives the object away."""
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
        """Return whether a step that is not kept may have had a row."""
        return self.left_through is not None and step <= self.left_through

    def leave_through(self, step: int | None) -> None:
        """Record that steps up to this one may have had rows, beside the kept steps."""
        if step is not None:
            self.left_through = max(step, step if self.left_through is None else self.left_through)

    def drop_from(self, first: int) -> None:
        """Remove the steps from ``first`` on, as they are of a previous pass."""
        for step in [step for step in self._steps if step >= first]:
            self._drop(step)

    def take_changes(self, number: int, *, whole: bool) -> Iterator[tuple[int, _Written | None]]:
        """Yield the changed steps for a part of the log; None for those that are gone."""
        changed, self._changed = self._changed, set()
        for step in sorted(changed | self._steps.keys() if whole else changed):
            written = self._steps.get(step)
            if written is not None:
                written.part = number
            yield step, written

    def restore(
        self, step: int, kept: tuple[bytes, StepRow | None] | None, part: int, groups: int
    ) -> None:
        """Restore a step from a part of the log; the run has ``groups`` groups."""
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
    """Part of the log: role, number, and the encoded step with its row; None for a removed step."""

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

    def take(self, roles: Mapping[str, WrittenSteps]) -> Appended | None:
        """Return the changes since the last call as a part of the log; None without changes."""
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
        return Appended(number, encode(LogPart(number, steps)))

    def restore(self, body: bytes, roles: Mapping[str, WrittenSteps], groups: int) -> None:
        """Restore one part; parts are restored in the order of their numbers.

        Raises:
            StateRefused: The bytes are not a part of the log.
        """
        part = decode(body, LogPart)
        self._next = max(self._next, part.number + 1)
        self._sizes[part.number] = _size(part.steps)
        with refusing():
            for name, step, written in part.steps:
                roles[name].restore(step, written, part.number, groups)


def _size(steps: Iterable[tuple[str, int, tuple[bytes, StepRow | None] | None]]) -> int:
    return sum(len(written[0]) for _, _, written in steps if written is not None)
