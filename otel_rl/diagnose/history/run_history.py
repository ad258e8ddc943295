"""History of a run: its records as series over its steps."""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import compress
from math import isinf
from sys import getsizeof
from typing import Any, Final, NamedTuple, Self, TypeVar

from otel_rl.diagnose.history.measured import Measured, SeriesOfWorkers, cut
from otel_rl.diagnose.history.records import (
    OWN_STEP,
    PARTIAL_PATH,
    Facts,
    StepFacts,
    columns_of,
)
from otel_rl.diagnose.history.silences import Silences
from otel_rl.diagnose.history.timings import as_seconds, each_time, timed_part
from otel_rl.diagnose.history.track import Track, in_order
from otel_rl.diagnose.thresholds import FEWEST_STEPS
from otel_rl.records import WorkerFailure
from otel_rl.semconv import names
from otel_rl.semconv.spec import AWAITING

__all__ = ["GrowingHistory", "Loss", "PhaseKey", "RunHistory", "Track"]


class PhaseKey(NamedTuple):
    """Role and phase of a span.

    Attributes:
        phase: ``rl.phase``, or the span's name.
    """

    role: str
    phase: str

    def __str__(self) -> str:
        return f"{self.role}/{self.phase}"


class Loss(NamedTuple):
    """Loss of a worker.

    Attributes:
        step: Step in progress when the loss was detected.
        time_s: Time in s since the first record.
        worker: ``<role>/<index>``.
    """

    step: int
    time_s: float
    worker: str


_D = TypeVar("_D")


