"""A disk that fills under a tracker's files: four lives of a bridge on the same journal.

1. There is room for a quarter of the run.
2. There is no more room at first, and then there is, while the bridge runs.
3. The run is complete; there is room for a quarter of another copy, and it goes on.
4. There is room for everything.

After each life the run lacks nothing that was acknowledged, or the bridge has ended with a status
other than 0; and a run that was complete still is, as far as it went. At the end an offline run is
read by W&B's own reader, `wandb sync`, which sends it to a stand-in server.
"""

import http.client
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_rl.run_id import run_id
from tests.faults.books import Books, History
from tests.faults.gateway import Addresses
from tests.faults.keeper import MARK, BridgeKeeper, wait_for
from tests.faults.reading import read
from tests.faults.scarce import Scarce, scarce
from tests.process.commands import clean_environment
from tests.support.otlp_requests import key_values, metrics_request
from tests.support.wandb_offline import read_offline_run, run_directories
from tests.support.wandb_server import WandbServer

TRACKERS = ("wandb", "jsonl")
"""Those that write files."""

_EXPERIMENT, _TRIAL = "faults", "full"
_RUN = run_id(_EXPERIMENT, _TRIAL)
_STEPS = 600
_MORE_STEPS = 200
_KEYS = 12
_BATCH = 50  # steps a request
_QUARTER_BYTES = {"wandb": 120_000, "jsonl": 90_000}  # of a run of so many steps
_START_TIMEOUT_S = 90.0
_SAID_TIMEOUT_S = 120.0
_STOP_S, _SHORT_STOP_S = 200.0, 2.0
_END_S = 60.0  # what else a stop may take
_TIMEOUT_S = 120.0

_SETTINGS = """
stop_timeout = {stop_timeout_s}

[rows]
per_worker = true
window = 0.5
wait = 0.5
start_wait = 0.1

[tracker]
name = "{tracker}"
directory = "{directory}"
confirm_interval = 0.5
keep_confirmed = 0
max_retry = 1.0
"""

_OPTIONS = {
    "wandb": """
[tracker.options]
mode = "offline"
stall_timeout_s = 1
""",
    "jsonl": "",
}
_NOT_TAKEN = "does not accept the rows"
_BEGIN_NS = time.time_ns() - 600 * 10**9


@dataclass(frozen=True)
class _Copy:
    """A copy of the run on the disk."""

    rows: History
    is_complete: bool

    def marks(self) -> set[tuple[str, float]]:
        """Every measurement that it shows."""
        return {mark for row in self.rows for mark in row.items() if "/id/" in mark[0]}


@dataclass(frozen=True)
class Life:
    """How a life of the bridge ended.

    Attributes:
        status: Of the bridge; None if it had to be killed.
        acknowledged: Measurements up to its end.
        missing: Of these, not in the run.
        is_kept: Whether all that a complete run had is in a complete run still.
    """

    status: int | None
    acknowledged: int
    missing: int
    is_kept: bool

    @property
    def is_sound(self) -> bool:
        return (self.status == 0) == (self.missing == 0) and self.is_kept


@dataclass
class Story:
    """What came of it.

    Attributes:
        tracker: That wrote.
        scarce: Why room was short.
        lives: In order.
        problems: Empty if all is well.
        is_skipped: Whether this user may not make such a disk.
        said: By the bridge, on its standard error.
    """

    tracker: str
    scarce: str
    lives: list[Life] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_skipped: bool = False
    said: str = ""

    def figures(self) -> dict[str, object]:
        """For the report."""
        return {
            "tracker": self.tracker,
            "scarce": self.scarce,
            "skipped": self.is_skipped,
            "lives": [
                {"status": x.status, "acknowledged": x.acknowledged, "missing": x.missing}
                for x in self.lives
            ],
            "problems": self.problems,
        }

    def report(self) -> str:
        """For whoever has to find out what went wrong."""
        return "\n".join([*self.problems, *map(str, self.lives), "the bridge said:", self.said])


def run_story(tracker: str, kind: str, scratch: Path) -> Story:
    """Let a bridge live four times.

    Args:
        tracker: One of TRACKERS.
        kind: Why room is short, see ``scarce``.
        scratch: A directory of the caller's, for this story alone.
    """
    story = Story(tracker, kind)
    with scarce(kind, scratch, appends=tracker == "jsonl") as found:
        if found is None:
            story.is_skipped = True
            return story
        directory, room = found
        _Teller(story, scratch, directory, room).tell()
    return story


