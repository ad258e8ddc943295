"""The oracle: what was offered and acknowledged, and whether the run shows it exactly once.

* Every acknowledged mark is in the run's history once, under its key and at its step.
* A mark that was offered and never acknowledged is there once or not at all.
* Nothing else is there; rows are numbered 0..n; each has its step and its time.
* The archive has the same marks, each once.
* A counter's total never falls, and its last is what the acknowledged points add up to.
"""

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from tests.faults.reading import Count, Mark, Reading

_SHOWN = 5  # of each kind of problem, so that a report can be read

History = Sequence[Mapping[str, float]]


@dataclass
class Verdict:
    """What became of the marks. Sound if there are no problems.

    Attributes:
        acknowledged: Marks that the bridge has answered for.
        lost: Those of them that the run does not show.
        duplicated: Marks that it shows more than once.
        unexpected: Marks that it shows and nobody sent.
        misplaced: Rows that do not stand where their number says.
        has_ended_well: Whether the bridge was told to end, and had then delivered all its rows.
        problems: All of these, and others.
    """

    acknowledged: int
    lost: int = 0
    duplicated: int = 0
    unexpected: int = 0
    misplaced: int = 0
    has_ended_well: bool = True
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems

    def blame(self, what: str, whom: Iterable[object]) -> int:
        """Note a problem, if there is anybody to blame. Returns how many there are."""
        found = list(whom)
        if found:
            shown = ", ".join(map(str, found[:_SHOWN]))
            self.problems.append(f"{len(found)} {what}: {shown}")
        return len(found)


class Books:
    """Everything that was offered to the bridge, and what it answered for. Thread-safe."""

    def __init__(self) -> None:
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._offered: dict[tuple[str, float], Mark] = {}
        self._acknowledged: set[tuple[str, float]] = set()
        self._offered_counts: set[Count] = set()
        self._acknowledged_counts: set[Count] = set()
        self._problems: list[str] = []

    def offer(self, reading: Reading) -> None:
        """The request is about to be sent: all of it may arrive."""
        with self._lock:
            self._offered.update(((mark.key, mark.value), mark) for mark in reading.marks)
            self._offered_counts.update(reading.counts)

    def acknowledge(self, reading: Reading) -> None:
        """The bridge has answered 200."""
        with self._lock:
            self._acknowledged.update((mark.key, mark.value) for mark in reading.marks)
            self._acknowledged_counts.update(reading.counts)

    def complain(self, problem: str) -> None:
        """Something happened that must not, whatever the run shows."""
        with self._lock:
            self._problems.append(problem)

    def acknowledged(self) -> int:
        """How many marks the bridge has answered for."""
        with self._lock:
            return len(self._acknowledged)

    def unanswered(self, values: Iterable[float]) -> list[float]:
        """Those of ``values`` that the bridge has not answered for."""
        with self._lock:
            answered = {value for _, value in self._acknowledged}
        return [value for value in values if value not in answered]

    def missing(self, history: History) -> int:
        """How many acknowledged marks the history does not show yet."""
        found = _found(history)
        with self._lock:
            return sum(mark not in found for mark in self._acknowledged)

    def judge(self, history: History) -> Verdict:
        """Compare the books with the finished run."""
        found = _found(history)
        with self._lock:
            verdict = Verdict(len(self._acknowledged), problems=list(self._problems))
            verdict.lost = verdict.blame("lost", sorted(self._acknowledged - found.keys()))
            verdict.duplicated = verdict.blame(
                "duplicated", (mark for mark, steps in found.items() if len(steps) > 1)
            )
            verdict.unexpected = verdict.blame(
                "that nobody sent", (mark for mark in found if mark not in self._offered)
            )
            verdict.blame(
                "at a wrong step",
                (
                    (mark, steps)
                    for mark, steps in found.items()
                    if (sent := self._offered.get(mark))
                    and sent.step is not None
                    and {*steps} != {sent.step}
                ),
            )
            self._judge_totals(history, verdict)
        _judge_rows(history, verdict)
        return verdict

    def judge_archive(self, directory: Path, verdict: Verdict) -> None:
        """Compare the books with the archive, as another program reads it."""
        found: Counter[tuple[str, float]] = Counter()
        if any(directory.glob("*.parquet")):
            # A connection of its own: scenarios run side by side, in threads.
            with duckdb.connect() as connection:
                rows = connection.execute(
                    "SELECT role, worker_index, metric, value FROM read_parquet(?)"
                    " WHERE starts_with(metric, 'id.')",
                    [str(directory / "*.parquet")],
                ).fetchall()
            for role, index, metric, value in rows:
                found[f"workers/{role}/{index}/{metric.replace('.', '/')}", value] += 1
        with self._lock:
            verdict.blame("not in the archive", sorted(self._acknowledged - found.keys()))
            verdict.blame(
                "twice in the archive", (mark for mark, times in found.items() if times > 1)
            )
            verdict.blame(
                "in the archive that nobody sent",
                (mark for mark in found if mark not in self._offered),
            )

    def _judge_totals(self, history: History, verdict: Verdict) -> None:
        least, most = _totals(self._acknowledged_counts), _totals(self._offered_counts)
        for key in sorted(most):
            shown = [row[key] for row in history if key in row]
            last = shown[-1] if shown else 0
            if not least[key] <= last <= most[key]:
                between = f"{least[key]}..{most[key]}" if least[key] < most[key] else least[key]
                verdict.problems.append(f"the total {key} is {last:.0f}, not {between}")
            falls = [pair for pair in itertools.pairwise(shown) if pair[0] > pair[1]]
            verdict.blame(f"falls of the total {key}", falls)


def _found(history: History) -> dict[tuple[str, float], list[float | None]]:
    """Each mark that the history shows, with the steps of its rows."""
    found: dict[tuple[str, float], list[float | None]] = defaultdict(list)
    for row in history:
        for key, value in row.items():
            if key.startswith("workers/") and "/id/" in key:
                found[key, value].append(row.get("step"))
    return found


def _judge_rows(history: History, verdict: Verdict) -> None:
    numbers = [row.get("_step") for row in history]
    verdict.misplaced = verdict.blame(
        "rows out of place",
        (f"row {place} is {number}" for place, number in enumerate(numbers) if number != place),
    )
    verdict.blame(
        "rows without step or time",
        (row.get("_step") for row in history if not {"step", "_timestamp"} <= row.keys()),
    )


def _totals(counts: Iterable[Count]) -> Counter[str]:
    """By key: each delta once; of each life of a cumulative series, the most that it came to."""
    totals: Counter[str] = Counter()
    lives: dict[tuple[str, str, int], int] = {}
    for count in counts:
        if count.is_delta:
            totals[count.key] += count.value
        else:
            life = (count.key, count.series, count.start_ns)
            lives[life] = max(lives.get(life, 0), count.value)
    for (key, _, _), value in lives.items():
        totals[key] += value
    return totals