class RunHistory:
    """History of some steps of a run: of its newest attempt, with the losses of all attempts.

    Attributes:
        ends_s: Time of the last record, in s since the first one.
        newest_ns: Time of the last record, by the bridge's clock; 0 without one.
        begun_s: Time since the first record at which a snapshot first reported each step; of short
            steps that came together, only the last was reported.
        known_steps: Reported steps, and all steps that have rows or a critical path.
        rows: Values of the rows, by tracker key.
        workers: Mean of the measurements in each snapshot, by tracker key and worker.
        measurements: Number of the measurements in each snapshot, by tracker key and worker.
        oddities: Number of measurements that were NaN or infinite, by tracker key and worker.
        spans: Mean duration of the spans in each snapshot, in s, by phase and worker.
        counts: Number of spans that ended in each snapshot, by phase and worker.
        failed: Number of failed spans, in snapshots that have some, by phase and worker.
        unspanned: Phases that were measured without spans, with as many values as were reported.
        waits: Phases that only wait.
        steps: Critical path of each step, in order, without other facts of the step.
        lags: Delay from the worker's own clock to the arrival, in s, by worker.
        silences: Times in which no worker was heard.
        losses: Losses of workers, in order of time.
        returned_roles: Roles of workers that were missed, and reported again.
        failures: Failures of workers, with their causes, in order of time.
        places: Host of each worker, empty if unknown, and process id there.
        status: Status of the run by its workers at its last record.
        is_told_by_spans: Whether nothing but spans has reported steps.
        attempt: Attempt that the steps belong to.
    """

    def __init__(self, facts: Iterable[Facts]) -> None:
        self._begun_ns = 0
        self.ends_s = 0.0
        self.newest_ns = 0
        self.unspanned: set[PhaseKey] = set()
        self.waits: set[PhaseKey] = set()
        self.silences = Silences()
        self.losses: list[Loss] = []
        self.returned_roles: set[str] = set()
        self.failures: list[WorkerFailure] = []
        self.places: dict[str, tuple[str, int | None]] = {}
        self.status = ""
        self._begin(1)
        for one in facts:
            self._take(one)
        self._complete()

    def _take(self, facts: Facts) -> None:
        """Add a snapshot; ``_complete`` follows the last one."""
        self._begun_ns = self._begun_ns or facts.time_ns
        self.newest_ns = max(self.newest_ns, facts.time_ns)
        time_s = (facts.time_ns - self._begun_ns) / 1e9
        if facts.lags or facts.workers or facts.spans:
            self.silences.hear(time_s, self._heard_before_s(facts))
        self._add(facts, time_s, self._begun_ns)

    def _heard_before_s(self, facts: Facts) -> float | None:
        """Return when any worker of this snapshot was last heard of before it."""
        of = (self.lags.get(worker) for worker, _ in facts.lags)
        return max((own.times_s[-1] for own in of if own), default=None)

    def _complete(self) -> None:
        """Put series in order, and add facts that are known only at the end."""
        self.steps.sort(key=lambda step: step.step)
        for key, track in self.rows.items():
            self.rows[key] = in_order(track, by_step=False)
        self._set_measured()
        self._add_phases_without_spans()
        self._add_timed_parts()
        for several in (*self.spans.values(), *self.counts.values()):
            for worker, track in several.items():
                several[worker] = in_order(track, by_step=True)

    def _set_measured(self) -> None:
        """Set the series of measurements, which are made on demand."""
        for key, measured in self._measured.items():
            self.workers[key] = SeriesOfWorkers(measured, "means")
            self.measurements[key] = SeriesOfWorkers(measured, "numbers")

    def _begin(self, attempt: int, first: int = 0) -> None:
        """Begin an attempt, whose steps are not compared with those of the former one."""
        self.attempt = attempt
        self.first = self.last = first
        self.begun_s: dict[int, float] = {}
        self.known_steps: set[int] = set()
        self.rows: dict[str, Track] = defaultdict(Track)
        self._measured: dict[str, Measured] = {}
        self.workers: dict[str, Mapping[str, Track]] = {}
        self.measurements: dict[str, Mapping[str, Track]] = {}
        self.oddities: dict[str, dict[str, Track]] = defaultdict(lambda: defaultdict(Track))
        self.spans: dict[PhaseKey, dict[str, Track]] = defaultdict(lambda: defaultdict(Track))
        self.counts: dict[PhaseKey, dict[str, Track]] = defaultdict(lambda: defaultdict(Track))
        self.failed: dict[PhaseKey, dict[str, Track]] = defaultdict(lambda: defaultdict(Track))
        self.steps: list[StepFacts] = []
        self.lags: dict[str, Track] = defaultdict(Track)
        self.is_told_by_spans = True
        self._ended = -1
        self._bytes_of_steps = 0
        self._derived: dict[tuple[str, Hashable], Any] = {}

    @property
    def has_gaps(self) -> bool:
        """Return whether most numbers between steps are missing: some programs count samples."""
        return self.last - self.first >= _APART * max(FEWEST_STEPS, len(self.known_steps))

    def once(self, what: str, of: Hashable, make: Callable[[], _D]) -> _D:
        """Return what is derived from this history, which is made at the first request.

        Args:
            what: Name of the derived result.
            of: Place from which it is derived, or another value that distinguishes it.
        """
        if (what, of) not in self._derived:
            self._derived[what, of] = make()
        found: _D = self._derived[what, of]
        return found

    def forget_derived(self, of: Collection[Hashable]) -> None:
        """Forget results that were derived from these places, whose series differ in this copy."""
        self._derived = {key: one for key, one in self._derived.items() if key[1] not in of}

    def _add(self, facts: Facts, time_s: float, begun_ns: int) -> None:
        step = facts.step
        if facts.attempt > self.attempt:
            of_it = (row.step for row in facts.rows if row.attempt == facts.attempt)
            self._begin(facts.attempt, min(of_it, default=step))
            facts = _of_steps_through(step, facts)
        self.last = max(self.last, step)
        self.ends_s = max(self.ends_s, time_s)
        if step not in self.begun_s:
            self.begun_s[step] = time_s
        self.known_steps.add(step)
        for row in (row for row in facts.rows if row.attempt == self.attempt):
            for key, value in row.values.items():
                at_s = (row.time_ns - begun_ns) / 1e9
                track, shown = self.rows[key], value if isinf(value) else cut(value)
                place = track.place_of(row.step) if row.replaces else None
                if place is None:
                    track.add(row.step, at_s, shown)
                else:
                    track.values[place] = shown
        new = [_path_of(one) for one in facts.steps if one.attempt == self.attempt]
        self.steps.extend(new)
        self._bytes_of_steps += sum(map(_bytes_of, new))
        in_progress = self._ended + 1
        self._go_on(facts, time_s)
        self._add_measurements(facts, time_s)
        for span in facts.spans:
            phase = PhaseKey(span.role, span.phase)
            # If spans alone tell steps, the bridge knows none in progress for those without one.
            at = in_progress if self.is_told_by_spans and not span.step else span.step
            mean_s = cut(span.total_s / span.spans)
            _beside(self.spans, self.counts, phase, span.worker).add(at, time_s, mean_s)
            self.counts[phase][span.worker].values.append(span.spans)
            if span.failed:
                self.failed[phase][span.worker].add(at, time_s, span.failed)
            if span.is_wait:
                self.waits.add(phase)
        for worker, lag_s in facts.lags:
            self.lags[worker].add(step, time_s, lag_s)
        self.places.update((worker, (host, pid)) for worker, host, pid in facts.places)
        self._withdraw_losses(facts.returned)
        at = self.last if self.is_told_by_spans else step
        self.losses.extend(Loss(at, time_s, worker) for worker in facts.lost)
        self.status = facts.status or self.status
        self._add_failures(self._with_step(one) for one in facts.failures)

    def _add_measurements(self, facts: Facts, time_s: float) -> None:
        """Add measurements of workers. This takes most of the time of reading a run."""
        for key, (workers, steps, numbers, totals, oddities) in columns_of(facts):
            if any(oddities):
                for worker, step, number in zip(workers, steps, oddities, strict=True):
                    if number:
                        self.oddities[key][worker].add(step, time_s, number)
            if not all(numbers):  # some are odd alone
                measured = [bool(number) for number in numbers]
                workers, steps, numbers, totals = (
                    [*compress(column, measured)] for column in (workers, steps, numbers, totals)
                )
            if workers:
                of = self._measured.get(key)
                if of is None:
                    of = self._measured[key] = Measured()
                of.add(workers, steps, time_s, numbers, totals)

    def _go_on(self, facts: Facts, time_s: float) -> None:
        """Go on to later steps of rows and spans.

        In a run of spans no metric reports a step, and neither does one after the end of the worker
        that reported it. Critical paths come later than their spans, and those of many steps at
        once.
        """
        of_rows = [row.step for row in facts.rows if row.attempt == self.attempt]
        steps = of_rows + [one.step for one in facts.steps if one.attempt == self.attempt]
        self.is_told_by_spans &= not facts.step and not any(of_rows)
        if self.is_told_by_spans:
            told = sorted({span.step for span in facts.spans if span.step})
            self._ended = max([self._ended, *told])
            steps += told
        for step in steps:
            self.known_steps.add(step)
            if step > self.last:
                self.last = step
                self.begun_s.setdefault(step, time_s)

    def _withdraw_losses(self, workers: Iterable[str]) -> None:
        """Remove the last loss of each worker, and the failure that the loss was taken for."""
        for worker in workers:
            self.returned_roles.add(worker.rpartition("/")[0])
            _remove_last(self.losses, [one.worker == worker for one in self.losses])
            _remove_last(self.failures, [one.worker == worker for one in self.failures])

    def _with_step(self, failure: WorkerFailure) -> WorkerFailure:
        """Return a failure with the step in which its worker was.

        Metrics report a step at its end, so the step after the last known one is in progress; in a
        run of spans the worker's own spans name it.
        """
        if failure.step is not None:
            role = failure.worker.rpartition("/")[0]
            measured = self._measured.get(f"{role}/{OWN_STEP}", Measured())
            told = measured.means(failure.worker).finite().values
            if failure.error is not None or not told or told[-1] <= failure.step:
                return failure
            return replace(failure, step=failure.step + 1, is_in_step=True)
        if not self.is_told_by_spans:
            return failure
        own = (of[failure.worker].steps for of in self.spans.values() if failure.worker in of)
        return replace(failure, step=max((steps[-1] for steps in own), default=None))

    def _add_failures(self, failures: Iterable[WorkerFailure]) -> None:
        """Add failures; a known one has changed, because its worker was replaced."""
        places = {(one.worker, one.time_ns): n for n, one in enumerate(self.failures)}
        for failure in failures:
            place = places.get((failure.worker, failure.time_ns))
            if place is None:
                self.failures.append(failure)
            else:
                self.failures[place] = failure

    def _add_phases_without_spans(self) -> None:
        for key in self._measured:
            kind, _, place = key.partition("/")
            role, _, name = place.partition("/")
            phase = PhaseKey(role, name)
            if kind != "phase" or "/" in name or phase in self.spans:
                continue
            spec = names.PHASES.get(name)
            if spec is not None and spec.phase_class in AWAITING:
                self.waits.add(phase)
            self.unspanned.add(phase)
            self.spans[phase].update(_copied(self.workers[key]))
            self.counts[phase].update(_copied(self.measurements[key]))

    def _add_timed_parts(self) -> None:
        """Add measured times as phases, where neither spans nor phases report them."""
        known = {phase.role for phase in self.spans}
        for key in self._measured:
            if (part := timed_part(key)) is None or part[0] in known:
                continue
            phase, measured = PhaseKey(*part), _copied(self.workers[key])
            self.unspanned.add(phase)
            self.spans[phase].update(
                {of: each_time(as_seconds(key, one)) for of, one in measured.items()}
            )
            self.counts[phase].update(_copied(self.measurements[key]))

    def _memory_bytes(self) -> int:
        by_worker = (self.oddities, self.spans, self.counts, self.failed)
        tracks = [of for kind in by_worker for some in kind.values() for of in some.values()]
        tracks += [*self.rows.values(), *self.lags.values()]
        columns = {id(one): one for of in tracks for one in (of.steps, of.times_s, of.values)}
        series = sum(map(getsizeof, columns.values())) + len(tracks) * _BYTES_OF_TRACK
        series += sum(one.memory_bytes() for one in self._measured.values())
        known = getsizeof(self.begun_s) + getsizeof(self.known_steps)
        known += len(self.begun_s) * _BYTES_OF_STEP + self._bytes_of_steps
        return series + known

    def _completed(self) -> Self:
        """Return a complete copy of what was read, which shares series until more is read."""
        whole = copy(self)
        whole._derived = {}  # noqa: SLF001  # a copy of this one
        whole.unspanned, whole.waits = {*self.unspanned}, {*self.waits}
        whole.steps = [*self.steps]
        whole.rows = defaultdict(Track, self.rows)
        whole.lags = defaultdict(Track, self.lags)
        whole.workers, whole.measurements = {}, {}
        whole.oddities = _of_workers(self.oddities)
        whole.spans = _of_workers(self.spans)
        whole.counts = _of_workers(self.counts)
        whole.failed = _of_workers(self.failed)
        whole._complete()  # noqa: SLF001  # a copy of this one
        return whole

    def seconds_of(self, place: PhaseKey, worker: str) -> Mapping[int, float]:
        """Return the seconds that a worker's spans of a phase take in each step."""
        seconds: dict[int, float] = defaultdict(float)
        track, counts = self.spans[place][worker], self.counts[place][worker]
        for step, mean_s, number in zip(track.steps, track.values, counts.values, strict=True):
            seconds[step] += mean_s * number
        return seconds

    def calls_in_step(self, place: PhaseKey, worker: str | None = None) -> float:
        """Return how often a piece of work is done in a step, on average over all known steps.

        A report has the work of several steps where these are short, so reports are no steps.

        Args:
            place: The work.
            worker: The worker that does it; None for the mean of all workers.
        """
        of = self.counts[place]
        tracks = of.values() if worker is None else (of[worker],)
        calls = sum(sum(track.values) for track in tracks)
        return calls / max(1, len(tracks)) / max(1, len(self.known_steps))

    def age_s(self, since_s: float, until_s: float | None = None) -> float:
        """Return the seconds between two times in which any worker was heard.

        Args:
            since_s: Time in s since the first record.
            until_s: Time in s since the first record; None for the last record.
        """
        until_s = self.ends_s if until_s is None else until_s
        return until_s - since_s - self.silences.between(since_s, until_s)

    def between(self, first: int, last: int) -> "RunHistory":
        part = self.steps_between(first, last)
        for mine, theirs in (
            (part.workers, self.workers),
            (part.measurements, self.measurements),
        ):
            for key, of in theirs.items():
                mine[key] = _of_steps(of, first, last)
        for key, odd in self.oddities.items():
            part.oddities[key].update(_of_steps(odd, first, last))
        for into, source in (
            (part.spans, self.spans),
            (part.counts, self.counts),
            (part.failed, self.failed),
        ):
            for phase, tracks in source.items():
                into[phase].update(_of_steps(tracks, first, last))
        part.unspanned, part.waits = self.unspanned, self.waits
        part.lags = _of_steps(self.lags, first, last)
        part.silences, part.returned_roles = self.silences, self.returned_roles
        part.places = self.places
        part.losses = [loss for loss in self.losses if first <= loss.step <= last]
        is_end = last >= self.last
        part.failures = [
            one
            for one in self.failures
            if (is_end if one.step is None else first <= one.step <= last)
        ]
        part.status = self.status if is_end else ""
        return part

    def steps_between(self, first: int, last: int) -> "RunHistory":
        """Return the history of these steps without the data of single workers."""
        part = RunHistory(())
        part.attempt, part.newest_ns = self.attempt, self.newest_ns
        part.first, part.last = max(first, self.first), min(last, self.last)
        part.begun_s = {step: at_s for step, at_s in self.begun_s.items() if first <= step <= last}
        part.known_steps = {step for step in self.known_steps if first <= step <= last}
        part.ends_s = self.ends_s if last >= self.last else part.begun_s.get(last, 0.0)
        part.rows = _of_steps(self.rows, first, last)
        part.is_told_by_spans = self.is_told_by_spans
        part.steps = [step for step in self.steps if first <= step.step <= last]
        return part


