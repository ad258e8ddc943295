"""Summary of a W&B run: the run's values in the table of runs.

W&B's own summary is the last value of each key, and the best reward is not the last. W&B's other
summaries (``define_metric(summary="max")``) begin anew when a run is resumed, and one NaN stays in
them for good. So the registry defines the summary of a metric, which is computed here and set
explicitly after each batch of rows.

    max, min, mean    {"max": 0.9, "last": 0.7}, without NaN and infinities
    peak              the largest value, alone

W&B keeps a row beside the row that it replaces, and its charts show both. So extremes are those of
all rows, and a mean has the first value of each step. If a row that replaces another belongs to an
older step, the last values remain those of the newest step, as do step, attempt and policy version.

The state is in a file beside the journal, and is written before the rows that it includes: rows
that are repeated after a crash are not counted twice. Without the file, on another machine, the
summary continues from the server's summary, and a mean begins anew.

Workers' own values are not in the file: if the first row after a restart replaces an older row, the
last values are those of the older step until the workers' next row.
"""

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from otel_rl.bridge.delivery.wandb.rows import (
    ATTEMPT,
    HOURS,
    POLICY_VERSION,
    STEP,
    attempt_axis,
    wandb_key,
)
from otel_rl.records import KeySpec, Row
from otel_rl.semconv import names
from otel_rl.semconv.spec import Summary

_NS_PER_HOUR: Final = 3_600_000_000_000

_Place = tuple[int, int]
"""Attempt and step."""

_EXTREMES: Final = {Summary.MAX: max, Summary.MIN: min, Summary.PEAK: max}


@dataclass(slots=True)
class _Value:
    """Summary of one key, as the file holds it.

    Attributes:
        kind: Kind of the summary, a ``Summary``.
        best: Largest value, smallest value or sum.
        count: Number of values in ``best``.
    """

    kind: str
    last: float | None = None
    best: float | None = None
    count: int = 0

    def take(self, value: float) -> None:
        self.last = value
        if not math.isfinite(value):
            return
        self.count += 1
        if self.kind == Summary.MEAN:
            self.best = value if self.best is None else self.best + value
        elif self.best is None:
            self.best = value
        else:
            self.best = _EXTREMES[Summary(self.kind)](self.best, value)

    def shown(self) -> object:
        """Return the value for W&B; None if there is none yet."""
        if self.best is None or self.kind == Summary.PEAK:
            return self.best
        best = self.best / self.count if self.kind == Summary.MEAN else self.best
        return {self.kind: best, "last": _as_shown(self.last)}

    def continue_from(self, shown: object) -> None:
        if self.kind == Summary.PEAK:
            self.best = _number(shown)
            self.count = int(self.best is not None)
        elif self.kind != Summary.MEAN and isinstance(shown, Mapping):
            self.best, self.last = _number(shown.get(self.kind)), _number(shown.get("last"))
            self.count = int(self.best is not None)


