"""Window of the spans of one experiment that may explain a step, and the explained steps.

A step is explained once the spans of every process have had time to arrive: each sends them at
intervals of its own. Later spans are ignored.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Stored
from otel_rl.bridge.rows.history.missing_spans import Gaps, MissingSpans
from otel_rl.bridge.rows.history.recent_spans import RecentSpans
from otel_rl.bridge.rows.history.step_analysis import OTHERS, StepAnalysis, explain
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["SpanWindow"]

_NS_PER_S: Final = 1_000_000_000

_MARKED: Final = "Spans of {roles} say that they are sampled (tracestate ot=th, or tailsampling.*)"

# Interval of explanations, each of which sorts all spans. Steps are explained together.
_EVERY_NS: Final = 5 * _NS_PER_S

# A step takes some milliseconds, in which the rows of others wait.
_STEPS_AT_A_TIME: Final = 32

# Number of explained steps in memory.
_REMEMBERED: Final = 4_096


class SpanWindow(Stored, dict=True):
    """Explains steps by recent spans, which arrive in any order.

    Attributes:
        recent: The spans, which are in a log of their own.
        missing: Steps that have spans.
        gaps: Steps without spans, as of the last explanation.
    """

    # Arrival of the last root of a rank, for each step to be explained.
    _waiting: dict[tuple[str, Int64], Int64] = field(default_factory=dict)
    # End of each explained step, so that a late rank does not have it explained again, while a
    # repeated pass does.
    _explained: dict[tuple[str, Int64], Int64] = field(default_factory=dict)
    _places: set[tuple[str, str]] = field(default_factory=set)  # roles and phases in the rows
    _looked_ns: Int64 = 0  # time of the last explanation, by the bridge's clock
    # Of ``recent`` and ``missing``, as of ``stored``.
    _forgotten_ns: Int64 = 0
    _behind_ns: dict[str, Int64] = field(default_factory=dict)
    _unnamed_ns: Int64 = 0
    _ranks: Mapping[tuple[str, str], Sequence[Int64]] = field(default_factory=dict)
    _is_marked: bool = False

    def __post_init__(self) -> None:
        self.recent = RecentSpans(self._forgotten_ns, self._behind_ns, self._unnamed_ns)
        # Which workers were sampled is not kept: all are, as long as the last steps tell of them.
        last_ns = max(self._forgotten_ns + 1, *self._explained.values(), 0)
        marked_ns = dict.fromkeys(self._ranks, last_ns) if self._is_marked else {}
        self.missing = MissingSpans(self._ranks, marked_ns=marked_ns)
        self.gaps = Gaps()
        self._explaining: _Explaining | None = None

    def stored(self) -> "SpanWindow":
        """Return the window for the journal, without the spans."""
        self._forgotten_ns, self._unnamed_ns = self.recent.forgotten_ns, self.recent.unnamed_ns
        # The others are read from the spans; mostly there are no more than those.
        self._behind_ns = self.recent.newest_of_forgotten()
        self._ranks, self._is_marked = self.missing.ranks, bool(self.missing.marked_ns)
        return self

    @property
    def is_open(self) -> bool:
        """Return whether a step waits to be explained."""
        return bool(self._waiting)

    @property
    def crowded_role(self) -> str:
        """Return the role with most phases in the rows, if there were too many; else empty."""
        if OTHERS not in self._places:
            return ""
        return Counter(role for role, _ in self._places).most_common(1)[0][0]

    @property
    def sampled(self) -> str:
        """Return what shows that spans of steps are dropped on the way, in words; else empty."""
        if self.gaps.is_a_rule:
            return str(self.gaps)
        roles = sorted({role for role, _ in self.missing.marked_ns} - {""})
        return _MARKED.format(roles=", ".join(roles)) if roles else ""

    @property
    def has_more(self) -> bool:
        """Return whether the next ``close`` continues to explain, at any time."""
        return self._explaining is not None

    def add(self, spans: Iterable[SpanRecord], settings: AlignSettings, received_ns: int) -> int:
        """Add spans; repeats make no difference.

        Returns:
            Number of spans that were too old or evicted; and of those, the ones of steps that may
            wait to be explained.
        """
        added, dropped = self.recent.add(spans)
        self.missing.add(added)
        for span in added:
            if span.name == STEP_SPAN and span.step is not None:
                step = (span.role, span.step)
                # A span that began after the step's end is the same step of another pass.
                if span.start_ns >= self._explained.get(step, 0):
                    self._waiting[step] = received_ns
        while len(self._waiting) > settings.max_open_steps:
            del self._waiting[next(iter(self._waiting))]
            dropped += 1
        return dropped + self.recent.make_room(settings)

    def close(
        self,
        role: str,
        settings: AlignSettings,
        now_ns: int,
        missed: Callable[[], Mapping[str, tuple[int, int]]] = dict,
        reported: Callable[[], Iterable[int]] = tuple,
        *,
        everything: bool,
    ) -> Sequence[StepAnalysis]:
        """Explain a bounded number of steps of ``role`` whose spans have had time to arrive.

        Args:
            role: Role of the steps; empty if no metric has one.
            settings: How long to wait for spans.
            now_ns: The bridge's clock.
            missed: Returns the instances of workers whose last spans may never arrive, and the time
                range of these. Called if there is something to explain.
            reported: Returns the steps of the role by metrics.
            everything: Also explain steps whose spans may still arrive.
        """
        explained = self._go_on(settings, everything=everything)
        if self._explaining is None and (
            everything or not 0 <= now_ns - self._looked_ns < _EVERY_NS
        ):
            self._looked_ns = now_ns
            self._look(role, settings, now_ns, missed, reported, everything=everything)
            explained += self._go_on(settings, everything=everything)
        return explained

    def _look(
        self,
        role: str,
        settings: AlignSettings,
        now_ns: int,
        missed: Callable[[], Mapping[str, tuple[int, int]]],
        reported: Callable[[], Iterable[int]],
        *,
        everything: bool,
    ) -> None:
        """Begin to explain the steps that have waited long enough."""
        wait_ns = int(settings.spans_wait_s * _NS_PER_S)
        due = [
            step
            for step, received_ns in self._waiting.items()
            if everything or now_ns - min(received_ns, now_ns) >= wait_ns
        ]
        if not due:
            return
        role = role or _stepping_role(due)
        steps = [number for of, number in due if of == role]
        if steps:
            explained_before = {number for of, number in self._explained if of == role}
            waiting = {number for of, number in self._waiting if of == role}
            self.gaps = self.missing.gaps(role, explained_before.union(steps), reported(), waiting)
        explained = explain(self.recent.by_id, role, steps, self._places, missed() if steps else {})
        self._explaining = _Explaining(role, self._over_ns(due), explained)

    def _go_on(self, settings: AlignSettings, *, everything: bool) -> list[StepAnalysis]:
        """Explain some of the steps that were begun; the others wait, also over a restart."""
        explaining = self._explaining
        if explaining is None:
            return []
        explained: list[StepAnalysis] = []
        is_over = True
        for one in explaining.explained:
            if one is not None:
                explained.append(self._with_missed(one))
            if not everything and (one is None or len(explained) >= _STEPS_AT_A_TIME):
                is_over = False
                break
        done = [(explaining.role, one.step) for one in explained]
        for step in [*explaining.over_ns] if is_over else done:
            self._waiting.pop(step, None)
            self._explained.pop(step, None)
            self._explained[step] = explaining.over_ns.pop(step)
        while len(self._explained) > _REMEMBERED:
            del self._explained[next(iter(self._explained))]
        if is_over:
            self._explaining = None
            self._forget(settings)
        return explained

    def _with_missed(self, of: StepAnalysis) -> StepAnalysis:
        """Add the workers whose spans are dropped on the way."""
        dropped = self.gaps.lacking.get(of.step, ())
        if self.gaps.is_a_rule:
            dropped = {span.worker for span in self.recent.by_id.values()}
        else:
            dropped = {*dropped, *(worker for _, worker in self.missing.marked_ns)}
        return replace(of, missed=sorted({*of.missed, *dropped})) if dropped else of

    def _over_ns(self, steps: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the end of each step, on the last rank."""
        over_ns = dict.fromkeys(steps, 0)
        for span in self.recent.by_id.values() if steps else ():
            if span.name == STEP_SPAN and span.step is not None:
                step = span.role, span.step
                if over_ns.get(step, span.end_ns) < span.end_ns:
                    over_ns[step] = span.end_ns
        return over_ns

    def _forget(self, settings: AlignSettings) -> None:
        """Forget spans that ended too long before the oldest waiting step."""
        spans = self.recent.by_id.values()
        if not spans:
            return
        newest_ns = max(span.end_ns for span in spans)
        starts = [
            span.start_ns
            for span in spans
            if span.step is not None and (span.role, span.step) in self._waiting
        ]
        oldest_ns = min(starts, default=newest_ns)
        horizon_ns = oldest_ns - int(settings.spans_horizon_s * _NS_PER_S)
        self.recent.drop_through(horizon_ns)
        self.missing.unmark_through(horizon_ns)


def _stepping_role(steps: Sequence[tuple[str, int]]) -> str:
    """Return the role of the run's steps by spans alone: trainers, else that with most."""
    found = Counter(role for role, _ in steps)
    return max(found, key=lambda role: (role == "trainer", found[role], role))


@dataclass(slots=True)
class _Explaining:
    """Steps that are being explained.

    Attributes:
        role: Role of the steps.
        over_ns: End of each remaining step, by role and number; also of other roles.
        explained: Iterator that explains the next of them.
    """

    role: str
    over_ns: dict[tuple[str, int], int]
    explained: Iterator[StepAnalysis | None]
