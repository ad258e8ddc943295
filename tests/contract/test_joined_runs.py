"""What the bridge promises to a W&B run that a process of the user's own has begun.

The owner is a process with the real SDK, the bridge's part the real writer process.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.shared import SHARED_MODE, mark_key
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.records import (
    CONSOLE,
    CONSOLE_COLUMNS,
    Description,
    Device,
    ExperimentKey,
    Row,
    Table,
    Value,
)
from otel_rl.run_id import run_id
from tests.support import waiting
from tests.support.wandb_server import Run, WandbServer

pytestmark = pytest.mark.process

PROJECT = "theirs"
DEADLINE_S = 90.0
wait_until = partial(waiting.wait_until, timeout_s=DEADLINE_S)

OWNER = """
import sys
import wandb

runs = {}
for line in sys.stdin:
    command, id, *arguments = line.split()
    if command == "begin":
        run = runs[id] = wandb.init(
            project="theirs",
            id=id,
            mode=arguments[0],
            reinit="create_new",
            name="my run",
            config={"lr": 3},
            tags=["mine"],
            notes="my notes",
            settings=wandb.Settings(
                console="off", x_disable_stats=True, x_file_stream_transmit_interval=1
            ),
        )
        run.define_metric("trainer/loss", step_metric="global_step")
    if command == "log":
        for number in range(*map(int, arguments)):
            runs[id].log({"trainer/loss": number, "global_step": 10 * number})
    if command == "finish":
        runs[id].finish(exit_code=int(arguments[0]))
    print("done", flush=True)
"""


class Owners:
    """The process that owns the runs. It does as it is told."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self, id: str, *, mode: str = "shared") -> "Owner":  # noqa: A002  # W&B's word
        self.tell("begin", id, mode)
        return Owner(self, id)

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"


@dataclass
class Owner:
    """One run of the process."""

    owners: Owners
    id: str

    def log(self, start: int, stop: int) -> None:
        self.owners.tell("log", self.id, start, stop)

    def finish(self, exit_code: int = 0) -> None:
        self.owners.tell("finish", self.id, exit_code)


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


@pytest.fixture(scope="module")
def owners(server: WandbServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owners]:
    home = tmp_path_factory.mktemp("owners")
    environment = {name: value for name, value in os.environ.items() if not is_wandbs(name)}
    environment |= {**server.environment(), "HOME": str(home), "WANDB_SILENT": "true"}
    environment["WANDB_ERROR_REPORTING"] = "false"
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=environment,
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Owners(process)
        process.kill()


@pytest.fixture
def home(tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    set_up(monkeypatch, tmp_path, server)
    yield tmp_path
    server.heal()


def set_up(monkeypatch: pytest.MonkeyPatch, home: Path, server: WandbServer) -> None:
    """The environment of the bridge."""
    for variable in filter(is_wandbs, list(os.environ)):
        monkeypatch.delenv(variable)
    variables = {**server.environment(), "HOME": str(home), "WANDB_TAGS": "of-the-bridge"}
    variables |= {"WANDB_NOTES": "of the bridge"}
    del variables["WANDB_MODE"]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)


def is_wandbs(variable: str) -> bool:
    return variable.startswith(("WANDB_", "NETRC"))


@pytest.fixture
def owner(request: pytest.FixtureRequest, owners: Owners) -> Owner:
    return owners.begin(f"run-{request.node.name}"[:60])


def joining(home: Path, id: str, **settings: str) -> RunInfo:  # noqa: A002  # W&B's word
    key = ExperimentKey("grpo", "try-2")
    attributes = {
        "attach": f"{PROJECT}/{id}",
        "transmit_interval_s": "1",
        "settle_s": "1",
        "stall_timeout_s": "90",
    }
    return RunInfo(
        key,
        run_id(key.experiment, key.trial),
        home,
        tuple(sorted((attributes | settings).items())),
        journal="one",
    )


def rows(start: int, stop: int) -> list[Row]:
    return [
        Row(
            number=number,
            step=number // 2,
            time_ns=1_700_000_000_000_000_000 + number * 1_000_000_000,
            values={"trainer/loss": float(number), "otel_rl/bridge/rows": 1.0},
            policy_version=number // 10,
        )
        for number in range(start, stop)
    ]


