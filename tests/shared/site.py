"""Several bridges on one database, behind a sender that takes turns; and what strikes them.

senders -> any bridge -> its wire -> PostgreSQL -> the bridge that owns the run -> one file
"""

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import psycopg

from otel_rl.run_id import run_id
from tests.faults.keeper import MARK, BridgeKeeper, kill
from tests.faults.link import Link, Trouble
from tests.process.commands import clean_environment
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.postgres import PostgresServer
from tests.support.strays import processes_with
from tests.support.wandb_server import WandbServer

LEASE_S = 3.0

KEYS = "trainer/id_"  # with the number of the sender

_TIMEOUT_S = 10.0  # longer than a bridge that is stopped stays so: its answer is lost

_SETTINGS = """
stop_timeout = 60

[journal]
lease = {lease_s}

[rows]
window = 0.5
wait = 0.5
worker_timeout = 1.0
start_wait = 0.1

[tracker]
confirm_interval = 0.5
max_retry = 0.5
"""

_JSON_LINES = """
name = "jsonl"
directory = {directory}
"""

_WANDB = """
[tracker.options]
transmit_interval_s = 1
stall_timeout_s = 10
init_timeout_s = 60
finish_timeout_s = 5
"""

Row = Mapping[str, object]


class Sender(threading.Thread):
    """Measures something with a value of its own at each step, and sends each until it is taken.

    Args:
        number: Of the sender; no two have the same.
        experiment: That it works for.
        site: Whose bridges it takes in turn, as behind a plain load balancer.
        pause_s: Between two measurements.

    Attributes:
        key: Under which its values stand in the run.
        acknowledged: The steps that a bridge has answered for.
    """

    def __init__(
        self, number: int, experiment: str, site: "Site", *, pause_s: float = 0.02
    ) -> None:
        super().__init__(name=f"sender-{number}", daemon=True)
        self.key = f"{KEYS}{number}"
        self.experiment = experiment
        self.acknowledged: list[int] = []
        self._number = number
        self._site = site
        self._pause_s = pause_s
        self._over = threading.Event()

    def finish(self) -> None:
        """Measure nothing more, and deliver what is measured."""
        self._over.set()

    def value(self, step: int) -> float:
        """What it measures at the step, as nobody else does."""
        return float(self._number * 1_000_000 + step)

    def run(self) -> None:
        for step in itertools.count():
            payload = self._request(step)
            turn = random.randrange(100)
            while not self._site.take(turn, payload):
                turn += 1
                time.sleep(0.05)
            self.acknowledged.append(step)
            if self._over.wait(self._pause_s):
                return

    def _request(self, step: int) -> bytes:
        measured = point(self.value(step), time.time_ns())
        measured.attributes.extend(key_values({"rl.loop.iteration": step}))
        return metrics_request(
            gauge(measured, name=f"id_{self._number}"),
            resource={
                "rl.experiment.name": self.experiment,
                "rl.worker.role": "trainer",
                "rl.worker.index": self._number,
                "service.instance.id": self.name,
            },
        ).SerializeToString()


