"""``otel-rl run -- CMD``, as a user runs it."""

import math
import shlex
import signal
import stat
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.commands import (
    EVERY_KEY,
    OPEN_FOR_LONG,
    OTEL_RL,
    TIMEOUT_S,
    Finished,
    clean_environment,
    jsonl_rows,
    otel_rl,
    otel_rl_here,
    reported_rows,
    wandb_run,
)
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

PYTHON = sys.executable


def script(directory: Path, text: str, name: str = "train.py") -> Path:
    path = directory / name
    path.write_text(textwrap.dedent(text))
    return path


STRANGER = """
    import multiprocessing
    import time

    from opentelemetry import metrics


    def work(number):
        gauge = metrics.get_meter("stranger").create_gauge("x")
        begin = time.monotonic()
        for i in range(1000):
            gauge.set(number * 1000 + i)
            # One second in all: wait for the moment of the next measurement.
            time.sleep(max(0.0, begin + (i + 1) / 1000 - time.monotonic()))


    if __name__ == "__main__":
        context = multiprocessing.get_context("{method}")
        processes = [context.Process(target=work, args=(n,)) for n in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_strangers_4000_values_from_4_processes_are_all_in_one_run(
    tmp_path: Path, method: str
) -> None:
    path = script(tmp_path, STRANGER.replace("{method}", method))
    done = otel_rl(
        "run", "--experiment", "stranger", "--per-worker", "--", PYTHON, path, cwd=tmp_path
    )
    assert done.status == 0, done.err
    run = wandb_run(tmp_path, "stranger")
    values: dict[str, list[float]] = {}
    for row in run.history:
        for key, value in row.items():
            if key.startswith("workers/") and key.endswith("/x"):
                values.setdefault(key, []).append(value)
    assert sorted(values) == [f"workers/worker/{n}/x" for n in range(4)]
    assert all(found == sorted(found) for found in values.values()), "in the order they were made"
    assert sorted(v for found in values.values() for v in found) == list(range(4000))


@dataclass(frozen=True)
class Ran:
    """A command that has ended, and what it left."""

    done: Finished
    directory: Path


@pytest.fixture(scope="module")
def fifty_steps(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A trainer that ends with status 3."""
    directory = tmp_path_factory.mktemp("fifty-steps")
    path = script(
        directory,
        """
        import sys
        import otel_rl

        otel_rl.init(role="trainer")
        for step in range(50):
            otel_rl.log({"loss": 1 / (step + 1), "kl": float(step)}, step=step)
        sys.exit(3)
        """,
    )
    words = ("run", "--experiment", "e", "--trial", "t", "--", PYTHON, path)
    return Ran(otel_rl(*words, cwd=directory), directory)


def test_every_step_is_in_the_run_once_with_its_axes(fifty_steps: Ran) -> None:
    run = wandb_run(fifty_steps.directory, "e", "t")
    rows = [row for row in run.history if "trainer/kl" in row]  # the bridge's report may have one
    assert [row["step"] for row in rows] == list(range(50))
    assert [row["trainer/kl"] for row in rows] == list(range(50))
    assert all(row["_timestamp"] > 1.6e9 for row in run.history)
    assert f"otel-rl: run e/t: {len(run.history)} rows in wandb" in fifty_steps.done.err


def test_the_exit_status_is_that_of_the_command(fifty_steps: Ran) -> None:
    assert fifty_steps.done.status == 3
    assert wandb_run(fifty_steps.directory, "e", "t").exit_code == 3


def test_a_run_with_metrics_does_not_say_that_it_has_none(fifty_steps: Ran) -> None:
    assert "no metric" not in fifty_steps.done.err


