"""Which run a command's data are in, under which names, and in which journal."""

import re
import shlex
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from otel_rl.bridge.journal.reader import journals_below, overview
from otel_rl.bridge.rows.messages import CONTINUED
from otel_rl.run_id import run_id
from tests.process.commands import (
    OTEL_RL,
    TIMEOUT_S,
    Finished,
    clean_environment,
    growing_lines,
    http_address,
    jsonl_rows,
    otel_rl,
    otel_rl_here,
)
from tests.support.slow import slow_after
from tests.support.wandb_offline import OfflineRun, read_offline_run

pytestmark = pytest.mark.process

PYTHON = sys.executable
JSONL = ("--tracker", "jsonl")

# Another SDK: its resource names the run, and an event what the tracker is to know. Words of the
# command line are attributes of the event, e.g. project=bandit; experiment and trial of the run.
SENDER = """
    import os
    import sys
    import time
    import urllib.request
    from urllib.error import URLError
    from urllib.parse import unquote

    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    given = dict(word.split("=") for word in sys.argv[1:])
    pairs = os.environ["OTEL_RESOURCE_ATTRIBUTES"].split(",")
    resource = {key: unquote(value) for key, value in (pair.split("=") for pair in pairs)}
    for name in ("experiment", "trial"):
        if name in given:
            resource[f"rl.{name}.name"] = given.pop(name)
    resource |= {"rl.worker.role": "trainer", "service.instance.id": str(os.getpid())}


    def add(attributes, values):
        for key, value in values.items():
            attributes.add(key=key).value.string_value = value


    def send(signal, request):
        url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/" + signal
        kind = {"Content-Type": "application/x-protobuf"}
        pairs = os.environ["OTEL_EXPORTER_OTLP_HEADERS"].split(",")
        kind |= {key: unquote(value) for key, value in (pair.split("=", 1) for pair in pairs)}
        for _ in range(200):
            try:
                made = urllib.request.Request(url, request.SerializeToString(), kind)
                with urllib.request.urlopen(made, timeout=60):
                    return
            except (URLError, ConnectionError):
                time.sleep(0.1)  # as an SDK that retries
        sys.exit("nobody took it")


    now_ns = time.time_ns()
    logs = ExportLogsServiceRequest()
    of_run = logs.resource_logs.add()
    add(of_run.resource.attributes, resource)
    event = of_run.scope_logs.add().log_records.add()
    event.event_name, event.time_unix_nano = "rl.experiment.start", now_ns
    add(event.attributes, {f"rl.experiment.{name}": word for name, word in given.items()})
    send("logs", logs)

    metrics = ExportMetricsServiceRequest()
    of_run = metrics.resource_metrics.add()
    add(of_run.resource.attributes, resource)
    metric = of_run.scope_metrics.add().metrics.add()
    metric.name = "loss"
    for step in range(3):
        point = metric.gauge.data_points.add()
        point.as_double, point.time_unix_nano = float(step), now_ns + step
        point.attributes.add(key="rl.loop.iteration").value.int_value = step
    send("metrics", metrics)
"""

WORKER = """
    import otel_rl

    otel_rl.init(role="trainer")
    otel_rl.log({"loss": 1.0}, step=0)
"""


def script(directory: Path, text: str, name: str = "train.py") -> Path:
    path = directory / name
    path.write_text(textwrap.dedent(text))
    return path


def fresh(directory: Path, **extra: str) -> dict[str, str]:
    """An environment that names no trial."""
    environment = clean_environment(directory, **extra)
    del environment["OTEL_RL_TRIAL"]
    return environment


def ran(directory: Path, *words: str | Path, **environment: str) -> Finished:
    done = otel_rl("run", *words, cwd=directory, env=fresh(directory, **environment))
    assert done.status == 0, done.err
    return done


def runs_of(directory: Path) -> dict[str, int]:
    """Every run below the data directory, and how many journals have it."""
    journals = journals_below(directory / ".otel_rl")
    return Counter(str(run.key) for path in journals for run in overview(path))


