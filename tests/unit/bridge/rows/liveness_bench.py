"""An aligner, workers that export every second, and a clock that tests move by hand."""

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Departure, Export, Row, Worker
from tests.support.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S

LEASE_S = 15


def generator(index: int | None, instance: str = "", *, count: int | None = 3) -> Worker:
    return Worker("generator", instance or f"first-{index}", index=index, count=count)


class Bench:
    """An aligner, workers that export every second, and a clock that tests move by hand."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.aligner = Run(AlignSettings(worker_timeout_s=lease_s))
        self.now_s = 0.0
        self.living: dict[Worker, float] = {}
        self.rows: list[Row] = []

    def start(self, *workers: Worker, every_s: float = 1.0) -> None:
        self.living |= dict.fromkeys(workers, every_s)
        for worker in workers:
            self.export(worker)

    def kill(self, *workers: Worker) -> None:
        for worker in workers:
            del self.living[worker]

    def say_goodbye(self, worker: Worker, *, failed: bool = False) -> None:
        self.living.pop(worker, None)
        departure = Departure(worker, T0 + int(self.now_s * S) + 1, failed)
        self.add(Decoded((), [Export(worker, 0)], departures=[departure]))

    def export(
        self, worker: Worker, *, at_s: float | None = None, sends_exit_report: bool = True
    ) -> None:
        """``at_s``: when it was recorded; default now."""
        recorded_s = self.now_s if at_s is None else at_s
        self.add(Decoded((), [Export(worker, T0 + int(recorded_s * S), sends_exit_report)]))

    def add(self, decoded: Decoded) -> None:
        self.aligner.add(decoded, received_ns=T0 + int(self.now_s * S))

    def run(self, seconds: float) -> None:
        """Time passes, in ticks of half a second."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            for worker, every_s in self.living.items():
                if self.now_s % every_s == 0:
                    self.export(worker)
            self.look()

    def look(self, *, everything: bool = False) -> None:
        self.rows += self.aligner.close(T0 + int(self.now_s * S), everything=everything)

    def restart_bridge(self, away_s: float) -> None:
        self.aligner = revived(self.aligner)
        self.now_s += away_s
        self.aligner.go_on(T0 + int(self.now_s * S))

    @property
    def standing(self) -> tuple[int, int, int, float | None]:
        """Expected, alive, failures, recovery in seconds."""
        found = self.aligner.roles["generator"]
        return found.expected, found.alive, found.failures, found.recovery_s
