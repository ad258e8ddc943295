"""Reports the stack of a flow whose phase takes much longer than that phase ever took.

The exporter thread looks once per export at the open phases, and remembers for each name the
longest phase that it has seen end, apart from a slow start. So nothing is added to opening and
closing a phase.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Final, NamedTuple

from otel_rl.worker.otlp.anyvalue import Plain
from otel_rl.worker.phases.flows import open_flows
from otel_rl.worker.phases.timeline import Timeline, TimelineView

_LONGEST: Final = 3  # times the longest phase of the name so far
_START: Final = 5  # steps, which may compile, load and fill caches; or phases outside of steps
_LATER: Final = 10  # steps, after which the steps of the start are no measure
_MAX_NAMES: Final = 256
_MAX_TOLD: Final = 4  # flows in one export
_AGAIN_NS: Final = 300_000_000_000  # the journal keeps what was delivered for ten minutes
_NS_PER_S: Final = 1_000_000_000
_MAX_FRAMES: Final = 40  # innermost calls; deeper stacks are cut at their outer end
_MAX_LINE_CHARS: Final = 300
_INSTALLED: Final = "site-packages/"


class Stack(NamedTuple):
    """Place in its program at which a flow is.

    Attributes:
        step: The open step, or None.
        calls: Open calls, the innermost first.
        collective: The open collective, in words; empty without a dump of one.
    """

    phase: str
    step: int | None
    age_s: float
    calls: list[str]
    collective: str

    def fields(self, host: str, mask: Callable[[str], str]) -> Mapping[str, Plain]:
        """Return the fields of the event; ``mask`` removes secrets from a text."""
        return {
            "phase": self.phase,
            "age_s": round(self.age_s, 3),
            "host": host,
            "pid": os.getpid(),
            "stack": mask("\n".join(self.calls)),
            "collective": mask(self.collective),
        }


class _Seen:
    """A phase that was open at the last look."""

    def __init__(self, name: str, step: int | None) -> None:
        self.name = name
        self.step = step
        self.age_ns = 0
        self.tell_at_ns = 0


class _Ended:
    """Phases of one name that were seen and have ended. A look may miss many short ones."""

    def __init__(self) -> None:
        self._outside = 0
        self._start_ns = self._later_ns = 0

    def add(self, age_ns: int, nth_step: int | None) -> None:
        self._outside += nth_step is None
        if (self._outside if nth_step is None else nth_step + 1) <= _START:
            self._start_ns = max(self._start_ns, age_ns)
        else:
            self._later_ns = max(self._later_ns, age_ns)

    def longest_ns(self, nth_step: int | None) -> int:
        """Return the longest phase so far; a phase of the start only if no later one is known."""
        is_later = nth_step is not None and nth_step >= _LATER
        return self._later_ns if is_later else self._later_ns or self._start_ns


class HangWatch:
    """Phases of one process that are open for too long. One thread.

    Args:
        after_s: Phases younger than this are never reported; 0 reports none.
        environ: Environment of the process.
    """

    def __init__(self, after_s: float, environ: Mapping[str, str] = os.environ) -> None:
        self._after_ns = int(after_s * _NS_PER_S)
        self._environ = environ
        self.forget()

    def forget(self) -> None:
        self._first_step: int | None = None
        self._ended: dict[str, _Ended] = {}
        self._open: dict[tuple[int, int], _Seen] = {}

    def look(self, now_ns: int, wall_ns: int) -> list[Stack]:
        """Return the stacks of flows that are newly, or still, in a phase for too long."""
        if not self._after_ns:
            return []
        seen: dict[tuple[int, int], _Seen] = {}
        found: list[Stack] = []
        for timeline in open_flows():
            view = timeline.look(now_ns)
            if view is None:
                continue
            # The same phase of the same flow has begun at the same time.
            key = id(timeline), now_ns - view.phase_age_ns
            one = seen[key] = self._open.get(key) or _Seen(view.phase, view.step)
            if self._first_step is None:
                self._first_step = view.step
            one.age_ns = view.phase_age_ns
            if len(found) < _MAX_TOLD and self._is_too_old(one):
                one.tell_at_ns = one.age_ns + min(one.age_ns, _AGAIN_NS)
                found.append(self._stack(timeline, view, wall_ns))
        for key, one in self._open.items():
            if key not in seen:
                self._remember(one)
        self._open = seen
        return found

    def _is_too_old(self, one: _Seen) -> bool:
        ended = self._ended.get(one.name)
        usual_ns = 0 if ended is None else _LONGEST * ended.longest_ns(self._nth_step(one))
        return one.age_ns >= max(self._after_ns, usual_ns, one.tell_at_ns)

    def _nth_step(self, one: _Seen) -> int | None:
        return None if one.step is None or self._first_step is None else one.step - self._first_step

    def _remember(self, one: _Seen) -> None:
        ended = self._ended[one.name] = self._ended.pop(one.name, _Ended())
        ended.add(one.age_ns, self._nth_step(one))
        if len(self._ended) > _MAX_NAMES:
            del self._ended[next(iter(self._ended))]

    def _stack(self, timeline: Timeline, view: TimelineView, wall_ns: int) -> Stack:
        from otel_rl.worker.phases.flight_recorder import collective_in_words  # pickle: seldom

        since_ns = wall_ns - view.phase_age_ns
        return Stack(
            view.phase,
            view.step,
            view.phase_age_ns / _NS_PER_S,
            _calls(timeline),
            collective_in_words(self._environ, since_ns),
        )


def _calls(flow: Timeline) -> list[str]:
    """Return the open calls of a flow as ``file:line in function``, the innermost first.

    The result has no source line and no value of a variable, which may hold anything.
    """
    if (task := flow.task) is not None:
        waiting = task.get_stack(limit=_MAX_FRAMES)  # empty while the task runs
        if waiting:
            return [*_lines(reversed(waiting))]
    # Documented, and the only way to the stack of another thread.
    frame = sys._current_frames().get(flow.thread.ident or 0)  # noqa: SLF001
    return [*_lines(_outward(frame))]


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _lines(frames: Iterable[FrameType]) -> Iterator[str]:
    for place, frame in enumerate(frames):
        if place >= _MAX_FRAMES:
            yield "..."
            return
        code = frame.f_code
        path = code.co_filename.rpartition(_INSTALLED)[2]
        line = f"{path}:{frame.f_lineno} in {code.co_qualname}"
        yield line[-_MAX_LINE_CHARS:]
