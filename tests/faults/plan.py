"""A scenario, made from its seed alone: who sends, what goes wrong, and when."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.faults.senders import SenderPlan


class Fault(StrEnum):
    """What strikes.

    Attributes:
        KILL_BRIDGE: kill -9 of the bridge.
        KILL_WRITER: kill -9 of the process that writes the run.
        KILL_CORE: kill -9 of wandb-core.
        KILL_ALL: kill -9 of all three.
        KILL_WORKER: kill -9 of a training process.
        STOP_BRIDGE: SIGTERM to the bridge, which is started again.
        DISK_FULL: No byte is left on the file system of the journal.
        FILE_LIMIT: No file of the bridge may grow.
        WANDB_REFUSED: Nobody listens where W&B was.
        WANDB_SILENT: W&B takes connections and says nothing.
        WANDB_LOST_ANSWERS: W&B takes requests; its answers are lost.
        WANDB_CUT_ANSWERS: W&B takes requests; its answers are cut off.
        WANDB_500: W&B answers everything with this.
        WANDB_429: W&B answers everything with this.
        WANDB_401: W&B answers everything with this.
        UPLOAD_401: W&B answers uploads with this, and everything else as ever.
        WANDB_LAGS: W&B says that it has fewer rows than it has.
        CLOCK: The clock of a sender is set, forward or back.
        RESTART_SENDER: A sender starts anew, as another process.
    """

    KILL_BRIDGE = "kill bridge"
    KILL_WRITER = "kill writer"
    KILL_CORE = "kill wandb-core"
    KILL_ALL = "kill bridge, writer and wandb-core"
    KILL_WORKER = "kill worker"
    STOP_BRIDGE = "stop bridge"
    DISK_FULL = "disk full"
    FILE_LIMIT = "file limit"
    WANDB_REFUSED = "wandb refused"
    WANDB_SILENT = "wandb silent"
    WANDB_LOST_ANSWERS = "wandb lost answers"
    WANDB_CUT_ANSWERS = "wandb cut answers"
    WANDB_500 = "wandb 500"
    WANDB_429 = "wandb 429"
    WANDB_401 = "wandb 401"
    UPLOAD_401 = "upload 401"
    WANDB_LAGS = "wandb lags"
    CLOCK = "clock"
    RESTART_SENDER = "restart sender"


KILLS = frozenset(
    {Fault.KILL_BRIDGE, Fault.KILL_WRITER, Fault.KILL_CORE, Fault.KILL_ALL, Fault.KILL_WORKER}
)
"""Those that end a process with SIGKILL."""

_WEIGHTS = {
    Fault.KILL_BRIDGE: 14,
    Fault.KILL_WRITER: 8,
    Fault.KILL_CORE: 8,
    Fault.KILL_ALL: 8,
    Fault.KILL_WORKER: 8,
    Fault.STOP_BRIDGE: 5,
    Fault.DISK_FULL: 5,
    Fault.FILE_LIMIT: 4,
    Fault.WANDB_REFUSED: 5,
    Fault.WANDB_SILENT: 4,
    Fault.WANDB_LOST_ANSWERS: 5,
    Fault.WANDB_CUT_ANSWERS: 4,
    Fault.WANDB_500: 5,
    Fault.WANDB_429: 4,
    Fault.WANDB_401: 4,
    Fault.UPLOAD_401: 3,
    Fault.WANDB_LAGS: 5,
    Fault.CLOCK: 6,
    Fault.RESTART_SENDER: 5,
}

_MAX_SKEW_S = 240.0  # the bridge refuses what is ten minutes ahead of it


@dataclass(frozen=True, slots=True)
class Event:
    """One fault.

    Attributes:
        at_s: After the scenario has begun.
        fault: Which.
        lasts_s: Of those that end; after a kill of the bridge, the pause before its restart.
        number: Which worker or sender; how many lines; how many seconds a clock is set by.
    """

    at_s: float
    fault: Fault
    lasts_s: float
    number: int


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """A real worker process: see SenderPlan."""

    number: int
    role: str
    index: int
    path: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A scenario.

    Attributes:
        seed: Of everything.
        senders: Those that the harness plays.
        workers: Real ones.
        events: In order of time.
        lasts_s: How long faults may strike.
        journal_bytes: Bound of the journal.
        keep_confirmed_s: How long the journal keeps rows that the tracker has.
        begins_late: Whether faults wait for the first row in W&B, or for the first answer.
        waits: Whether the end waits for the run to be complete, or stops the bridge at once.
    """

    seed: int
    senders: Sequence[SenderPlan]
    workers: Sequence[WorkerPlan]
    events: Sequence[Event]
    lasts_s: float
    journal_bytes: int
    keep_confirmed_s: float
    begins_late: bool
    waits: bool

    def needs_own_disk(self) -> bool:
        """Whether the journal must be on a file system of its own."""
        return any(event.fault is Fault.DISK_FULL for event in self.events)


def plan_of(seed: int) -> Plan:
    """The scenario of ``seed``."""
    dice = random.Random(seed)
    paths = ("", "", "/collector")
    senders = [
        SenderPlan(
            number=number,
            role=role,
            index=index,
            path=dice.choice(paths),
            is_exact=dice.random() < 0.5,
            is_gzip=dice.random() < 0.5,
            clock_offset_s=dice.choice((0.0, 0.0, dice.uniform(-_MAX_SKEW_S, _MAX_SKEW_S))),
            pause_s=dice.choice((0.05, 0.1, 0.2)),
            seed=dice.getrandbits(32),
        )
        for number, (role, index) in enumerate((("trainer", 0), ("trainer", 1), ("env", 0)), 1)
    ]
    workers = [WorkerPlan(4, "generator", 0, dice.choice(paths))]
    lasts_s = dice.uniform(4.0, 7.0)
    faults = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=dice.randint(4, 8))
    events = sorted(
        (
            Event(
                at_s=dice.uniform(0.2, lasts_s),
                fault=fault,
                lasts_s=dice.uniform(0.2, 2.0),
                number=_number(fault, dice),
            )
            for fault in faults
        ),
        key=lambda event: event.at_s,
    )
    return Plan(
        seed,
        senders,
        workers,
        events,
        lasts_s,
        journal_bytes=dice.choice((1 << 20, 10 << 30)),
        keep_confirmed_s=dice.choice((0.0, 1.0, 600.0)),
        begins_late=dice.random() < 0.7,
        waits=dice.random() < 0.5,
    )


def _number(fault: Fault, dice: random.Random) -> int:
    if fault is Fault.CLOCK:
        return dice.choice((-1, 1)) * dice.randint(1, int(_MAX_SKEW_S))
    return dice.randint(0, 20)