@contextmanager
def waiting_command(directory: Path, *words: str | Path) -> Iterator["subprocess.Popen[str]"]:
    """A command that reports, then says so, and ends with its input."""
    path = script(
        directory,
        WORKER + "    otel_rl.flush()\n    print('ready', flush=True)\n    input()\n",
        "waits.py",
    )
    with subprocess.Popen(
        [*OTEL_RL, "run", *JSONL, *map(str, words), "--", PYTHON, str(path)],
        cwd=directory,
        env=fresh(directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate("\n", timeout=TIMEOUT_S)


@pytest.mark.slow
def test_ten_commands_that_are_started_at_once_are_ten_runs(tmp_path: Path) -> None:
    path = script(tmp_path, WORKER)
    command = [*OTEL_RL, "run", "--experiment", "sweep", *JSONL, "--", PYTHON, str(path)]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    command, cwd=tmp_path, env=fresh(tmp_path), stderr=subprocess.PIPE, text=True
                )
            )
            for _ in range(10)
        ]
        said = [process.communicate(timeout=TIMEOUT_S)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 10, said
    found = runs_of(tmp_path)
    assert len(found) == 10
    assert {*found.values()} == {1}
    assert all(run.startswith("sweep/") for run in found)


def test_a_run_that_another_command_writes_gets_the_next_free_name(tmp_path: Path) -> None:
    path = script(tmp_path, WORKER)
    names = ("--experiment", "e", "--trial", "t")
    with waiting_command(tmp_path, *names):
        second = ran(tmp_path, *JSONL, *names, "--", PYTHON, path)
    assert "e/t is in use by another process: this run is e/t-2\n" in second.err
    assert runs_of(tmp_path) == {"e/t": 1, "e/t-2": 1}
    assert len(jsonl_rows(tmp_path, "e", "t-2")) >= 1


@pytest.mark.slow
def test_a_journal_that_is_named_and_in_use_is_refused_with_a_hint(tmp_path: Path) -> None:
    with waiting_command(tmp_path, "--data", "mine"):
        command = ("run", *JSONL, "--data", "mine", "--", PYTHON, "-c", "")
        second = otel_rl(*command, cwd=tmp_path, env=fresh(tmp_path))
    assert second.status == 2
    assert "is in use by process" in second.err
    assert "--data" in second.err


def losses_of(directory: Path, experiment: str, trial: str) -> list[float]:
    rows = jsonl_rows(directory, experiment, trial)
    return [row.values["trainer/loss"] for row in rows if "trainer/loss" in row.values]


@pytest.mark.slow
@pytest.mark.parametrize("typed", [True, False])
def test_a_program_that_is_started_again_is_another_run_whatever_its_code_names(
    tmp_path: Path, *, typed: bool
) -> None:
    path = script(tmp_path, SENDER)
    for n in range(3):
        options = ("--experiment", f"typed-{n}") if typed else ()
        command = (*JSONL, *options, "--", PYTHON, path, "experiment=same", "trial=1")
        done = ran(tmp_path, *command)
    assert runs_of(tmp_path) == {"same/1": 1, "same/1-2": 1, "same/1-3": 1}
    assert "there is a run same/1 already, so this one is same/1-3" in done.err
    for trial in ("1", "1-2", "1-3"):
        assert losses_of(tmp_path, "same", trial) == [0.0, 1.0, 2.0]


def test_what_is_told_continues_the_run_of_an_earlier_launch(tmp_path: Path) -> None:
    path = script(tmp_path, SENDER)
    command = ("--", PYTHON, path, "experiment=same", "trial=1")
    ran(tmp_path, *JSONL, *command)
    told = ran(tmp_path, *JSONL, *command).err
    found = re.search(r"To continue that: (.*)\n", told)
    assert found is not None, told
    ran(tmp_path, *JSONL, *shlex.split(found[1]), *command)
    assert runs_of(tmp_path) == {"same/1": 1, "same/1-2": 1}
    assert losses_of(tmp_path, "same", "1") == [0.0, 1.0, 2.0] * 2


@pytest.mark.slow
def test_another_tracker_gets_the_run_of_its_launch_and_no_earlier_one(tmp_path: Path) -> None:
    path = script(tmp_path, SENDER)
    ran(tmp_path, *JSONL, "--", PYTHON, path, "experiment=first")
    written = [*tmp_path.rglob("*.jsonl")]
    done = ran(tmp_path, "--tracker", "tensorboard", "--", PYTHON, path, "experiment=second")
    assert "second" in done.err
    assert "first" not in done.err
    assert len({file.parent for file in tmp_path.rglob("*tfevents*")}) == 1
    assert [*tmp_path.rglob("*.jsonl")] == written


@pytest.mark.slow
def test_a_run_that_the_program_names_while_another_command_writes_it_gets_the_next_name(
    tmp_path: Path,
) -> None:
    path = script(tmp_path, SENDER)
    with waiting_command(tmp_path, "--experiment", "same", "--trial", "1"):
        done = ran(tmp_path, *JSONL, "--", PYTHON, path, "experiment=same", "trial=1")
    assert "there is a run same/1 already, so this one is same/1-2" in done.err
    assert runs_of(tmp_path) == {"same/1": 1, "same/1-2": 1}


def test_links_at_the_start_are_of_runs_that_are_certain(tmp_path: Path) -> None:
    path = script(tmp_path, SENDER + "    sys.stdin.readline()\n")
    command = (PYTHON, str(path), "experiment=mine", "trial=1")
    with subprocess.Popen(
        [*OTEL_RL, "run", *JSONL, "--", *command],
        cwd=tmp_path,
        env=fresh(tmp_path),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = ""
        while "page of run" not in said:
            said += process.stderr.readline()
        said += process.communicate("\n", timeout=TIMEOUT_S)[1]
    assert re.findall(r"http://[^\s/]+/\?token=[\w-]+#/run/(\w+)/", said) == [run_id("mine", "1")]
    assert re.search(r"page with the runs: http://[^\s/]+/\?token=[\w-]+\n", said)


def wandb_runs(directory: Path) -> list[OfflineRun]:
    return [*map(read_offline_run, sorted((directory / "wandb").glob("offline-run-*")))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words", "environment", "expected"),
    [
        ([], ["project=code", "display_name=seed-1"], {"WANDB_PROJECT": "env"}, "code"),
        (["--project", "typed"], ["project=code"], {"WANDB_PROJECT": "env"}, "typed"),
        ([], [], {"WANDB_PROJECT": "env"}, "env"),
        ([], [], {}, "otel_rl"),
    ],
)
def test_the_project_is_typed_or_the_programs_or_the_environments_in_this_order(
    tmp_path: Path,
    options: list[str],
    words: list[str],
    environment: dict[str, str],
    expected: str,
) -> None:
    path = script(tmp_path, SENDER)
    ran(tmp_path, *options, "--", PYTHON, path, *words, **environment)
    (run,) = wandb_runs(tmp_path)
    assert run.project == expected
    assert run.display_name == ("seed-1" if "display_name=seed-1" in words else run.display_name)


@pytest.mark.slow
def test_a_typed_name_is_the_runs_in_the_tracker_and_its_trial(tmp_path: Path) -> None:
    path = script(tmp_path, SENDER)
    ran(tmp_path, "--name", "mine", "--", PYTHON, path, "display_name=the-programs")
    (run,) = wandb_runs(tmp_path)
    assert run.display_name == "mine"
    assert run.run_id == run_id("train", "mine")


@pytest.mark.slow
def test_a_program_that_wants_no_upload_has_a_run_on_the_disk(tmp_path: Path) -> None:
    path = script(tmp_path, SENDER)
    # With a key: without the program's word the run would be uploaded.
    online = {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    ran(tmp_path, "--", PYTHON, path, "mode=offline", "entity=team", **online)
    (run,) = wandb_runs(tmp_path)
    assert (run.entity, run.exit_code) == ("team", 0)


@pytest.mark.parametrize("status", slow_after(1, [3, 0]))
def test_with_wandb_disabled_the_command_runs_and_nothing_is_recorded(
    tmp_path: Path, status: int
) -> None:
    path = script(tmp_path, WORKER + f"    raise SystemExit({status})\n")
    environment = fresh(tmp_path, WANDB_MODE="disabled")
    done = otel_rl("run", "--", PYTHON, path, cwd=tmp_path, env=environment)
    assert done.status == status, done.err
    (line,) = done.err.splitlines()
    assert "disabled" in line
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_with_wandb_disabled_another_tracker_records(tmp_path: Path) -> None:
    path = script(tmp_path, SENDER)
    options = ("--tracker", "wandb,jsonl", "--experiment", "e", "--trial", "t")
    done = ran(tmp_path, *options, "--", PYTHON, path, WANDB_MODE="disabled")
    assert "W&B is disabled (WANDB_MODE): it gets no run\n" in done.err
    assert [row.values["trainer/loss"] for row in jsonl_rows(tmp_path, "e", "t")][:3] == [0, 1, 2]
    assert not (tmp_path / "wandb").exists()


def test_a_bridge_for_wandb_alone_is_refused_where_that_is_disabled(tmp_path: Path) -> None:
    environment = clean_environment(tmp_path, WANDB_MODE="disabled")
    done = otel_rl_here("bridge", cwd=tmp_path, env=environment)
    assert done.status == 2
    assert "--tracker jsonl" in done.err


@contextmanager
def service(directory: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    ports = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    with subprocess.Popen(
        [*OTEL_RL, "bridge", *ports, *JSONL],
        cwd=directory,
        env=clean_environment(directory),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield f"http://{http_address(process)}", process
        finally:
            process.kill()


def continued(directory: Path) -> list[str]:
    (path,) = directory.rglob("*.jsonl")
    labels = (line.get("labels", {}) for line in growing_lines(path))
    return [one[CONTINUED] for one in labels if CONTINUED in one]


@pytest.mark.slow
def test_a_job_under_the_names_of_one_that_has_ended_is_told_by_the_bridge_and_in_the_run(
    tmp_path: Path,
) -> None:
    path = script(tmp_path, WORKER)
    with service(tmp_path) as (url, bridge):
        named = {"OTEL_RL_EXPERIMENT": "again", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        for _ in range(2):
            environment = clean_environment(tmp_path, **named)
            subprocess.run([PYTHON, path], cwd=tmp_path, env=environment, check=True)
        bridge.terminate()
        _, log = bridge.communicate(timeout=TIMEOUT_S)
    (told,) = continued(tmp_path)
    assert "had ended and goes on" in told
    assert log.count(told) == 1


@pytest.mark.slow
def test_a_second_command_that_continues_a_run_says_so(tmp_path: Path) -> None:
    path = script(tmp_path, WORKER)
    command = (*JSONL, "--experiment", "e", "--trial", "t", "--", PYTHON, path)
    first, second = ran(tmp_path, *command), ran(tmp_path, *command)
    (told,) = continued(tmp_path)
    assert told not in first.err
    assert told in second.err


@pytest.mark.slow
def test_a_run_that_is_over_elsewhere_is_not_written_by_a_command_that_shares_its_journal(
    tmp_path: Path,
) -> None:
    path = script(tmp_path, WORKER)

    def run(trial: str, tracker: str) -> str:
        shared = ("--data", tmp_path / "shared", "--trial", trial, "--tracker", tracker)
        return ran(tmp_path, *shared, "--", PYTHON, path).err

    run("old", "tensorboard")
    said = run("new", "jsonl")
    assert "/new: " in said
    assert "/old" not in said
    assert len([*(tmp_path / "shared").glob("*.jsonl")]) == 1
    run("old", "jsonl")  # which goes on in it
    assert len([*(tmp_path / "shared").glob("*.jsonl")]) == 2
