"""What every tracker promises to the delivery loop, shown with its real writer process."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.bridge.rows.messages import Finding
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.records import ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.support import waiting
from tests.support.slow import slow_after
from tests.support.wandb_offline import read_offline_run, run_directories
from tests.support.wandb_server import WandbServer
from tests.trackers.example import install_example, read_example
from tests.trackers.places import (
    Place,
    hold_mlflow,
    hold_tensorboard,
    read_mlflow,
    read_tensorboard,
    read_trackio,
    trackio_query,
)
from tests.trackers.programs import MlflowServer, TrackioServer

pytestmark = pytest.mark.process

KEY = ExperimentKey("grpo", "try-2")
NOON_NS = 1_700_000_000_250_000_000
DEADLINE_S = 90.0
wait_until = partial(waiting.wait_until, timeout_s=DEADLINE_S)


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with MlflowServer(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(scope="module")
def trackio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackioServer]:
    with TrackioServer(tmp_path_factory.mktemp("trackio")) as server:
        yield server


WANDB_PLACES = ("wandb-offline", "wandb-online")
OTHER_PLACES = (
    *("tensorboard", "example"),
    *("trackio-server", "mlflow-server", "trackio-local", "mlflow-sqlite"),
)
PLACES = ("jsonl", *WANDB_PLACES, *OTHER_PLACES)
# Those that confirm rows and can be continued; one of each is enough for the fast tests.
FAST_PLACES = ("jsonl", "wandb-online", *OTHER_PLACES[:2])
KEPT_PLACES = (*FAST_PLACES, "trackio-server", "mlflow-server")
ALL_KEPT_FIRST = (*KEPT_PLACES, "wandb-offline", "trackio-local", "mlflow-sqlite")
OFFLINE_PLACES = ("jsonl", "wandb-offline")  # for what does not depend on a server


def _place(
    name: str,
    directory: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
) -> Place:
    own = ("WANDB_", "NETRC", "MLFLOW_", "TRACKIO_", "HF_")
    for variable in [name for name in os.environ if name.startswith(own)]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(directory))
    experiment = ExperimentKey(key, KEY.trial)
    run = RunInfo(experiment, run_id(experiment.experiment, experiment.trial), directory)
    match name:
        case "jsonl":
            return Place(name, "jsonl", run, read_jsonl)
        case "wandb-offline":
            return Place(name, "wandb", run, read_offline)
        case "example":
            monkeypatch.setenv("PYTHONPATH", str(install_example(directory)))
            monkeypatch.syspath_prepend(str(directory / "site"))
            return Place(name, "sqlite", run, read_example)
        case "tensorboard":
            return Place(name, name, run, read_tensorboard, hold_tensorboard)
        case "trackio-local":
            monkeypatch.setenv("TRACKIO_DIR", str(directory / "trackio"))
            query = trackio_query(directory / "trackio")
            return Place(name, "trackio", run, partial(read_trackio, query))
        case "mlflow-sqlite":
            uri = f"sqlite:///{directory / 'mlflow.db'}"
            return Place(name, "mlflow", run, partial(read_mlflow, uri), hold_mlflow)
    server = request.getfixturevalue(
        {"mlflow-server": "mlflow_server", "trackio-server": "trackio_server"}.get(name, "server")
    )
    if isinstance(server, WandbServer):
        for variable, value in server.environment().items():
            monkeypatch.setenv(variable, value)
        options = (("stall_timeout_s", "90"), ("transmit_interval_s", "1"))
        return Place(
            name,
            "wandb",
            replace(run, attributes=options),
            lambda run: from_wandb(server.history(run.run_id)),
        )
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)
    if name == "mlflow-server":
        return Place(name, "mlflow", run, partial(read_mlflow, server.url), hold_mlflow)
    return Place(name, "trackio", run, partial(read_trackio, trackio_query(server)))


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    server: WandbServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    yield _place(request.param, tmp_path, request, monkeypatch, f"grpo-{request.node.name}")
    server.heal()


@pytest.fixture(scope="module", params=slow_after(5, PLACES))
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A place with one finished run of ROWS, written by one session, shared by several tests."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        place = _place(
            request.param, tmp_path_factory.mktemp("tracker"), request, monkeypatch, KEY.experiment
        )
        session(place, ROWS, exit_code=3)
        yield place


def rows(start: int, stop: int) -> list[Row]:
    """Two rows a step; event times go back now and then, and the attempt once, as late rows do."""
    return [
        Row(
            number=number,
            step=number // 2,
            time_ns=NOON_NS + (number ^ 1) * 1_000_000_000,
            values={"trainer/loss": 1 / (number + 1), "trainer/number": float(number)},
            policy_version=number // 10 if number % 3 else None,
            attempt=1 + number // 30 - (number == 37),
        )
        for number in range(start, stop)
    ]


AXES = {"step", "attempt", "hours", "policy_version"}

ODD = {
    "a/nan": math.nan,
    "a/inf": math.inf,
    "a/-inf": -math.inf,
    "a/tiny": 5e-324,
    "a.b": 1.0,
    "a": 2.0,
    "größe 🚀": 3.0,
}
ROWS = [*rows(0, 40), replace(rows(40, 41)[0], values=ODD)]


def session(place: Place, rows: Sequence[Row], *, exit_code: int = 0) -> int:
    """One whole life of a writer. Returns where the tracker stood."""
    with WriterProcess(place.tracker) as writer:
        start = writer.open(place.run)
        writer.write([row for row in rows if row.number >= start])
        writer.close(exit_code=exit_code)
    return start


def read_jsonl(run: RunInfo) -> list[Row]:
    lines = (run.directory / f"{run.run_id}.jsonl").read_text().splitlines()
    return [
        Row(
            number=record["number"],
            step=record["step"],
            time_ns=record["time_ns"],
            values={key: float(value) for key, value in record["values"].items()},
            policy_version=record["policy_version"],
            attempt=record["attempt"],
        )
        for record in map(json.loads, lines)
    ]


def read_offline(run: RunInfo) -> list[Row]:
    """From the one directory of the run: more than one would be a failure by itself."""
    (directory,) = run_directories(run.directory, run.run_id)
    return from_wandb(read_offline_run(directory).history)


def from_wandb(history: Sequence[Mapping[str, float]]) -> list[Row]:
    return [
        Row(
            number=int(line["_step"]),
            step=int(line["step"]),
            time_ns=round(line["_timestamp"] * 1e3) * 1_000_000,
            values={
                key: float(value)
                for key, value in line.items()
                if not key.startswith(("_", "step/")) and key not in AXES
            },
            policy_version=int(line["policy_version"]) if "policy_version" in line else None,
            attempt=int(line["attempt"]),
        )
        for line in history
    ]


def write_one_by_one(writer: WriterProcess, rows: Sequence[Row]) -> None:
    for row in rows:
        writer.write([row])


def pid_of(writer: WriterProcess) -> int:
    assert writer.pid is not None
    return writer.pid


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def is_gone(pid: int) -> bool:
    """No such process, or only its exit status is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_every_row_is_in_the_run_once_and_in_order(finished: Place) -> None:
    assert [row.number for row in finished.history(finished.run)] == list(range(len(ROWS)))