class _Teller:
    def __init__(self, story: Story, scratch: Path, directory: Path, room: Scarce) -> None:
        self._story = story
        self._scratch = scratch
        self._directory = directory
        self._room = room
        self._books = Books()
        self._complete: set[tuple[str, float]] = set()  # what a complete run had
        self._steps = 0
        self._mark = uuid.uuid4().hex

    def tell(self) -> None:
        quarter = _QUARTER_BYTES[self._story.tracker]
        self._room.leave(quarter)
        self._live(_STEPS, is_short=True)
        self._live(0, is_short=True, has_room_later=True)
        self._room.leave(quarter)
        self._live(_MORE_STEPS, is_short=True)
        self._room.free()
        self._live(1)
        self._judge()

    def _live(self, steps: int, *, is_short: bool = False, has_room_later: bool = False) -> None:
        log = self._scratch / f"bridge-{len(self._story.lives) + 1}.log"
        # Without room a stop tries until its time is up.
        stop_timeout_s = _SHORT_STOP_S if is_short and not has_room_later else _STOP_S
        with self._bridge(stop_timeout_s, log) as bridge:
            if not wait_for(bridge.is_up, _START_TIMEOUT_S):
                self._story.problems.append("the bridge did not start")
            self._send(bridge.addresses, steps)
            if is_short and not wait_for(lambda: _NOT_TAKEN in bridge.said(), _SAID_TIMEOUT_S):
                self._story.problems.append("nothing was said of the full disk")
            if has_room_later:
                self._room.free()
            status = bridge.stop(stop_timeout_s + _END_S)
            said = bridge.said()
        self._story.said += said
        if "Traceback" in said:
            self._story.problems.append("something happened that the bridge did not foresee")
        self._note(status)

    def _bridge(self, stop_timeout_s: float, log: Path) -> BridgeKeeper:
        tracker = self._story.tracker
        settings = log.with_suffix(".toml")
        settings.write_text(
            _SETTINGS.format(
                tracker=tracker, directory=self._directory, stop_timeout_s=stop_timeout_s
            )
            + _OPTIONS[tracker]
        )
        environment = clean_environment(self._scratch)
        return BridgeKeeper(
            [
                sys.executable, "-m", "otel_rl", "bridge", "--config", str(settings),
                "--data", str(self._scratch / "data"),
                "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
            ],
            {**environment, MARK: self._mark, **self._room.environment},
            self._mark,
            log,
        )  # fmt: skip

    def _send(self, addresses: Addresses | None, steps: int) -> None:
        """Report so many steps, and note what was acknowledged."""
        end = self._steps + steps
        for first in range(self._steps, end, _BATCH):
            request = _request(range(first, min(first + _BATCH, end)))
            reading = read(request)
            self._books.offer(reading)
            if addresses and _post(addresses.http, request.SerializeToString()) == 200:
                self._books.acknowledge(reading)
        self._steps = end

    def _note(self, status: int | None) -> None:
        """Compare what is on the disk with the books."""
        copies = self._copies()
        shown = [copy.marks() for copy in copies]
        ended = [marks for marks, copy in zip(shown, copies, strict=True) if copy.is_complete]
        life = Life(
            status,
            self._books.acknowledged(),
            min(map(self._books.missing, [copy.rows for copy in copies] or [[]])),
            not self._complete or any(self._complete <= marks for marks in ended),
        )
        if not life.is_sound:
            self._story.problems.append(f"life {len(self._story.lives) + 1}: {life}")
        if status == 0:
            self._complete = max(shown, key=len)
        self._story.lives.append(life)

    def _copies(self) -> Sequence[_Copy]:
        if self._story.tracker == "jsonl":
            return [_Copy(_jsonl(self._directory / f"{_RUN}.jsonl"), is_complete=True)]
        found = [read_offline_run(path) for path in run_directories(self._directory, _RUN)]
        return [_Copy(run.history, is_complete=run.exit_code is not None) for run in found]

    def _judge(self) -> None:
        """Look at the run as somebody else sees it."""
        if self._story.tracker == "jsonl":
            history: History = _jsonl(self._directory / f"{_RUN}.jsonl")
        else:
            history = self._synced()
        verdict = self._books.judge(history)
        self._story.problems += verdict.problems
        if verdict.acknowledged < (_STEPS + _MORE_STEPS) * _KEYS:
            self._story.problems.append(f"only {verdict.acknowledged} were acknowledged")
        if not any(life.missing for life in self._story.lives):
            self._story.problems.append("the disk was never full")

    def _synced(self) -> History:
        directories = run_directories(self._directory, _RUN)
        if len(directories) != 1:
            self._story.problems.append(f"there are {len(directories)} copies")
        with WandbServer() as server:
            subprocess.run(
                [sys.executable, "-m", "wandb", "sync", str(directories[-1])],
                cwd=self._scratch,
                env=clean_environment(self._scratch) | server.environment(),
                capture_output=True,
                check=True,
            )
            return server.history(_RUN)


def _jsonl(path: Path) -> History:
    """The whole lines of the file, as a history of W&B's."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [
        {
            **{key: float(value) for key, value in record["values"].items()},
            "_step": record["number"],
            "step": record["step"],
            "_timestamp": record["time_ns"] / 1e9,
        }
        for record in records
    ]


def _request(steps: range) -> ExportMetricsServiceRequest:
    """Values that no other measurement has, one of each key at each step."""
    metrics = []
    for key in range(_KEYS):
        metric = Metric(name=f"id.{key}")
        for step in steps:
            point = metric.gauge.data_points.add(
                as_double=step * _KEYS + key, time_unix_nano=_BEGIN_NS + step * 1_000_000
            )
            point.attributes.extend(key_values({"rl.loop.iteration": step}))
        metrics.append(metric)
    resource: dict[str, str | int] = {
        "rl.experiment.name": _EXPERIMENT,
        "rl.trial.name": _TRIAL,
        "rl.worker.role": "trainer",
        "rl.worker.index": 0,
        "service.instance.id": "one",
    }
    return metrics_request(*metrics, resource=resource)


def _post(netloc: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(netloc, timeout=_TIMEOUT_S)
    try:
        headers = {"content-type": "application/x-protobuf"}
        connection.request("POST", "/v1/metrics", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
