"""What came of a scenario, and the timeline that explains it."""

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.faults.books import Verdict

_SHOWN_LINES = 100


class Timeline:
    """What happened when, in seconds since ``begin``."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Now is 0."""
        self._begin_s = time.monotonic()

    @property
    def now_s(self) -> float:
        """Seconds since ``begin``."""
        return time.monotonic() - self._begin_s

    def tell(self, what: str) -> None:
        """It happens now."""
        self.lines.append(f"{self.now_s:6.2f} s  {what}")


@dataclass
class Outcome:
    """What came of a scenario.

    Attributes:
        seed: Of the scenario.
        verdict: Of the oracle.
        faults: How often each struck.
        skipped: How often each had nothing to strike at: no such process, no right to mount.
        kills: How often one was a kill -9.
        rows: Of the run.
        wall_s: It took so long.
        peak_rss_bytes: Of the bridge.
        timeline: What happened when.
        bridge_said: Everything on its standard error.
    """

    seed: int
    verdict: Verdict
    faults: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    rows: int = 0
    wall_s: float = 0.0
    peak_rss_bytes: int = 0
    timeline: list[str] = field(default_factory=list)
    bridge_said: str = ""

    def report(self) -> str:
        """For whoever has to find out what went wrong."""
        return "\n".join(
            [
                f"seed {self.seed}: replay it with FAULT_SEED={self.seed} make faults",
                *(f"  {problem}" for problem in self.verdict.problems),
                "timeline:",
                *(f"  {line}" for line in self.timeline),
                "the bridge said:",
                *(f"  {line}" for line in self.bridge_said.splitlines()[-_SHOWN_LINES:]),
            ]
        )
