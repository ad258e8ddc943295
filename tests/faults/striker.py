"""Lets the faults of a plan strike at their times, and end."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.faults.disk import SmallDisk
from tests.faults.keeper import BridgeKeeper, WorkerKeeper, kill, wait_for
from tests.faults.link import Link, Trouble
from tests.faults.outcome import Timeline
from tests.faults.plan import KILLS, Event, Fault, Plan
from tests.faults.senders import Sender
from tests.support.wandb_server import WandbServer

_TARGET_TIMEOUT_S = 5.0
_FEW_BYTES = 4096

_TROUBLES = {
    Fault.WANDB_REFUSED: Trouble.REFUSED,
    Fault.WANDB_SILENT: Trouble.SILENT,
    Fault.WANDB_LOST_ANSWERS: Trouble.LOST_ANSWERS,
    Fault.WANDB_CUT_ANSWERS: Trouble.CUT_ANSWERS,
}
_STATUSES = {
    Fault.WANDB_500: (500, ""),
    Fault.WANDB_429: (429, ""),
    Fault.WANDB_401: (401, ""),
    Fault.UPLOAD_401: (401, "file_stream"),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that a fault can strike at."""

    bridge: BridgeKeeper
    server: WandbServer
    link: Link
    disk: SmallDisk
    senders: Sequence[Sender]
    workers: Sequence[WorkerKeeper]


class Striker:
    """One thread calls the methods.

    Args:
        stage: What there is.
        timeline: Where every strike is told.

    Attributes:
        faults: How often each struck.
        skipped: How often each had nothing to strike at.
        kills: How often one was a kill -9.
    """

    def __init__(self, stage: Stage, timeline: Timeline) -> None:
        self.faults: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.kills = 0
        self._stage = stage
        self._timeline = timeline
        self._ends: list[tuple[float, Fault]] = []

    def strike(self, plan: Plan) -> None:
        """Let the events of the plan happen. Returns when its time is over."""
        events = list(plan.events)
        while events or self._ends:
            at_s = min([event.at_s for event in events[:1]] + [end_s for end_s, _ in self._ends])
            time.sleep(max(0.0, at_s - self._timeline.now_s))
            for end in [end for end in self._ends if end[0] <= at_s]:
                self._ends.remove(end)
                self._end(end[1])
            if events and events[0].at_s <= at_s:
                self._happen(events.pop(0))
        time.sleep(max(0.0, plan.lasts_s - self._timeline.now_s))

    def make_well(self) -> None:
        """Nothing is wrong any more."""
        self._stage.server.heal()
        self._stage.link.suffer(Trouble.NONE)
        self._stage.disk.free()
        self._stage.bridge.limit_files(None)

    def _happen(self, event: Event) -> None:
        if not self._begin(event):
            self.skipped[event.fault] += 1
            self._timeline.tell(f"{event.fault}: nothing to strike at")
            return
        self.faults[event.fault] += 1
        self.kills += event.fault in KILLS
        self._ends.append((self._timeline.now_s + event.lasts_s, event.fault))
        self._timeline.tell(f"{event.fault} ({event.lasts_s:.1f} s, {event.number})")

    def _begin(self, event: Event) -> bool:
        """Let it begin. Returns whether there was anything to strike at."""
        stage, fault = self._stage, event.fault
        if fault in _TROUBLES:
            stage.link.suffer(_TROUBLES[fault])
        elif fault in _STATUSES:
            status, path = _STATUSES[fault]
            stage.server.fail(status, path=path)
        elif fault is Fault.WANDB_LAGS:
            stage.server.lag(event.number)
        elif fault is Fault.DISK_FULL:
            return stage.disk.fill()
        elif fault is Fault.FILE_LIMIT:
            return stage.bridge.limit_files(_FEW_BYTES)
        elif fault is Fault.RESTART_SENDER:
            stage.senders[event.number % len(stage.senders)].restart()
        elif fault is Fault.CLOCK:
            stage.senders[event.number % len(stage.senders)].set_clock(event.number)
        else:
            return self._begin_with_process(event)
        return True

    def _begin_with_process(self, event: Event) -> bool:
        bridge = self._stage.bridge
        bridge.restart_pause_s = event.lasts_s / 2
        match event.fault:
            case Fault.KILL_BRIDGE:
                return bridge.signal(signal.SIGKILL)
            case Fault.STOP_BRIDGE:
                return bridge.is_up() and bridge.signal(signal.SIGTERM)
            case Fault.KILL_WRITER:
                return _killed(bridge.writers)
            case Fault.KILL_CORE:
                return _killed(bridge.cores)
            case Fault.KILL_ALL:
                helpers = [*bridge.writers(), *bridge.cores()]
                is_killed = bridge.signal(signal.SIGKILL)
                return bool(kill(helpers)) or is_killed
            case _:
                workers = self._stage.workers
                workers[event.number % len(workers)].kill()
                return True

    def _end(self, fault: Fault) -> None:
        if fault in _TROUBLES:
            self._stage.link.suffer(Trouble.NONE)
        elif fault in _STATUSES or fault is Fault.WANDB_LAGS:
            self._stage.server.heal()
        elif fault is Fault.DISK_FULL:
            self._stage.disk.free()
        elif fault is Fault.FILE_LIMIT:
            self._stage.bridge.limit_files(None)


def _killed(pids: Callable[[], Sequence[int]]) -> bool:
    """Kill them as soon as there are any."""
    wait_for(lambda: bool(pids()), _TARGET_TIMEOUT_S)
    return bool(kill(pids()))
