"""The spans of one experiment, for as long as they may explain a step, and what decided each step.

A step is explained once the spans of every process have had time to arrive: each sends them in
intervals of its own. What comes later is not seen any more.

Spans are too many to be written again with every commit. So they are given out as a log of what is
new, kept in the transaction of the rows, and read again after a restart, as in ``memory.py``.
"""

import pickle
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from statistics import median
from typing import Final, NamedTuple

from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.keys import tracker_key
from otel_rl.diagnose.activity import Activity, Process, Stretch
from otel_rl.diagnose.clocks import estimate_clocks, with_one_clock
from otel_rl.diagnose.critical_path import IDLE, critical_path
from otel_rl.diagnose.forest import UNACCOUNTED, Forest
from otel_rl.diagnose.health import Observer, RoleHealth, StepHealth
from otel_rl.records import SpanRecord
from otel_rl.semconv import names
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["MAX_WORKERS", "Explained", "HostClock", "Place", "Shares", "Trail", "TrailLog"]

_NS_PER_S: Final = 1_000_000_000

# Once so often, because each time all spans are put in order. Steps are explained together.
_EVERY_NS: Final = 5 * _NS_PER_S

# Pairs of role and phase in the rows of one experiment: a span's name may hold anything, an id for
# example, and each pair is a key of the run.
_MAX_PLACES: Final = 512

_OTHER: Final = "other"

# Whom ``rl.health.straggler.excess`` is about.
_STRAGGLER: Final = "rl.health.straggler.worker"

MAX_WORKERS: Final = 64
"""Of one role and phase in ``Explained.busy``."""

# Of the steps that were explained.
_REMEMBERED: Final = 4_096


class TrailLog(NamedTuple):
    """Spans, to be kept beside the state and given back to ``restore``.

    Attributes:
        newest_ns: The latest of their ends.
        body: Opaque.
    """

    newest_ns: int
    body: bytes


Place = tuple[str, str, str]
"""Role, phase, and the instance of the worker."""


class Shares(NamedTuple):
    """How the time of a phase in a step is spread over the workers of a role.

    Attributes:
        workers: How many had any.
        median_s: Of theirs.
    """

    workers: int
    median_s: float


class HostClock(NamedTuple):
    """A clock that was corrected.

    Attributes:
        host: Whose.
        ahead_ns: By how much it is ahead of the clock of the step; negative if behind.
        worker: The instance of a worker there.
    """

    host: str
    ahead_ns: int
    worker: str


@dataclass(frozen=True, slots=True)
class Explained:
    """What decided how long a step took.

    Attributes:
        step: Which.
        time_ns: Its end, of the rank that was last.
        values: Tracker key to seconds; their sum is how long it took.
        trace_id: Of the step, in hexadecimal digits.
        worker: The instance that took most of it.
        longest: ``<role>/<phase>`` that took most of it.
        path: (role, phase, instance) to seconds on the critical path.
        busy: (role, phase, instance) to seconds of the step's time, waits included. Of each role
            and phase no more than ``MAX_WORKERS``, those that took longest.
        shares: Of all workers of a role that had any of a phase: how many, and their median.
        waits: The roles and phases in which nothing is done but wait for others.
        clocks: Of hosts whose clocks differ from that of the step.
        health: Tracker key to how well the step used its processes.
        bound: The stage of the pipeline that has most of the critical path.
        stragglers: Tracker key to the instance of a role that the step has lost most by.
    """

    step: int
    time_ns: int
    values: dict[str, float]
    trace_id: str
    worker: str
    longest: str
    path: Mapping[Place, float]
    busy: Mapping[Place, float]
    shares: Mapping[tuple[str, str], Shares]
    waits: frozenset[tuple[str, str]]
    clocks: Sequence[HostClock]
    health: Mapping[str, float]
    bound: str
    stragglers: Mapping[str, str]


