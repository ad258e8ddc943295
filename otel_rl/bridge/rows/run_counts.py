"""Counts of a run: of its samples (late, repeated, dropped), and of other things.

The run's reports show the counts; committed counts are in the bridge's counters, too.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec.structs import replace

from otel_rl.bridge.counters import Counter, Counters, Delay, SampleDrop
from otel_rl.bridge.journal.state import Stored
from otel_rl.records import ExperimentKey


class SampleCounts(Stored):
    """Counts of samples. A measurement is one sample; so is a point of a counter or histogram.

    Attributes:
        taken: Samples that are in a row, or will be in one.
        late: Taken samples that arrived after their row was closed, and made a row of their own.
        duplicate: Samples left out because they are repeats, or were overtaken by a later total.
        too_many_series: Samples dropped because the experiment has ``max_series`` series.
        too_old: Samples dropped because they may be repeats of forgotten samples.
        spans_too_old: Spans that were too late to explain a step, or were evicted for newer ones.
    """

    taken: int = 0
    late: int = 0
    duplicate: int = 0
    too_many_series: int = 0
    too_old: int = 0
    spans_too_old: int = 0

    def count_late(self, samples: int) -> None:
        self.late += samples

    def drop_as_duplicate(self, samples: int) -> None:
        self.taken -= samples
        self.duplicate += samples

    def drop_as_too_old(self, samples: int) -> None:
        self.taken -= samples
        self.too_old += samples


class RunCounts:
    """Counts of one run, and the schedule of its reports.

    Attributes:
        of_run: Counts of other things than samples, by name and reason, since the run began.
    """

    def __init__(self, counters: Counters, key: ExperimentKey) -> None:
        self._counters, self._key = counters, key
        self.of_run: dict[tuple[str, str], int] = {}
        # What was moved from the bridge's counters to ``of_run`` since the commit.
        self._moved: dict[tuple[str, str], int] = {}
        # What is in the bridge's counters, and what will be with the next commit.
        self._counted = SampleCounts()
        self._waiting: dict[tuple[Counter, StrEnum], int] = {}
        self._told_ns = 0
        self._told: Mapping[str, float] = {}

    def loaded(self, samples: SampleCounts) -> None:
        """Record that the bridge's counters already have a stored run's samples."""
        self._counted = replace(samples)

    def add(self, counter: Counter, n: int, reason: StrEnum) -> None:
        if n:
            self._waiting[counter, reason] = self._waiting.get((counter, reason), 0) + n

    def delayed(self, seconds: Iterable[float], team: str) -> None:
        self._counters.delayed(Delay.ROW, seconds, team=team)

    def committed(self, samples: SampleCounts) -> None:
        now, before, add = samples, self._counted, self._counters.add
        for counter, reason, n in (
            (Counter.SAMPLES_TAKEN, None, now.taken - before.taken),
            (Counter.SAMPLES_LATE, None, now.late - before.late),
            (Counter.SAMPLES_DUPLICATE, None, now.duplicate - before.duplicate),
            (
                Counter.SAMPLES_DROPPED,
                SampleDrop.TOO_MANY_SERIES,
                now.too_many_series - before.too_many_series,
            ),
            (Counter.SAMPLES_DROPPED, SampleDrop.TOO_OLD, now.too_old - before.too_old),
            (Counter.SPANS_TOO_OLD, None, now.spans_too_old - before.spans_too_old),
        ):
            add(counter, n, reason=reason)
        self._counted, self._moved = replace(now), {}
        for (counter, of), n in self._waiting.items():
            add(counter, n, reason=of, run=self._key)
        self._waiting = {}

    def give_back(self) -> None:
        """Give uncommitted counts back to the bridge's counters, because the run is forgotten."""
        self._counters.give_back_run(self._key, self._moved)

    def is_due(self, now_ns: int, interval_ns: int) -> bool:
        """Return whether the last report is old enough, or later than a clock set back since."""
        return not 0 <= now_ns - self._told_ns < interval_ns

    def has_changed(self, report: Mapping[str, float]) -> bool:
        return report != self._told

    def written(self, report: Mapping[str, float], now_ns: int) -> None:
        self._told, self._told_ns = report, now_ns

    def report(self, samples: SampleCounts, gauges: Mapping[str, float]) -> Mapping[str, float]:
        for name, n in self._counters.take_run(self._key).items():
            self.of_run[name] = self.of_run.get(name, 0) + n
            self._moved[name] = self._moved.get(name, 0) + n
        rare = {
            _key(Counter.SAMPLES_DROPPED, SampleDrop.TOO_MANY_SERIES): samples.too_many_series,
            _key(Counter.SAMPLES_DROPPED, SampleDrop.TOO_OLD): samples.too_old,
            _key(Counter.SPANS_TOO_OLD): samples.spans_too_old,
        }
        return {
            _key(Counter.SAMPLES_TAKEN): samples.taken,
            _key(Counter.SAMPLES_LATE): samples.late,
            _key(Counter.SAMPLES_DUPLICATE): samples.duplicate,
            **{key: n for key, n in rare.items() if n},
            **{_key(name, reason): n for (name, reason), n in self.of_run.items()},
            **{_key(name): value for name, value in gauges.items()},
        }


def _key(name: str, reason: str = "") -> str:
    path = name.replace(".", "/")
    return f"{path}/{reason}" if reason else path