class RunSummary:
    """Summary of one run, and the time of its first row. One thread uses it.

    Args:
        file: File that keeps the state; None for a run that is written anew after a crash.
        row: Number of the next row.
        server: Queries the summary at the server, for a run whose file is not on this machine.
    """

    def __init__(
        self,
        file: Path | None,
        journal: str,
        row: int,
        server: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._file = file
        self._journal = journal
        self._at_server: Mapping[str, object] = {}
        self._values: dict[str, _Value] = {}
        self._worker_keys: set[str] = set()
        # By key, axes included: value of the newest step, and that step.
        self._newest: dict[str, float] = {}
        self._places: dict[str, _Place] = {}
        self._outdated: set[str] = set()  # keys of which W&B shows the value of an older step
        self._began_ns: int | None = None
        self._row = row  # rows below are included
        if row and not self._read(row):
            self._at_server = server()
            self._read_axes()
            hours = _number(self._at_server.get(HOURS))
            time_s = _number(self._at_server.get("_timestamp"))
            if hours is not None and time_s is not None:
                self._began_ns = round(time_s * 1e9 - hours * _NS_PER_HOUR)
        self._changed = set(self._values)

    def hours(self, time_ns: int) -> float:
        if self._began_ns is None:
            self._began_ns = time_ns
        return (time_ns - self._began_ns) / _NS_PER_HOUR

    def learn(self, specs: Sequence[KeySpec]) -> None:
        for spec in specs:
            metric = names.METRICS.get(spec.name)
            if spec.worker:
                self._worker_keys.add(spec.key)
            if metric is None:
                continue
            kind = metric.summary_of(spec.statistic)
            if spec.own_scale < 0:  # the framework's value is that of the metric with another sign
                kind = {Summary.MAX: Summary.MIN, Summary.MIN: Summary.MAX}.get(kind, kind)
            if kind is Summary.LAST or spec.worker:
                continue
            kept = self._values.get(spec.key)
            if kept is None or kept.kind != kind:
                self._values[spec.key] = value = _Value(kind)
                value.continue_from(self._at_server.get(wandb_key(spec.key)))

    def take(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.hours(row.time_ns)
            keys = row.values.keys() & self._values.keys()
            self._changed.update(keys)
            if row.number >= self._row:
                for key in keys:
                    self._take(key, row)
            self._note_newest(row)
            self._row = max(self._row, row.number + 1)
        self._write()

    def changed(self) -> dict[str, object]:
        """Return the values that W&B shows instead of last values, once W&B has the rows."""
        shown = {wandb_key(key): self._values[key].shown() for key in sorted(self._changed)}
        shown |= {wandb_key(key): self._newest[key] for key in sorted(self._outdated)}
        self._changed.clear()
        self._outdated.clear()
        return {key: value for key, value in shown.items() if value is not None}

    def _take(self, key: str, row: Row) -> None:
        of, value, place = self._values[key], row.values[key], (row.attempt, row.step)
        last, known = of.last, self._places.get(key)
        # Without a newest step, the key was not in the row that this one replaces.
        is_counted = known is not None and place <= known
        if row.replaces and of.kind == Summary.MEAN and is_counted:
            of.last = value
        else:
            of.take(value)
        if row.replaces and known is not None and place < known:
            of.last = last

    def _note_newest(self, row: Row) -> None:
        place = row.attempt, row.step
        axes = {STEP: row.step, attempt_axis(row.attempt): row.step, ATTEMPT: row.attempt}
        if row.policy_version is not None:
            axes[POLICY_VERSION] = row.policy_version
        if row.replaces:
            self._note(row.values, place, replaces=True)
        else:
            self._newest.update(row.values)
            self._places.update(dict.fromkeys(row.values, place))
            self._outdated.difference_update(row.values)
        self._note(axes, place, replaces=row.replaces)

    def _note(self, values: Mapping[str, float], place: _Place, *, replaces: bool) -> None:
        for key, value in values.items():
            if place >= self._places.get(key, place):
                self._newest[key], self._places[key] = value, place
                self._outdated.discard(key)
            elif replaces and key not in self._values:
                self._outdated.add(key)

    def _read_axes(self) -> None:
        found = {key: _number(value) for key, value in self._at_server.items()
                 if key in {ATTEMPT, POLICY_VERSION} or key.partition("/")[0] == STEP}  # fmt: skip
        place = int(found.get(ATTEMPT) or 0), int(found.get(STEP) or 0)
        self._newest = {key: int(of) for key, of in found.items() if of is not None}
        self._places = dict.fromkeys(self._newest, place)

    def _read(self, row: int) -> bool:
        if self._file is None:
            return False
        try:
            kept = json.loads(self._file.read_text())
            if kept["journal"] != self._journal or kept["row"] < row:
                return False
            self._values = {key: _Value(**value) for key, value in kept["values"].items()}
            newest = kept["newest"].items()
            self._newest = {key: value for key, (_, _, value) in newest}
            self._places = {key: (attempt, step) for key, (attempt, step, _) in newest}
            self._row, self._began_ns = kept["row"], kept["began_ns"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return False
        return True

    def _write(self) -> None:
        """Write the state to the file. A full disk must not stop the rows."""
        if self._file is None:
            return
        state = {
            "journal": self._journal,
            "row": self._row,
            "began_ns": self._began_ns,
            "values": {key: asdict(value) for key, value in self._values.items()},
            "newest": {
                key: (*self._places[key], value)
                for key, value in self._newest.items()
                if key not in self._worker_keys
            },
        }
        new = self._file.with_name(f"{self._file.name}.new")
        try:
            new.write_text(json.dumps(state))
            new.replace(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.unlink()


def _as_shown(value: float | None) -> float | str | None:
    """Return a value as W&B shows those of keys: inside a summary its SDK turns NaN into null."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