class GrowingHistory:
    """History of a run that goes on: each snapshot is read once, and none is kept.

    At any time it equals what ``RunHistory`` makes of all snapshots.
    """

    def __init__(self) -> None:
        self._taken = RunHistory(())

    def add(self, facts: Facts) -> None:
        self._taken._take(facts)  # noqa: SLF001  # its other half

    def memory_bytes(self) -> int:
        return self._taken._memory_bytes()  # noqa: SLF001  # its other half

    def history(self) -> RunHistory:
        """Return the history so far, which is valid until the next snapshot."""
        return self._taken._completed()  # noqa: SLF001  # its other half


_APART: Final = 4  # numbers from one step to the next

_BYTES_OF_TRACK: Final = 224  # and its place in a dictionary
_BYTES_OF_STEP: Final = 64  # its number and time

_Key = TypeVar("_Key", str, PhaseKey)
_T = TypeVar("_T")


def _beside(
    means: Mapping[_Key, dict[str, Track]],
    numbers: Mapping[_Key, dict[str, Track]],
    key: _Key,
    worker: str,
) -> Track:
    """Return the series of means of a worker; a new one gets a series of numbers beside it."""
    of = means[key]
    if worker not in of:
        numbers[key][worker] = of[worker].beside()
    return of[worker]


