"""Real servers of MLflow and Trackio, which are killed like the bridge and its writers.

    senders -> gateway -> bridge -> MLflow's tracking server and Trackio's server

Both trackers get the run at once. Victims are chosen by the seed and killed with SIGKILL; servers
are started again on the same port and files. Then everything is well, all is delivered, and the
books are compared with what the servers answer: every acknowledged measurement is in each of them
once, and nothing else is.
"""

import contextlib
import json
import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from otel_rl.bridge.delivery.mlflow import MARK as ROW_MARK
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.faults.books import Books, History, Verdict
from tests.faults.gateway import Gateway
from tests.faults.keeper import MARK, BridgeKeeper, kill, wait_for
from tests.faults.plan import plan_of
from tests.faults.senders import Sender
from tests.process.commands import clean_environment
from tests.support.strays import processes_with
from tests.trackers.places import mlflow_values, trackio_query
from tests.trackers.programs import MlflowServer, TrackerServer, TrackioServer

_KEY = ExperimentKey("faults", "real")
_START_S = 120.0
_CALM_S = 300.0
_STOP_S = 900.0
_PAUSE_S = 0.5  # of a sender; a server takes seconds to start, in which rows wait
_PAGE = 5_000  # entries of one answer of Trackio

_SETTINGS = """
stop_timeout = 880

[rows]
per_worker = true
window = 0.5
wait = 0.5
worker_timeout = 1.0
start_wait = 0.1

[tracker]
name = "mlflow,trackio"
confirm_interval = 0.5
keep_confirmed = 1.0
max_retry = 1.0

[tracker.options.trackio]
stall_timeout_s = 4
"""


@dataclass
class RealStory:
    """What came of it.

    Attributes:
        kills: By victim.
        verdicts: By tracker.
        problems: Others.
        wall_s: It took so long.
        said: By the bridge, on its standard error.
    """

    kills: Counter[str] = field(default_factory=Counter)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    said: str = ""

    @property
    def is_sound(self) -> bool:
        sound = all(verdict.is_sound for verdict in self.verdicts.values())
        return sound and bool(self.verdicts) and not self.problems

    def figures(self) -> dict[str, object]:
        """For the report."""
        verdicts = self.verdicts.values()
        return {
            "kills": dict(sorted(self.kills.items())),
            "acknowledged": max((one.acknowledged for one in verdicts), default=0),
            "lost": {name: one.lost for name, one in self.verdicts.items()},
            "duplicated": {name: one.duplicated for name, one in self.verdicts.items()},
            "is_sound": self.is_sound,
            "wall_s": round(self.wall_s, 1),
        }

    def report(self) -> str:
        """For whoever has to find out what went wrong."""
        lines = [*self.problems]
        for name, verdict in self.verdicts.items():
            lines += [f"{name}: {problem}" for problem in verdict.problems]
        return "\n".join([*lines, "the bridge said:", *self.said.splitlines()[-100:]])


def run_real_servers(directory: Path, *, kills: int, seed: int = 1) -> RealStory:
    """Kill so often, and compare.

    Args:
        directory: Of its own.
        kills: Of all victims together.
        seed: Of what is sent, and of who dies when.
    """
    begin_s = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    stage = _Stage(directory, seed)
    try:
        stage.run(kills)
    finally:
        stage.story.wall_s = time.monotonic() - begin_s
    return stage.story


