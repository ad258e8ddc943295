"""End of a bridge: it stops while the main thread says how far it is and listens for signals."""

import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from otel_rl.bridge.bridge import Bridge, Left
from otel_rl.bridge.counters import Counter, Where
from otel_rl.bridge.delivery.manager import RunState, RunStatus
from otel_rl.cli.ending.files import amend_status
from otel_rl.cli.ending.report import Ending, report, rest_command
from otel_rl.cli.signal_handlers import EndRequests
from otel_rl.cli.standard_streams import say
from otel_rl.errors import JournalError, OtelRLError
from otel_rl.plurals import many

_log = logging.getLogger(__name__)

# Of the news while the rest is written; each further one comes twice as late as the one before.
_FIRST_NEWS_S: Final = 3.0
_LOOK_S: Final = 10.0
"""A tracker that has taken nothing for so long is worth a line."""

_STUCK: Final = {RunState.WAITING, RunState.OPENING, RunState.RETRYING, RunState.REJECTED}

ENDS: Final = ("otel_rl.bridge.rows.scheduler.ends",)
"""Logger of what a bridge says of a run's end, and the report of its own end says last."""

_WHAT_THE_REPORT_SAYS: Final = (
    "otel_rl.bridge.delivery.run_delivery",
    "otel_rl.bridge.row_thread",
    "otel_rl.bridge.rows.scheduler.news",
    *ENDS,
)
"""Loggers of what the report of an end says as well."""


def finish(
    bridge: Bridge,
    *,
    exit_code: int,
    is_over: bool,
    requests: EndRequests,
    by: str | None = None,
) -> Ending:
    """Stop the bridge and report the runs.

    Args:
        exit_code: See ``Bridge.stop``.
        is_over: See ``Bridge.stop``.
        requests: Ask for an end at once: the rest stays in the journal, and the next signal exits.
        by: See ``Bridge.stop``.
    """
    statuses: list[RunStatus] = []
    problems: list[str] = []
    has_stopped = threading.Event()

    def stop() -> None:
        try:
            statuses.extend(bridge.stop(exit_code=exit_code, is_over=is_over, by=by))
        except OtelRLError as exc:
            problems.append(str(exc))
        except Exception as exc:  # noqa: BLE001  # an edge: a command's exit status is its own
            bridge.counters.add(Counter.EXCEPTIONS, reason=Where.DELIVERY)
            _log.exception("The bridge failed at its end.")
            problems.append(f"the bridge failed at its end ({type(exc).__name__}: {exc})")
        finally:
            has_stopped.set()
            requests.wake()

    progress = Progress(bridge, bridge.settings.stop_timeout_s)
    threading.Thread(target=stop, name="otel-rl-stop", daemon=True).start()
    interrupted = None
    with left_to_the_report():
        while not (has_stopped.is_set() or interrupted):
            interrupted = requests.wait(progress.until_next_s()) or None
            progress.look()
    if interrupted:
        requests.leave()
        return left_behind(bridge, progress, interrupted)
    if bridge.problem:
        problems.append(bridge.problem)
    ending = Ending(
        statuses,
        bridge.waiting,
        "; ".join(problems),
        is_shared=bridge.settings.journal.url is not None,
    )
    ending.note_losses(bridge, senders_have_ended=is_over)
    report(bridge, ending, progress.told)
    return ending


def left_behind(bridge: Bridge, progress: "Progress", interrupted: int | None) -> Ending:
    """Report a bridge whose rest stays in the journal; the process has to ``leave``.

    Args:
        bridge: Goes on until the process ends.
        interrupted: Signal that has ended the wait.
    """
    left = Left(0, 0)
    with suppress(JournalError):
        left = bridge.left()
    ending = Ending(
        bridge.status(),
        left.requests,
        interrupted=interrupted,
        is_shared=bridge.settings.journal.url is not None,
    )
    ending.note_losses(bridge, senders_have_ended=False)
    if interrupted:
        say(f"stopped; unwritten rows stay in {bridge.settings.data}")
    report(bridge, ending, progress.told)
    return ending


