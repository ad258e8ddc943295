"""Diagnoses of runs for the page and for agents: each is made once while nothing is new."""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_rl.bridge.diagnosis.histories import LiveHistories, MemoryBound
from otel_rl.bridge.journal.reader import history_records
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentStatus
from otel_rl.view.found import Found
from otel_rl.view.text import passage

_MOST_MADE: Final = 200

_NS_PER_S: Final = 1e9


class Asked(NamedTuple):
    """Question about a run.

    Attributes:
        steps: First and last step to explain; None for the whole run.
        now: Whether to leave out what has passed.
    """

    steps: tuple[int, int] | None = None
    now: bool = False


class Unread(Exception):
    """The history is long, and not read to its end; the next question reads on.

    Attributes:
        share: Of the records that are read, from 0 to 1.
    """

    def __init__(self, share: float) -> None:
        super().__init__(f"{share:.0%} of the history is read")
        self.share = share


class _Made(NamedTuple):
    """Diagnosis that was made.

    Attributes:
        at_s: When.
        changed_ns: Last change of the run, by then.
        told: The diagnosis.
    """

    at_s: float
    changed_ns: int
    told: dict[str, Any]


class Diagnoses:
    """Diagnoses runs from their histories, as ``otel-rl diagnose`` does. One thread.

    Args:
        every_s: Shortest time between two diagnoses of a run that goes on.
        budget_s: Of one question, for reading the history.
        bound: Of the memory of histories; None for one of their own.
    """

    def __init__(
        self, *, every_s: float, budget_s: float, bound: MemoryBound | None = None
    ) -> None:
        self._every_s = every_s
        self._budget_s = budget_s
        self._histories = LiveHistories(bound)
        # The one that was made last is the last.
        self._made: dict[tuple[str, Asked], _Made] = {}
        # By run and its beginning, in bytes, as far as its history was read; the one that was read
        # last is the last.
        self._sizes: dict[tuple[str, int], int] = {}

    def of(self, found: Found, asked: Asked, *, now_ns: int) -> dict[str, Any]:
        """Return the diagnosis of a run, or of some steps of it.

        Args:
            found: The run.
            asked: What is to be diagnosed.
            now_ns: By the clock of this machine, for the age of a silent run.

        Raises:
            Unread: Of a long history.
            JournalError: The journal cannot be read.
        """
        known = self._made.get((found.id, asked))
        if known is None or not self._is_new(found, known):
            self._made.pop((found.id, asked), None)
            made = _Made(time.monotonic(), found.run.changed_ns, self._make(found, asked, now_ns))
            self._made[found.id, asked] = known = made
        while len(self._made) > _MOST_MADE:
            del self._made[next(iter(self._made))]
        return known.told

    def _is_new(self, found: Found, known: _Made) -> bool:
        if found.run.description.status is not ExperimentStatus.RUNNING:
            return known.changed_ns == found.run.changed_ns
        return time.monotonic() - known.at_s < self._every_s

    def histories(self, runs: Sequence[Found]) -> list[RunHistory]:
        """Return the histories of runs that are compared, valid until the next look at them.

        Raises:
            Unread: Of long histories.
            ConfigError: Together they are larger than the memory for histories: while one is
                read, another one would be dropped, and so on without an end.
            JournalError: A journal cannot be read.
        """
        histories, ids = list[RunHistory](), {_begun(found) for found in runs}
        for place, found in enumerate(runs):
            self._check_size(ids)
            try:
                histories.append(self._history(found))
            except Unread as exc:
                self._check_size(ids)
                raise Unread((place + exc.share) / len(runs)) from exc
        self._check_size(ids)
        return histories

    def _check_size(self, runs: Collection[tuple[str, int]]) -> None:
        if sum(self._sizes.get(one, 0) for one in runs) > self._histories.max_bytes:
            raise ConfigError(
                f"The histories of these runs are larger than {self._histories.max_bytes >> 20} "
                "MiB together.",
                hint="Choose fewer runs, or use `otel-rl compare`.",
            )

    def _history(self, found: Found) -> RunHistory:
        """Return the history of a run, which is valid until the next look at the run.

        Raises:
            Unread: Of a long history.
            JournalError: The journal cannot be read.
        """
        looked = self._histories.look(
            found.open, found.run.key, begun_ns=found.run.begun_ns, budget_s=self._budget_s
        )
        self._sizes.pop(_begun(found), None)
        self._sizes[_begun(found)] = looked.memory_bytes
        while len(self._sizes) > _MOST_MADE:
            del self._sizes[next(iter(self._sizes))]
        if looked.left:
            with found.open() as connection:
                records = history_records(connection, found.id)
            raise Unread(1 - looked.left / max(1, records))
        return looked.history

    def _make(self, found: Found, asked: Asked, now_ns: int) -> dict[str, Any]:
        # Imported here: the first chart of a new process does not wait for it.
        from otel_rl.diagnose.engine import diagnose
        from otel_rl.diagnose.report_json import run_as_json
        from otel_rl.view.worker_places import completed

        history = self._history(found)
        silent_s = max(0.0, (now_ns - history.newest_ns) / _NS_PER_S)
        report = diagnose(
            history,
            asked.steps,
            passed=not asked.now,
            silent_s=silent_s,
            is_interrupted=found.run.is_interrupted,
        )
        told = run_as_json(found.run.key, history, completed(found, report))
        return {key: _shortened(value) for key, value in told.items()}


def _begun(found: Found) -> tuple[str, int]:
    """Return what tells a run from one that was deleted and had its id before."""
    return found.id, found.run.begun_ns


def _shortened(value: Any) -> Any:  # JSON of any shape
    if isinstance(value, str):
        return passage(value)[:1_000]
    if isinstance(value, Mapping):
        return {key: _shortened(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_shortened(one) for one in value[:50]]
    return value