class _Stage:
    def __init__(self, directory: Path, seed: int) -> None:
        self.story = RealStory()
        self._directory = directory
        self._seed = seed
        self._dice = random.Random(seed)
        self._mark = uuid.uuid4().hex
        self._books = Books()
        self._over = threading.Event()
        self._mlflow = MlflowServer(directory / "mlflow")
        self._trackio = TrackioServer(directory / "trackio")
        self._restarts: list[threading.Thread] = []

    def run(self, kills: int) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._kill_what_is_left)
            stack.enter_context(self._mlflow)
            stack.enter_context(self._trackio)
            stack.callback(self._join_restarts)
            bridge = self._bridge()
            gateway = stack.enter_context(
                Gateway(lambda: bridge.addresses, self._books, self._seed)
            )
            stack.callback(self._over.set)
            stack.enter_context(bridge)
            senders = [self._sender(number, gateway) for number in range(3)]
            if not wait_for(bridge.is_up, _START_S):
                self._books.complain("the bridge did not start")
            for sender in senders:
                sender.start()
            while self.story.kills.total() < kills:
                time.sleep(self._dice.uniform(0.2, 2.0))
                self._strike(bridge)
            self._join_restarts()
            gateway.calm()
            self._deliver(senders, gateway)
            wait_for(bridge.is_up, _START_S)
            status = bridge.stop(_STOP_S)
            self.story.said = bridge.said()
            if status != 0:
                self.story.problems.append(f"the bridge ended with {status}")
            self.story.verdicts = {
                "mlflow": self._books.judge(_mlflow_history(self._mlflow.url)),
                "trackio": self._books.judge(_trackio_history(self._trackio)),
            }

    def _strike(self, bridge: BridgeKeeper) -> None:
        victims: Mapping[str, Callable[[], bool]] = {
            "bridge": lambda: bridge.is_up() and bridge.signal(signal.SIGKILL),
            "writer": lambda: self._kill_writer(bridge),
            "mlflow server": lambda: self._kill_server(self._mlflow),
            "trackio server": lambda: self._kill_server(self._trackio),
        }
        name = self._dice.choice([*victims])
        if victims[name]():
            self.story.kills[name] += 1

    def _kill_writer(self, bridge: BridgeKeeper) -> bool:
        writers = sorted(bridge.writers())
        return bool(writers and kill([self._dice.choice(writers)]))

    def _kill_server(self, server: TrackerServer) -> bool:
        self._restarts = [thread for thread in self._restarts if thread.is_alive()]
        if any(thread.name == server.url for thread in self._restarts):
            return False  # it is down already
        server.kill()
        restart = threading.Thread(target=server.start, name=server.url, daemon=True)
        restart.start()
        self._restarts.append(restart)
        return True

    def _join_restarts(self) -> None:
        for thread in self._restarts:
            thread.join(_START_S)

    def _bridge(self) -> BridgeKeeper:
        settings = self._directory / "bridge.toml"
        settings.write_text(_SETTINGS)
        command = [
            *(sys.executable, "-m", "otel_rl", "bridge", "--config", str(settings)),
            *("--data", str(self._directory / "data")),
            *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"),
        ]
        servers = {**self._mlflow.environment, **self._trackio.environment}
        environment = clean_environment(self._directory, **servers, **{MARK: self._mark})
        return BridgeKeeper(command, environment, self._mark, self._directory / "bridge.log")

    def _sender(self, number: int, gateway: Gateway) -> Sender:
        plan = replace(plan_of(self._seed).senders[number], pause_s=_PAUSE_S)
        return Sender(
            plan,
            gateway.url,
            (_KEY.experiment, _KEY.trial),
            self._directory / f"acknowledged-{plan.number}.jsonl",
            self._over.is_set,
        )

    def _deliver(self, senders: list[Sender], gateway: Gateway) -> None:
        deadline_s = time.monotonic() + _CALM_S
        for sender in senders:
            sender.finish()
        for sender in senders:
            sender.join(max(0.0, deadline_s - time.monotonic()))
            if sender.is_alive():
                self._books.complain(f"{sender.name} was not answered for")
        if not wait_for(gateway.is_drained, max(0.0, deadline_s - time.monotonic())):
            self._books.complain("what the collector kept was not taken")

    def _kill_what_is_left(self) -> None:
        wait_for(lambda: not kill(list(processes_with(MARK, self._mark))), 20.0)


def _trackio_history(server: TrackioServer) -> History:
    query = trackio_query(server)
    history: list[dict[str, float]] = []
    last = 0
    while entries := query(
        f"SELECT id, log_id, step, metrics FROM metrics WHERE id > {last} ORDER BY id LIMIT {_PAGE}"
    ):
        last = entries[-1]["id"]
        history += [_row_of(entry) for entry in entries]
    return history


def _row_of(entry: Mapping[str, Any]) -> dict[str, float]:
    metrics = json.loads(entry["metrics"])
    values = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    number = int(entry["log_id"].partition(":")[2])
    return {
        **values,
        "_step": number,
        "step": entry["step"],
        "_timestamp": metrics["otel_rl/time"],
    }


def _mlflow_history(uri: str) -> History:
    """Put values that have a time and a step together; MLflow itself does not know rows.

    The order of rows of one millisecond is lost with them, so of totals only the last is told.
    """
    run = RunInfo(_KEY, run_id(_KEY.experiment, _KEY.trial), Path())
    numbers: dict[int, list[int]] = defaultdict(list)
    groups: dict[tuple[int, int], list[dict[str, float]]] = defaultdict(list)
    totals: dict[str, float] = {}
    for key, value, step, time_ms in mlflow_values(uri, run):
        if key == ROW_MARK:
            numbers[time_ms].append(int(value))
            continue
        if "/count/" in key:
            totals[key] = max(value, totals.get(key, 0.0))
            continue
        rows = groups[time_ms, step]
        free = next((row for row in rows if key not in row), None)
        if free is None:
            rows.append(free := {})
        free[key] = value
    history = {
        number: {"_step": number, "step": 0, "_timestamp": time_ms / 1e3}
        for time_ms, of_time in numbers.items()
        for number in of_time
    }
    left = {time_ms: sorted(of_time, reverse=True) for time_ms, of_time in numbers.items()}
    for (time_ms, step), rows in sorted(groups.items()):
        for row in rows:
            history[left[time_ms].pop()].update({**row, "step": step})
    doubled = sum(map(len, numbers.values())) - len(history)
    assert not doubled, f"{doubled} rows are twice in MLflow"
    history[max(history)].update(totals)
    return [history[number] for number in sorted(history)]
