"""Workers that report phases, exports and time given by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    Covered,
    Decoded,
    Departure,
    Export,
    Measurements,
    Point,
    Row,
    Series,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument
from tests.support.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S

PARTS = ("productive", "overhead", "idle", "wasted")


def ns(at_s: float) -> int:
    """A time of the fleet."""
    return T0 + round(at_s * S)


def worker(role: str, index: int | None = 0, *, life: str = "a", count: int = 1) -> Worker:
    """A process."""
    return Worker(role, f"{role}/{index}/{life}", index, count)


@dataclass
class Fleet:
    """Exports of workers, with a look at the rows after each."""

    restarts: bool = False
    rows: list[Row] = field(default_factory=list)
    totals: dict[tuple[Worker, str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.aligner = Run(AlignSettings())

    def export(
        self,
        of: Worker,
        at_s: float,
        phases: Mapping[str, float] | None = None,
        *,
        step: int | None = None,
        classes: Mapping[str, str] | None = None,
        counted: Sequence[tuple[str, float, str]] = (),
    ) -> None:
        """One export, with phases that end now and what was counted since the last.

        Args:
            of: The worker.
            at_s: When.
            phases: Seconds of each.
            step: Of the phases.
            classes: Class of phases.
            counted: Name of a counter, growth, and outcome of requests.
        """
        points: list[Point] = []
        for place, (phase, seconds) in enumerate((phases or {}).items()):
            attributes = [("rl.phase", phase)]
            if classes and phase in classes:
                attributes.append(("rl.phase_class", classes[phase]))
            series = Series(of, "rl.phase.duration", "s", tuple(attributes))
            at_ns = ns(at_s) + place
            covers = Covered(at_ns - 1, at_ns)
            points.append(Measurements(series, [at_ns], [seconds], [step], covers))
        for name, growth, outcome in counted:
            total = self.totals.get((of, name, outcome), 0) + growth
            self.totals[of, name, outcome] = total
            series = Series(
                of,
                name,
                attributes=(("rl.outcome", outcome),) if outcome else (),
                instrument=Instrument.COUNTER,
            )
            points.append(SumPoint(series, T0, ns(at_s), total, Temporality.CUMULATIVE))
        self.add(Decoded(points, [Export(of, ns(at_s), sends_exit_report=True)]), at_s)

    def leave(self, of: Worker, at_s: float, *, failed: bool = False) -> None:
        """The exit report of a worker."""
        self.add(Decoded([], [], departures=[Departure(of, ns(at_s), failed)]), at_s)

    def add(self, decoded: Decoded, at_s: float) -> None:
        self.aligner.add(decoded, received_ns=ns(at_s))
        self.look(at_s)

    def look(self, at_s: float, *, everything: bool = False) -> None:
        if self.restarts:
            self.aligner.take_dedup()
            self.aligner = revived(self.aligner)
        self.rows += self.aligner.close(ns(at_s), everything=everything)

    def end(self, at_s: float) -> Mapping[str, float]:
        """Everything becomes rows. Returns the last goodput, all four parts, by key."""
        self.look(at_s, everything=True)
        last: dict[str, float] = {}
        for row in self.rows:
            found = {k: v for k, v in row.values.items() if k.startswith("goodput/")}
            last = found or last
        if not last:
            return {}
        heads = {key.rpartition("/")[0] for key in last}
        return {
            f"{head}/{part}": last.get(f"{head}/{part}", 0.0) for head in heads for part in PARTS
        }
