"""``otel-rl demo``: what a stranger sees after the first command, and that the policy learns."""

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from otel_rl import demo as demo_package
from otel_rl.bridge.journal.reader import looking, read_keys
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.bridge.keys import tracker_key
from otel_rl.records import KeySpec
from otel_rl.run_id import run_id
from otel_rl.semconv import names
from otel_rl.semconv.spec import Tier
from tests.process.commands import OTEL_RL, clean_environment, jsonl_rows, otel_rl, wandb_run
from tests.process.test_bridge_command import bridge
from tests.support.wandb_offline import OfflineRun

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 90

KILLED = re.compile(
    r"  generator/1 ended without an exit report after step \d+; replaced after \d+\.\d s"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("demo")
    env = clean_environment(directory, OTEL_RL_HOST="on")
    arguments = ("demo", "--steps", str(STEPS), "--trial", "t")
    done = otel_rl(*arguments, cwd=directory, env=env, timeout_s=540)
    assert done.status == 0, done.out + done.err
    assert f"{STEPS} GRPO steps" in done.out
    assert "run grpo-demo/t" in done.err
    assert KILLED.search(done.err), done.err
    assert "crashed" not in done.err
    assert "report.html" in done.err, done.err
    (report,) = re.findall(r"open (\S+/report.html)", done.err)
    assert "grpo-demo" in (directory / report).read_text()
    (directory / "console.txt").write_text(done.out)
    return directory


@pytest.fixture(scope="module")
def run(directory: Path) -> OfflineRun:
    return wandb_run(directory, "grpo-demo", "t")


def test_the_start_is_not_silent(directory: Path) -> None:
    start, _, _ = (directory / "console.txt").read_text().partition("\nstep ")
    assert re.search(r"^Starting \d+ processes\.$", start, re.MULTILINE), start


def test_a_log_file_gets_about_a_dozen_lines_whatever_the_steps(directory: Path) -> None:
    lines = (directory / "console.txt").read_text().splitlines()
    told = [line for line in lines if line.startswith("step ")]
    assert 1 < len(told) <= 13
    assert told[-1].startswith(f"step  {STEPS}/{STEPS}  reward 0.")


def column(run: OfflineRun, key: str) -> list[float]:
    return [row[key] for row in run.history if key in row]


def test_every_trainer_step_of_the_loss_is_there_once(run: OfflineRun) -> None:
    steps = [row["step"] for row in run.history if "trainer/loss" in row]
    assert steps == list(range(1, STEPS + 1))


def test_every_row_has_step_and_event_time(run: OfflineRun) -> None:
    assert all("step" in row and row["_timestamp"] > 1.6e9 for row in run.history)
    assert [row["_step"] for row in run.history] == list(range(len(run.history)))


def test_five_roles_and_more_report(run: OfflineRun) -> None:
    roles = {key.split("/")[0] for row in run.history for key in row}
    assert {"trainer", "generator", "replay_buffer", "reward"} <= roles
    assert any(key.startswith("service/orchestrator/") for row in run.history for key in row)


def test_the_summary_is_that_of_the_training(run: OfflineRun) -> None:
    reward = run.summary["trainer/reward/mean"]
    assert isinstance(reward, dict)
    assert reward["max"] == max(column(run, "trainer/reward/mean"))
    assert column(run, "service/trainer/alive")[-1] == 0
    assert run.summary["service/trainer/alive"] == 2


def test_a_value_of_a_step_has_one_point_there(
    run: OfflineRun, keys: Mapping[str, KeySpec]
) -> None:
    over = {key for key, spec in keys.items() if spec.axis == "step"}
    points = Counter((key, row["step"]) for row in run.history for key in row.keys() & over)
    assert {key for (key, _), count in points.items() if count > 1} == set()


def test_the_system_panels_show_the_one_host(run: OfflineRun, basic: "Charts") -> None:
    shown = {key.partition("/l:")[0]: value for key, value in run.system.items()}
    assert 0 < shown["cpu"] <= 100
    assert 0 < shown["memory_percent"] <= 100
    assert {"network.recv", "network.sent", "disk.in", "disk.out"} <= shown.keys()
    assert len({key.partition("/l:")[2] for key in run.system}) == 1
    assert not [key for key in basic if key.startswith("host/")]


def test_the_reward_rises(run: OfflineRun) -> None:
    rewards = column(run, "trainer/reward/mean")
    quarter = len(rewards) // 4
    first, last = sum(rewards[:quarter]) / quarter, sum(rewards[-quarter:]) / quarter
    assert last > first + 0.3


def test_rewards_of_all_samples_stand_beside_those_of_the_samples_trained_on(
    run: OfflineRun,
) -> None:
    for key in ("mean", "min", "max", "std"):
        assert len(column(run, f"trainer/reward/{key}")) == STEPS
    assert min(column(run, "trainer/episode/length")) >= 1
    produced = column(run, "reward/sample/reward")
    assert len(produced) > 1
    assert 0 <= min(produced) <= max(produced) <= 1


def test_the_time_of_all_workers_with_phases_is_divided_without_a_rest(run: OfflineRun) -> None:
    parts = ("productive", "overhead", "idle", "wasted")
    row = next(row for row in reversed(run.history) if "goodput/ratio" in row)
    spent = {part: row.get(f"goodput/{part}", 0.0) for part in parts}
    total = sum(spent.values())
    assert row["goodput/ratio"] == pytest.approx(spent["productive"] / total)
    roles = {"trainer": 2, "generator": 3, "reward": 2}
    for part, seconds in spent.items():
        of_roles = [row.get(f"goodput/{role}/{part}", 0.0) for role in roles]
        assert seconds == pytest.approx(sum(of_roles))
        assert seconds > 0 or part == "wasted"
    times = [row["_timestamp"] for row in run.history if "trainer/loss" in row]
    assert total > sum(roles.values()) * (times[-1] - times[0]) * 0.9
    assert not any(key.startswith("goodput/replay_buffer/") for row in run.history for key in row)


def test_the_killed_generator_and_its_recovery_are_in_the_run(run: OfflineRun) -> None:
    assert column(run, "service/orchestrator/failures/generator-1")[-1] == 1
    assert column(run, "service/orchestrator/failures/generator-0")[-1] == 0
    assert column(run, "service/orchestrator/recovery/duration/generator-1")[-1] > 0


def test_the_bridge_saw_it_die_and_come_back_and_miss_nobody_at_the_end(run: OfflineRun) -> None:
    assert column(run, "service/generator/failures")[-1] == 1
    assert column(run, "service/generator/recovery_s")[-1] > 0
    assert max(column(run, "service/generator/alive")) == 3
    for role in ("trainer", "generator", "reward", "replay_buffer", "orchestrator"):
        alive, expected = (column(run, f"service/{role}/{of}")[-1] for of in ("alive", "expected"))
        assert alive == expected


def test_the_diagnosis_names_the_killed_generator(directory: Path) -> None:
    (journal,) = directory.rglob(JOURNAL_FILE)
    told = otel_rl("diagnose", "--data", journal.parent, cwd=directory).out
    assert KILLED.search(told), told


def test_the_console_and_the_run_agree(directory: Path, run: OfflineRun) -> None:
    said = (directory / "console.txt").read_text()
    rewards, staleness = (
        column(run, f"trainer/{key}") for key in ("reward/mean", "policy/staleness")
    )
    first, last = rewards[: STEPS // 4], rewards[STEPS * 3 // 4 :]
    found = re.search(r"mean reward (\S+) in the first quarter, (\S+) in the last", said)
    assert found is not None
    assert float(found[1]) == pytest.approx(sum(first) / len(first), abs=0.011)
    assert float(found[2]) == pytest.approx(sum(last) / len(last), abs=0.011)
    found = re.search(r"samples (\S+) versions old; (\d+) samples evicted", said)
    assert found is not None
    assert float(found[1]) == pytest.approx(sum(staleness) / len(staleness), abs=0.06)
    reasons = [f"replay_buffer/evictions/{reason}" for reason in ("capacity", "stale")]
    assert int(found[2]) == sum(column(run, key)[-1] for key in reasons)
    limit = column(run, "replay_buffer/limit")[-1]
    assert f"/{limit:.0f} samples" in said


def test_a_log_gets_about_a_dozen_lines_of_progress_and_the_last_is_of_the_last_step(
    directory: Path,
) -> None:
    said = (directory / "console.txt").read_text()
    steps = [int(step) for step in re.findall(rf"^step +(\d+)/{STEPS} ", said, re.MULTILINE)]
    assert 2 <= len(steps) <= 14
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS


def test_samples_are_really_stale(run: OfflineRun) -> None:
    assert max(column(run, "trainer/policy/staleness/max")) >= 1


def test_the_phases_of_an_iteration_are_its_wall_time(run: OfflineRun) -> None:
    wholes = {name for name, spec in names.PHASES.items() if spec.part_of is None}
    iterations = [row for row in run.history if "trainer/iteration/duration" in row]
    assert len(iterations) == STEPS
    for row in iterations:
        spent = sum(row.get(f"phase/trainer/{name}", 0.0) for name in wholes)
        assert spent == pytest.approx(row["trainer/iteration/duration"], rel=1e-9)
        assert row["phase/trainer/train"] > 0
    # Of all of them together, because the machine may stop for a moment between two phases.
    left_over_s = sum(row["phase/trainer/unaccounted"] for row in iterations)
    assert left_over_s < 0.5 * sum(row["trainer/iteration/duration"] for row in iterations)


def test_the_run_says_what_it_is_and_how_it_ended(run: OfflineRun) -> None:
    assert run.config["total_steps"] == STEPS
    assert run.config["group_size"] == 8
    assert run.tags == ["demo", "grpo"]
    assert run.summary["status"] == "complete"


def test_rollouts_are_tables_of_the_step_whose_policy_wrote_them(run: OfflineRun) -> None:
    tables = [row for row in run.history if "reward/rollouts/nrows" in row]
    steps = {row["step"] for row in tables}
    assert steps <= set(range(STEPS + 1))
    assert 3 <= len(steps) <= STEPS.bit_length() + 1  # of the steps from 1, 2, 4, ... on
    assert all(row["reward/rollouts/nrows"] in {2, 4} for row in tables)


Charts = Mapping[str, Sequence[tuple[float, float]]]

# What a run of everything in order may repeat or never change, and why it is a chart.
QUIET = {
    "service/*/alive": "roles of one size look alike",
    "trainer/reward/min": "the worst sample of a short run has no reward",
    "service/*/failures": "nothing fails in most roles",
    "generator/preemptions/rate": "there is cache for every request",
    "replay_buffer/sample/dropped/*/rate": "the buffer is never full",
}


def is_quiet(key: str) -> bool:
    return any(fnmatch(key, pattern) for pattern in QUIET)


@pytest.fixture(scope="module")
def keys(directory: Path) -> Mapping[str, KeySpec]:
    """What the journal says of the keys of the run."""
    (journal,) = directory.rglob(JOURNAL_FILE)
    with looking(journal.parent) as connection:
        found = read_keys(connection, run_id("grpo-demo", "t"))
    assert len(found) == len({one.key for one in found}), "a key is described once"
    return {one.key: one for one in found}


@pytest.fixture(scope="module")
def basic(run: OfflineRun, keys: Mapping[str, KeySpec]) -> Charts:
    """The charts of a run with the usual detail: (step, value) of each point."""
    charts: dict[str, list[tuple[float, float]]] = {}
    for row in run.history:
        for key, value in row.items():
            spec = keys.get(key)
            if spec is not None and spec.tier is Tier.BASIC and spec.statistic != "text":
                charts.setdefault(key, []).append((row["step"], value))
    return charts


def test_the_journal_says_what_every_key_is(run: OfflineRun, keys: Mapping[str, KeySpec]) -> None:
    tables = {key for key, spec in keys.items() if spec.statistic == "table"}
    found = {
        key
        for row in run.history
        for key in row
        if key not in {"step", "hours", "attempt", "policy_version"}
        and not key.startswith(("_", *tables))
    }
    assert found <= keys.keys()
    unnamed = {key for key in found if not keys[key].name and keys[key].statistic != "text"}
    assert unnamed <= {"critical_path/partial", "diagnosis/causes"}


def test_the_usual_detail_is_as_many_charts_as_a_person_keeps(
    basic: Charts,
) -> None:
    assert 60 < len(basic) <= 120, sorted(basic)


def test_no_two_charts_of_the_usual_detail_are_equal(
    basic: Charts,
) -> None:
    alike: dict[tuple[object, ...], list[str]] = {}
    for key, points in basic.items():
        if not is_quiet(key):
            alike.setdefault(tuple(points), []).append(key)
    assert [same for same in alike.values() if len(same) > 1] == []


def test_no_chart_of_the_usual_detail_is_one_value(
    basic: Charts,
) -> None:
    constant = {
        key
        for key, points in basic.items()
        if len(points) > 2 and len({value for _, value in points}) == 1
    }
    assert {key for key in constant if not is_quiet(key)} == set()


def test_two_demos_through_one_bridge_do_not_touch_each_other(tmp_path: Path) -> None:
    with bridge(tmp_path, "--tracker", "jsonl") as service:
        address = service.url.removeprefix("http://")
        demos = [
            subprocess.Popen(
                [
                    *OTEL_RL, "demo", "--endpoint", address, "--experiment", name, "--trial", "t",
                    "--steps", "4", "--seed", str(seed), "--no-kill",
                ],
                cwd=tmp_path,
                env=clean_environment(tmp_path),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for seed, name in enumerate(("one", "two"))
        ]  # fmt: skip
        for demo in demos:
            _, err = demo.communicate(timeout=400)
            assert demo.returncode == 0, err
        status, _ = service.stop()
        assert status == 0
    losses = {}
    for name in ("one", "two"):
        rows = [r for r in jsonl_rows(tmp_path, name, "t") if "trainer/loss" in r.values]
        assert [row.step for row in rows] == list(range(1, 5))
        losses[name] = [row.values["trainer/loss"] for row in rows]
    assert losses["one"] != losses["two"]


def test_what_the_run_lacks_of_the_registry_is_what_the_docs_say(run: OfflineRun) -> None:
    keys = {key for row in run.history for key in row}
    lacking = {
        name
        for name, spec in names.METRICS.items()
        if spec.group != "otel_rl" and name != names.RL_PHASE_DURATION and not _in_run(name, keys)
    }
    lacking |= {phase for phase in names.PHASES if not any(_is_phase(key, phase) for key in keys)}
    excused = _excused()
    unexplained = {name for name in lacking if not any(fnmatch(name, e) for e in excused)}
    assert unexplained == set()
    idle_excuses = {e for e in excused if not any(fnmatch(name, e) for name in lacking)}
    # Attributes are no metrics: the page names two that the demo does not need. And on a busy
    # machine a rank may be late; most machines have a disk and a network.
    sometimes = {"rl.service.step.*", "system.disk.io", "system.network.io"}
    assert idle_excuses <= {"rl.loss.type", "rl.staleness.part", *sometimes}


def _in_run(name: str, keys: set[str]) -> bool:
    roles = {key.split("/")[1 if key.split("/")[0] in {"phase", "service"} else 0] for key in keys}
    expected = {tracker_key(role, name) for role in roles}
    if name.startswith("system."):  # of a host
        expected = {f"host/{name.removeprefix('system.').replace('.', '/')}"}
    if name == names.RL_SERVICE_RECOVERY:
        expected = {f"{key}_s" for key in expected}
    if name == names.RL_CRITICAL_PATH_DURATION:
        expected = {f"critical_path/{role}" for role in roles}
    if name == names.RL_GOODPUT_TIME:
        expected = {f"goodput/{part}" for part in names.RlGoodputPartValues}
    return any(key == want or key.startswith(f"{want}/") for key in keys for want in expected)


def _is_phase(key: str, phase: str) -> bool:
    return key.startswith("phase/") and key.split("/")[2] == phase


def _excused() -> set[str]:
    """The names that the package of the demo says it cannot measure."""
    items = re.findall(r"^\* (.+?): ", demo_package.__doc__ or "", re.MULTILINE)
    return {name for item in items for name in re.findall(r"``([^`]+)``", item)}
