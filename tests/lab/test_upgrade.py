"""An upgrade as the chart does it, in processes: stock SDKs, the real gateway, bridges that change.

One bridge with a volume is ended, and another starts on the volume. Of several on one database a
new one is up first, and then an old one is ended. Nothing is lost and nothing is doubled. A bridge
that stops closes the steps that are open, so the first way writes those again, whole, when the
rest of them comes; a bridge that leaves its runs to others does not.
"""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.faults.link import Link
from tests.lab.running import Bridge, Collector
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.timeout(600)]

_log = logging.getLogger(__name__)

WORKERS = 2
BETWEEN_S = 0.05
STEPS = 60  # of each worker, before and after each change
DEADLINE_S = 240.0
FACTOR = 1_000_000  # between the values of two workers
LEASE_S = 120.0  # a run that waited for the lease of a bridge that ended would show it

# The longest pause of a gateway that cannot reach the bridge, and a slow machine.
RETRY_S = 15.0
SLACK_S = 60.0


class Worker(threading.Thread):
    """A stock SDK that measures a value of its own at each step, and counts steps."""

    def __init__(self, number: int, url: str) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self.key = f"trainer/id_{number}"
        self.total = f"trainer/done_{number}"
        self.measured_at: dict[float, float] = {}
        self._number = number
        self._over = threading.Event()
        exporter = OTLPMetricExporter(endpoint=f"{url}/v1/metrics", timeout=30)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=200)
        who: dict[str, str | int] = {
            "rl.experiment.name": "upgrade",
            "rl.worker.role": "trainer",
            "rl.worker.index": number,
            "service.instance.id": self.name,
        }
        self._provider = MeterProvider([reader], Resource.create({**who}))

    def run(self) -> None:
        meter = self._provider.get_meter("training")
        gauge = meter.create_gauge(f"id_{self._number}")
        done = meter.create_counter(f"done_{self._number}")
        while not self._over.wait(BETWEEN_S):
            step = len(self.measured_at)
            value = float(self._number * FACTOR + step)
            self.measured_at[value] = time.monotonic()
            gauge.set(value, {"rl.loop.iteration": step})
            done.add(1)

    def has_made(self, steps: int) -> bool:
        return len(self.measured_at) >= steps

    def finish(self) -> None:
        """Measure nothing more, and send what is left."""
        self._over.set()
        self.join()
        self._provider.shutdown()