def test_values_step_attempt_and_policy_version_arrive_as_they_were(finished: Place) -> None:
    written = finished.history(finished.run)[:40]
    assert [(r.values, r.step, r.attempt, r.policy_version) for r in written] == [
        (r.values, r.step, r.attempt, r.policy_version) for r in finished.held(ROWS[:40])
    ]


def test_nan_infinities_and_odd_names_survive(finished: Place) -> None:
    assert repr(sorted(finished.history(finished.run)[-1].values.items())) == repr(
        sorted(finished.held(ROWS)[-1].values.items())
    )


def test_the_time_of_a_row_is_its_event_time(finished: Place) -> None:
    assert [r.time_ns for r in finished.history(finished.run)] == [r.time_ns for r in ROWS]


@pytest.mark.parametrize("place", slow_after(1, ALL_KEPT_FIRST), indirect=True)
def test_a_closed_run_is_continued(place: Place) -> None:
    assert session(place, rows(0, 10)) == 0
    session(place, rows(0, 25))
    assert place.history(place.run) == place.held(rows(0, 25))


@pytest.mark.parametrize("place", slow_after(len(FAST_PLACES), ALL_KEPT_FIRST), indirect=True)
def test_a_run_whose_writer_was_killed_is_continued(place: Place) -> None:
    with WriterProcess(place.tracker) as writer:
        start = writer.open(place.run)
        writer.write(rows(start, 300))
        helpers = children(pid_of(writer))
        os.kill(pid_of(writer), signal.SIGKILL)
        with pytest.raises(TrackerUnavailable, match="died"):
            writer.write(rows(300, 301))
    wait_until(lambda: all(is_gone(pid) for pid in helpers), "the tracker's helpers end")
    session(place, rows(0, 310))
    assert place.history(place.run) == place.held(rows(0, 310))


