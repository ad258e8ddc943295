"""What the page shows of journals: charts, workers, rollouts, health."""

import gzip
import itertools
import json
import math
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal import reader
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.log import Appended, Log
from otel_rl.bridge.journal.reader import KnownWorker, Standing
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.journal.state import decode_row
from otel_rl.bridge.rows.messages import Finding
from otel_rl.bridge.rows.series.streams import WorkerStanding
from otel_rl.bridge.rows.spans import ChosenSteps
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.diagnose.history.records import Facts
from otel_rl.records import Attempt, ExperimentKey, ExperimentStatus, Row, WorkerFailure
from otel_rl.run_id import run_id
from otel_rl.view import pages
from otel_rl.view.journals import Journals
from otel_rl.view.pages import Pages
from otel_rl.view.parts import log as log_part
from otel_rl.view.parts import overview, sides
from otel_rl.view.parts import runs as run_lines
from otel_rl.view.parts.runs import RunLines
from otel_rl.view.questions import Answer, Question
from tests.journals.small_run import ENDED, RANKS, STEPS, Life, begin, end, gpu, start_ns, step
from tests.support.view_runs import HOSTILE, MEASURED, T0, LookedAt, S, write_run

RUN = run_id("grpo", "1")
ENDED_ID = run_id(ENDED.experiment, ENDED.trial)