class Run:
    """Reads the file of the run all the time, inside its context."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="run", daemon=True)
        self._read = 0  # lines
        self.seen_at: dict[tuple[str, float], float] = {}
        self.totals: set[tuple[str, float]] = set()
        self.rows: dict[int, list[set[tuple[str, float]]]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            text = self._path.read_text() if self._path.exists() else ""
            for line in text[: text.rfind("\n") + 1].splitlines()[self._read :]:
                self._read += 1
                row = json.loads(line)
                self.totals |= {(k, v) for k, v in row["values"].items() if "/done_" in k}
                values = {(k, v) for k, v in row["values"].items() if "/id_" in k}
                if values:
                    self.rows.setdefault(row["step"], []).append(values)
                for found in values - self.seen_at.keys():
                    self.seen_at[found] = time.monotonic()

    def shows(self, values: AbstractSet[tuple[str, float]]) -> bool:
        return values <= self.seen_at.keys() | self.totals

    def again(self) -> int:
        """How many rows were written again, whole, because samples of their step came late."""
        for earlier, later in ((row, rows[-1]) for rows in self.rows.values() for row in rows[:-1]):
            assert earlier < later
        return sum(len(rows) - 1 for rows in self.rows.values())


class Training:
    """Workers that report to the real gateway, in front of whatever is the bridge just then."""

    def __init__(self, directory: Path, first: int, runs: Path) -> None:
        self._stack = ExitStack()
        self._runs = runs
        self.service = Link(first)
        self.gateway = Collector(
            "gateway",
            directory / "gateway",
            {"OTEL_RL_BRIDGE_URL": self.service.url, "OTEL_RL_JAEGER_URL": "http://127.0.0.1:1"},
        )
        self.workers: Sequence[Worker] = []
        self._begun: set[int] = set()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.service)
            stack.enter_context(self.gateway)
            self.run = stack.enter_context(
                Run(self._runs / f"{run_id('upgrade', 'default')}.jsonl")
            )
            self.workers = [Worker(number, self.gateway.url) for number in range(WORKERS)]
            for worker in self.workers:
                worker.start()
                stack.callback(worker.finish)
            self._stack = stack.pop_all()
        self.goes_on()
        self._begun = {len(worker.measured_at) for worker in self.workers}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def goes_on(self) -> None:
        """Until each worker has made more steps, and one of them is in the run."""
        for worker in self.workers:
            self._wait(partial(worker.has_made, len(worker.measured_at) + STEPS))
            newest = (worker.key, max(list(worker.measured_at)))
            self._wait(partial(self.run.shows, {newest}))

    def _wait(self, condition: Callable[[], bool]) -> None:
        assert wait_for(condition, DEADLINE_S), self.gateway.said()[-2000:]

    def end(self) -> float:
        """Nothing is lost or doubled. Returns the longest time from a measurement to its row.

        Left out are the first rows, which wait for further workers, and the last second, whose
        rows wait because a stock SDK does not say that it has ended.
        """
        for worker in self.workers:
            worker.finish()
        measured = {
            (worker.key, value): at
            for worker in self.workers
            for value, at in worker.measured_at.items()
        }
        totals = {(worker.total, float(len(worker.measured_at))) for worker in self.workers}
        self._wait(partial(self.run.shows, measured.keys() | totals))
        times = Counter(value for rows in self.run.rows.values() for value in rows[-1])
        assert times == dict.fromkeys(measured, 1)
        first, last = max(self._begun), min(len(worker.measured_at) for worker in self.workers) - 20
        return max(
            self.run.seen_at[key] - at
            for key, at in measured.items()
            if first < key[1] % FACTOR < last
        )


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


def test_a_bridge_with_a_volume_is_ended_before_another_starts_on_it(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path / "bridge", "stop_timeout = 60\n")
    with bridge, Training(tmp_path, bridge.ports[0], tmp_path / "bridge" / "data") as training:
        begin = time.monotonic()
        assert bridge.stop() == 0, bridge.said()
        bridge.start()
        away_s = time.monotonic() - begin
        training.goes_on()
        longest_s = training.end()
        again = training.run.again()
    _log.info(
        "away for %.1f s, the latest row came after %.1f s, %d rows again", away_s, longest_s, again
    )
    assert again < STEPS  # those of the moment only
    assert longest_s < away_s + RETRY_S + SLACK_S
    assert "Traceback" not in bridge.said()


def test_of_several_bridges_each_is_replaced_after_the_new_one_is_up(
    server: PostgresServer, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    settings = (
        f"stop_timeout = 60\n[journal]\nurl = {json.dumps(server.new_url())}\nlease = {LEASE_S}\n"
        f"[tracker]\ndirectory = {json.dumps(str(runs))}\n"
    )
    bridges = [Bridge(tmp_path / f"bridge-{number}", settings) for number in range(4)]
    old, new = bridges[:2], bridges[2:]
    with ExitStack() as stack:
        for bridge in old:
            stack.enter_context(bridge)
        training = stack.enter_context(Training(tmp_path, old[0].ports[0], runs))
        for leaving, coming in zip(old, new, strict=True):
            stack.enter_context(coming)
            training.service.lead_to(coming.ports[0])
            assert leaving.stop() == 0, leaving.said()
            training.goes_on()
        longest_s = training.end()
        assert training.run.again() == 0
        for bridge in new:
            assert bridge.stop() == 0, bridge.said()
    _log.info("the latest row came after %.1f s", longest_s)
    # Nobody waited for the lease of a bridge that ended.
    assert longest_s < LEASE_S
    assert not any("Traceback" in bridge.said() for bridge in bridges)