class Trail:
    """Takes in spans in any order, and explains steps. Can be pickled, without the spans."""

    def __init__(self) -> None:
        self._known = _Known({}, {}, set(), 0, 0)
        self._begin()

    def _begin(self) -> None:
        # In the order of arrival.
        self._spans: dict[bytes, SpanRecord] = {}
        self._fresh: list[SpanRecord] = []

    @property
    def forgotten_ns(self) -> int:
        """No log with a ``newest_ns`` up to this time is needed any more."""
        return self._known.forgotten_ns

    @property
    def is_open(self) -> bool:
        """Whether a step waits to be explained."""
        return bool(self._known.waiting)

    def add(self, spans: Iterable[SpanRecord], settings: AlignSettings, received_ns: int) -> int:
        """Take in spans; those that were taken before make no difference.

        Returns:
            How many are too old to explain anything, or had to make room; and of the steps that
            may wait to be explained, how many did.
        """
        dropped = 0
        for span in spans:
            if span.span_id in self._spans:
                continue
            if span.end_ns <= self.forgotten_ns:
                dropped += 1
                continue
            self._take(span, received_ns)
            self._fresh.append(span)
        waiting = self._known.waiting
        while len(waiting) > settings.max_open_steps:
            del waiting[next(iter(waiting))]
            dropped += 1
        surplus = len(self._spans) - settings.max_spans
        if surplus > 0:
            dropped += self._make_room(surplus)
        return dropped

    def close(
        self, role: str, settings: AlignSettings, now_ns: int, *, everything: bool
    ) -> Sequence[Explained]:
        """Explain the steps of ``role`` whose spans have had time to arrive."""
        if not everything and 0 <= now_ns - self._known.looked_ns < _EVERY_NS:
            return ()
        self._known.looked_ns = now_ns
        wait_ns = int(settings.spans_wait_s * _NS_PER_S)
        due = [
            step
            for step, received_ns in self._known.waiting.items()
            if everything or now_ns - min(received_ns, now_ns) >= wait_ns
        ]
        for step in due:
            del self._known.waiting[step]
            self._known.explained[step] = None
        while len(self._known.explained) > _REMEMBERED:
            del self._known.explained[next(iter(self._known.explained))]
        explained = self._explain([number for of, number in due if of == role], role)
        if due:
            self._forget(settings)
        return explained

    def take_log(self) -> TrailLog | None:
        """Take out the spans that came since the last call; None if none did."""
        if not self._fresh:
            return None
        body = zlib.compress(pickle.dumps(self._fresh, pickle.HIGHEST_PROTOCOL), level=1)
        log = TrailLog(max(span.end_ns for span in self._fresh), body)
        self._fresh = []
        return log

    def restore(self, body: bytes) -> None:
        """Know again what ``take_log`` gave out, in any order."""
        spans: list[SpanRecord] = pickle.loads(zlib.decompress(body))  # noqa: S301  # our own
        for span in spans:
            if span.end_ns > self.forgotten_ns:
                self._spans.setdefault(span.span_id, span)

    def _take(self, span: SpanRecord, received_ns: int) -> None:
        self._spans[span.span_id] = span
        if span.name == STEP_SPAN and span.step is not None:
            step = (span.role, span.step)
            if step not in self._known.explained:
                self._known.waiting[step] = received_ns

    def _explain(self, steps: Iterable[int], role: str) -> list[Explained]:
        roots: dict[int, list[SpanRecord]] = defaultdict(list)
        wanted = set(steps)
        if not wanted:
            return []
        for span in self._spans.values():
            if span.name == STEP_SPAN and span.role == role and span.step in wanted:
                roots[span.step].append(span)
        if not roots:  # they had to make room
            return []
        forest = Forest(self._spans.values())
        reference = min((root.worker, root.host) for of in roots.values() for root in of)[1]
        clocks = estimate_clocks(forest, reference)
        moved = {host: clock.ahead_ns for host, clock in clocks.items() if clock.ahead_ns}
        if moved:
            forest = Forest(with_one_clock(self._spans.values(), clocks))
        last_of = {}
        for step in sorted(roots):
            ranks = [forest.get(root.span_id) or root for root in roots[step]]
            last_of[step] = max(ranks, key=lambda root: root.end_ns)
        start_ns = min(root.start_ns for root in last_of.values())
        end_ns = max(root.end_ns for root in last_of.values())
        observer = Observer(forest, Activity(forest, start_ns, end_ns))
        host_clocks = list(_host_clocks(moved, forest))
        return [
            self._explained(step, root, forest, observer, host_clocks)
            for step, root in last_of.items()
        ]

    def _explained(
        self,
        step: int,
        root: SpanRecord,
        forest: Forest,
        observer: Observer,
        clocks: Sequence[HostClock],
    ) -> Explained:
        took_ns: dict[tuple[str, str], int] = defaultdict(int)
        of_workers: dict[str, int] = defaultdict(int)
        path: dict[Place, float] = defaultdict(float)
        segments = critical_path(forest, root)
        for segment in segments:
            role, phase = self._place(segment.role, segment.phase)
            took_ns[role, phase] += segment.end_ns - segment.start_ns
            of_workers[segment.worker] += segment.end_ns - segment.start_ns
            path[role, phase, segment.worker] += (segment.end_ns - segment.start_ns) / _NS_PER_S
        values = {
            tracker_key(role, names.RL_CRITICAL_PATH_DURATION, [(names.RL_PHASE, phase)]): ns
            / _NS_PER_S
            for (role, phase), ns in took_ns.items()
        }
        worker = max(of_workers, key=lambda worker: of_workers[worker], default=root.worker)
        longest = max(took_ns, key=lambda place: took_ns[place], default=(root.role, UNACCOUNTED))
        trace_id = root.span_id[:16].hex()
        busy, shares, waits = _busy(observer.activity.within(root.start_ns, root.end_ns))
        health = observer.judge(root, segments)
        return Explained(
            step,
            root.end_ns,
            values,
            trace_id,
            worker,
            "/".join(longest),
            dict(path),
            busy,
            shares,
            waits,
            clocks,
            dict(self._health_values(health, root.role)),
            health.bound,
            {
                tracker_key(role, _STRAGGLER): of.straggler.worker
                for role, of in self._named(health.roles)
                if of.straggler is not None
            },
        )

    def _health_values(self, health: StepHealth, stepping_role: str) -> Iterator[tuple[str, float]]:
        """By tracker key."""
        for role, of in self._named(health.roles):
            yield tracker_key(role, names.RL_HEALTH_BUSY), of.busy_ns / of.workers / _NS_PER_S
            yield tracker_key(role, names.RL_HEALTH_BUBBLE), of.bubble_ns / of.workers / _NS_PER_S
            yield tracker_key(role, names.RL_HEALTH_IDLE), of.idle_ns / of.workers / _NS_PER_S
            if of.slack_ns is not None:
                yield tracker_key(role, names.RL_HEALTH_SLACK), of.slack_ns / _NS_PER_S
            if of.straggler is not None:
                excess_s = of.straggler.excess_ns / _NS_PER_S
                yield tracker_key(role, names.RL_HEALTH_STRAGGLER_EXCESS), excess_s
        for stage in names.RlStageValues:
            share = health.bound_ns.get(stage, 0) / (health.took_ns or 1)
            key = tracker_key(stepping_role, names.RL_HEALTH_BOUND, [(names.RL_STAGE, stage)])
            yield key, share
        if health.overlap_ns is not None:
            overlap_s = health.overlap_ns / _NS_PER_S
            yield tracker_key(stepping_role, names.RL_HEALTH_OVERLAP), overlap_s
        if health.efficiency is not None:
            ideal_s = health.ideal_ns / _NS_PER_S
            yield tracker_key(stepping_role, names.RL_HEALTH_IDEAL), ideal_s
            yield tracker_key(stepping_role, names.RL_HEALTH_EFFICIENCY), health.efficiency

    def _named(self, roles: Mapping[str, RoleHealth]) -> Iterable[tuple[str, RoleHealth]]:
        """As many as rows may name: a role may be called anything, too."""
        for role, of in roles.items():
            if self._place(role, IDLE)[0] == role:
                yield role, of

    def _place(self, role: str, phase: str) -> tuple[str, str]:
        places = self._known.places
        place = role, phase
        if place not in places:
            if len(places) >= _MAX_PLACES:
                return _OTHER, _OTHER
            places.add(place)
        return place

    def _forget(self, settings: AlignSettings) -> None:
        """Forget what has ended too long before the oldest step that waits."""
        if not self._spans:
            return
        newest_ns = max(span.end_ns for span in self._spans.values())
        starts = [
            span.start_ns
            for span in self._spans.values()
            if span.step is not None and (span.role, span.step) in self._known.waiting
        ]
        oldest_ns = min(starts, default=newest_ns)
        horizon_ns = oldest_ns - int(settings.spans_horizon_s * _NS_PER_S)
        self._drop_through(horizon_ns)

    def _make_room(self, surplus: int) -> int:
        ends = sorted(span.end_ns for span in self._spans.values())
        before = len(self._spans)
        self._drop_through(ends[min(len(ends) - 1, surplus + len(ends) // 10)])
        return before - len(self._spans)

    def _drop_through(self, horizon_ns: int) -> None:
        if horizon_ns <= self.forgotten_ns:
            return
        self._known.forgotten_ns = horizon_ns
        self._spans = {
            span_id: span for span_id, span in self._spans.items() if span.end_ns > horizon_ns
        }
        self._fresh = [span for span in self._fresh if span.end_ns > horizon_ns]

    def __getstate__(self) -> "_Known":
        return self._known

    def __setstate__(self, state: "_Known") -> None:
        self._known = state
        self._begin()


def _busy(
    activity: Mapping[Process, Sequence[Stretch]],
) -> tuple[dict[Place, float], dict[tuple[str, str], Shares], frozenset[tuple[str, str]]]:
    """What all workers were busy with, as ``busy``, ``shares`` and ``waits`` of ``Explained``."""
    waits = set()
    of_workers: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for process, stretches in activity.items():
        for stretch in stretches:
            place = process.role, stretch.phase
            of_workers[place][process.worker] += stretch.end_ns - stretch.start_ns
            if stretch.is_standstill:
                waits.add(place)
    busy: dict[Place, float] = {}
    shares = {}
    longest = nlargest(_MAX_PLACES, of_workers, key=lambda place: sum(of_workers[place].values()))
    for place in longest:
        took_ns = of_workers[place]
        shares[place] = Shares(len(took_ns), median(took_ns.values()) / _NS_PER_S)
        for worker in nlargest(MAX_WORKERS, took_ns, key=took_ns.__getitem__):
            busy[*place, worker] = took_ns[worker] / _NS_PER_S
    return busy, shares, frozenset(waits & shares.keys())


def _host_clocks(ahead_ns: Mapping[str, int], forest: Forest) -> Iterator[HostClock]:
    """With the worker of each host that comes first."""
    if not ahead_ns:
        return
    worker_of: dict[str, str] = {}
    for span in forest.spans:
        if span.host in ahead_ns:
            worker_of[span.host] = min(span.worker, worker_of.get(span.host, span.worker))
    for host in sorted(worker_of):
        yield HostClock(host, ahead_ns[host], worker_of[host])


@dataclass(slots=True)
class _Known:
    """What of a trail is pickled.

    Attributes:
        waiting: When the last root of a rank came, of each step that is to be explained.
        explained: Steps that were, so that a rank that reports late does not do so again.
        places: Roles and phases that the rows have named.
        looked_ns: When steps were explained last, by the bridge's clock.
        forgotten_ns: As of ``Trail``.
    """

    waiting: dict[tuple[str, int], int]
    explained: dict[tuple[str, int], None]
    places: set[tuple[str, str]]
    looked_ns: int
    forgotten_ns: int