class Looked:
    """Pages over one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pages = Pages(BridgeSettings(data=directory), clock_ns=lambda: T0 + 10 * S)

    def ask(self, path: str, **query: str) -> Answer:
        return self.pages.answer(Question(path, query))

    def get(self, path: str, **query: str) -> Any:
        """Ask until the history is read."""
        while True:
            answer = self.ask(path, **query)
            body = gzip.decompress(answer.body) if answer.encoding else answer.body
            assert answer.status == 200, body
            found = json.loads(body)
            if found.get("read", 1) == 1:
                return found


@pytest.fixture
def looked(tmp_path: Path) -> Looked:
    samples: list[Mapping[str, str | float]] = [
        {"prompt": f"add {n} and {n}", "completion": str(2 * n), "reward": n / 40}
        for n in range(40)
    ]
    write_run(tmp_path, LookedAt(slow=2, slow_step=7, samples=samples))
    return Looked(tmp_path)


# Runs


def test_the_list_has_state_step_and_reward(looked: Looked) -> None:
    (run,) = looked.get("runs")["runs"]
    assert (run["experiment"], run["trial"], run["state"], run["step"]) == (
        "grpo",
        "1",
        "finished",
        20,
    )
    assert run["shown"]["name"] == "reward"
    assert run["shown"]["last"] == pytest.approx(0.95)


def test_two_sides_are_compared_once_while_nothing_is_new(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(looked.directory, LookedAt(ExperimentKey("grpo", "2"), steps=60, workers=2))
    write_run(looked.directory, LookedAt(ExperimentKey("grpo", "3"), steps=60, slow=1, workers=2))
    ids = {side: run_id("grpo", trial) for side, trial in (("a", "2"), ("b", "3"))}
    found = looked.get("compare", **ids)
    assert (found["a"], found["b"], found["by"]) == (["grpo/2"], ["grpo/3"], "step")
    assert [one["is_sure"] for one in found["measures"] if one["name"] == "time_per_step"] == [True]
    monkeypatch.setattr(sides, "Sides", None)
    assert looked.get("compare", **ids) == found


@pytest.mark.parametrize("query", [{}, {"a": RUN}, {"a": RUN, "b": "nothing"}])
def test_a_side_without_a_run_is_not_compared(looked: Looked, query: Mapping[str, str]) -> None:
    assert looked.ask("compare", **query).status == 404


def test_many_runs_are_compared_by_the_command_and_not_by_the_page(looked: Looked) -> None:
    """One question holds up all readers of the page."""
    many = ".".join([RUN] * 17)
    answer = looked.ask("compare", a=many, b=RUN)
    assert answer.status == 400
    assert "otel-rl compare" in json.loads(answer.body)["error"]


def test_a_measure_that_is_not_there_is_a_mistake_of_who_asks(looked: Looked) -> None:
    while looked.get("compare", a=RUN, b=RUN)["read"] < 1:
        pass
    answer = looked.ask("compare", a=RUN, b=RUN, by="nothing")
    assert answer.status == 400
    assert "nothing" in json.loads(answer.body)["error"]


def test_runs_that_a_reader_may_not_see_are_not_compared(looked: Looked) -> None:
    question = Question("compare", {"a": RUN, "b": RUN}, ["other"])
    assert looked.pages.answer(question).status == 404


def test_of_ended_runs_far_down_the_list_no_state_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(23):
        key = ExperimentKey("e", str(number))
        write_run(tmp_path, LookedAt(key, workers=1, steps=1), now_ns=T0 + number)
    decoded: list[str] = []

    def read(connection: Connection, run: str) -> Standing:
        decoded.append(run)
        return read_standing(connection, run)

    monkeypatch.setattr(overview, "read_standing", read)
    journals = Looked(tmp_path).pages._journals
    ticks = itertools.count()
    lines = RunLines(journals, clock_s=lambda: next(ticks))  # there is no time for further ones
    found, share = lines.of(journals.all(), T0)
    assert share == pytest.approx(20 / 23)
    assert [one["state"] for one in found] == 23 * ["finished"]
    assert decoded == [one["id"] for one in found[:20]]


def test_rewards_far_down_the_list_are_read_bit_by_bit_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(23):
        key = ExperimentKey("e", str(number))
        write_run(tmp_path, LookedAt(key, workers=1, steps=2), now_ns=T0 + number)
    ticks = iter(range(100))
    looked = Looked(tmp_path)
    journals = looked.pages._journals
    lines = RunLines(journals, clock_s=lambda: 0.2 * next(ticks))  # 0.3 s are for one run
    runs = journals.all()
    shares = [lines.of(runs, T0)[1] for _ in range(4)]
    assert shares == pytest.approx([21 / 23, 22 / 23, 1, 1])
    whole = looked.get("runs")
    assert [one["shown"]["last"] for one in whole["runs"]] == 23 * [0.5]
    assert [len(one["shown"]["ys"]) for one in whole["runs"]] == 20 * [2] + 3 * [0]
    monkeypatch.setattr(overview, "read_named_keys", None)  # would fail
    assert looked.get("runs") == whole


def test_of_runs_that_go_on_all_the_time_each_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_run(tmp_path, LookedAt(ExperimentKey(str(number)), workers=1, steps=1))
    monkeypatch.setattr(run_lines, "_MOST_WHOLE", 0)
    ticks = itertools.count()
    journals = Looked(tmp_path).pages._journals
    lines = RunLines(journals, clock_s=lambda: 0.2 * next(ticks))  # 0.3 s are for one run
    changed = itertools.count()
    found = [
        lines.of(
            [
                one._replace(overviews=[replace(one.run, changed_ns=next(changed))])
                for one in journals.all()
            ],
            T0,
        )
        for _ in range(4)
    ]
    assert [share for _, share in found] == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert [sum("shown" in line for line in of) for of, _ in found] == [1, 2, 3, 3]


def test_the_last_active_run_comes_first_over_several_journals(tmp_path: Path) -> None:
    write_run(tmp_path / "a", LookedAt(ExperimentKey("old")), now_ns=T0 - S)
    write_run(tmp_path / "b", LookedAt(ExperimentKey("new")))
    runs = Looked(tmp_path).get("runs")["runs"]
    assert [run["experiment"] for run in runs] == ["new", "old"]


def test_a_run_beyond_the_list_is_searched_for_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        key = ExperimentKey(f"Run-{number}", "first")
        write_run(tmp_path, LookedAt(key, workers=1, steps=1), now_ns=T0 + number)
    monkeypatch.setattr(pages, "_MAX_RUNS", 2)
    looked = Looked(tmp_path)
    assert looked.get("runs")["left_out"] == 1
    found = looked.get("runs", search="run-0/F")
    assert ([one["experiment"] for one in found["runs"]], found["left_out"]) == (["Run-0"], 0)


def test_a_journal_that_cannot_be_read_is_told_beside_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "a", LookedAt())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "journal.db").write_text("no database, not at all")
    found = Looked(tmp_path).get("runs")
    assert len(found["runs"]) == 1
    assert "Cannot read the journal" in found["faults"][0]


def test_the_revision_changes_with_a_run(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    looked = Looked(tmp_path)
    before = looked.get("revision")
    assert looked.get("revision") == before
    write_run(tmp_path, LookedAt(ExperimentKey("other")), now_ns=T0 + S)
    assert looked.get("revision") != before


def test_the_revision_of_a_reader_tells_nothing_of_other_teams_runs(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(ExperimentKey("ours")))
    looked = Looked(tmp_path)

    def revision(*experiments: str) -> bytes:
        return looked.pages.answer(Question("revision", {}, experiments)).body

    before, of_none = revision("our*"), revision("nobody")
    write_run(tmp_path, LookedAt(ExperimentKey("theirs")), now_ns=T0 + S)
    assert revision("our*") == before
    assert revision("nobody") == of_none
    assert revision("their*") != of_none
    write_run(tmp_path, LookedAt(ExperimentKey("ours", "again")), now_ns=T0 + S)
    assert revision("our*") != before


@pytest.mark.parametrize("directory", ["", "beside"])
def test_the_revision_changes_with_a_run_of_a_bridge_whose_clock_is_behind(
    tmp_path: Path, directory: str
) -> None:
    write_run(tmp_path, LookedAt())
    looked = Looked(tmp_path)
    before = looked.get("revision")
    write_run(tmp_path / directory, LookedAt(ExperimentKey("other")), now_ns=T0 - S)
    assert looked.get("revision") != before


def test_a_reader_sees_the_runs_of_its_token_only(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    looked = Looked(tmp_path)

    def status(path: str, experiment: str) -> int:
        return looked.pages.answer(Question(path, {}, [experiment])).status

    seen = looked.pages.answer(Question("runs", {}, ["ppo*"]))
    assert json.loads(seen.body)["runs"] == []
    assert status(f"runs/{RUN}/overview", "ppo*") == 404
    assert status(f"runs/{RUN}/overview", "gr*") == 200


@pytest.mark.parametrize(
    "path", ["", "nothing", "runs/none/overview", f"runs/{RUN}/nothing", "../journal.db"]
)
def test_what_is_not_there_is_404(looked: Looked, path: str) -> None:
    assert looked.ask(path).status == 404


def test_a_parameter_that_is_no_number_is_400(looked: Looked) -> None:
    assert looked.ask(f"runs/{RUN}/timeline", first="much").status == 400
    assert looked.ask(f"runs/{RUN}/timeline", first="inf").status == 400


def test_a_question_that_fails_unforeseen_is_500_and_logged_and_others_are_answered(
    looked: Looked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "log", lambda *_: dict[str, int]()["missing"])
    answers = [looked.ask(f"runs/{RUN}/log") for _ in range(2)]
    assert [one.status for one in answers] == [500, 500]
    assert "KeyError" in json.loads(answers[0].body)["error"]
    (record,) = caplog.records  # once a minute: an open page asks every second
    assert record.exc_info is not None
    assert f"runs/{RUN}/log" in record.getMessage()
    assert looked.ask(f"runs/{RUN}/overview").status == 200


def test_a_run_that_has_diverged_does_not_show_its_last_number(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(diverges_at=15))
    (run,) = Looked(tmp_path).get("runs")["runs"]
    assert run["shown"]["last"] == "nan"


@pytest.mark.parametrize(
    ("status", "lasted_s"), [(ExperimentStatus.COMPLETE, 0), (ExperimentStatus.RUNNING, 10)]
)
def test_an_ended_run_grows_no_older(
    tmp_path: Path, status: ExperimentStatus, lasted_s: float
) -> None:
    write_run(tmp_path, LookedAt(status=status))
    (run,) = Looked(tmp_path).get("runs")["runs"]
    assert (run["lasted_s"], run["idle_s"]) == (lasted_s, 10)


def test_any_key_of_a_run_can_be_compared(looked: Looked) -> None:
    sections = looked.get(f"runs/{RUN}/series")["sections"]
    keys = [key for section in sections for key in section["keys"]]
    assert keys == ["trainer/reward/mean", "trainer/loss", "trainer/iteration/duration"]
    points = looked.get(f"runs/{RUN}/series", key="trainer/loss")
    assert (points["xs"], points["ys"][3]) == (list(range(1, 21)), 0.25)
    hours = looked.get(f"runs/{RUN}/series", key="trainer/loss", x="time")["xs"]
    assert (hours[0], hours[-1]) == (0.0, pytest.approx(19 / 3600))
    assert looked.get(f"runs/{RUN}/series", key="other")["xs"] == []


# Overview


def test_charts_are_those_of_the_dashboard(looked: Looked) -> None:
    sections = looked.get(f"runs/{RUN}/overview")["sections"]
    titles = {
        section["title"]: [panel["title"] for panel in section["panels"]] for section in sections
    }
    assert titles == {
        "Learning": ["Reward mean, trainer", "Train loss, trainer"],
        "Step time": ["Iteration duration, trainer (s)"],
    }


def panel(looked: Looked, title: str, **query: str) -> list[dict[str, Any]]:
    sections = looked.get(f"runs/{RUN}/overview")["sections"]
    (chosen,) = [one for of in sections for one in of["panels"] if one["title"].startswith(title)]
    lines: list[dict[str, Any]] = looked.get(f"runs/{RUN}/panel", id=chosen["id"], **query)["lines"]
    return lines


def test_a_chart_has_every_step_of_a_short_run(looked: Looked) -> None:
    (line,) = panel(looked, "Train loss")
    assert line["xs"] == list(range(1, 21))
    assert line["ys"][3] == 0.25


def test_a_chart_by_time_and_a_part_of_it(looked: Looked) -> None:
    (line,) = panel(looked, "Train loss", x="time")
    assert line["xs"][-1] == T0 / 1e6
    (line,) = panel(looked, "Train loss", first="5", last="6")
    assert line["xs"] == [4, 5, 6, 7]


def test_new_rows_are_read_on(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(steps=3))
    looked = Looked(tmp_path)
    assert len(panel(looked, "Train loss")[0]["xs"]) == 3
    found = looked.pages._journals.run(RUN)
    assert found is not None
    progress = looked.pages._journals.read(found, budget_s=0)
    assert (progress.share, progress.data.last_step) == (1.0, 3)


def test_of_a_long_history_the_list_has_the_newest_reward_without_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lines, "_MAX_SPARK_BYTES", 0)
    write_run(tmp_path, LookedAt())
    (run,) = Looked(tmp_path).get("runs")["runs"]
    assert (run["shown"]["last"], run["shown"]["ys"]) == (pytest.approx(0.95), [])


def test_a_long_history_is_read_in_turns_and_says_how_far(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(steps=600, workers=1))
    looked = Looked(tmp_path)
    found = looked.pages._journals.run(RUN)
    assert found is not None
    shares = [looked.pages._journals.read(found, budget_s=0).share for _ in range(4)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 1 == shares[-1]


def test_the_headline_of_a_history_that_is_half_read_is_of_its_newest_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journals.read, "__kwdefaults__", {"budget_s": 0})
    write_run(tmp_path, LookedAt(steps=600, workers=1))
    looked = Looked(tmp_path)
    answer = looked.ask(f"runs/{RUN}/overview")
    half = json.loads(gzip.decompress(answer.body) if answer.encoding else answer.body)
    whole = looked.get(f"runs/{RUN}/overview")
    assert half["read"] < 1
    assert half["shown"]["last"] == whole["shown"]["last"]
    assert half["step_s"] == whole["step_s"]


def test_without_spans_a_step_takes_the_time_between_its_values(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(steps=40))
    data = Journals(BridgeSettings(data=tmp_path).journal_place)
    found = data.all()
    read = data.read(found[0]).data
    read.steps.clear()
    assert overview.step_seconds(read) == pytest.approx(1.0)
    read.series.clear()
    assert overview.step_seconds(read) is None
    data.close()


def test_a_crash_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(status=ExperimentStatus.CRASHED))
    assert Looked(tmp_path).get(f"runs/{RUN}/overview")["state"] == "crashed"


def test_the_verdict_is_that_of_diagnose(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(steps=60, slow=2))
    found = Looked(tmp_path).get(f"runs/{RUN}/diagnosis")
    assert found["verdict"] == "cause"
    assert (found["causes"][0]["kind"], found["causes"][0]["worker"]) == ("straggler", "trainer/2")


# Workers


def test_a_cause_has_the_time_of_the_step_at_which_it_began(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(steps=60, slow=2, slow_from=31))
    (cause,) = Looked(tmp_path).get(f"runs/{RUN}/diagnosis")["causes"]
    assert cause["since_step"] == 31
    assert cause["since_ms"] == (T0 - 29 * S) / 1e6


def test_a_slow_worker_is_a_row_and_a_slow_step_a_column(looked: Looked) -> None:
    found = looked.get(f"runs/{RUN}/workers", phase="trainer/train")["heatmap"]
    assert found["workers"] == [f"trainer/{n}" for n in range(4)]
    assert min(found["seconds"][2]) > 3
    assert [row[found["steps"].index(7)] > 3 for row in found["seconds"]] == [True] * 4
    assert max(found["seconds"][0][:6]) < 2


def test_of_a_thousand_workers_the_slow_one_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(workers=1_000, steps=5, slow=613))
    found = Looked(tmp_path).get(f"runs/{RUN}/workers")["heatmap"]
    assert (len(found["workers"]), found["left_out"]) == (200, 800)
    row = found["seconds"][found["workers"].index("trainer/613")]
    assert min(row) > 3


def test_many_steps_share_columns_that_show_the_longest(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(workers=1, steps=1_000, slow_step=500))
    found = Looked(tmp_path).get(f"runs/{RUN}/workers")["heatmap"]
    assert (len(found["steps"]), found["width"]) == (200, 5)
    assert max(found["seconds"][0]) > 3


def test_a_phase_that_is_not_there_has_no_picture(looked: Looked) -> None:
    for name in ("trainer/nothing", "=trainer/nothing"):
        found = looked.get(f"runs/{RUN}/workers", phase=name)
        assert (found["heatmap"], found["deviations"]) == (None, None)


@pytest.mark.parametrize("slow", [0, 41])
def test_without_phases_the_measurement_that_a_worker_has_odd_is_shown(
    tmp_path: Path, slow: int
) -> None:
    write_run(tmp_path, LookedAt(workers=64, steps=30, slow=slow, has_phases=False))
    found = Looked(tmp_path).get(f"runs/{RUN}/workers")
    assert [one["key"] for one in found["measurements"]] == [MEASURED, "trainer/loss"]
    assert (found["phases"], found["heatmap"], found["chosen"]) == ([], None, f"={MEASURED}")
    rows = found["deviations"]
    assert (rows["steps"], rows["width"]) == ([*range(1, 31)], 1)
    far = {
        worker: max(map(abs, row))
        for worker, row in zip(rows["workers"], rows["deviations"], strict=True)
    }
    assert [worker for worker, most in far.items() if most > 0.2] == [f"trainer/{slow}"]
    assert rows["values"][slow][0] == pytest.approx(4.05, abs=0.06)


def test_measurements_of_many_steps_and_workers_are_bounded(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(workers=300, steps=500, slow=7, has_phases=False))
    found = Looked(tmp_path).get(f"runs/{RUN}/workers")["deviations"]
    assert (len(found["workers"]), found["left_out"], found["width"]) == (200, 100, 3)
    assert (found["steps"][0], len(found["steps"])) == (1, 167)
    assert min(found["deviations"][found["workers"].index("trainer/7")]) > 2


def test_a_key_of_one_worker_has_no_peers(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(workers=1, has_phases=False))
    found = Looked(tmp_path).get(f"runs/{RUN}/workers")
    assert (found["measurements"], found["chosen"], found["deviations"]) == ([], "", None)


# Rollouts


def test_rollouts_are_searched_in_any_case(looked: Looked) -> None:
    found = looked.get(f"runs/{RUN}/rollouts", search="ADD 7 AND")
    assert (found["matching"], found["all"], len(found["rewards"])) == (1, 40, 1)
    sample = dict(zip(found["columns"], found["samples"][0], strict=True))
    assert sample == {"prompt": "add 7 and 7", "completion": "14", "reward": 7 / 40}


@pytest.fixture
def sampled(tmp_path: Path) -> Looked:
    """A run with two samples in every fifth step, of which a few have no reward."""
    samples: list[Mapping[str, str | float]] = [
        {"step": step, "completion": f"{step}{part}", "reward": reward}
        for step, rewards in {5: (0.25, math.nan), 10: (1.0, 0.0)}.items()
        for part, reward in zip("ab", rewards, strict=True)
    ]
    write_run(tmp_path, LookedAt(samples=samples))
    return Looked(tmp_path)


@pytest.mark.parametrize(("step", "shown"), [("10", 10), ("9", 5), ("5", 5)])
def test_rollouts_of_a_step_are_those_of_the_last_step_with_some(
    sampled: Looked, step: str, shown: int
) -> None:
    found = sampled.get(f"runs/{RUN}/rollouts", step=step)
    assert (found["matching"], found["all"]) == (2, 4)
    assert {sample[found["columns"].index("step")] for sample in found["samples"]} == {shown}


def test_before_the_first_samples_there_are_none(sampled: Looked) -> None:
    assert sampled.get(f"runs/{RUN}/rollouts", step="4")["samples"] == []


@pytest.mark.parametrize(
    ("order", "completions"), [("lowest", ["10b", "5a", "10a"]), ("highest", ["10a", "5a", "10b"])]
)
def test_rollouts_are_ordered_by_reward_and_those_without_come_last(
    sampled: Looked, order: str, completions: list[str]
) -> None:
    found = sampled.get(f"runs/{RUN}/rollouts", order=order)
    place = found["columns"].index("completion")
    assert [sample[place] for sample in found["samples"]] == [*completions, "5b"]


def test_rewards_of_a_step_have_their_range_and_the_shares_that_say_nothing(tmp_path: Path) -> None:
    samples = [
        {"step": step, "reward": reward}
        for step, rewards in ((1, [0.0] * 6 + [0.5] * 4), (2, [0.2] * 5 + [1.0] * 5))
        for reward in rewards
    ]
    write_run(tmp_path, LookedAt(samples=[*samples, {"step": 3, "reward": math.nan}]))
    found = Looked(tmp_path).get(f"runs/{RUN}/rollouts")
    assert found["by_step"] == [[1, 0.0, 0.0, 0.5, 0.6, 0.0], [2, 0.2, 0.2, 1.0, 0.0, 0.5]]


def test_an_unknown_order_is_refused(sampled: Looked) -> None:
    assert sampled.ask(f"runs/{RUN}/rollouts", order="best").status == 400


def test_a_long_line_is_saved_whole_and_drawn_with_its_means(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(steps=1_500, workers=1))
    looked = Looked(tmp_path)
    panel = looked.get(f"runs/{RUN}/overview")["sections"][0]["panels"][0]["id"]
    (drawn,) = looked.get(f"runs/{RUN}/panel", id=panel)["lines"]
    (whole,) = looked.get(f"runs/{RUN}/panel", id=panel, every="1")["lines"]
    assert len(drawn["xs"]) <= 600
    assert len(drawn["trend"][0]) == 300
    assert whole["xs"] == [*range(1, 1_501)]
    assert whole["trend"] == [[], []]


def test_config_and_code_of_a_run_can_be_compared(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(config={"lr": 0.5, "model": {"layers": 2}}))
    found = Looked(tmp_path).get(f"runs/{RUN}/environment")
    assert found["config lr"] == "0.5"
    assert found["config model.layers"] == "2"


def test_without_rollouts_the_page_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    assert Looked(tmp_path).get(f"runs/{RUN}/rollouts")["all"] == 0


# What senders name


@pytest.fixture
def failing(tmp_path: Path) -> Looked:
    """Three workers, the second of which fails in step 4 of 6, and is back two steps later."""
    lines = [
        (f"trainer/{worker}", "stderr", f"{word} {step}")
        for step in range(1, 7)
        for worker, word in enumerate(("Loss", "Error", "loss"))
    ]
    lost = WorkerFailure("trainer/1", T0 - 2 * S, "MemoryError", step=4, recovery_s=1.9)
    write_run(tmp_path, LookedAt(steps=6, console=lines, failures=[lost]))
    return Looked(tmp_path)


def test_lines_of_a_worker_are_found_by_their_text_in_any_case_and_in_order(
    failing: Looked,
) -> None:
    found = failing.get(f"runs/{RUN}/log")
    assert (found["all"], found["workers"]) == (18, ["trainer/0", "trainer/1", "trainer/2"])
    assert [one[0] for one in found["lines"]] == list(range(18))
    losses = failing.get(f"runs/{RUN}/log", search="LOSS")["lines"]
    assert {one[2] for one in losses} == {"trainer/0", "trainer/2"}
    own = failing.get(f"runs/{RUN}/log", worker="trainer/1", search="or 5")
    assert [one[2:] for one in own["lines"]] == [["trainer/1", "stderr", "Error 5"]]


def test_of_a_moment_the_log_ends_shortly_after_it(failing: Looked) -> None:
    at = (T0 - 14 * S) / 1e6  # steps take a second, and lines of ten more seconds are shown
    assert failing.get(f"runs/{RUN}/log", at=str(at))["lines"][-1][4] == "loss 2"


def test_the_log_is_read_from_its_end_as_far_as_a_page_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [(f"trainer/{place % 3}", "stdout", f"line {place}") for place in range(6_000)]
    write_run(tmp_path, LookedAt(steps=60, console=[("trainer/9", "stdout", "first"), *lines[1:]]))
    decoded: list[int] = []

    def decode(number: int, body: bytes) -> Row:
        decoded.append(number)
        return decode_row(number, body)

    monkeypatch.setattr(reader, "decode_row", decode)
    known = KnownWorker("a", "trainer/9", WorkerStanding.ALIVE, 0, 0, None)
    monkeypatch.setattr(log_part, "read_standing", lambda *_: Standing([known], ""))
    looked = Looked(tmp_path)
    found = looked.get(f"runs/{RUN}/log")
    assert [one[4] for one in found["lines"]] == [f"line {n}" for n in range(4_000, 6_000)]
    assert (found["all"], found["older"]) == (2_000, True)
    assert decoded == [*range(59, 38, -1)]
    # Who has printed nothing for long can still be chosen.
    assert found["workers"] == ["trainer/0", "trainer/1", "trainer/2", "trainer/9"]
    first = looked.get(f"runs/{RUN}/log", worker="trainer/9")
    assert [one[4] for one in first["lines"]] == ["first"]
    assert (first["all"], first["older"]) == (6_000, False)


def test_names_of_workers_in_the_log_are_made_once_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [(f"trainer/{place % 3}", "stdout", "a line") for place in range(300)]
    write_run(tmp_path, LookedAt(console=lines))
    made: list[str] = []

    def label(text: str) -> str:
        made.append(text)
        return text

    monkeypatch.setattr(log_part, "label", label)
    assert len(Looked(tmp_path).get(f"runs/{RUN}/log", worker="trainer/1")["lines"]) == 100
    assert sorted(made) == ["stdout", "trainer/0", "trainer/1", "trainer/2"]


@pytest.mark.parametrize("text", ["x" * 10_000, "\u65e5" * 4_000, '"' * 10_000])
def test_a_log_of_long_lines_is_an_answer_of_a_megabyte(tmp_path: Path, text: str) -> None:
    write_run(tmp_path, LookedAt(console=[("trainer/0", "stdout", text)] * 300))
    answer = Looked(tmp_path).ask(f"runs/{RUN}/log")
    body = gzip.decompress(answer.body)
    assert 800_000 < len(body) < 1_100_000
    assert json.loads(body)["older"]


def test_events_are_failures_returns_and_where_each_is(failing: Looked) -> None:
    found = failing.get(f"runs/{RUN}/overview")["events"]
    told = [(one["kind"], one["step"], one["worker"]) for one in found["listed"]]
    assert told == [("failure", 4, "trainer/1"), ("restart", 5, "trainer/1")]
    assert "MemoryError" in found["listed"][0]["words"]
    assert found["steps"] == [1, 6]


def test_another_attempt_is_an_event(tmp_path: Path) -> None:
    again = Attempt(2, first_step=3, first_row=5, since_ns=T0 - S)
    write_run(tmp_path, LookedAt(steps=6, attempts=[again]))
    (found,) = Looked(tmp_path).get(f"runs/{RUN}/overview")["events"]["listed"]
    assert (found["kind"], found["step"]) == ("attempt", 3)


def test_names_are_bounded_and_have_no_marks_of_direction(tmp_path: Path) -> None:
    key = ExperimentKey(HOSTILE, HOSTILE)
    sample: dict[str, str | float] = {
        "prompt": HOSTILE,
        "completion": "\u202e" + "y" * 100_000,
        "reward": 1.0,
    }
    write_run(tmp_path, LookedAt(key, keys=[HOSTILE], samples=[sample]))
    looked = Looked(tmp_path)
    run = run_id(key.experiment, key.trial)
    for part in ("overview", "workers", "rollouts", "log", "health", "diagnosis", "timeline"):
        answer = looked.ask(f"runs/{run}/{part}")
        body = gzip.decompress(answer.body) if answer.encoding else answer.body
        assert answer.status == 200
        assert len(body) < 100_000
        assert "\u202e" not in json.dumps(json.loads(body), ensure_ascii=False)


# A real run


@pytest.fixture
def real(tmp_path: Path) -> Looked:
    life = Life(tmp_path)
    for rank in range(RANKS):
        life.take(begin(ENDED, rank), now_ns=start_ns(ENDED))
    for number in range(STEPS):
        for rank in range(RANKS):
            now_ns = start_ns(ENDED) + (number + 1) * S
            used = gpu(ENDED, rank, 0.5 + rank / 4, now_ns)
            life.take(*step(ENDED, rank, number), used, now_ns=now_ns)
    end_ns = start_ns(ENDED) + (STEPS + 1) * S
    life.take(*(end(ENDED, rank, end_ns) for rank in range(RANKS)), now_ns=end_ns)
    life.journal.close()
    return Looked(tmp_path)


def test_the_timeline_has_lanes_of_workers_and_the_critical_path(real: Looked) -> None:
    found = real.get(f"runs/{ENDED_ID}/timeline")
    assert [one["step"] for one in found["steps"]] == [STEPS - 2, STEPS - 1]
    assert [lane["name"] for lane in found["lanes"]] == ["trainer/0", "trainer/1"]
    assert {span["phase"] for span in found["spans"]} == {"", "train"}
    assert math.fsum(part["seconds"] for part in found["path"]) == pytest.approx(2.0)


def test_the_timeline_goes_back_as_far_as_spans_are_kept(real: Looked) -> None:
    found = real.get(f"runs/{ENDED_ID}/timeline", first="3", last="3")
    assert [one["step"] for one in found["steps"]] == [3]
    everything = real.get(f"runs/{ENDED_ID}/timeline", first="-5", last="99")
    assert [one["step"] for one in everything["steps"]] == list(range(STEPS - 8, STEPS))


def forget_recent_spans(real: Looked) -> None:
    with sqlite3.connect(real.directory / "journal.db") as connection:
        connection.execute("DELETE FROM log WHERE kind = 'spans' AND run_id = ?", (ENDED_ID,))


def test_of_a_step_without_spans_the_timeline_has_its_time_and_trace(real: Looked) -> None:
    asked = {"first": "6", "last": "6"}
    assert real.get(f"runs/{ENDED_ID}/timeline", **asked)["gone"] is None
    forget_recent_spans(real)
    gone = real.get(f"runs/{ENDED_ID}/timeline", **asked)["gone"]
    assert (gone["step"], gone["longest"]) == (6, "trainer/train")
    assert len(gone["trace"]) == 32
    later = real.get(f"runs/{ENDED_ID}/timeline", last="99")
    assert later["gone"] == {"step": 99}


def test_of_chosen_steps_the_spans_stay_when_others_are_forgotten(real: Looked) -> None:
    everything = real.get(f"runs/{ENDED_ID}/timeline", first="5", last="5")
    assert everything["known"] == [[0, STEPS - 1]]
    forget_recent_spans(real)
    kept = real.get(f"runs/{ENDED_ID}/timeline", first="5", last="5")
    assert kept["known"] == [[0, 5], [7, 7]]  # the last two were not explained yet
    assert kept["spans"] == everything["spans"]
    change = real.get(f"runs/{ENDED_ID}/change", since="6")
    assert change["before"]["steps"][0]["step"] < 6
    assert change["after"]["steps"][0]["step"] == 7
    assert real.get(f"runs/{ENDED_ID}/change", since="0") == {"before": None, "after": None}


@pytest.mark.parametrize("is_full", [False, True])
def test_when_no_further_steps_are_kept_the_timeline_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    take_log = ChosenSteps.take_log

    def used_up(chosen: ChosenSteps) -> Appended | None:
        log = take_log(chosen)
        chosen.left_bytes -= (16 << 20) * is_full
        return log

    monkeypatch.setattr(ChosenSteps, "take_log", used_up)
    life = Life(tmp_path)
    life.take(begin(ENDED, 0), *step(ENDED, 0, 0), now_ns=start_ns(ENDED) + S)
    life.take(*step(ENDED, 0, 1), now_ns=start_ns(ENDED) + 9 * S)
    life.journal.close()
    found = Looked(tmp_path).get(f"runs/{ENDED_ID}/timeline")
    assert found["known"] == [[0, 1]]
    assert found["is_full"] == is_full


def test_a_finding_keeps_the_spans_of_the_step_at_which_the_fault_began(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.take(*(begin(ENDED, rank) for rank in range(RANKS)), now_ns=start_ns(ENDED))
    for number in range(13):
        now_ns = start_ns(ENDED) + (number + 1) * S
        life.take(
            *(one for rank in range(RANKS) for one in step(ENDED, rank, number)), now_ns=now_ns
        )
    cause = {"kind": "straggler", "role": "trainer", "worker": "trainer/1", "since_step": 8}
    life.processor.add_finding(ENDED, Finding(12, now_ns, "cause", "trainer/1 is slow", [cause]))
    life.take(gpu(ENDED, 0, 0.5, now_ns), now_ns=now_ns + S)
    life.journal.close()
    looked = Looked(tmp_path)
    forget_recent_spans(looked)
    change = looked.get(f"runs/{ENDED_ID}/change", since="8")
    assert change["after"]["steps"][0]["step"] == 8  # which no rule had chosen before
    assert change["before"]["steps"][0]["step"] < 8


def test_processes_have_a_standing_and_a_last_phase(real: Looked) -> None:
    found = real.get(f"runs/{ENDED_ID}/workers")["workers"]
    assert [(one["worker"], one["standing"], one["phase"]) for one in found] == [
        ("trainer/0", "ended", "train"),
        ("trainer/1", "ended", "train"),
    ]
    assert [one["host"] for one in found] == ["host-0", "host-1"]
    used = [{"name": "gpu0", "model": "", "use": 0.5}], [{"name": "gpu0", "model": "", "use": 0.75}]
    assert tuple(one["devices"] for one in found) == used


def test_processes_of_an_interrupted_run_are_not_called_alive(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.take(begin(ENDED, 0), *step(ENDED, 0, 0), now_ns=start_ns(ENDED))
    alive = Looked(tmp_path).get(f"runs/{ENDED_ID}/workers")["workers"]
    assert [one["standing"] for one in alive] == ["alive"]
    life.journal.close()  # as a bridge that was killed
    looked = Looked(tmp_path)
    assert [one["standing"] for one in looked.get(f"runs/{ENDED_ID}/workers")["workers"]] == [
        "unknown"
    ]
    (run,) = looked.get("runs")["runs"]
    assert (run["state"], run["roles"]["trainer"]["alive"]) == ("interrupted", None)


def test_health_has_bounds_and_what_waits(real: Looked) -> None:
    found = real.get(f"runs/{ENDED_ID}/health")
    assert found["unconfirmed"] == found["rows"] > 0  # no tracker was there
    assert found["bounds"][0]["used"] > 0


def test_a_run_of_spans_alone_has_its_newest_step(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    try:
        history = 7 * S, Facts(7 * S, 7).encode()  # and no step of a metric
        RunStore(journal).commit(
            [Commit(ExperimentKey("grpo", "1"), [], 1, b"", added={Log.HISTORY: history})]
        )
    finally:
        journal.close()
    looked = Looked(tmp_path)
    assert looked.get(f"runs/{RUN}/overview")["step"] == 7
    assert [run["step"] for run in looked.get("runs")["runs"]] == [7]
