"""Commands read the logs of runs that others have written.

``grpo`` is of TRL's GRPO and ``PPO_1`` of Stable-Baselines3's PPO: both trained a tiny policy.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from otel_rl.cli.logs.find import log_at
from otel_rl.cli.logs.log import MOST_STEPS, Log
from otel_rl.cli.main import main
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentStatus
from tests.support.view_runs import LookedAt, write_run

HERE = Path(__file__).parent
GRPO, PPO = HERE / "grpo", HERE / "PPO_1"
SLOW_FROM, STEPS = 45, 80

THEIRS = """
    import random, wandb

    random.seed(3)
    wandb.init(project="their-ppo", name="seed-1", config={"lr": 3e-4, "layers": [1, 2]})
    for step in range(1, 81):
        gen, update = random.gauss(2, 0.06), random.gauss(1, 0.03) * (2.5 if step >= 45 else 1)
        times = {"timing/generate_s": gen, "timing/update_s": update, "timing/step_s": gen + update}
        wandb.log({**times, "reward": step / 100, "nothing": None}, step=step)
    wandb.finish()
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an offline W&B run, which real W&B has written."""
    directory = tmp_path_factory.mktemp("theirs")
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(directory)}
    code = textwrap.dedent(THEIRS)
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=directory, check=True)
    (found,) = (directory / "wandb").glob("offline-run-*")
    return found


def rows(*, named: Mapping[str, str] | None = None) -> Iterator[dict[str, float]]:
    """A run whose update takes 2.5 times as long from a step on."""
    random.seed(3)
    names = {"generate": "timing/generate_s", "update": "timing/update_s", "step": "timing/step_s"}
    names.update(named or {})
    for step in range(1, STEPS + 1):
        generate = random.gauss(2, 0.06)
        update = random.gauss(1, 0.03) * (2.5 if step >= SLOW_FROM else 1)
        yield {
            "step": step,
            names["generate"]: generate,
            names["update"]: update,
            names["step"]: generate + update,
            "reward": step / 100,
        }


def json_lines(path: Path, rows: Iterator[dict[str, float]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def csv_file(path: Path) -> Path:
    of = [*rows()]
    lines = [",".join(of[0]), *(",".join(map(repr, row.values())) for row in of)]
    path.write_text("\n".join(lines) + "\n")
    return path


def diagnosed(log: Path | str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What a diagnosis of a log says, and what it says of the log."""
    assert main(["diagnose", str(log)]) == 0
    said = capsys.readouterr()
    return said.out, said.err