def samples(number: int) -> Row:
    table = Table(["step", "prompt"], [[number, "why?"]])
    return replace(rows(number, number + 1)[0], values={}, tables={"trainer/samples": table})


def rollouts(number: int) -> Row:
    table = Table(["step", "prompt", "worker"], [[number, f"why {number}?", "0"]])
    return replace(rows(number, number + 1)[0], values={}, tables={"trainer/rollouts": table})


def console(number: int, line: int) -> Row:
    lines: list[list[Value]] = [[line, 0, "trainer/0", "stdout", f"line {line}"]]
    table = Table([*CONSOLE_COLUMNS], lines)
    return replace(rows(number, number + 1)[0], values={}, tables={CONSOLE: table})


def write(run: RunInfo, stop: int) -> int:
    """One whole life of a writer. Returns where it found the run."""
    with WriterProcess("wandb") as writer:
        start = writer.open(run)
        writer.write(rows(start, stop))
        writer.close(exit_code=1)
    return start


def write_one_by_one(writer: WriterProcess, rows: Sequence[Row]) -> None:
    for row in rows:
        writer.write([row])


def ours(server: WandbServer, run: RunInfo, id: str) -> list[dict[str, float]]:  # noqa: A002
    return [row for row in server.history(id) if mark_key(run) in row]


def numbers(server: WandbServer, run: RunInfo, id: str) -> list[int]:  # noqa: A002
    return [int(row[mark_key(run)]) for row in ours(server, run, id)]


def theirs(server: WandbServer, id: str) -> list[dict[str, float]]:  # noqa: A002
    return [row for row in server.history(id) if "global_step" in row]