@pytest.mark.slow
@pytest.mark.parametrize("place", WANDB_PLACES, indirect=True)
def test_a_run_whose_wandb_core_was_killed_is_continued_by_another_writer(place: Place) -> None:
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        writer.write(rows(0, 200))
        for pid in children(pid_of(writer)):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(TrackerUnavailable):
            write_one_by_one(writer, rows(200, 100_000))
    session(place, rows(0, 210))
    assert place.history(place.run) == place.held(rows(0, 210))


@pytest.mark.parametrize("place", ["jsonl"], indirect=True)
def test_only_one_writer_at_a_time_holds_a_run(place: Place) -> None:
    with WriterProcess(place.tracker) as writer, WriterProcess(place.tracker) as other:
        writer.open(place.run)
        with pytest.raises(TrackerUnavailable, match="Another writer"):
            other.open(place.run)


@pytest.mark.parametrize("place", slow_after(1, OFFLINE_PLACES), indirect=True)
def test_a_writer_ignores_the_terminal_and_the_supervisor(place: Place) -> None:
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        os.killpg(pid_of(writer), signal.SIGINT)
        os.kill(pid_of(writer), signal.SIGTERM)
        writer.write(rows(0, 5))
        writer.close(exit_code=0)
    assert place.history(place.run) == place.held(rows(0, 5))


@pytest.mark.parametrize("place", slow_after(1, OFFLINE_PLACES), indirect=True)
def test_nothing_is_left_of_a_writer_after_close(place: Place) -> None:
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        pids = [pid_of(writer), *children(pid_of(writer))]
        writer.close(exit_code=0)
        assert all(is_gone(pid) for pid in pids)