def test_the_place_of_the_run_is_said_while_the_command_runs(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import sys
        import otel_rl

        otel_rl.init(role="trainer")
        for step in range(3):
            otel_rl.log({"loss": 1.0}, step=step)
        sys.stdin.readline()
        """,
    )
    options = ("--experiment", "e", "--trial", "t", "--tracker", "jsonl")
    with subprocess.Popen(
        [*OTEL_RL, "run", *options, "--", PYTHON, str(path)],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        said = next(line for line in process.stderr if line.startswith("otel-rl: run e/t: "))
        process.communicate("go on\n")
    assert process.returncode == 0
    assert Path(tmp_path, said.removeprefix("otel-rl: run e/t: ").strip()).is_file()


@pytest.mark.slow
def test_the_plain_api_and_mlogger_give_the_same_run(tmp_path: Path) -> None:
    by_api = script(
        tmp_path,
        """
        from opentelemetry import metrics

        meter = metrics.get_meter("any")
        loss, worst = meter.create_gauge("loss"), metrics.get_meter(
            "other", attributes={"rl.reduce": "max"}
        ).create_gauge("worst")
        for step in range(5):
            loss.set(float("nan") if step == 3 else step, {"rl.loop.iteration": step})
            worst.set(float("inf") if step == 4 else step, {"rl.loop.iteration": step})
        """,
        "by_api.py",
    )
    by_mlogger = script(
        tmp_path,
        """
        import otel_rl

        otel_rl.init()
        for step in range(5):
            otel_rl.log({"loss": float("nan") if step == 3 else step}, step=step)
            otel_rl.log(
                {"worst": float("inf") if step == 4 else step}, step=step, reduce="max"
            )
        """,
        "by_mlogger.py",
    )
    rows = {}
    for path in (by_api, by_mlogger):
        done = otel_rl(
            "run", "--experiment", path.stem, "--role", "trainer", "--tracker", "jsonl",
            "--", PYTHON, path, cwd=tmp_path,
        )  # fmt: skip
        assert done.status == 0, done.err
        rows[path.stem] = [
            (row.step, {key: repr(value) for key, value in row.reported.items()})
            for row in jsonl_rows(tmp_path, path.stem)
            if row.reported
        ]
    assert rows["by_api"] == rows["by_mlogger"]
    assert rows["by_api"][3][1]["trainer/loss"] == "nan"
    assert rows["by_api"][4][1]["trainer/worst"] == "inf"


@pytest.mark.slow
def test_ranks_of_a_launcher_are_reduced_and_told_apart(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os
        import subprocess
        import sys

        if "RANK" not in os.environ:  # what torchrun does
            ranks = [
                subprocess.Popen(
                    [sys.executable, __file__],
                    env={**os.environ, "RANK": str(r), "WORLD_SIZE": "3"},
                )
                for r in range(3)
            ]
            sys.exit(max(rank.wait() for rank in ranks))

        import otel_rl

        otel_rl.init(role="trainer")
        for step in range(10):
            otel_rl.log({"loss": float(os.environ["RANK"])}, step=step)
        """,
    )
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--per-worker", "--", PYTHON, path,
        cwd=tmp_path, env=clean_environment(tmp_path, **OPEN_FOR_LONG),
    )  # fmt: skip
    assert done.status == 0, done.err
    rows = reported_rows(tmp_path, "e")
    assert [row.step for row in rows] == list(range(10))
    for row in rows:
        assert row.values["trainer/loss"] == 1.0
        assert [row.values[f"workers/trainer/{rank}/loss"] for rank in range(3)] == [0, 1, 2]