def leave(status: int) -> None:
    """End the process at once, without the threads and exit handlers of a busy bridge."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


_PATIENCE_S: Final = 60.0
"""Time without any progress until the rest stays where it is."""

_REST_LOOK_S: Final = 0.2


def write_rest(bridge: Bridge, requests: EndRequests, exit_status: int | None = None) -> bool:
    """Write what a bridge finds in its journal and inboxes, for as long as there is progress.

    Without progress, or after a signal, the process ends here and the rest stays where it is.

    Args:
        requests: Ask for an end at once.
        exit_status: Of the command that has reported; None if it is unknown.

    Returns:
        Whether nothing is left.
    """
    patience_s = min(_PATIENCE_S, bridge.settings.stop_timeout_s)
    progress = Progress(bridge, patience_s)
    with left_to_the_report():
        while _has_rows(bridge):
            number = requests.wait(min(_REST_LOOK_S, max(0.0, progress.until_next_s())))
            progress.look()
            if number or progress.standstill_s() > patience_s:
                ending = left_behind(bridge, progress, number or None)
                amend_status(bridge.settings.data, ending)
                leave(requests.exit_status(number) if number else 1)
    inbox = bridge.inbox
    if inbox is not None and not inbox.living:
        exit_status = exit_status or int(inbox.was_killed)
    ending = finish(
        bridge,
        exit_code=exit_status or 0,
        is_over=exit_status is not None,
        requests=requests,
    )
    amend_status(bridge.settings.data, ending)
    if ending.lost:
        say(f"DATA WAS LOST: {ending.lost_in_words}.")
    if ending.interrupted:
        leave(requests.exit_status(ending.interrupted))
    return ending.is_complete


def _has_rows(bridge: Bridge) -> bool:
    if bridge.inbox is not None and not bridge.inbox.is_empty:
        return True
    with suppress(JournalError):  # the stop reports it
        left = bridge.left()
        if not left.requests:
            bridge.expect_nothing()
        return bool(left.requests or left.rows)
    return False


@dataclass(slots=True)
class Progress:
    """Says how far the writing of the rest is, and which trackers take nothing.

    Attributes:
        told: Last error that was said.
    """

    bridge: Bridge
    timeout_s: float
    told: str = ""
    _begun_s: float = field(default_factory=time.monotonic)
    _news_s: float = _FIRST_NEWS_S
    _look_s: float = 0.0
    # By tracker: what it has taken, since when, and whether that was told.
    _taken: dict[str, int] = field(default_factory=dict)
    _since_s: dict[str, float] = field(default_factory=dict)
    _stuck: set[str] = field(default_factory=set)

    def until_next_s(self) -> float:
        return min(self._news_s, self._look_s) - self._passed_s()

    def standstill_s(self) -> float:
        """Return the time since a tracker has taken something, as far as was looked."""
        return self._passed_s() - max(self._since_s.values(), default=0.0)

    def look(self) -> None:
        now_s = self._passed_s()
        with suppress(JournalError):  # reported at the end
            self._look_at_trackers(now_s)
            if now_s >= self._look_s:
                self._look_s = now_s + _LOOK_S
            if now_s >= self._news_s:
                self._news_s = 2 * max(now_s, 2 * _FIRST_NEWS_S)
                left = left_in_words(self.bridge.left(), self.timeout_s - now_s)
                say(f"writing the rest: {left} (Ctrl-C leaves it in {self.bridge.settings.data})")

    def _passed_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _look_at_trackers(self, now_s: float) -> None:
        found: dict[str, list[RunStatus]] = {}
        for one in self.bridge.status():
            found.setdefault(one.tracker, []).append(one)
        for tracker, runs in found.items():
            taken = sum(one.next_row + one.safe_row for one in runs)
            if tracker not in self._taken or taken > self._taken[tracker]:
                self._since_s[tracker] = now_s if tracker in self._taken else 0.0
                self._taken[tracker] = taken
            elif (
                now_s - self._since_s[tracker] >= _LOOK_S
                and tracker not in self._stuck
                and any(map(_is_stuck, runs))
            ):
                self._stuck.add(tracker)
                self._say_stuck(tracker, runs)

    def _say_stuck(self, tracker: str, runs: list[RunStatus]) -> None:
        data = self.bridge.settings.data
        self.told = next((one.last_error for one in runs if one.last_error), "")
        why = self.told.rstrip(".") or "it does not answer"
        left = many(sum(one.pending for one in runs), "row")
        offline = ""
        if tracker == "wandb":
            offline = " Where there is no internet, set WANDB_MODE=offline before the run."
        say(
            f"{tracker} has taken nothing for {_LOOK_S:.0f} s: {why}. Ctrl-C ends the wait: "
            f"{left} stay in {data}, and `{rest_command(data)}` writes them later.{offline}"
        )


def _is_stuck(run: RunStatus) -> bool:
    return run.pending > 0 and run.state in _STUCK


def left_in_words(left: Left, seconds: float) -> str:
    parts = [many(left.requests, "request")] if left.requests else []
    if left.rows:
        parts.append(many(left.rows, "row"))
    minutes, rest = divmod(max(0, round(seconds)), 60)
    time_left = f"{minutes} min {rest} s" if minutes else f"{rest} s"
    what = f"{' and '.join(parts)} left" if parts else "closing the runs"
    return f"{what}, for at most {time_left}"


@contextmanager
def left_to_the_report(loggers: Collection[str] = _WHAT_THE_REPORT_SAYS) -> Iterator[None]:
    """Keep out of the log, for the length of the context, what the report at its end says."""

    def is_new(record: logging.LogRecord) -> bool:
        return record.name not in loggers

    handlers = [*logging.getLogger().handlers]
    for handler in handlers:
        handler.addFilter(is_new)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_new)
