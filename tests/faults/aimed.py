"""Strikes where a layer of the bridge's safety acts, in the moment in which it does.

Each waits for what it needs, so that it strikes on a slow machine as on a fast one.
"""

import signal
from collections.abc import Callable
from dataclasses import replace

from tests.faults.gateway import Fate
from tests.faults.keeper import kill, wait_for
from tests.faults.outcome import Timeline
from tests.faults.plan import Plan, plan_of
from tests.faults.striker import Stage

_TIMEOUT_S = 240.0
_SOME_MARKS = 100  # of some twenty requests
_SOME_REPEATS = 10
_PAUSE_S = 0.2
_COUNT_OF_ROWS = "RunLineCount"


def aimed_plan(seed: int) -> Plan:
    """The senders of ``seed``, few measurements, room for all of them, and no faults of its own.

    Nobody sends while the bridge starts, so that a slow machine has no more to do than a fast one.
    """
    plan = plan_of(seed)
    return replace(
        plan,
        senders=[replace(sender, path="", pause_s=_PAUSE_S) for sender in plan.senders],
        workers=(),
        events=(),
        lasts_s=0.0,
        journal_bytes=10 << 30,
        keep_confirmed_s=600.0,
        begins_late=True,
        waits=True,
    )


class Aimed:
    """One thread calls the methods.

    Args:
        stage: What there is.
        acknowledged: How many marks the bridge has answered for.
        rows: How many the run has.
        happened: How often something has happened on the way to the bridge.
        timeline: Where every strike is told.

    Attributes:
        kills: How often one was a kill -9.
        missed: What did not happen, so that a strike was in vain.
    """

    def __init__(
        self,
        stage: Stage,
        acknowledged: Callable[[], int],
        rows: Callable[[], int],
        happened: Callable[[str], int],
        timeline: Timeline,
    ) -> None:
        self.kills = 0
        self.missed: list[str] = []
        self._stage = stage
        self._acknowledged = acknowledged
        self._rows = rows
        self._happened = happened
        self._timeline = timeline

    def strike(self) -> None:
        """Strike at each layer in turn, while measurements flow."""
        self._kill_writer_of_rows_that_are_not_taken()
        self._kill_bridge_that_has_answered()
        self._wait(self._has_repeated, "enough requests were repeated")

    def _kill_writer_of_rows_that_are_not_taken(self) -> None:
        """Rows are handed over and refused; then those who have them in memory die.

        The bridge lives until others have followed: it alone knows what it has handed over.
        """
        bridge, server = self._stage.bridge, self._stage.server
        server.refuse_rows()  # the first request may have none, and is repeated for ever
        self._wait(lambda: server.refused_rows() > 0, "W&B refused rows")
        self._wait_until_bridge_knows_of_them()
        before = self._rows()
        killed = kill([*bridge.writers(), *bridge.cores()])
        server.heal()
        self._struck(killed > 0, "kill writer and wandb-core")
        self._wait(lambda: self._rows() > before, "W&B took rows again")

    def _wait_until_bridge_knows_of_them(self) -> None:
        """Its writer counts the run's rows between two hand-overs, and never during one."""
        server = self._stage.server
        counted = server.asked(_COUNT_OF_ROWS)
        self._wait(lambda: server.asked(_COUNT_OF_ROWS) > counted, "rows were counted")

    def _kill_bridge_that_has_answered(self) -> None:
        before = self._acknowledged()
        self._wait(
            lambda: self._acknowledged() >= before + _SOME_MARKS, "the bridge answered for more"
        )
        self._struck(self._stage.bridge.signal(signal.SIGKILL), "kill bridge")

    def _has_repeated(self) -> bool:
        return self._happened("repeat") >= _SOME_REPEATS and self._happened(Fate.LOSE_ANSWER) > 0

    def _struck(self, has_struck: bool, what: str) -> None:
        self._timeline.tell(what if has_struck else f"{what}: nothing to strike at")
        if has_struck:
            self.kills += 1
        else:
            self.missed.append(f"{what}: nothing to strike at")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        if not wait_for(condition, _TIMEOUT_S):
            self.missed.append(f"in vain waited until {what}")