@pytest.mark.slow
def test_a_command_that_succeeds_is_a_run_that_has_succeeded(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import otel_rl

        otel_rl.init(role="trainer")
        otel_rl.log({"loss": 1}, step=0)
        """,
    )
    done = otel_rl("run", "--experiment", "e", "--", PYTHON, path, cwd=tmp_path)
    assert done.status == 0
    assert wandb_run(tmp_path, "e").exit_code == 0


def test_a_command_that_is_not_there_is_127_and_leaves_nothing(tmp_path: Path) -> None:
    done = otel_rl_here("run", "--", "no-such-command", cwd=tmp_path)
    assert (done.status, done.err) == (127, "otel-rl: no-such-command: command not found\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        (
            "train.py",
            126,
            "train.py: is not executable. Write: otel-rl run -- python train.py --lr 1",
        ),
        ("train.sh", 126, "train.sh: is not executable. Make it so: chmod +x train.sh"),
        ("src", 126, "src: is a directory. Write: otel-rl run -- python src/YOUR_SCRIPT.py"),
        (
            "here",
            127,
            "here: command not found. If you mean the file here: otel-rl run -- ./here --lr 1",
        ),
    ],
)
def test_what_cannot_be_executed_leaves_nothing_and_is_told_with_what_to_write(
    name: str, status: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "train.sh").touch()
    (tmp_path / "here").touch(0o755)
    (tmp_path / "src").mkdir()
    before = {*tmp_path.iterdir()}
    done = otel_rl_here("run", "--tracker", "jsonl", "--", name, "--lr", "1", cwd=tmp_path)
    assert (done.status, done.err) == (status, f"otel-rl: {told}\n")
    assert {*tmp_path.iterdir()} == before


def test_a_program_that_the_system_cannot_execute_is_126(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"no shebang")
    program.chmod(0o755)
    done = otel_rl("run", "--tracker", "jsonl", "--", "./program", cwd=tmp_path)
    assert (done.status, "Exec format error" in done.err) == (126, True)


@pytest.mark.parametrize("option", slow_after(1, ["--experiment", "--trial", "--role"]))
@pytest.mark.parametrize(
    ("name", "reason"),
    [("two\nlines", "must not hold control characters"), ("", "must not be empty")],
)
def test_a_name_that_cannot_be_used_is_refused_before_the_command_starts(
    tmp_path: Path, option: str, name: str, reason: str
) -> None:
    done = otel_rl_here("run", option, name, "--", "touch", "started", cwd=tmp_path)
    assert done.status == 2
    assert f"{option}: {reason}" in done.err
    assert list(tmp_path.iterdir()) == []


def test_any_script_name_makes_a_name_for_the_run(tmp_path: Path) -> None:
    path = script(tmp_path, "pass", name=f"{'x' * 200}\n.py")
    done = otel_rl("run", "--tracker", "jsonl", "--", PYTHON, path, cwd=tmp_path)
    assert done.status == 0, done.err
    assert f"otel-rl: experiment {'x' * 100}/" in done.err


def test_a_tracker_directory_that_cannot_be_used_is_an_error_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = otel_rl_here(
        "run", "--", "touch", "started",
        cwd=tmp_path, env=clean_environment(tmp_path, WANDB_DIR="file"),
    )  # fmt: skip
    assert done.status == 2, done.err
    assert "tracker.directory: 'file' cannot be written to" in done.err
    assert not (tmp_path / "started").exists()


def test_a_log_level_that_is_none_is_an_error_at_start(tmp_path: Path) -> None:
    done = otel_rl_here(
        "run", "--", "touch", "started",
        cwd=tmp_path, env=clean_environment(tmp_path, OTEL_RL_LOG_LEVEL="loud"),
    )  # fmt: skip
    assert done.status == 2
    assert 'OTEL_RL_LOG_LEVEL: unknown level (got "loud")' in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_role_of_the_command_line_reaches_a_stock_sdk(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
        provider.get_meter("m").create_counter("requests").add(3)
        provider.shutdown()
        """,
    )
    done = otel_rl(
        "run", "--experiment", "e", "--role", "generator", "--tracker", "jsonl",
        "--", PYTHON, path, cwd=tmp_path,
    )  # fmt: skip
    assert done.status == 0, done.err
    (row,) = reported_rows(tmp_path, "e")
    assert row.values["generator/requests"] == 3


@pytest.mark.slow
def test_a_program_with_a_provider_of_its_own_keeps_it(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from otel_rl.sdk import exact_view

        reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([reader], views=[exact_view()]))
        metrics.get_meter("m").create_gauge("x").set(1.0)
        assert reader.get_metrics_data() is not None
        """,
    )
    done = otel_rl("run", "--tracker", "jsonl", "--", PYTHON, path, cwd=tmp_path)
    assert (done.status, "Overriding" in done.err) == (0, False), done.err


def test_a_command_killed_by_a_signal_is_128_and_its_number(tmp_path: Path) -> None:
    path = script(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = otel_rl("run", "--tracker", "jsonl", "--", PYTHON, path, cwd=tmp_path)
    assert done.status == 128 + signal.SIGKILL


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A command that reports nothing."""
    words = ("run", "--tracker", "jsonl", "--", "echo", "hello")
    return otel_rl(*words, cwd=tmp_path_factory.mktemp("silent"))


def test_a_command_that_reports_nothing_is_told_why(silent: Finished) -> None:
    assert silent.status == 0
    assert "nothing was reported" in silent.err
    assert "show the run again" not in silent.err


SPANS = """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("roll")
    for step in range(3):
        with tracer.start_as_current_span("pipeline_step", attributes={"global_step": step}):
            with tracer.start_as_current_span("train"):
                pass
    provider.shutdown()
"""


