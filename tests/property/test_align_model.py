"""Whatever the schedule, the newest row of a step has every sample once.

A machine moves a few workers, their exports and the bridge's clock at random, and a plain list of
what was measured is the model. Every sample is a power of two and is summed, so the value of a key
in a row says which samples are in it, and how often. A row that comes after another of its step has
all of that one's samples, and replaces it, or none: it is of another pass. Exports are held back,
overtaken and repeated, whole and in part, as a collector does.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    Covered,
    Decoded,
    ExperimentKey,
    Export,
    Measurements,
    Row,
    Series,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument, Reduction
from tests.support.kept import revived
from tests.support.slow import examples

S = 1_000_000_000
T0 = 1_700_000_000 * S
KEY = ExperimentKey("exp")
ROLES = ("trainer", "generator")


@dataclass
class Process:
    """A worker and what it has measured and not exported yet."""

    worker: Worker
    start_ns: int
    tiles: bool
    covered_ns: int = 0
    step: int = 0
    counted: int = 0
    exported: int = 0
    waiting: list[Measurements] = field(default_factory=list)


class Alignment(RuleBasedStateMachine):
    """Two aligners, of which one is written and read now and then, beside what they were given.

    Attributes:
        goes_back: Whether processes make steps again, replace others, and measure with clocks that
            are behind.
        kept: How many steps of a role may have a row that later samples join.
    """

    processes = Bundle("processes")
    goes_back = True
    kept = (3, 100)

    @initialize(target=processes, per_worker=st.booleans(), place=st.integers(0, 1))
    def begin(self, per_worker: bool, place: int) -> MultipleResults[Process]:
        max_open_steps = self.kept[place]
        settings = AlignSettings(
            window_s=1,
            wait_s=3,
            worker_timeout_s=5,
            # One that is forgotten is taken for another process that goes back.
            forget_s=20 if self.goes_back else 3600,
            per_worker=per_worker,
            max_open_steps=max_open_steps,
        )
        self.per_worker = per_worker
        self.aligner = Run(settings)
        self.revived = Run(settings)
        self.now_ns = T0
        self.started = 0
        self.samples = 0
        self.rows: list[Row] = []
        self.logs: list[bytes] = []
        self.held: list[Decoded] = []
        self.sent: list[Decoded] = []
        # What was exported, by role, and by step where it has one.
        self.stepped: Counter[tuple[str, int]] = Counter()
        self.levels: dict[str, list[float]] = {role: [] for role in ROLES}
        self.counted = dict.fromkeys(ROLES, 0)
        return multiple(
            self._process("trainer", 0, tiles=True), self._process("trainer", 1, tiles=False)
        )

    @rule(
        target=processes,
        role=st.sampled_from(ROLES),
        index=st.none() | st.integers(0, 1),
        tiles=st.booleans(),
    )
    def start(self, role: str, index: int | None, tiles: bool) -> Process:
        return self._process(role, index, tiles=tiles)

    def _process(self, role: str, index: int | None, *, tiles: bool) -> Process:
        self.started += 1
        if not self.goes_back:
            index = self.started
        worker = Worker(role, f"instance-{self.started}", index, None if index is None else 2)
        return Process(worker, self.now_ns, tiles, covered_ns=self.now_ns)

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 30.0]), restart=st.booleans())
    def wait(self, seconds: float, restart: bool) -> None:
        """Time passes, rows are closed, and one of the bridges may have been restarted."""
        self.now_ns += int(seconds * S)
        if restart:
            log = self.revived.take_dedup()
            if log is not None:
                self.logs.append(log.body)
            self.revived = revived(self.revived)
            for body in self.logs:
                self.revived.restore_dedup(body)
        self._close(everything=False)

    @rule(
        process=processes,
        moves=st.lists(st.sampled_from([-2, 0, 1, 1, 1, 7]), max_size=6),
        levels=st.integers(0, 3),
        counted=st.integers(0, 3),
        age_s=st.sampled_from([0.0, 0.5, 10.0]),
        exports=st.booleans(),
        is_held=st.booleans(),
    )
    def work(
        self,
        process: Process,
        moves: list[int],
        levels: int,
        counted: int,
        age_s: float,
        exports: bool,
        is_held: bool,
    ) -> None:
        """Values at a few steps, which mostly go forward, a few levels, and something to count."""
        steps = []
        age_s = age_s if self.goes_back else 0.0
        for move in moves:
            process.step = max(process.step + (move if self.goes_back else abs(move)), 0)
            steps.append(process.step)
        for name in ("a", "b"):
            # One bit for each sample of the run; integers are exact at any size.
            bits = [1 << (self.samples + place) for place in range(len(steps))]
            self._measure(process, name, bits, steps, age_s)
        values = [self.samples + place for place in range(levels)]
        self._measure(process, "level", values, [None] * levels, age_s)
        process.counted += counted
        if exports:
            self._export(process, is_held=is_held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """An export that was held back, perhaps overtaken by later ones."""
        self._send(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Some of what was sent before comes again, cut and joined in another way."""
        again = data.draw(st.lists(st.sampled_from(self.sent), min_size=1, max_size=3))
        points = [point for decoded in again for point in decoded.points]
        kept = data.draw(st.lists(st.sampled_from(points), max_size=len(points)))
        self._add(Decoded(kept, again[0].exports))

    @invariant()
    def row_numbers_have_no_gaps(self) -> None:
        assert [row.number for row in self.rows] == list(range(len(self.rows)))

    def teardown(self) -> None:
        while self.held:
            self._send(self.held.pop())
        self._close(everything=True)
        self.row_numbers_have_no_gaps()
        for role in ROLES:
            totals = self._found(f"{role}/counted")
            assert (totals[-1] if totals else 0) == self.counted[role]
            if self.per_worker:
                assert sorted(self._own(role, "level")) == sorted(self.levels[role])
        assert self._by_step() == self.stepped
        if self.per_worker:
            assert self._own_by_step() == self.stepped

    def _export(self, process: Process, *, is_held: bool) -> None:
        """Send what waits, in the order in which it was measured, and the counter."""
        role = process.worker.role
        self.now_ns += 1
        count = SumPoint(
            Series(process.worker, "counted", instrument=Instrument.COUNTER),
            process.start_ns,
            self.now_ns,
            process.counted,
            Temporality.CUMULATIVE,
        )
        decoded = Decoded([*process.waiting, count], [Export(process.worker, self.now_ns)])
        if is_held:
            self.held.append(decoded)
        else:
            self._send(decoded)
        for measured in process.waiting:
            if measured.series.name == "level":
                self.levels[role] += measured.values
            else:
                for step, value in zip(measured.steps, measured.values, strict=True):
                    assert step is not None
                    self.stepped[role, step] += int(value)
        process.waiting = []
        self.counted[role] += process.counted - process.exported
        process.exported = process.counted

    def _send(self, decoded: Decoded) -> None:
        self._add(decoded)
        self.sent.append(decoded)

    def _add(self, decoded: Decoded) -> None:
        for aligner in (self.aligner, self.revived):
            aligner.add(decoded, received_ns=self.now_ns)

    def _measure(
        self,
        process: Process,
        name: str,
        values: Sequence[float],
        steps: Sequence[int | None],
        age_s: float,
    ) -> None:
        if not values:
            return
        # No two measurements of a process have one time.
        first_ns = self.now_ns - int(age_s * S) + self.samples
        self.samples += len(values)
        apart_ns = S // 4 if self.goes_back else 1
        times_ns = [first_ns + place * apart_ns for place in range(len(values))]
        series = Series(process.worker, name, reduction=Reduction.SUM)
        covers = None
        if process.tiles:
            covers = Covered(process.covered_ns, process.covered_ns + 1)
            process.covered_ns += 1
        process.waiting.append(Measurements(series, times_ns, values, steps, covers))

    def _close(self, *, everything: bool) -> None:
        rows = self.aligner.close(self.now_ns, everything=everything)
        assert self.revived.close(self.now_ns, everything=everything) == rows
        assert (self.revived.sample_counts, self.revived.row_maker.next_number) == (
            self.aligner.sample_counts,
            self.aligner.row_maker.next_number,
        )
        self.rows += rows

    def _found(self, *keys: str) -> list[float]:
        return [row.values[key] for row in self.rows for key in keys if key in row.values]

    def _own(self, role: str, *names: str) -> list[float]:
        """The values of all workers' own series."""
        return [
            value
            for row in self.rows
            for key, value in row.values.items()
            if key.startswith(f"workers/{role}/") and is_own(key, *names)
        ]

    def _by_step(self) -> Counter[tuple[str, int]]:
        """Sums over the rows that no later one replaces, by role and step."""
        sums: Counter[tuple[str, int]] = Counter()
        for role in ROLES:
            for name in "ab":
                key = f"{role}/{name}"
                of_step: dict[int, list[int]] = {}
                for row in self.rows:
                    if key in row.values:
                        of_step.setdefault(row.step, []).append(int(row.values[key]))
                for step, made in of_step.items():
                    sums[role, step] += sum(newest(made))
        return sums

    def _own_by_step(self) -> Counter[tuple[str, int]]:
        """Sums over all rows of the workers' own series, by role and step."""
        sums: Counter[tuple[str, int]] = Counter()
        for row in self.rows:
            for key, value in row.values.items():
                if is_own(key, "a", "b"):
                    role = key.removeprefix("workers/").partition("/")[0]
                    sums[role, row.step] += int(value)
        return sums


def newest(sums: Sequence[int]) -> list[int]:
    """Without each one whose samples are all in a later one; a sample is a bit."""
    return [
        one
        for place, one in enumerate(sums)
        if all(one & later != one for later in sums[place + 1 :])
    ]


def is_own(key: str, *names: str) -> bool:
    """Whether a key is of a worker's own series of one of these names."""
    return key.startswith("workers/") and key.rpartition("/")[2] in names


class ForwardAlignment(Alignment):
    """Nobody goes back, and many begin late: the last row of a step has all of its samples."""

    goes_back = False
    kept = (100, 100)

    def teardown(self) -> None:
        super().teardown()
        last: dict[tuple[str, str, int], int] = {}
        for row in self.rows:
            for role in ROLES:
                for name in "ab":
                    if (value := row.values.get(f"{role}/{name}")) is not None:
                        last[role, name, row.step] = int(value)
        found: Counter[tuple[str, int]] = Counter()
        for (role, _, step), value in last.items():
            found[role, step] += value
        assert found == self.stepped


_SETTINGS = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)

TestAlignment = Alignment.TestCase
TestAlignment.settings = _SETTINGS
TestForwardAlignment = ForwardAlignment.TestCase
TestForwardAlignment.settings = _SETTINGS
