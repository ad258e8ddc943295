"""What the log of a run holds: numbers by step, whichever format they are in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentStatus

MOST_STEPS: Final = 20_000
"""Of a longer log the last ones are kept, which bounds the memory."""

_MOST_KEYS: Final = 2_000
_MAX_DEPTH: Final = 8

_STEPS: Final = (
    *("train/global_step", "trainer/global_step", "training/global_step", "global_step", "step"),
    *("_step", "iteration", "training_iteration", "iter", "update", "time/total_timesteps"),
    *("total_timesteps", "timesteps_total", "num_env_steps", "env_steps", "epoch"),
)
"""Names of the number of a step, the first one that a log has."""

_TIMES: Final = ("_timestamp", "timestamp", "wall_time", "time_unix", "datetime", "date", "time")
_ELAPSED: Final = ("time/time_elapsed", "time_total_s", "_runtime", "train/time_elapsed")
"""Seconds since the start, as Stable-Baselines3, RLlib and W&B call them."""

_ODD: Final = {"nan", "inf", "-inf", "infinity", "-infinity"}
_LONGEST_NAME: Final = 200
_LATEST_S: Final = 1e10  # in the year 2286
_EPOCH_S: Final = 1e8  # seconds since 1970 are more, and those since the start of a run fewer


@dataclass(slots=True)
class Step:
    """A step.

    Attributes:
        time_s: Since 1970, or since the start of the run; None if the log does not tell it.
        values: Name to number, NaN and infinities included.
    """

    time_s: float | None
    values: dict[str, float]


@dataclass(slots=True)
class Log:
    """A run as its log tells it.

    Attributes:
        kind: Format, in words with an article.
        trial: Of the run; may be empty.
        source: Path or address of what was read, for messages.
        status: How the run has ended; ``running`` where the log does not tell.
        steps: By number. What is logged later of the same step replaces what was there.
        omitted: Steps that were left out because the log is too long.
        broken: Records that could not be read.
        is_cut: Whether the last record is only half there.
        went_back: How often the number of the step became smaller.
        counts_rows: Whether nothing numbers the steps, so that rows count as steps.
    """

    kind: str
    name: str
    trial: str
    source: str
    config: dict[str, object] = field(default_factory=dict)
    status: ExperimentStatus = ExperimentStatus.RUNNING
    steps: dict[int, Step] = field(default_factory=dict)
    omitted: int = 0
    broken: int = 0
    is_cut: bool = False
    went_back: int = 0
    counts_rows: bool = False
    _keys: set[str] = field(default_factory=set)
    _step_key: str = ""
    _newest: int = -1

    def add_row(self, row: Mapping[str, object], step: int | None = None) -> None:
        """Add a record whose step and time are among its values.

        Args:
            row: Name to value, maybe nested. What is no number is left out.
            step: Number of the record by the format, for a row that has no better one.
        """
        values = dict(flat(row))
        if step is not None:
            values.setdefault("_step", step)
        if not self._step_key:
            self._step_key = next((name for name in _STEPS if name in values), "")
        given = _number(values.pop(self._step_key, None))
        number = _integer(given)
        if number is None and given is not None:
            self.broken += 1
            return
        if number is None:
            has_newest = self._step_key not in {"", "_step"} and self._newest >= 0
            number = self._newest if has_newest else step
        if number is None:
            self.counts_rows, number = True, self._newest + 1
        times = {key: s for key in _TIMES if (s := time_of(values.get(key))) is not None}
        elapsed = {key: s for key in _ELAPSED if (s := _number(values.get(key))) is not None}
        time_s = next(iter([*times.values(), *elapsed.values()]), None)
        drop = {"_step", *times, *elapsed}
        numbers = {
            name: measured
            for name, value in values.items()
            if name not in drop and (measured := _number(value)) is not None
        }
        self.add(number, time_s, numbers)

    def add(self, step: int, time_s: float | None, values: Mapping[str, float]) -> None:
        """Add numbers of a step."""
        if not 0 <= step < 2**53:
            self.broken += 1
            return
        self.went_back += step < self._newest
        self._newest = step
        if time_s is not None and not 0 <= time_s < _LATEST_S:
            time_s = None
        kept = {}
        for name, value in values.items():
            key = name.encode(errors="replace")[:_LONGEST_NAME].decode(errors="ignore")
            if not key:
                continue
            if key in self._keys or len(self._keys) < _MOST_KEYS:
                self._keys.add(key)
                kept[key] = value
        known = self.steps.get(step)
        if known is None:
            if not kept:
                return
            self.steps[step] = Step(time_s, kept)
            if len(self.steps) > MOST_STEPS:
                self.steps.pop(next(iter(self.steps)))
                self.omitted += 1
            return
        known.values.update(kept)
        known.time_s = known.time_s if time_s is None else time_s

    @property
    def keys(self) -> set[str]:
        return self._keys

    def check(self) -> None:
        """Raise ConfigError if the log has no number."""
        if self.steps:
            return
        broken = f" {self.broken} records could not be read." if self.broken else ""
        raise ConfigError(
            f"{self.source!r} is {self.kind}, but has no numbers of steps.{broken}",
            hint="Wait until the run has logged a step, or name another log.",
        )


def flat(row: Mapping[str, object], prefix: str = "", depth: int = 0) -> list[tuple[str, object]]:
    """Return names and values; names of nested values are joined by a slash."""
    found: list[tuple[str, object]] = []
    for key, value in row.items():
        if isinstance(value, Mapping):
            if depth < _MAX_DEPTH:
                found += flat(value, f"{prefix}{key}/", depth + 1)
        else:
            found.append((f"{prefix}{key}", value))
    return found


def time_of(value: object) -> float | None:
    """Return seconds since 1970 of a number or of a date in ISO 8601; None if it is neither."""
    if isinstance(value, str) and "-" in value[1:] and ":" in value:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    number = _number(value)
    if number is None or not _EPOCH_S < number < 1e14:
        return None
    return number / 1e3 if number > _EPOCH_S * 1e3 else number


def _number(value: object) -> float | None:
    """Return a number, also one in text as CSV has it; None for all else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        text = value.strip()
        if not text or not (text.lower() in _ODD or text[-1].isdigit() or text[-1] == "."):
            return None
        value = text
    if not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _integer(number: float | None) -> int | None:
    return int(number) if number is not None and math.isfinite(number) else None