@pytest.mark.slow
def test_a_program_that_reports_spans_only_has_reported(tmp_path: Path) -> None:
    path = script(tmp_path, SPANS)
    words = ("run", "--experiment", "spans", "--role", "trainer", "--tracker", "jsonl", "--")
    done = otel_rl(*words, PYTHON, path, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "nothing was reported" not in done.err
    rows = jsonl_rows(tmp_path, "spans")
    told = {row.step for row in rows if "trainer/iteration/duration" in row.values}
    assert told == {0, 1, 2}


def test_a_command_that_fails_before_it_reports_is_not_told_to_instrument(tmp_path: Path) -> None:
    done = otel_rl("run", "--tracker", "jsonl", "--", PYTHON, "missing.py", cwd=tmp_path)
    assert done.status == 2
    assert "CMD failed with exit status 2 before it reported" in done.err
    assert "Does CMD record" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "is_said"),
    [([], True), (["--"], False)],
    ids=["without the two dashes", "behind two dashes"],
)
def test_an_option_of_run_behind_the_command_is_said_to_be_given_to_it(
    before: list[str], *, is_said: bool, tmp_path: Path
) -> None:
    words = ("run", "--tracker", "jsonl", *before, "echo", "--trial=7", "--lr", "1")
    done = otel_rl(*words, cwd=tmp_path)
    assert done.out == "--trial=7 --lr 1\n"
    assert ("--trial is given to echo" in done.err, "--lr is given" in done.err) == (is_said, False)


def test_standard_output_belongs_to_the_command(silent: Finished) -> None:
    assert silent.out == "hello\n"


@pytest.mark.slow
@pytest.mark.parametrize("exists", [False, True])
def test_only_its_owner_can_read_the_data_directory_or_the_journal_in_it(
    tmp_path: Path, exists: bool
) -> None:
    path = script(
        tmp_path,
        """
        import otel_rl

        otel_rl.init(role="trainer")
        otel_rl.log({"loss": 0.5}, step=1)
        """,
    )
    data, rows = tmp_path / "deep" / "data", tmp_path / "rows"
    if exists:
        data.mkdir(parents=True, mode=0o755)
    rows.mkdir()
    subprocess.run(
        [*OTEL_RL, "run", "--tracker", "jsonl", "--data", data, "--", PYTHON, path],
        cwd=tmp_path,
        env=clean_environment(tmp_path, OTEL_RL_BRIDGE__TRACKER__DIRECTORY=str(rows)),
        umask=0,
        check=True,
        timeout=TIMEOUT_S,
    )
    others = stat.S_IRWXG | stat.S_IRWXO
    found = {p.relative_to(data): p.stat().st_mode & others for p in data.iterdir()}
    assert Path("journal.db") in found
    assert Path("lock") in found
    assert {path: oct(mode) for path, mode in found.items() if mode} == {}
    if not exists:
        assert data.stat().st_mode & others == 0


