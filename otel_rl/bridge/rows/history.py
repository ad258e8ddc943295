"""The records of a run that a diagnosis reads: which worker measured what, and when."""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from otel_rl.bridge.journal.log import Appended, KeptParts
from otel_rl.bridge.rows.measured_cells import MAX_KEYS, MeasuredCells
from otel_rl.bridge.rows.series.streams import WorkerStanding, WorkerState
from otel_rl.diagnose.history.records import (
    ALL_RECORDED,
    MOST_EXTREME,
    Facts,
    RowFacts,
    SpanFacts,
    StepFacts,
)
from otel_rl.records import ExperimentStatus, SpanRecord, Worker, WorkerFailure
from otel_rl.semconv.spec import STEP_SPAN, TOOL_SPAN

_MAX_DEPTH: Final = 16
_MAX_ROLES: Final = 64
_MAX_ENDS: Final = 1_000  # of a role: spans arrive within a minute or two


class SpanSteps:
    """Finds the step of each span."""

    def __init__(self) -> None:
        # By role: (end, the step that follows), in order.
        self._ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._loop = ""

    def of(
        self, spans: Sequence[SpanRecord], step_at: Callable[[int], int | None]
    ) -> Iterator[tuple[SpanRecord, int]]:
        by_id: Mapping[bytes, SpanRecord] = {}
        if any(span.step is None for span in spans):
            by_id = {span.span_id: span for span in spans}
            self._observe(spans)
        for span in spans:
            yield span, self._step_of(span, by_id, step_at)

    def _step_of(
        self,
        span: SpanRecord,
        by_id: Mapping[bytes, SpanRecord],
        step_at: Callable[[int], int | None],
    ) -> int:
        if span.step is not None:
            return span.step
        # Metrics are asked first: a span around ends later, and may come in a later message. Some
        # spans of a worker would have its step and some that of the metrics, one apart.
        step = step_at(span.end_ns)
        if step is None:
            step = _of_span_around(span, by_id)
        return self._at(span) if step is None else step

    def _observe(self, spans: Sequence[SpanRecord]) -> None:
        for span in spans:
            is_known = span.role in self._ends or len(self._ends) < _MAX_ROLES
            if span.step is None or not is_known:
                continue
            if span.name == STEP_SPAN or not self._loop:
                self._loop = span.role
            ends = self._ends[span.role]
            insort(ends, (span.end_ns, span.step + 1))
            if len(ends) > _MAX_ENDS:
                del ends[: _MAX_ENDS // 2]

    def _at(self, span: SpanRecord) -> int:
        """Return the step in which a span ended: the step of its own role, else of the loop."""
        ends = self._ends.get(span.role) or self._ends.get(self._loop) or []
        place = bisect_right(ends, span.end_ns, key=lambda one: one[0])
        return ends[place - 1][1] if place else 0


def _of_span_around(span: SpanRecord, by_id: Mapping[bytes, SpanRecord]) -> int | None:
    """Return the step of a span, or of the nearest enclosing span that has one."""
    around: SpanRecord | None = span
    for _ in range(_MAX_DEPTH):
        if around is None or around.step is not None:
            break
        around = None if around.parent_id is None else by_id.get(around.parent_id)
    return None if around is None else around.step


_NS_PER_S: Final = 1_000_000_000
_EVERY_NS: Final = _NS_PER_S
_AHEAD_NS: Final = 1_500_000_000  # a clock that is ahead; less is of the way

_MAX_PHASES: Final = 256
_MAX_PARENTS: Final = 10_000


class HistoryWriter:
    """Collects data and returns records of the history. The record in progress is not stored.

    Args:
        kept: The stored history of the run; None for a new run.

    Attributes:
        kept: The history as it is stored.
    """

    def __init__(self, kept: KeptParts | None = None) -> None:
        self.kept = kept or KeptParts()
        self._span_steps = SpanSteps()
        self._begin()
        # Those before a restart were reported.
        self._lost: set[Worker] | None = set() if kept is None else None
        self._reported: tuple[Sequence[WorkerFailure], str] = (), ""
        # Workers whose places are in no record yet, in order.
        self._placed: dict[WorkerState, None] = {}
        self._has_forgotten_places = False

    def _begin(self) -> None:
        self._made_ns = 0
        self.measured = MeasuredCells()
        self._spans: dict[tuple[int, str, str, str], list[float]] = {}
        # Time of nested spans whose parent has not arrived yet; oldest first.
        self._within: dict[tuple[bytes, str], int] = {}
        self._lags: dict[WorkerState, float] = {}
        self._ahead: dict[str, float] = {}  # of spans that end after their arrival
        self._rows: list[RowFacts] = []
        self._steps: list[StepFacts] = []

    def spanned(
        self,
        spans: Iterable[SpanRecord],
        step_at: Callable[[int], int | None],
        arrived_ns: int | None = None,
    ) -> None:
        """Record ended spans.

        Args:
            spans: New spans of one message, grouped by scope and not ordered by their ends.
            step_at: Returns the step in progress at a time in ns; None where no metric tells it.
            arrived_ns: Arrival of the message by the bridge's clock; None does not compare clocks.
        """
        # A nested span precedes its parent, also if both end together.
        in_order = sorted(spans, key=lambda span: (span.end_ns, -span.start_ns))
        for span, step in self._span_steps.of(in_order, step_at):
            inside_ns = self._within.pop((span.span_id, span.worker), 0)
            took_ns = span.end_ns - span.start_ns
            if span.parent_id is not None:
                parent = span.parent_id, span.worker
                self._within[parent] = self._within.get(parent, 0) + took_ns
                if len(self._within) > _MAX_PARENTS:
                    del self._within[next(iter(self._within))]
            place = step, span.role, _phase_of(span), span.worker
            cell = self._spans.get(place)
            if cell is None:
                if len(self._spans) >= _MAX_PHASES * MOST_EXTREME:
                    continue
                cell = self._spans[place] = [span.is_wait, 0, 0.0, 0.0, 0]
            own_s = max(0, took_ns - inside_ns) / _NS_PER_S
            cell[1] += 1
            cell[2] += own_s
            cell[3] = max(cell[3], own_s)
            cell[4] += span.failed
            # No span ends after its arrival. One long before may have waited: it proves nothing.
            if arrived_ns is not None and span.end_ns - arrived_ns >= _AHEAD_NS:
                lag_s = (arrived_ns - span.end_ns) / _NS_PER_S
                self._ahead[span.worker] = min(lag_s, self._ahead.get(span.worker, lag_s))

    def exported(self, worker: WorkerState, event_ns: int, received_ns: int) -> None:
        """Record an export, with its time by the worker's clock and by the bridge's."""
        if event_ns:
            lag_s = (received_ns - event_ns) / _NS_PER_S
            self._lags[worker] = min(lag_s, self._lags.get(worker, lag_s))

    def placed(self, worker: WorkerState, host: str, pid: int | None) -> None:
        """Record a worker's host and process id, as far as an export names them."""
        before_host, before_pid = worker.place
        place = host or before_host, before_pid if pid is None else pid
        if place != worker.place:
            worker.place = place
            self._placed[worker] = None

    def closed(
        self,
        step: int,
        time_ns: int,
        values: Mapping[str, float],
        attempt: int = 1,
        *,
        replaces: bool = False,
    ) -> None:
        """Record a closed row, and whether it replaces earlier rows of its step (see ``Row``)."""
        kept = {key: value for key, value in values.items() if not key.startswith("workers/")}
        if kept and len(kept) <= MAX_KEYS:
            self._rows.append(RowFacts(step, time_ns, kept, attempt, replaces))

    def explained(self, step: StepFacts) -> None:
        self._steps.append(step)

    def take(
        self,
        now_ns: int,
        step: int,
        workers: Mapping[Worker, WorkerState],
        names: Mapping[str, str],
        max_bytes: int,
        *,
        everything: bool,
        failures: Sequence[WorkerFailure] = (),
        status: str = "",
        attempt: int = 1,
    ) -> Appended | None:
        """Return the new records, if the last ones were taken long enough ago."""
        news = [one for one in failures if one not in self._reported[0]]
        has_ended = status not in {"", ExperimentStatus.RUNNING, self._reported[1]}
        returned = self._returned(workers)
        has_news = news or has_ended or returned
        new = self._rows or self._steps or self.measured or self._spans or has_news
        is_time = everything or self._rows or self._steps or now_ns - self._made_ns >= _EVERY_NS
        if not max_bytes:
            self._begin()
            self._placed.clear()
        if not new or not is_time or not max_bytes:
            return None
        now_ns = self.kept.next_ns(now_ns)
        facts = Facts(
            now_ns,
            step,
            self._rows,
            self._steps,
            self.measured.fields(),
            list(_by_phase(self._spans, names)),
            self._late(names),
            *(self._newly_lost(workers), news, status, attempt),
            returned,
            self._take_places(workers.values()),
        )
        self._reported = failures, status
        within = self._within
        self._begin()
        self._made_ns, self._within = now_ns, within
        body = facts.encode()
        if self.kept.keep(now_ns, len(body), 1, max_bytes):
            self._has_forgotten_places = True
        return Appended(now_ns, body)

    def _take_places(self, known: Iterable[WorkerState]) -> list[tuple[str, str, int | None]]:
        """Return new places of workers, or all places if records with some are forgotten."""
        states = known if self._has_forgotten_places else self._placed
        placed = [(f"{of.role}/{of.label}", *of.place) for of in states if any(of.place)]
        self._placed, self._has_forgotten_places = {}, False
        return placed[:MAX_KEYS]

    def _returned(self, workers: Mapping[Worker, WorkerState]) -> list[str]:
        """Return workers that were missed and report again, of SDKs that report no ends."""
        states = [workers[of] for of in self._lost or () if of in workers]
        return sorted(
            f"{state.role}/{state.label}"
            for state in states
            if state.standing is WorkerStanding.ALIVE and not state.sends_exit_report
        )

    def _late(self, names: Mapping[str, str]) -> list[tuple[str, float]]:
        """Return how far each worker lags, or how far its spans end after their arrival."""
        late = {names.get(worker, worker): lag_s for worker, lag_s in self._ahead.items()}
        late |= {f"{of.role}/{of.label}": lag_s for of, lag_s in self._lags.items()}
        return [*late.items()][:MAX_KEYS]

    def _newly_lost(self, workers: Mapping[Worker, WorkerState]) -> list[str]:
        lost = {of for of, state in workers.items() if state.standing is WorkerStanding.FAILED}
        new = set() if self._lost is None else lost - self._lost
        self._lost = lost
        return sorted(f"{workers[of].role}/{workers[of].label}" for of in new)


def _phase_of(span: SpanRecord) -> str:
    return span.name if span.name.startswith(TOOL_SPAN) else span.phase or span.name


def _by_phase(
    spans: Mapping[tuple[int, str, str, str], Sequence[float]], names: Mapping[str, str]
) -> Iterable[SpanFacts]:
    of_phase: dict[tuple[int, str, str], list[SpanFacts]] = {}
    for place, (is_wait, count, total_s, longest_s, failed) in spans.items():
        step, role, phase, worker = place
        name = names.get(worker, worker)
        facts = SpanFacts(
            step, role, phase, name, bool(is_wait), int(count), total_s, longest_s, int(failed)
        )
        of_phase.setdefault((step, role, phase), []).append(facts)
    for some in of_phase.values():
        some.sort(key=lambda one: one.total_s / one.spans)
        yield from (
            some
            if len(some) <= ALL_RECORDED
            else (some[: MOST_EXTREME // 2] + some[-MOST_EXTREME // 2 :])
        )