def _of_workers(
    of: Mapping[_Key, Mapping[str, Track]],
) -> dict[_Key, dict[str, Track]]:
    return defaultdict(
        lambda: defaultdict(Track),
        {key: defaultdict(Track, tracks) for key, tracks in of.items()},
    )


def _of_steps_through(step: int, facts: Facts) -> Facts:
    """Return an attempt's first record without later steps, which belong to the former attempt."""
    workers = {
        key: [one for one in some if one.step is None or one.step <= step]
        for key, some in facts.workers.items()
    }
    return facts._replace(workers=workers, spans=[one for one in facts.spans if one.step <= step])


def _path_of(step: StepFacts) -> StepFacts:
    """Return a step with its critical path; all steps share one object for each name."""
    partial = {key: step.values[key] for key in (PARTIAL_PATH,) if key in step.values}
    path = [
        (sys.intern(role), sys.intern(phase), sys.intern(worker), seconds)
        for role, phase, worker, seconds in step.path
    ]
    return step._replace(path=path, busy=(), values=partial)


def _bytes_of(step: StepFacts) -> int:
    """Return the memory of a step, without that of names, which other steps share."""
    of_path = sum(getsizeof(part) + getsizeof(part[-1]) for part in step.path)
    return getsizeof(step) + sum(map(getsizeof, step)) + of_path


def _copied(tracks: Mapping[str, Track]) -> dict[str, Track]:
    return {worker: track.copy() for worker, track in tracks.items()}


def _of_steps(tracks: Mapping[str, Track], first: int, last: int) -> dict[str, Track]:
    parts = {key: track.between(first, last) for key, track in tracks.items()}
    kept: dict[str, Track] = defaultdict(Track)
    kept.update({key: part for key, part in parts.items() if part.values})
    return kept


def _remove_last(known: list[_T], is_it: Sequence[bool]) -> None:
    if any(is_it):
        del known[len(is_it) - 1 - is_it[::-1].index(True)]
