"""A job of a few trainers, exports and time given by hand."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Export, Measurements, Row, Series, Worker
from tests.support.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S
MS = S // 1000

REPORTED, EXPECTED = "service/trainer/step/reported", "service/trainer/step/expected"

Steps = Sequence[tuple[float, int]]
"""(when, step)"""


def ranks(count: int = 4, *, life: str = "", known: bool = True) -> list[Worker]:
    """The processes of a job, which may not know their rank."""
    return [
        Worker("trainer", f"{life}{rank}", rank if known else None, count if known else None)
        for rank in range(count)
    ]


@dataclass
class Job:
    """A few trainers whose exports arrive one after another, with a look at the rows after each."""

    settings: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    restarts: bool = False

    def __post_init__(self) -> None:
        self.aligner = Run(AlignSettings.model_validate(self.settings))

    def export(
        self,
        worker: Worker,
        made: Steps,
        at_s: float,
        *,
        value: float = 1.0,
        names: Iterable[str] = ("loss", "kl"),
    ) -> None:
        """One export of ``worker``, which has made these steps since the last."""
        times_ns, steps = [T0 + int(t * S) for t, _ in made], [step for _, step in made]
        points = [
            # One series after another of each step, as a program measures.
            Measurements(
                Series(worker, name),
                [t + place * MS for t in times_ns],
                [value] * len(steps),
                steps,
            )
            for place, name in enumerate(names)
            if made
        ]
        self.aligner.add(
            Decoded(points, [Export(worker, T0 + int(at_s * S))]), received_ns=T0 + int(at_s * S)
        )
        self.look(at_s)

    def look(self, at_s: float, *, everything: bool = False) -> list[Row]:
        if self.restarts:
            log = self.aligner.take_dedup()
            settings, self.aligner = self.aligner.intake.settings, revived(self.aligner)
            self.aligner.intake.settings = settings
            assert log is None or log.body
        rows = self.aligner.close(T0 + int(at_s * S), everything=everything)
        self.rows += rows
        return rows

    def run(
        self,
        workers: Sequence[Worker],
        steps: Iterable[int],
        *,
        from_s: float,
        every_s: float = 1.0,
        lag_s: float = 0.2,
        value: float = 1.0,
        per_export: int = 1,
    ) -> float:
        """Steps of 1/``per_export`` of an export each; rank n is n * ``lag_s`` behind rank 0.

        Rank n measures ``value`` + n. Returns when it is over.
        """
        todo, at_s = list(steps), from_s
        exports: list[tuple[float, int, Steps]] = []
        each_s = every_s / per_export
        for start in range(0, len(todo), per_export):
            for rank in range(len(workers)):
                begin_s = at_s + rank * lag_s
                part = enumerate(todo[start : start + per_export])
                made: Steps = [(begin_s + n * each_s * 0.9, step) for n, step in part]
                exports.append((begin_s + every_s * 0.95, rank, made))
            at_s += every_s
        for export_s, rank, made in sorted(exports):
            self.export(workers[rank], made, export_s, value=value + rank)
        return max(export_s for export_s, *_ in exports)

    def idle(self, workers: Sequence[Worker], *, from_s: float, for_s: float) -> float:
        """Exports without a step, so that time passes and all live."""
        at_s = from_s
        while at_s < from_s + for_s:
            for rank, worker in enumerate(workers):
                self.export(worker, [], at_s + rank * 0.2)
            at_s += 1.0
        return at_s

    def losses(self, *, key: str = "trainer/loss") -> list[tuple[int, float]]:
        return [(row.step, row.values[key]) for row in self.rows if key in row.values]

    def newest(self, *, key: str = "trainer/loss") -> dict[int, float]:
        """The value of the newest row of each step."""
        return dict(self.losses(key=key))

    def repeated(self, *, key: str = "trainer/loss") -> set[int]:
        """The steps that have more than one row."""
        found = Counter(step for step, _ in self.losses(key=key))
        return {step for step, count in found.items() if count > 1}

    def marks(self) -> list[tuple[int, float, float]]:
        return [
            (row.step, row.values[REPORTED], row.values[EXPECTED])
            for row in self.rows
            if REPORTED in row.values
        ]