class Site:
    """Runs the bridges inside its context.

    Args:
        server: Their database, in a schema of its own.
        directory: Of the test.
        bridges: How many.
        wandb: Where the runs are written; to a directory that all bridges share if not given.
        lease_s: How long a run waits for its next bridge.
    """

    def __init__(
        self,
        server: PostgresServer,
        directory: Path,
        *,
        bridges: int,
        wandb: WandbServer | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.runs = directory / "runs"
        self.runs.mkdir()
        self._wandb = wandb
        self._url = server.new_url()
        self.links = [Link(server.port) for _ in range(bridges)]
        self._mark = uuid.uuid4().hex
        settings = directory / "bridge.toml"
        tracker = _JSON_LINES.format(directory=json.dumps(str(self.runs)))
        settings.write_text(_SETTINGS.format(lease_s=lease_s) + (_WANDB if wandb else tracker))
        environment = {
            **clean_environment(directory),
            **(wandb.environment() if wandb else {}),
            MARK: self._mark,
        }
        self.bridges = [
            BridgeKeeper(
                [
                    sys.executable, "-m", "otel_rl", "bridge", "--config", str(settings),
                    "--data", str(directory / f"data-{number}"),
                    "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
                ],
                {
                    **environment,
                    "OTEL_RL_BRIDGE__JOURNAL__URL":
                        self._url.replace(f":{server.port}/", f":{link.port}/"),
                },
                self._mark,
                directory / f"bridge-{number}.log",
            )
            for number, link in enumerate(self.links)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        for link in self.links:
            link.__enter__()
        for bridge in self.bridges:
            bridge.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for bridge in self.bridges:
            bridge.stop()
        kill([*processes_with(MARK, self._mark)])
        for link in self.links:
            link.__exit__(None, None, None)

    def take(self, turn: int, payload: bytes) -> bool:
        """Offer a request to one of the bridges. Returns whether it was acknowledged."""
        addresses = self.bridges[turn % len(self.bridges)].addresses
        if addresses is None:
            return False
        connection = http.client.HTTPConnection(addresses.http, timeout=_TIMEOUT_S)
        with contextlib.closing(connection):
            try:
                connection.request(
                    "POST", "/v1/metrics", payload, {"Content-Type": "application/x-protobuf"}
                )
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return False
        assert status in {200, 503}, f"a bridge answers {status}"
        return status == 200

    def rows(self, experiment: str) -> Sequence[Row]:
        """The rows of the run: ``number``, and values by key."""
        run = run_id(experiment, "default")
        if self._wandb is not None:
            return [{**row, "number": row["_step"]} for row in self._wandb.history(run)]
        path = self.runs / f"{run}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        # The last one may be being written.
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [{**row["values"], "number": row["number"]} for row in rows]

    def run_ids(self) -> set[str]:
        """The runs that there are."""
        if self._wandb is not None:
            return set(self._wandb.run_ids())
        return {path.stem for path in self.runs.glob("*.jsonl")}

    def owners(self) -> Mapping[str, int]:
        """The process id of the bridge that owns the run of each experiment, while one does."""
        owned = (
            "SELECT experiment, split_part(owner, ':', 2) FROM runs"
            " WHERE expires_ns > EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000"
        )
        with psycopg.connect(self._url) as connection:
            return {name: int(pid) for name, pid in connection.execute(owned)}

    def shown(self, sender: Sender) -> Counter[float]:
        """How often each of a sender's values stands in its run, replaced rows left out.

        A row whose values are all in a later one, which has more, is replaced: a sample that
        came late has its step written again, whole.
        """
        rows = [
            {
                key: value
                for key, value in row.items()
                if key.startswith(KEYS) and isinstance(value, (int, float))
            }
            for row in self.rows(sender.experiment)
        ]
        replaced = {
            place
            for place, row in enumerate(rows)
            if any(row.items() < later.items() for later in rows[place + 1 :])
        }
        return Counter(
            row[sender.key]
            for place, row in enumerate(rows)
            if sender.key in row and place not in replaced
        )

    def pids(self) -> Sequence[int]:
        """The processes of the bridges themselves."""
        found = processes_with(MARK, self._mark)
        return [pid for pid, command in found.items() if " -m otel_rl " in command]

    def said(self) -> str:
        """Everything that the bridges have said."""
        return "\n".join(bridge.said() for bridge in self.bridges)


class Striker:
    """Strikes a site, by chance that a seed decides."""

    def __init__(self, site: Site, server: PostgresServer, seed: int) -> None:
        self._site = site
        self._server = server
        self._chance = random.Random(seed)
        self.struck: Counter[str] = Counter()

    def strike(self, times: int) -> None:
        """Strike so often."""
        for _ in range(times):
            time.sleep(self._chance.uniform(0.2, 1.0))
            fault = self._chance.choice(
                (self._kill, self._hold_up, self._cut_off, self._cut, self._restart)
            )
            fault()
            self.struck[fault.__name__.strip("_")] += 1

    def _kill(self) -> None:
        for pid in self._one():
            kill([pid])

    def _hold_up(self) -> None:
        """A bridge sleeps through its leases, while its writers are awake, and goes on."""
        for pid in self._one():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self._chance.uniform(0.2, 2 * LEASE_S))
                os.kill(pid, signal.SIGCONT)

    def _cut_off(self) -> None:
        """A bridge hears nothing of the database; what it says in between comes late."""
        link = self._chance.choice(self._site.links)
        link.suffer(Trouble.FROZEN)
        time.sleep(self._chance.uniform(0.2, 2 * LEASE_S))
        link.suffer(Trouble.NONE)

    def _cut(self) -> None:
        self._server.cut_connections()

    def _restart(self) -> None:
        self._server.stop()
        time.sleep(self._chance.uniform(0, LEASE_S))
        self._server.start()

    def _one(self) -> Iterator[int]:
        pids = sorted(self._site.pids())
        if pids:
            yield self._chance.choice(pids)