def kill_with_children(writer: WriterProcess) -> None:
    assert writer.pid is not None
    os.killpg(writer.pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


# What is in the run


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, owners: Owners, server: WandbServer
) -> Iterator[tuple[RunInfo, Run, WandbServer]]:
    """One run of an owner and a bridge, the owner being the last, looked at by several tests."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        home = tmp_path_factory.mktemp("joined")
        set_up(monkeypatch, home, server)
        run = replace(
            joining(home, "finished"),
            description=Description(config={"lr": 5}, tags=("ours",), notes="ours", group="ours"),
        )
        owner = owners.begin("finished")
        owner.log(0, 5)
        with WriterProcess("wandb") as writer:
            writer.open(run)
            writer.write(rows(0, 20))
            owner.log(5, 10)
            writer.write([*rows(20, 40), samples(40)])
            writer.close(exit_code=1)
        owner.log(10, 15)
        assert server.run("finished").complete is None, "the owner says when it is over"
        owner.finish(3)
        yield run, server.run("finished"), server


def test_the_owners_rows_are_as_it_logged_them(
    finished: tuple[RunInfo, Run, WandbServer],
) -> None:
    _, _, server = finished
    logged = [(row["trainer/loss"], row["global_step"]) for row in theirs(server, "finished")]
    assert logged == [(number, 10 * number) for number in range(15)]


def test_every_row_of_ours_is_in_the_run_once_and_in_order(
    finished: tuple[RunInfo, Run, WandbServer],
) -> None:
    run, _, server = finished
    assert numbers(server, run, "finished") == list(range(41))


def test_text_samples_are_a_table_under_a_key_of_ours(
    finished: tuple[RunInfo, Run, WandbServer],
) -> None:
    run, _, server = finished
    table: object = ours(server, run, "finished")[-1]["otel_rl/trainer/samples"]
    assert isinstance(table, dict)
    assert (table["_type"], table["nrows"]) == ("table-file", 1)


def test_every_key_of_ours_begins_with_otel_rl(finished: tuple[RunInfo, Run, WandbServer]) -> None:
    run, _, server = finished
    last = ours(server, run, "finished")[39]
    assert {key: value for key, value in last.items() if not key.startswith("_r")} == {
        "_step": last["_step"],
        "_timestamp": 1_700_000_039.0,
        "otel_rl/trainer/loss": 39.0,
        "otel_rl/bridge/rows": 1.0,
        "otel_rl/step": 19,
        "otel_rl/attempt": 1,
        "otel_rl/hours": 39 / 3600,
        "otel_rl/policy_version": 3,
        mark_key(run): 39,
    }


def test_what_the_owner_said_of_its_run_stays(finished: tuple[RunInfo, Run, WandbServer]) -> None:
    _, run, _ = finished
    assert (run.display_name, run.tags, run.notes) == ("my run", ["mine"], "my notes")
    assert (run.config["lr"], run.group) == ({"value": 3}, "")


def test_the_bridge_says_nothing_of_the_run_but_config_under_a_key_of_its_own(
    finished: tuple[RunInfo, Run, WandbServer],
) -> None:
    _, run, _ = finished
    said = [told for told in run.told.values() if "my run" not in told.values()]
    assert [sorted(told) for told in said] == [["config", "entity", "name", "project"]]
    assert set(json.loads(str(said[0]["config"]))) == {"_wandb", "otel_rl"}
    assert run.config["otel_rl"] == {"value": {"lr": 5}}


def test_only_keys_of_ours_get_the_training_step_as_their_axis(
    finished: tuple[RunInfo, Run, WandbServer],
) -> None:
    _, run, _ = finished
    internal = run.config["_wandb"]
    assert isinstance(internal, dict)
    names = {metric.get("1") or metric.get("2") for metric in internal["value"]["m"]}
    own = {name for name in names if name.startswith("otel_rl/")}
    assert names - own == {"trainer/loss", "global_step"}
    assert "otel_rl/*" in own


def test_the_owner_alone_decides_how_the_run_ended(
    finished: tuple[RunInfo, Run, WandbServer],
) -> None:
    _, run, _ = finished
    assert (run.complete, run.exit_code) == (True, 3)


def test_the_summary_is_the_owners(finished: tuple[RunInfo, Run, WandbServer]) -> None:
    _, run, _ = finished
    assert [key for key in run.summary if key.startswith("otel_rl/")] == []


@pytest.mark.slow
def test_samples_of_all_steps_are_one_table_and_the_console_is_beside_the_owner_s(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id)
    owner.log(0, 5)
    for first in (0, 2):  # the second writer goes on
        with WriterProcess("wandb") as writer:
            assert writer.open(run) == 2 * first
            for number in (first, first + 1):
                writer.write([rollouts(2 * number), console(2 * number + 1, number)])
            writer.close(exit_code=0)
    owner.log(5, 10)
    owner.finish()
    key = "otel_rl/trainer/rollouts/all"
    references: list[object] = [row[key] for row in server.history(owner.id) if key in row]
    reference = references[-1]
    assert isinstance(reference, dict)
    table = json.loads(server.uploads(owner.id)[reference["path"]])
    assert table["columns"] == ["step", "policy_version", "prompt", "worker"]
    assert [sample[2] for sample in table["data"]] == [f"why {2 * n}?" for n in range(4)]
    lines = server.run(owner.id).lines("output.log")
    told = [line for line in lines if "[trainer/0]" in line]
    assert [line.rpartition("[trainer/0] ")[2].strip() for line in told] == [
        f"line {n}" for n in range(4)
    ]
    assert numbers(server, run, owner.id) == list(range(8))
    assert len(theirs(server, owner.id)) == 10


# Endings


@pytest.mark.slow
def test_rows_that_come_after_the_owner_has_finished_change_nothing_else(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id)
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(rows(0, 5))
        owner.log(0, 5)
        owner.finish(3)
        writer.write(rows(5, 10))
        writer.close(exit_code=0)
    assert numbers(server, run, owner.id) == list(range(10))
    assert (server.run(owner.id).complete, server.run(owner.id).exit_code) == (True, 3)


@pytest.mark.slow
def test_gpus_of_the_workers_are_in_the_system_panels_of_the_owners_run(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    device = Device("GPU-a", "node1", "gpu0", "H100", ("trainer/0",))
    described = Description(devices={"gpu/node1/gpu0": device})
    row = Row(0, 1, 1_700_000_000_250_000_000, {"gpu/node1/gpu0/utilization": 0.5})
    with WriterProcess("wandb") as writer:
        writer.open(replace(joining(home, owner.id), description=described))
        writer.write([row])
        writer.close(exit_code=0)
    lines = map(json.loads, server.run(owner.id).lines("wandb-events.jsonl"))
    (shown,) = [line for line in lines if any("gpu.0" in key for key in line)]
    assert shown["system.gpu.0.gpu/l:node1.trainer-0"] == 50.0


@pytest.mark.slow
def test_a_run_that_is_finished_is_joined_again_where_it_was_left(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id)
    owner.log(0, 3)
    assert write(run, 7) == 0
    owner.finish()
    assert write(run, 12) == 7
    assert numbers(server, run, owner.id) == list(range(12))


@pytest.mark.slow
def test_marks_are_found_among_thousands_of_lines_of_the_owner(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id)
    owner.log(0, 1200)
    write(run, 5)
    owner.log(1200, 2400)
    assert write(run, 10) == 5
    assert numbers(server, run, owner.id) == list(range(10))


@pytest.mark.slow
def test_two_experiments_share_one_run(owner: Owner, home: Path, server: WandbServer) -> None:
    one = joining(home, owner.id)
    other = replace(one, run_id="other")
    write(one, 4)
    assert write(other, 6) == 0
    assert write(one, 5) == 4
    assert numbers(server, one, owner.id) == list(range(5))
    assert numbers(server, other, owner.id) == list(range(6))


# Exactly once


def test_rows_are_safe_once_the_server_has_them(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    with WriterProcess("wandb") as writer:
        writer.open(joining(home, owner.id))
        owner.log(0, 20)
        server.fail(503, path="file_stream")
        writer.write(rows(0, 7))
        assert writer.flush(timeout_s=2) == 0
        server.heal()
        assert writer.flush(timeout_s=DEADLINE_S) == 7


def test_a_killed_writer_is_followed_by_one_that_goes_on(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id)
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(rows(0, 300))
        wait_until(lambda: bool(ours(server, run, owner.id)), "some rows arrive")
        kill_with_children(writer)
    write(run, 310)
    assert numbers(server, run, owner.id) == list(range(310))


@pytest.mark.slow
def test_a_killed_wandb_core_is_followed_by_one_that_goes_on(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id)
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(rows(0, 200))
        assert writer.pid is not None
        for pid in children(writer.pid):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(TrackerUnavailable):
            write_one_by_one(writer, rows(200, 100_000))
    write(run, 210)
    assert numbers(server, run, owner.id) == list(range(210))


@pytest.mark.slow
def test_rows_that_the_server_shows_late_are_waited_for_after_a_kill(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id, settle_s="8")
    uploads = server.run(owner.id).uploads
    server.slow(inf)
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(rows(0, 50))
        wait_until(lambda: server.run(owner.id).uploads > uploads, "an upload is acknowledged")
        kill_with_children(writer)
    assert not ours(server, run, owner.id)
    server.slow(0)
    with ThreadPoolExecutor(1) as pool:
        asked = server.asked("JoinedRun")
        written = pool.submit(write, run, 60)
        wait_until(lambda: server.asked("JoinedRun") > asked + 3, "the writer looks for rows")
        server.arrive()
        written.result(DEADLINE_S)
    assert numbers(server, run, owner.id) == list(range(60))


@pytest.mark.slow
def test_rows_that_are_shown_later_than_that_are_there_twice_and_known_by_their_number(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id, settle_s="0")
    uploads = server.run(owner.id).uploads
    server.slow(inf)
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(rows(0, 50))
        wait_until(lambda: server.run(owner.id).uploads > uploads, "an upload is acknowledged")
        kill_with_children(writer)
    server.slow(0)
    write(run, 60)
    server.arrive()
    found = Counter(numbers(server, run, owner.id))
    assert set(found) == set(range(60))
    assert (found[0], max(found.values())) == (2, 2)
    assert all(found[number] == 1 for number in range(50, 60))


@pytest.mark.slow
def test_an_upload_that_died_of_one_401_is_noticed_and_the_rows_are_sent_again(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id, stall_timeout_s="8")
    with WriterProcess("wandb") as writer:
        writer.open(run)
        server.fail(401, path="file_stream")
        writer.write(rows(0, 5))
        wait_until(lambda: server.failed() > 0, "the upload is refused")
        server.heal()
        with pytest.raises(TrackerUnavailable, match="taken no row"):
            writer.flush(timeout_s=DEADLINE_S)
    write(run, 8)
    assert numbers(server, run, owner.id) == list(range(8))


@pytest.mark.slow
def test_lines_that_the_server_puts_elsewhere_are_not_written_again_and_again(
    owner: Owner, home: Path, server: WandbServer
) -> None:
    run = joining(home, owner.id, stall_timeout_s="8")
    server.run(owner.id).client_steps = True
    owner.log(0, 20)
    wait_until(lambda: len(theirs(server, owner.id)) == 20, "the owner's lines are there")
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(rows(0, 5))
        wait_until(lambda: numbers(server, run, owner.id) == [*range(5)], "they are there")
        with pytest.raises(TrackerRejected, match="not at its end"):
            writer.flush(timeout_s=DEADLINE_S)
    with WriterProcess("wandb") as writer, pytest.raises(TrackerRejected, match="not at its end"):
        writer.open(run)
    assert numbers(server, run, owner.id) == list(range(5))


# What cannot be joined


@pytest.mark.slow
def test_a_run_that_never_begins_is_not_made(owner: Owner, home: Path, server: WandbServer) -> None:
    before = server.run_ids()
    run = joining(home, owner.id, attach=f"elsewhere/{owner.id}")
    with WriterProcess("wandb") as writer, pytest.raises(TrackerRejected, match="no W&B") as caught:
        writer.open(run)
    assert "ENTITY/PROJECT/RUN_ID" in caught.value.hint
    assert server.run_ids() == before


@pytest.mark.slow
@pytest.mark.usefixtures("owner")  # whose process has loaded W&B: the other run soon begins
def test_a_run_that_begins_after_the_first_rows_is_joined_when_it_does(
    owners: Owners, home: Path, server: WandbServer
) -> None:
    run = joining(home, "late")
    with WriterProcess("wandb") as writer, ThreadPoolExecutor(1) as pool:
        asked = server.asked("JoinedRun") + 1
        opened = pool.submit(writer.open, run)
        wait_until(lambda: server.asked("JoinedRun") > asked, "the bridge asks for the run, twice")
        owners.begin("late")
        assert opened.result(DEADLINE_S) == 0
        writer.write(rows(0, 5))
        writer.close(exit_code=0)
    assert numbers(server, run, "late") == list(range(5))


def test_a_run_that_is_not_shared_is_refused_before_it_is_touched(
    owners: Owners, home: Path, server: WandbServer
) -> None:
    owner = owners.begin("not-shared", mode="online")
    owner.log(0, 20)
    with WriterProcess("wandb") as writer, pytest.raises(TrackerRejected) as caught:
        writer.open(joining(home, owner.id))
    owner.finish()
    assert 'mode="shared"' in caught.value.hint
    assert "WANDB_MODE=shared" in caught.value.hint
    run = server.run("not-shared")
    assert (len(run.lines()), run.rewrites, run.told) == (20, 0, {})


def test_a_run_cannot_be_joined_offline(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with (
        WriterProcess("wandb") as writer,
        pytest.raises(TrackerRejected, match="only be joined online"),
    ):
        writer.open(joining(home, "any"))


@pytest.mark.slow
def test_the_environment_of_the_owner_says_it_all(
    owner: Owner, home: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "shared")
    monkeypatch.setenv("WANDB_RUN_ID", owner.id)
    monkeypatch.setenv("WANDB_PROJECT", PROJECT)
    run = replace(joining(home, ""), attributes=())
    write(run, 3)
    assert numbers(server, run, owner.id) == [0, 1, 2]


@pytest.mark.slow
def test_the_sdk_calls_the_shared_mode_by_the_same_number() -> None:
    from wandb.proto import wandb_telemetry_pb2

    feature = wandb_telemetry_pb2.DESCRIPTOR.message_types_by_name["Feature"]
    assert feature.fields_by_name["shared_mode"].number == SHARED_MODE