@pytest.mark.parametrize("number", slow_after(1, [signal.SIGINT, signal.SIGTERM]))
def test_an_interrupted_run_is_written_and_finished(tmp_path: Path, number: signal.Signals) -> None:
    path = script(
        tmp_path,
        """
        import signal
        import sys
        import otel_rl

        otel_rl.init(role="trainer")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        signal.signal(signal.SIGINT, lambda *_: sys.exit(9))
        otel_rl.log({"loss": 0.5}, step=1)
        print("ready", flush=True)
        signal.pause()
        """,
    )
    process = subprocess.Popen(
        [*OTEL_RL, "run", "--experiment", "e", "--tracker", "jsonl", "--", PYTHON, str(path)],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 9
    assert [row.reported for row in reported_rows(tmp_path, "e")] == [{"trainer/loss": 0.5}]


TERMINAL = "import pty, sys; pty.spawn(sys.argv[1:])"


@pytest.mark.parametrize("redirection", slow_after(1, ["", "< /dev/null"]))
def test_ctrl_c_reaches_the_command_once(tmp_path: Path, redirection: str) -> None:
    path = script(
        tmp_path,
        """
        import signal
        import time

        times = []
        signal.signal(signal.SIGINT, lambda *_: times.append(1))
        print("ready", flush=True)
        while not times:  # a pause() could begin after the signal, and wait for ever
            time.sleep(0.01)
        time.sleep(1)  # time for a second one
        print(f"interrupted {len(times)} times", flush=True)
        """,
    )
    run = shlex.join([*OTEL_RL, "run", "--tracker", "jsonl", "--", PYTHON, str(path)])
    process = subprocess.Popen(
        [PYTHON, "-c", TERMINAL, "sh", "-c", f"{run} {redirection}"],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert any(b"ready" in line for line in process.stdout)
        process.stdin.write(b"\x03")
        process.stdin.flush()
        shown = process.stdout.read()
    assert process.wait(TIMEOUT_S) == 0
    assert b"interrupted 1 times" in shown


@pytest.mark.slow
def test_a_job_that_is_started_again_from_a_checkpoint_is_one_run_with_two_attempts(
    tmp_path: Path,
) -> None:
    """New processes of two ranks; the first ones were killed in step 9."""
    path = script(
        tmp_path,
        """
        import multiprocessing
        import os
        import sys
        import otel_rl


        def train(rank, first):
            otel_rl.init(role="trainer", index=rank, count=2)
            for step in range(first, first + 10):
                otel_rl.log({"loss": float(first)}, step=step)
                if step == 9 and first == 0:
                    otel_rl.flush(timeout_s=60)
                    os.kill(os.getpid(), 9)


        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            first = int(sys.argv[1])
            ranks = [context.Process(target=train, args=(n, first)) for n in range(2)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            sys.exit(any(rank.exitcode for rank in ranks))
        """,
    )
    for first, status in (("0", 1), ("4", 0)):
        done = otel_rl(
            "run", "--experiment", "e", "--", PYTHON, path, first,
            cwd=tmp_path, env=clean_environment(tmp_path, **OPEN_FOR_LONG),
        )  # fmt: skip
        assert done.status == status, done.err
    run = wandb_run(tmp_path, "e")
    losses = [
        (row["attempt"], row["step"], row.get("step/attempt_2"), row["trainer/loss"])
        for row in run.history
        if "trainer/loss" in row
    ]
    assert losses == [
        *((1, step, None, 0.0) for step in range(10)),
        *((2, step, step, 4.0) for step in range(4, 14)),
    ]
    assert [row["_step"] for row in run.history] == list(range(len(run.history)))
    assert run.metrics["trainer/loss"] == "step/attempt_2"


@pytest.mark.slow
def test_without_a_trial_every_command_makes_a_run_of_its_own(tmp_path: Path) -> None:
    environment = clean_environment(tmp_path)
    del environment["OTEL_RL_TRIAL"]
    path = script(
        tmp_path,
        """
        import otel_rl

        otel_rl.init(role="trainer")
        otel_rl.log({"loss": 1.0}, step=0)
        """,
    )
    trials = []
    for _ in range(2):
        done = otel_rl(
            "run", "--experiment", "e", "--tracker", "jsonl", "--", PYTHON, path,
            cwd=tmp_path, env=environment,
        )  # fmt: skip
        assert done.status == 0, done.err
        trials.append(done.err.partition("experiment e/")[2].partition(" ")[0])
    assert len(set(trials)) == 2
    for trial in trials:
        assert len(reported_rows(tmp_path, "e", trial)) == 1


@pytest.mark.slow
def test_a_training_loop_survives_values_that_are_no_numbers(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import otel_rl

        otel_rl.init(role="trainer")
        otel_rl.log({"loss": "high", "kl": None, "ok": 1.0}, step=0)
        otel_rl.log("nonsense", step="x")
        otel_rl.log({"lost": 2.0}, step=1, reduce="median")
        otel_rl.log({"ok": 3.0}, step=1)
        """,
    )
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--", PYTHON, path, cwd=tmp_path
    )
    assert done.status == 0, done.err
    rows = jsonl_rows(tmp_path, "e")
    assert [row.values["trainer/ok"] for row in rows if "trainer/ok" in row.values] == [1.0, 3.0]
    prefix = "otel_rl/trainer/measurements/dropped/"
    dropped = {
        key.removeprefix(prefix): value
        for row in rows
        for key, value in row.values.items()
        if key.startswith(prefix) and not key.endswith("/rate")
    }
    assert dropped == {"not_a_number": 3, "bad_reduce": 1}


def test_a_bad_argument_of_init_is_a_clear_error_before_anything_starts(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import otel_rl

        otel_rl.init(role="trainer", index=5, count=2)
        """,
    )
    done = otel_rl("run", "--tracker", "jsonl", "--", PYTHON, path, cwd=tmp_path)
    assert done.status == 1
    assert "ConfigError" in done.err
    assert "index" in done.err
    assert "5" in done.err


def test_nothing_of_the_callers_environment_is_needed(tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in clean_environment(tmp_path).items()
        if name in {"PATH", "HOME", "OTEL_RL_TRIAL", "LD_LIBRARY_PATH"}
        or name.startswith("OTEL_RL_TEST_")
    }
    path = script(
        tmp_path,
        """
        from opentelemetry import metrics

        metrics.get_meter("m").create_gauge("loss").set(1.0, {"rl.loop.iteration": 3})
        """,
    )
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--", PYTHON, path,
        cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.status == 0, done.err
    (row,) = reported_rows(tmp_path, "e")
    assert (row.step, row.reported) == (3, {"loss": 1.0})
    assert math.isclose(row.time_ns / 1e9, path.stat().st_mtime, abs_tol=60)


@pytest.mark.slow
def test_the_command_that_is_told_writes_what_is_left_where_the_run_was_to_be(
    tmp_path: Path,
) -> None:
    path = script(
        tmp_path,
        """
        from opentelemetry import metrics

        metrics.get_meter("m").create_gauge("loss").set(1.0, {"rl.loop.iteration": 3})
        """,
    )
    away = {
        "WANDB_API_KEY": "0" * 40,
        "WANDB_BASE_URL": "http://127.0.0.1:9",  # the discard port: nobody listens
        "OTEL_RL_BRIDGE__STOP_TIMEOUT": "5",
    }
    done = otel_rl(
        "run", "--experiment", "e", "--per-worker", "--", PYTHON, path,
        cwd=tmp_path, env=clean_environment(tmp_path, **away),
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "0 rows in wandb; 1 still in the journal" in done.err
    (told,) = [line for line in done.err.splitlines() if "write the rest with: " in line]
    command = told.partition("write the rest with: otel-rl ")[2]
    rest = otel_rl(
        *shlex.split(command), cwd=tmp_path, env=clean_environment(tmp_path, WANDB_MODE="offline")
    )
    assert rest.status == 0, rest.err
    losses = [
        (row["step"], row["workers/trainer/0/loss"])
        for row in wandb_run(tmp_path, "e").history
        if "workers/trainer/0/loss" in row
    ]
    assert losses == [(3, 1.0)]


NO_METRIC = {
    "nothing logged": "",
    "only text": 'otel_rl.log({"note": "text"}, step=1)',
    "only a config": 'otel_rl.log_config({"lr": 0.1})',
}


@pytest.mark.parametrize("code", slow_after(1, NO_METRIC.values()), ids=NO_METRIC.keys())
@pytest.mark.parametrize("status", slow_after(1, [0, 3]))
def test_a_run_that_ends_with_no_metric_says_so_last(
    tmp_path: Path, code: str, status: int
) -> None:
    program = f"import otel_rl, sys\notel_rl.init(role='trainer')\n{code}\nsys.exit({status})"
    path = tmp_path / "train.py"
    path.write_text(program)
    done = otel_rl("run", "--experiment", "e", "--tracker", "jsonl", "--", PYTHON, path,
                   cwd=tmp_path)  # fmt: skip
    assert done.status == status
    last = done.err.splitlines()[-1]
    assert "e/default ended with no metric" in last, done.err
    assert "`otel-rl help troubleshooting`" in last


MEASURED = """
    import otel_rl

    otel_rl.init(role="trainer")
    otel_rl.log({"rl.train.loss": 0.5, "rl.train.grad.abs_max": 0.1, "mine": 2.0}, 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (("--detail", "full"), {"trainer/loss", "mine", "trainer/grad/abs_max"}),
        ((), {"trainer/loss", "mine"}),
    ],
)
def test_the_tracker_gets_as_much_detail_as_is_asked_for(
    tmp_path: Path, options: tuple[str, ...], keys: set[str]
) -> None:
    usual = {
        name: value for name, value in clean_environment(tmp_path).items() if name not in EVERY_KEY
    }
    path = script(tmp_path, MEASURED)
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", *options, "--", PYTHON, path,
        cwd=tmp_path, env=usual,
    )  # fmt: skip
    assert done.status == 0, done.err
    rows = jsonl_rows(tmp_path, "e")
    assert [row.number for row in rows] == list(range(len(rows)))
    found = {key for row in rows for key in row.values}
    assert {key for key in found if "/rank_" not in key and "/worker/" not in key} >= keys
    assert ("trainer/grad/abs_max" in found) == ("trainer/grad/abs_max" in keys)