PARENT = """
import os, sys
from pathlib import Path
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.records import ExperimentKey

tracker, run_id, directory = sys.argv[1:]
writer = WriterProcess(tracker)
writer.open(RunInfo(ExperimentKey("orphan"), run_id, Path(directory)))
print(writer.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("place", slow_after(1, OFFLINE_PLACES), indirect=True)
def test_a_writer_ends_when_its_parent_is_gone(place: Place) -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, place.tracker, place.run.run_id, str(place.run.directory)],
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr.decode()
    wait_until(lambda: is_gone(int(parent.stdout)), "the orphaned writer ends")
    session(place, rows(0, 3))
    assert place.history(place.run) == place.held(rows(0, 3))


@pytest.mark.parametrize("place", ["jsonl"], indirect=True)
def test_a_writer_knows_nothing_of_the_bridges_own_telemetry(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-secret=hunter2")
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        environ = Path(f"/proc/{pid_of(writer)}/environ").read_bytes()
    assert b"OTEL_EXPORTER" not in environ


@pytest.mark.parametrize("place", ["wandb-offline"], indirect=True)
def test_a_name_that_wandb_cannot_take_costs_no_row(place: Place) -> None:
    refused = {"": 1.0, "_step": 2.0, "_timestamp": 3.0, "half \ud83d": 4.0}
    session(place, [replace(rows(0, 1)[0], values=refused), *rows(1, 3)])
    first, *others = place.history(place.run)
    assert sorted(first.values.values()) == [1.0, 2.0, 3.0, 4.0]
    assert others == rows(1, 3)


@pytest.mark.parametrize("place", slow_after(1, KEPT_PLACES), indirect=True)
def test_a_run_with_rows_of_another_journal_is_refused_before_anything_is_written(
    place: Place,
) -> None:
    session(replace(place, run=replace(place.run, journal="one")), rows(0, 10))
    other = replace(place.run, journal="other")
    with WriterProcess(place.tracker) as writer, pytest.raises(TrackerRejected) as caught:
        writer.open(other)
    assert "another journal" in str(caught.value)
    assert "another name" in caught.value.hint
    assert place.history(place.run) == place.held(rows(0, 10))


@pytest.mark.parametrize("place", slow_after(1, KEPT_PLACES), indirect=True)
def test_a_run_is_continued_from_its_own_journal(place: Place) -> None:
    place = replace(place, run=replace(place.run, journal="one"))
    session(place, rows(0, 10))
    assert session(place, rows(0, 12)) == 10


@pytest.mark.parametrize("place", slow_after(1, KEPT_PLACES), indirect=True)
def test_a_run_without_rows_belongs_to_whoever_writes_the_first(place: Place) -> None:
    session(replace(place, run=replace(place.run, journal="one")), [])
    other = replace(place, run=replace(place.run, journal="other"))
    assert session(other, rows(0, 3)) == 0
    assert session(other, rows(0, 4)) == 3


@pytest.mark.parametrize("place", ["wandb-offline"], indirect=True)
@pytest.mark.slow
def test_an_offline_directory_of_another_journal_is_never_removed(place: Place) -> None:
    session(replace(place, run=replace(place.run, journal="one")), rows(0, 5))
    session(replace(place, run=replace(place.run, journal="other")), rows(0, 15))
    assert len(run_directories(place.run.directory, place.run.run_id)) == 2


@pytest.mark.slow  # the pause is longer than a stall
@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
def test_a_pause_in_training_is_no_stalled_upload(place: Place) -> None:
    place = replace(
        place,
        run=replace(
            place.run, attributes=(("stall_timeout_s", "15"), ("transmit_interval_s", "1"))
        ),
    )
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        writer.write(rows(0, 1))
        assert writer.flush(timeout_s=DEADLINE_S) == 1
        time.sleep(15.5)  # the pause itself, longer than the stall
        writer.write(rows(1, 2))
        writer.flush(timeout_s=0)
        assert writer.flush(timeout_s=DEADLINE_S) == 2


@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
@pytest.mark.slow
def test_a_row_that_is_too_long_loses_what_wandb_has_no_room_for_and_says_how_much(
    place: Place,
) -> None:
    values = {f"{number:05}/{'x' * 1000}": 1.0 for number in range(12_000)}
    session(place, [replace(rows(0, 1)[0], values=values), *rows(1, 3)])
    first, *others = place.history(place.run)
    kept = {key: value for key, value in first.values.items() if key in values}
    left_out = first.values["otel_rl/bridge/values/left_out"]
    assert (len(kept) + left_out, first.step) == (len(values), 0)
    assert len(kept) > 9_000
    assert others == rows(1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
def test_nothing_of_the_bridges_own_telemetry_reaches_wandb(
    place: Place, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-secret=hunter2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{server.base_url}/otel-of-the-bridge")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "secret.attribute=hunter3")
    session(place, rows(0, 3))
    requests = json.dumps(server.headers())
    assert not [word for word in ("x-secret", "hunter2", "hunter3") if word in requests]
    # The SDK's own telemetry would go to /sdk/otel, and with our variables to our endpoint.
    assert {path.split("/")[1] for path in server.paths()} <= {"graphql", "files", "upload"}


@pytest.mark.parametrize("place", slow_after(3, ["jsonl", *OTHER_PLACES[:4]]), indirect=True)
def test_rows_that_are_read_back_are_safe_after_a_flush(place: Place) -> None:
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        writer.write(rows(0, 7))
        assert writer.flush(timeout_s=DEADLINE_S) == 7


@pytest.mark.parametrize("place", ["wandb-offline"], indirect=True)
def test_rows_of_an_offline_run_are_never_safe_because_it_cannot_be_continued(
    place: Place,
) -> None:
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        writer.write(rows(0, 7))
        assert writer.flush(timeout_s=1) is None
        assert writer.close(exit_code=0) is None


@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
def test_rows_of_an_online_run_are_safe_once_the_server_has_their_lines(
    place: Place, server: WandbServer
) -> None:
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        server.fail(503, path="file_stream")
        writer.write(rows(0, 7))
        assert writer.flush(timeout_s=2) == 0
        server.heal()
        assert writer.flush(timeout_s=DEADLINE_S) == 7


@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
def test_what_is_wrong_with_a_run_is_an_alert_and_stands_in_it(
    place: Place, server: WandbServer
) -> None:
    sick = {"diagnosis/cause": "straggler", "diagnosis/alert": "rank 1 is slow"}
    told = Row(1, 7, NOON_NS, {"diagnosis/causes": 1.0}, labels=sick)
    well = Row(
        2, 9, NOON_NS, {"diagnosis/causes": 0.0}, labels=Finding(9, NOON_NS, "healthy", "").labels
    )
    session(place, [*rows(0, 1), told, well])
    run_id = place.run.run_id
    wait_until(lambda: bool(server.alerts(run_id)), "the alert", timeout_s=DEADLINE_S)
    assert server.alerts(run_id) == [("straggler at step 7", "rank 1 is slow")]
    line = json.loads(server.run(run_id).files["wandb-history.jsonl"][1])
    assert line["diagnosis/cause"] == "straggler"


@pytest.mark.parametrize("finished", ["wandb-offline"], indirect=True)
def test_a_finished_offline_run_says_what_it_is_and_how_it_ended(finished: Place) -> None:
    (directory,) = run_directories(finished.run.directory, finished.run.run_id)
    run = read_offline_run(directory)
    assert (run.run_id, run.exit_code) == (finished.run.run_id, 3)
    assert (run.display_name, run.group) == ("grpo/try-2", "grpo")
    assert run.config["rl.trial.name"] == "try-2"
    assert run.metrics["*"] == "step/attempt_2"


@pytest.mark.parametrize("finished", ["wandb-online"], indirect=True)
def test_a_finished_online_run_says_what_it_is_and_how_it_ended(
    finished: Place, server: WandbServer
) -> None:
    run = server.run(finished.run.run_id)
    assert (run.complete, run.exit_code) == (True, 3)
    assert (run.project, run.display_name, run.group) == ("otel_rl", "grpo/try-2", "grpo")
    assert "step" in json.dumps(run.config["_wandb"]), "define_metric is kept with the config"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["wandb-offline"], indirect=True)
def test_a_directory_with_more_rows_is_never_removed(place: Place) -> None:
    session(place, rows(0, 15))
    session(place, rows(0, 5))
    lengths = [
        len(read_offline_run(directory).history)
        for directory in run_directories(place.run.directory, place.run.run_id)
    ]
    assert sorted(lengths) == [5, 15]


@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
@pytest.mark.slow
def test_a_late_line_count_overwrites_rows_only_with_themselves(
    place: Place, server: WandbServer
) -> None:
    session(place, rows(0, 30))
    server.lag(10)
    with WriterProcess(place.tracker) as writer:
        assert writer.open(place.run) == 20
        server.heal()
        writer.write(rows(20, 40))
        writer.close(exit_code=0)
    assert place.history(place.run) == place.held(rows(0, 40))


@pytest.mark.slow  # the SDK asks every 15 s
@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
def test_stop_in_the_ui_changes_nothing(place: Place, server: WandbServer) -> None:
    log = place.run.directory / "writers" / f"{place.run.run_id}.log"
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        server.press_stop(place.run.run_id)
        writer.write(rows(0, 5))
        wait_until(lambda: "Stop was pressed" in log.read_text(), "the SDK hears of it")
        writer.write(rows(5, 10))
        writer.close(exit_code=0)
    assert place.history(place.run) == place.held(rows(0, 10))


@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
def test_a_server_that_is_away_is_unavailable_at_once(place: Place, server: WandbServer) -> None:
    server.fail(503)
    with WriterProcess(place.tracker) as writer, pytest.raises(TrackerUnavailable, match="503"):
        writer.open(place.run)


@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
def test_a_refused_key_is_rejected_with_a_hint(place: Place, server: WandbServer) -> None:
    server.fail(401)
    with WriterProcess(place.tracker) as writer, pytest.raises(TrackerRejected) as caught:
        writer.open(place.run)
    assert "WANDB_API_KEY" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("place", ["wandb-online"], indirect=True)
def test_an_upload_that_died_of_one_401_is_noticed_and_the_rows_are_sent_again(
    place: Place, server: WandbServer
) -> None:
    place = replace(
        place,
        run=replace(place.run, attributes=(("stall_timeout_s", "8"), ("transmit_interval_s", "1"))),
    )
    with WriterProcess(place.tracker) as writer:
        writer.open(place.run)
        server.fail(401, path="file_stream")
        writer.write(rows(0, 5))
        wait_until(lambda: server.failed() > 0, "the upload is refused")
        server.heal()
        with pytest.raises(TrackerUnavailable, match="taken no row"):
            writer.flush(timeout_s=DEADLINE_S)
    session(place, rows(0, 8))
    assert place.history(place.run) == place.held(rows(0, 8))


def test_no_line_of_any_online_run_was_overwritten_by_another(server: WandbServer) -> None:
    """Looks back at all tests above."""
    assert {name: server.run(name).rewrites for name in server.run_ids()} == dict.fromkeys(
        server.run_ids(), 0
    )


def test_the_server_knew_every_question_that_matters(server: WandbServer) -> None:
    assert not set(server.unknown_operations()) & {"UpsertBucket", "RunLineCount"}