def read(log: Path) -> Log:
    found = log_at(str(log))
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.process
def test_an_update_that_takes_longer_is_named_in_an_offline_run_of_wandb(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for log in (theirs, theirs.parent, next(theirs.glob("*.wandb"))):
        out, err = diagnosed(log, capsys)
        assert out.startswith("their-ppo/seed-1, 80 steps")
        assert "slow_training: update_s of trainer takes 2.5 times as long since step 45" in out
        assert "no spans and no workers" in err
    assert read(theirs).config["layers"] == [1, 2]
    assert read(theirs).status is ExperimentStatus.COMPLETE


@pytest.mark.parametrize("make", [csv_file, lambda path: json_lines(path, rows())])
def test_tables(
    make: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = diagnosed(make(tmp_path / "log.csv"), capsys)
    assert "slow_training: update_s of trainer takes 2.5 times as long since step 45" in out
    assert "hours are made up" in err


def test_names_of_verl_are_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = {
        "generate": "timing_s/gen",
        "update": "timing_s/update_actor",
        "step": "timing_s/step",
    }
    out, _ = diagnosed(json_lines(tmp_path / "log.jsonl", rows(named=of)), capsys)
    assert "slow_training: train of trainer takes 2.5 times as long since step 45" in out


def test_a_real_trainer_state_of_trl(capsys: pytest.CaptureFixture[str]) -> None:
    for log in (GRPO, GRPO / "checkpoint-20", GRPO / "checkpoint-20/trainer_state.json"):
        out, err = diagnosed(log, capsys)
        assert "grpo/checkpoint-20, 20 steps" in out
        assert "steps that take 1.5 times as long would be seen" in out  # `step_time` is known
        assert "has no times of parts of a step" in err


def test_real_event_files_of_stable_baselines3(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = diagnosed(PPO, capsys)
    assert "30 steps" in out
    assert "Traceback" not in out + err
    assert "from one logged row to the next" in err
    assert "rollout/ep_rew_mean" in read(PPO).keys


@pytest.mark.process
def test_a_report_and_a_comparison(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["view", str(theirs), "--html", str(page)]) == 0
    assert "no spans and no workers" in page.read_text()  # as a part of its configuration
    capsys.readouterr()
    other = json_lines(tmp_path / "other.jsonl", rows())
    assert main(["compare", str(theirs), str(other)]) == 0
    assert "time_per_step" in capsys.readouterr().out


@pytest.mark.process
def test_a_damaged_file_of_wandb_is_read_as_far_as_it_goes(theirs: Path, tmp_path: Path) -> None:
    whole = next(theirs.glob("*.wandb")).read_bytes()
    path = tmp_path / "cut.wandb"
    for size in (*range(7, 60), len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:size])
        try:
            found = read(path)
        except ConfigError as exc:
            assert "has no numbers" in str(exc)  # noqa: PT017  # of some sizes
        else:
            assert found.is_cut or found.steps
    randomly = random.Random(5)
    for _ in range(40):
        torn = bytearray(whole)
        for _ in range(3):
            torn[randomly.randrange(4, len(torn))] = randomly.randrange(256)
        path.write_bytes(torn)
        with contextlib.suppress(ConfigError):
            read(path)


def test_a_damaged_event_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (events,) = PPO.iterdir()
    path = tmp_path / events.name
    path.write_bytes(events.read_bytes()[:-5])
    assert len(read(tmp_path).steps) == 30
    torn = bytearray(events.read_bytes())
    torn[len(torn) // 2] ^= 255
    path.write_bytes(torn)
    found = read(tmp_path)
    assert found.is_cut
    assert 10 < len(found.steps) < 20


def test_a_tensor_that_is_no_scalar_is_left_out_whatever_shape_it_claims(tmp_path: Path) -> None:
    summary_pb2 = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    writer = writers.EventFileWriter(str(tmp_path))
    for step in range(3):
        summary = summary_pb2.Summary()
        summary.value.add(tag="loss", simple_value=1.0)
        for tag in ("huge", "text"):
            value = summary.value.add(tag=tag)
            value.metadata.plugin_data.plugin_name = "scalars"
            if tag == "huge":
                value.tensor.dtype = 1  # DT_FLOAT
                value.tensor.float_val.append(1.0)
                value.tensor.tensor_shape.dim.add(size=10**11)
            else:
                value.tensor.dtype = 7  # DT_STRING
                value.tensor.string_val.append(b"no number")
        writer.add_event(event_pb2.Event(step=step, wall_time=1e9 + step, summary=summary))
    writer.close()
    assert [step.values for step in read(tmp_path).steps.values()] == [{"loss": 1.0}] * 3


@pytest.mark.process
def test_logs_of_one_name_are_runs_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = []
    for seed in "123456":
        (tmp_path / seed / "logs").mkdir(parents=True)
        logs.append(str(json_lines(tmp_path / seed / "logs" / "progress.jsonl", rows())))
    assert main(["compare", *logs[:3], "--", *logs[3:]]) == 0
    assert capsys.readouterr().out.count("3 runs") == 2


def test_odd_values_lines_and_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 1, "loss": NaN, "a": "NaN", "b": null, "c": true, "d": "text", "e": {"f": 2}}\n'
        '[1]\nnonsense\n{"step": -1, "loss": 1}\n{"step": 1e400, "loss": 2}\n'
        '{"step": 2, "loss": 3}\n{"step": 3, "lo'
    )
    found = read(path)
    assert {**found.steps[1].values, "loss": 0, "a": 0} == {"loss": 0, "a": 0, "e/f": 2}
    assert found.steps[1].values["loss"] != found.steps[1].values["loss"]  # NaN
    assert found.steps[2].values == {"loss": 3}
    assert found.broken == 4
    assert found.is_cut


def test_hostile_values_are_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    lines = [
        r'{"step": 1, "loss": 1e308, "": 2, "x\u0000y": 3, "step_time": -1, "timestamp": 1e30}',
        r'{"step": 2, "loss": Infinity, "\ud800": 3, "timestamp": "2026-01-01T00:00:00"}',
        r'{"step": 9007199254740993, "loss": 1}',
        r'{"step": 9007199254740990, "loss": 1, "_runtime": -1e30}',
        r'{"step": 3, "loss": {"a": {"b": 123456789012345678901234567890}}, "timestamp": 5}',
        f'{{"step": 4, "{"k" * 100_000}": 1}}',
        f'{{"step": 5, "a": {"[" * 100_000}}}',
        f'{{"step": 5, "a": {"1" * 10_000}}}',
    ]
    path.write_text("\n".join(lines))
    out, err = diagnosed(path, capsys)
    assert "Traceback" not in out + err
    assert "of its records could not be read" in err


def test_later_values_of_a_step_count(tmp_path: Path) -> None:
    before = [{"step": step, "loss": 1.0} for step in range(1, 8)]
    after = [{"step": step, "loss": 2.0} for step in range(5, 11)]
    found = read(json_lines(tmp_path / "log.jsonl", iter([*before, *after])))
    assert [found.steps[step].values["loss"] for step in sorted(found.steps)] == [1.0] * 4 + [
        2.0
    ] * 6
    assert found.went_back == 1


def test_seconds_since_the_start_are_the_time_and_no_value(tmp_path: Path) -> None:
    of = [{"step": step, "loss": 1.0, "_runtime": 2.0 * step} for step in range(1, 80)]
    found = read(json_lines(tmp_path / "log.jsonl", iter(of)))
    assert found.keys == {"loss"}
    assert found.steps[9].time_s == 18.0


def test_of_a_long_log_the_last_steps_are_kept(tmp_path: Path) -> None:
    of = ({"step": step, "loss": 1.0} for step in range(MOST_STEPS + 5))
    found = read(json_lines(tmp_path / "log.jsonl", of))
    assert len(found.steps) == MOST_STEPS
    assert found.omitted == min(found.steps) == 5


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("log.csv", b"", "is empty"),
        ("log.csv", b"step,loss\n", "has no numbers"),
        ("log.txt", b"hello\n", "is no log of a run"),
        ("model.bin", bytes(range(256)), "is no log of a run"),
        ("trainer_state.json", b'{"log_history": [{"step": 1, "lo', "no whole JSON file"),
        ("trainer_state.json", b'{"log_history": []}', "has no numbers"),
        ("trainer_state.json", b"[]", "has no log_history"),
        ("run.wandb", b":W&B", "has no numbers"),
        ("events.out.tfevents.1", b"\0\1", "has no numbers"),
    ],
)
def test_what_is_no_log_is_told(
    name: str, content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["diagnose", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_several_runs_in_a_directory_are_named(tmp_path: Path) -> None:
    for name in ("PPO_1", "PPO_2"):
        shutil.copytree(PPO, tmp_path / name)
    with pytest.raises(ConfigError, match=r"2 runs(.|\n)*PPO_2"):
        log_at(str(tmp_path))


@pytest.mark.parametrize("place", ["a/b/c", "a/b", "wandb/x/y"])
def test_event_files_deep_below_a_directory_are_no_log_of_it(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(PPO, tmp_path / place)
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "Of a log of others, name its own directory" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["PPO_1", "runs/PPO_1", "lightning_logs/version_0"])
def test_which_log_of_a_directory_was_taken_is_said(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(PPO, tmp_path / place)
    _, err = diagnosed(tmp_path, capsys)
    assert str((tmp_path / place).resolve()) in err


def test_a_home_directory_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(PPO, tmp_path / "runs" / "PPO_1")
    assert log_at("~") is None
    assert log_at("~/runs") is not None


@pytest.mark.process
def test_a_stored_run_is_compared_with_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "data", LookedAt(steps=STEPS))
    other = json_lines(tmp_path / "other.jsonl", rows())
    for sides in (["grpo/1", str(other)], [str(other), "grpo/1"]):
        assert main(["compare", "--data", str(tmp_path / "data"), *sides]) == 0
        out = capsys.readouterr().out
        assert "grpo/1" in out
        assert "/other" in out


def test_a_run_of_the_server_of_wandb(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    def run(path: str) -> SimpleNamespace:
        if path != "me/theirs/abc":
            raise ValueError("no such run")
        history = [{"_step": row.pop("step"), **row} for row in map(dict, rows())]
        return SimpleNamespace(
            project="theirs", name="one", config={}, state="failed", scan_history=lambda: history
        )

    monkeypatch.setattr(wandb, "Api", lambda: SimpleNamespace(run=run))
    out, _ = diagnosed("wandb://me/theirs/abc", capsys)
    assert "theirs/one, 80 steps" in out
    assert "slow_training" in out
    assert main(["diagnose", "wandb://me/theirs/other"]) == 2
    assert "no such run" in capsys.readouterr().err
