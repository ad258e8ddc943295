"""What is known of a run beside its numbers reaches every tracker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.selection import KeySelection
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.bridge.keys import KeyNames
from otel_rl.errors import TrackerRejected
from otel_rl.records import Description, ExperimentKey, ExperimentStatus, KeySpec, Row, Table
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import Tier
from tests.support.wandb_offline import read_offline_run, run_directories
from tests.support.wandb_server import Run, WandbServer
from tests.trackers.places import trackio_logs, trackio_query

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_login")]

NOON_NS = 1_700_000_000_250_000_000

KEY = ExperimentKey("grpo")

FIRST = Description(
    config={"lr": 0.1, "model": {"name": "qwen", "layers": [1, 2]}, "_odd": float("inf")},
    notes="Why we do it.",
    tags=("a", "b"),
    group="sweep",
    job_type="train",
)
LAST = Description(
    config={"lr": 0.2, "seed": 7, "model": {"name": "qwen", "layers": [1, 2]}},
    notes="Why we do it.",
    tags=("a", "b", "c"),
    group="sweep",
    job_type="train",
    status=ExperimentStatus.COMPLETE,
)
TEXTS = Table(
    ["step", "prompt", "reward", "worker"],
    [[3, "2+2?", 1.0, "0"], [3, "\ud800 größe", None, "1"], [3, {"role": "user"}, "odd", "1"]],
)
ROWS = [
    Row(0, 3, NOON_NS, {"trainer/loss": 0.5}),
    Row(1, 3, NOON_NS, {}, None, {"trainer/samples": TEXTS}),
    Row(2, 4, NOON_NS, {"trainer/loss": 0.25}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


def info(directory: Path, attributes: tuple[tuple[str, str], ...] = ()) -> RunInfo:
    run = run_id(KEY.experiment, KEY.trial)
    return RunInfo(KEY, run, directory, attributes, description=FIRST)


def session(tracker: str, run: RunInfo) -> None:
    """One life of a writer, in which more becomes known of the run."""
    with WriterProcess(tracker) as writer:
        start = writer.open(run)
        writer.write([row for row in ROWS if row.number >= start])
        writer.describe(LAST)
        writer.close(exit_code=0)


def test_jsonl_has_the_tables_and_what_is_known(tmp_path: Path) -> None:
    run = info(tmp_path)
    session("jsonl", run)
    lines = (tmp_path / f"{run.run_id}.jsonl").read_text().splitlines()
    table = json.loads(lines[1])["tables"]["trainer/samples"]
    assert (table["columns"], table["data"]) == (TEXTS.columns, TEXTS.rows)
    about = json.loads((tmp_path / f"{run.run_id}.run.json").read_text())
    assert (about["config"], about["tags"]) == (LAST.config, [*LAST.tags])
    assert about["status"] == "complete"


def test_an_offline_run_of_wandb_has_them(tmp_path: Path) -> None:
    run = info(tmp_path)
    session("wandb", run)
    (directory,) = run_directories(tmp_path, run.run_id)
    offline = read_offline_run(directory)
    assert [line["step"] for line in offline.history] == [3, 3, 4]
    assert offline.config["lr"] == 0.2
    assert offline.config["model"] == {"name": "qwen", "layers": [1, 2]}
    assert offline.config["config_odd"] == "inf"
    assert offline.group == "sweep"
    (table,) = directory.glob("files/media/table/trainer/*.table.json")
    written = json.loads(table.read_text())
    assert written["columns"] == TEXTS.columns
    assert written["data"] == [
        [3, "2+2?", 1.0, "0"],
        [3, "\\ud800 größe", None, "1"],
        [3, {"role": "user"}, "odd", "1"],
    ]


@pytest.mark.slow
def test_a_run_at_the_server_has_them_once_however_often_its_writer_dies(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    run = info(tmp_path, (("transmit_interval_s", "1"),))
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(ROWS[:2])
        assert writer.flush(timeout_s=90) == 2
    session("wandb", run)
    stored: Run = server.run(run.run_id)
    history = server.history(run.run_id)
    assert [line["_step"] for line in history] == [0, 1, 2]
    reference = json.loads(stored.lines()[1])["trainer/samples"]
    assert (reference["_type"], reference["nrows"]) == ("table-file", 3)
    assert stored.config["lr"] == {"value": 0.2}
    assert stored.config["seed"] == {"value": 7}
    assert stored.summary["status"] == "complete"
    assert (stored.notes, sorted(stored.tags), stored.job_type) == (
        "Why we do it.",
        ["a", "b", "c"],
        "train",
    )


@pytest.mark.slow
def test_trackio_reads_back_what_a_program_logs_under_a_name_of_trackio_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    reserved = ("project", "run", "timestamp", "step", "time", "metrics")
    keys = [KeySpec(f"trainer/{key}", key, "trainer", own_name=key) for key in reserved]
    selection = KeySelection(
        Tier.BASIC, KeyNames.FRAMEWORK, per_worker=False, keys=lambda: [*keys, KeySpec("time")]
    )
    values = {spec.key: 0.5 for spec in keys} | {"time": 0.25}
    run = info(tmp_path)
    with WriterProcess("trackio") as writer:
        writer.open(run)
        writer.write(selection.rows([Row(0, 3, NOON_NS, values)]))
        writer.close(exit_code=0)
    found = trackio_logs(tmp_path, run.run_id)
    assert [line["step"] for line in found] == [3]
    assert {key: found[0].get(f"trainer/{key}") for key in reserved} == dict.fromkeys(reserved, 0.5)
    assert found[0]["time/otel_rl"] == 0.25


@pytest.mark.slow
def test_mlflow_has_them(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    run = info(tmp_path)
    session("mlflow", run)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(KEY.experiment)
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == (KEY.trial, "FINISHED")
    assert found.data.params["model/layers"] == "[1, 2]"
    assert (found.data.params["lr"], found.data.tags["config/lr"]) == ("0.1", "0.2")
    assert {"a", "b", "c"} <= set(found.data.tags)
    assert found.data.tags["mlflow.note.content"] == LAST.notes
    assert (found.data.tags["group"], found.data.tags["status"]) == ("sweep", "complete")
    (path,) = tmp_path.glob("mlartifacts/*/artifacts/tables/trainer/samples/1.json")
    table = json.loads(path.read_text())
    assert (table["columns"], table["data"]) == (TEXTS.columns, TEXTS.rows)


@pytest.mark.slow
def test_trackio_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run = info(tmp_path)
    session("trackio", run)
    query = trackio_query(tmp_path / "trackio")
    (stored,) = query("SELECT run_name, config FROM configs")
    config = json.loads(stored["config"])
    assert (stored["run_name"], config["lr"], config["seed"]) == (KEY.experiment, 0.2, 7)
    assert (config["otel_rl/tags"], config["otel_rl/status"]) == ([*LAST.tags], "complete")
    (entry,) = query("SELECT metrics FROM metrics WHERE log_id LIKE '%:1'")
    table = json.loads(entry["metrics"])["trainer/samples"]
    assert table["_type"] == "trackio.table"
    assert table["_value"][0] == {"step": 3, "prompt": "2+2?", "reward": 1.0, "worker": "0"}


def test_tensorboard_has_them(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = info(tmp_path)
    session("tensorboard", run)
    reader = EventAccumulator(str(tmp_path / "tensorboard" / "grpo" / "default"))
    reader.Reload()

    def texts(tag: str) -> list[str]:
        return [e.tensor_proto.string_val[0].decode() for e in reader.Tensors(tag)]

    first, last = (json.loads(text) for text in texts("run"))
    assert (first["config"]["lr"], last["config"]["lr"], last["status"]) == (0.1, 0.2, "complete")
    (table,) = texts("trainer/samples")
    assert table.splitlines()[0] == "| step | prompt | reward | worker |"
    assert table.splitlines()[2] == "| 3 | 2+2? | 1.0 | 0 |"


def test_a_row_that_wandb_never_takes_is_no_outage(tmp_path: Path) -> None:
    too_long_for_an_artifact = f"trainer/{'x' * 200}"
    with WriterProcess("wandb") as writer:
        writer.open(info(tmp_path))
        with pytest.raises(TrackerRejected, match="row"):
            writer.write([Row(0, 3, NOON_NS, {}, None, {too_long_for_an_artifact: TEXTS})])
