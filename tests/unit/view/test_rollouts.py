"""Rollouts of a whole run: filters, pages, what is joined, what is in flight, and bounds."""

import gzip
import json
import sqlite3
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import Counter, SampleDrop, ValueFold
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.bridge.rows import rollouts as bridge_rollouts
from otel_rl.bridge.rows.series.streams import WorkerState
from otel_rl.records import Batch, ExperimentKey, TextSample, Value, Worker
from otel_rl.run_id import run_id
from otel_rl.signals import Signal
from otel_rl.view.pages import Pages
from otel_rl.view.parts import rollout_index
from otel_rl.view.questions import Question
from tests.journals.small_run import Life, S
from tests.support.otlp_requests import event, logs_request
from tests.support.rollouts import progress, sample, write_rollouts

T0 = 1_700_000_000 * S
KEY = ExperimentKey("grpo")
RUN = run_id(KEY.experiment, KEY.trial)


class Looked:
    """Pages over one directory."""

    def __init__(self, directory: Path, now_ns: int = T0 + 100 * S) -> None:
        self.pages = Pages(BridgeSettings(data=directory), clock_ns=lambda: now_ns)

    def ask(self, part: str = "rollouts", **query: str) -> Any:
        answer = self.pages.answer(Question(f"runs/{RUN}/{part}", query))
        body = gzip.decompress(answer.body) if answer.encoding else answer.body
        assert answer.status == 200, body
        return json.loads(body)

    def get(self, part: str = "rollouts", **query: str) -> Any:
        """Ask until everything is read."""
        while (found := self.ask(part, **query)).get("read", 1) < 1:
            pass
        return found

    def column(self, name: str, **query: str) -> list[Any]:
        found = self.get(**query)
        return [one[found["columns"].index(name)] for one in found["samples"]]

    def ids_in_flight(self) -> list[str]:
        return [one["id"] for one in self.get("in_flight")["rollouts"]]


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path)
    yield life
    life.journal.close()


# Finished


@pytest.fixture
def many(tmp_path: Path) -> Looked:
    some: list[Mapping[str, Value]] = [
        {
            "id": f"r{n}",
            "step": n // 50,
            "prompt": f"p{n % 5}",
            "completion": f"answer {n}",
            "reward": n % 4 / 4,
            "outcome": ("trained", "timeout")[n % 2],
            "environment": ("math", "code", "web")[n % 3],
        }
        for n in range(600)
    ]
    write_rollouts(tmp_path, KEY, some, T0)
    return Looked(tmp_path)


def test_pages_have_each_rollout_once_the_newest_first(many: Looked) -> None:
    found = [name for page in range(7) for name in many.column("id", page=str(page))]
    assert found == [f"r{n}" for n in reversed(range(600))]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"outcome": "timeout"}, {n for n in range(600) if n % 2}),
        ({"environment": "web"}, {n for n in range(600) if n % 3 == 2}),
        ({"lowest": "0.5", "highest": "0.5"}, {n for n in range(600) if n % 4 == 2}),
        ({"step": "3"}, {*range(150, 200)}),
        ({"search": "ANSWER 12"}, {12, *range(120, 130)}),
        ({"search": "answer 12", "outcome": "trained"}, {12, *range(120, 130, 2)}),
    ],
)
def test_rollouts_are_found_by(many: Looked, query: dict[str, str], numbers: set[int]) -> None:
    found = many.get(**query)
    assert found["matching"] == len(numbers)
    pages = range(len(numbers) // 100 + 1)
    ids = [one for page in pages for one in many.column("id", page=str(page), **query)]
    assert ids == [f"r{n}" for n in sorted(numbers, reverse=True)]


def test_searches_of_several_readers_all_come_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_index, "_READING_S", 0)
    some: list[Mapping[str, Value]] = [{"id": f"{n}", "text": f"word {n}"} for n in range(3_000)]
    write_rollouts(tmp_path, KEY, some, T0)
    looked = Looked(tmp_path)
    looked.get()
    words = ("word 7", "word 8", "word 9", "word 10")
    for _ in range(10):
        found = [looked.ask(search=word) for word in words]
    assert [one["read"] for one in found] == [1, 1, 1, 1]


def test_the_same_prompt_over_steps(many: Looked) -> None:
    one = many.get("prompts")["prompts"][0]["prompt"]
    found = many.get("prompts", prompt=one)
    assert [(row["step"], row["samples"]) for row in found["prompts"]] == [
        (step, 10) for step in reversed(range(12))
    ]
    rewards = many.get(prompt=one, step="11")["rewards"]
    assert found["prompts"][0]["mean"] == pytest.approx(sum(rewards) / 10)


def test_a_rollout_is_all_that_its_records_say(life: Life, tmp_path: Path) -> None:
    life.take(sample(KEY, T0, id="a", prompt="p", completion="c", reward=0.5), now_ns=T0)
    life.take(sample(KEY, T0 + S, of=1, id="a", advantage=-1.0, outcome="masked"), now_ns=T0 + S)
    looked = Looked(tmp_path)
    found = looked.get()
    assert found["all"] == 1
    fields = dict(looked.get("rollout", number=found["numbers"][0])["fields"])
    assert fields == {
        "id": "a",
        "prompt": "p",
        "completion": "c",
        "reward": 0.5,
        "advantage": -1.0,
        "outcome": "masked",
        "worker": "generator/0",
    }
    assert looked.get(outcome="masked")["matching"] == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_what_the_bridge_said_of_a_lost_worker_gives_way_to_the_end(
    tmp_path: Path, is_late: bool
) -> None:
    said: Mapping[str, Value] = {"id": "a", "outcome": "cancelled", "reason": "its worker ended"}
    end: Mapping[str, Value] = {"id": "a", "completion": "c", "reward": 0.5}
    first, second = [(end, "t"), (said, "")] if is_late else [(said, ""), (end, "t")]
    write_rollouts(tmp_path, KEY, [first[0]], T0, first[1])
    looked = Looked(tmp_path)
    number = looked.get()["numbers"][0]
    write_rollouts(tmp_path, KEY, [second[0]], T0 + S, second[1])
    found = looked.get()
    assert (found["all"], found["numbers"], found["tables"]) == (1, [number], ["t"])
    fields = dict(looked.get("rollout", number=number)["fields"])
    assert fields == {**end, "worker": "generator/0"}
    assert looked.get(search="its worker ended")["matching"] == 0
    assert looked.get(outcome="cancelled")["matching"] == 0
    assert looked.get(table="t")["matching"] == 1
    assert looked.get(search="c")["matching"] == 1


def test_rows_of_a_data_set_are_no_rollouts_with_one_id(life: Life, tmp_path: Path) -> None:
    for place, answer in enumerate("xyz"):
        told = sample(KEY, T0 + place, id=7, prompt="p", completion=answer)
        life.take(told, now_ns=T0 + S)
    assert Looked(tmp_path).get()["all"] == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"rollout_id": "a", "attempt": 2},
        {"_ng_rollout_id": "a", "_ng_attempt_index": 1},
        {"id": "a", "attempt": 2},
    ],
)
def test_identities_of_others_are_understood(
    life: Life, tmp_path: Path, fields: dict[str, Any]
) -> None:
    life.take(progress(KEY, T0, id="a", attempt=2), now_ns=T0)
    assert Looked(tmp_path).ids_in_flight() == ["a"]
    life.take(sample(KEY, T0 + S, **fields), now_ns=T0 + S)
    assert Looked(tmp_path).ids_in_flight() == []


def test_a_trackers_table_has_some_of_the_rollouts_and_the_page_all(
    life: Life, tmp_path: Path
) -> None:
    records = [
        event("rl.rollout.sample", {"rl.loop.iteration": 1}, {"id": f"{n}"}, time_ns=T0 + n)
        for n in range(300)
    ]
    resource = {"rl.experiment.name": "grpo", "service.instance.id": "g"}
    request = logs_request(*records, resource=resource)
    life.take(Batch(KEY, Signal.LOGS, request.SerializeToString(), T0), now_ns=T0)
    life.processor.finish(T0 + 60 * S)
    tables = [one for row in life.runs.rows(KEY, start=0, limit=99) for one in row.tables.values()]
    assert sum(len(one.rows) for one in tables) == 256
    assert Looked(tmp_path).get()["all"] == 300
    assert life.counters.value(Counter.VALUES_FOLDED, reason=ValueFold.ROLLOUTS) == 44


def test_the_journal_keeps_the_newest_rollouts_and_counts_the_others() -> None:
    rollouts = bridge_rollouts.Rollouts()
    worker = WorkerState("generator", "0")
    forgotten = 0
    for n in range(400):
        one = TextSample(
            *(Worker("generator", "g"), "samples", 1, T0 + n),
            *({"id": f"{n}", "text": f"{n**99}"}, n),
        )
        rollouts.finish(one, worker, "generator/samples")
        rollouts.take_finished(T0 + n, 20_000)
        forgotten = max(forgotten, rollouts.kept.forgotten)
    assert sum(size for _, size, _ in rollouts.kept.parts) <= 20_000
    assert rollouts.kept.forgotten + sum(n for *_, n in rollouts.kept.parts) == 400
    assert rollouts.newly_forgotten == rollouts.kept.forgotten > 0
    assert len(rollouts.kept.parts) <= 64


def test_a_damaged_part_costs_its_own_rollouts(tmp_path: Path) -> None:
    some: list[Mapping[str, Value]] = [{"id": f"{n}"} for n in range(1_024)]
    write_rollouts(tmp_path, KEY, some, T0)
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as connection:
        connection.execute(
            "UPDATE log SET body = ? WHERE number = (SELECT MIN(number) FROM log)", (b"x",)
        )
        connection.commit()
    found = Looked(tmp_path).get()
    assert (found["all"], found["damaged"]) == (512, 1)


def test_an_index_is_bounded_and_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_index, "MAX_HEADS", 1_000)
    write_rollouts(tmp_path, KEY, [{"id": f"{n}", "n": n} for n in range(1_500)], T0)
    looked = Looked(tmp_path)
    found = looked.get()
    assert found["all"] + found["left_out"] == 1_500
    assert found["all"] <= 1_000
    assert looked.column("id")[0] == "1499"


# In flight


def test_the_one_without_progress_for_longest_is_first_then_the_oldest(
    life: Life, tmp_path: Path
) -> None:
    begun = {"a": 0, "b": 1, "c": 2, "d": 3}
    for name, at in begun.items():
        life.take(progress(KEY, T0 + at * S, id=name), now_ns=T0 + at * S)
    for name in "abd":
        life.take(
            progress(KEY, T0 + 4 * S, id=name, begun_ns=T0 + begun[name] * S, stage="env_step"),
            now_ns=T0 + 4 * S,
        )
    looked = Looked(tmp_path, T0 + 10 * S)
    assert looked.ids_in_flight() == ["c", "a", "b", "d"]
    first, *others = looked.get("in_flight")["rollouts"]
    assert (first["stage"], first["age_s"], first["quiet_s"]) == ("generate", 8, 8)
    assert [one["is_stalled"] for one in (first, *others)] == [True, False, False, False]


def test_the_last_of_a_group_holds_up_the_buffer(life: Life, tmp_path: Path) -> None:
    for n, (name, group) in enumerate({"a": "g", "b": "g", "c": "h", "d": "h"}.items()):
        life.take(progress(KEY, T0 + n, id=name, group=group), now_ns=T0)
    life.take(sample(KEY, T0 + S, id="c", group="h"), now_ns=T0 + S)
    told = Looked(tmp_path).get("in_flight")["rollouts"]
    assert [(one["id"], one["group_ended"]) for one in told if one["is_blocking"]] == [("d", 1)]


def test_a_group_waits_for_its_own_step_only(life: Life, tmp_path: Path) -> None:
    for n in range(3):  # of the epoch before
        life.take(sample(KEY, T0 + n, at=1, id=f"{n}", group="g"), now_ns=T0)
        life.take(sample(KEY, T0 + n, id=f"no step {n}", group="h"), now_ns=T0)
    for name, group, step in (("a", "g", 9), ("b", "g", 9), ("c", "h", None), ("d", "h", None)):
        life.take(progress(KEY, T0 + S, at=step, id=name, group=group), now_ns=T0 + S)
    life.take(sample(KEY, T0 + 2 * S, at=9, id="a", group="g"), now_ns=T0 + 2 * S)
    life.take(sample(KEY, T0 + 2 * S, id="c", group="h"), now_ns=T0 + 2 * S)
    told = Looked(tmp_path).get("in_flight")["rollouts"]
    assert {one["id"]: one["group_ended"] for one in told} == {"b": 1, "d": 1}


def test_progress_that_comes_after_the_end_revives_nothing(life: Life, tmp_path: Path) -> None:
    life.take(sample(KEY, T0 + 2 * S, id="a"), now_ns=T0 + S)
    life.take(progress(KEY, T0 + S, id="a"), now_ns=T0 + S)
    assert Looked(tmp_path).ids_in_flight() == []
    life.take(progress(KEY, T0 + 3 * S, id="a"), now_ns=T0 + 3 * S)  # it is tried again
    assert Looked(tmp_path).ids_in_flight() == ["a"]


def test_rollouts_of_a_lost_worker_end_as_cancelled(life: Life, tmp_path: Path) -> None:
    life.take(progress(KEY, T0, id="a", stage="env_step"), now_ns=T0)
    for second in range(1, 400):
        told = sample(KEY, T0 + second * S, of=1, id=f"{second}")
        life.take(told, now_ns=T0 + second * S)
    looked = Looked(tmp_path)
    assert looked.ids_in_flight() == []
    found = looked.get(outcome="cancelled")
    assert [one[found["columns"].index("id")] for one in found["samples"]] == ["a"]
    assert looked.column("reason", outcome="cancelled") == [
        "its worker generator/0 ended in env_step"
    ]


def test_a_rollout_of_a_worker_that_comes_back_comes_back(life: Life, tmp_path: Path) -> None:
    told: dict[str, Any] = {"id": "a", "begun_ns": T0, "progress_ns": T0, "stage": "env_step"}
    life.take(progress(KEY, T0, **told), now_ns=T0)
    for second in range(1, 400):
        life.take(sample(KEY, T0 + second * S, of=1, id=f"{second}"), now_ns=T0 + second * S)
    looked = Looked(tmp_path, T0 + 410 * S)
    assert looked.ids_in_flight() == []
    life.take(progress(KEY, T0 + 400 * S, **told), now_ns=T0 + 400 * S)
    (one,) = looked.get("in_flight")["rollouts"]
    assert (one["id"], one["stage"], one["quiet_s"]) == ("a", "env_step", 410)


def test_what_is_told_again_is_not_written_again() -> None:
    rollouts = bridge_rollouts.Rollouts()
    fields: Mapping[str, Value] = {
        "id": "a",
        "begun_ns": T0,
        "progress_ns": T0,
        "stage": "env_step",
    }
    for again in range(2):
        one = TextSample(Worker("generator", "g"), "samples", 1, T0 + again, fields, again)
        rollouts.progress(one, WorkerState("generator", "0"))
        assert (rollouts.take_open(T0 + again) is None) == bool(again)


def test_what_is_in_flight_outlives_a_bridge(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.take(progress(KEY, T0, id="a"), progress(KEY, T0, id="b"), now_ns=T0)
    life.journal.close()
    life = Life(tmp_path)
    assert Looked(tmp_path).ids_in_flight() == ["a", "b"]
    life.take(sample(KEY, T0 + S, id="a"), now_ns=T0 + S)
    life.journal.close()
    assert Looked(tmp_path).ids_in_flight() == ["b"]


def test_rollouts_in_flight_are_bounded_and_further_ones_counted(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_rollouts, "MAX_IN_FLIGHT", 3)
    for n in range(5):
        life.take(*[progress(KEY, T0 + n * S, id=f"{n}")] * 2, now_ns=T0 + n * S)
    assert Looked(tmp_path).ids_in_flight() == ["0", "1", "2"]
    dropped = life.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.TOO_MANY_IN_FLIGHT)
    assert dropped == 2


# Size


@pytest.mark.slow
def test_a_view_of_100_000_rollouts_takes_less_than_a_second_and_bounded_memory(
    tmp_path: Path,
) -> None:
    """In seconds of CPU, so that a busy machine fails nobody."""
    some: list[Mapping[str, Value]] = [
        {
            "id": f"r{n}",
            "step": n // 256,
            "prompt": f"prompt {n // 8} " + "why " * 20,
            "completion": f"answer {n} " + "because " * 100,
            "reward": n % 97 / 97,
            "outcome": ("trained", "timeout")[n % 2],
            "environment": "math",
        }
        for n in range(100_000)
    ]
    write_rollouts(tmp_path, KEY, some, T0)
    del some
    looked = Looked(tmp_path)

    def took_s(part: str = "rollouts", **query: str) -> float:
        begun_s = time.process_time()
        looked.ask(part, **query)
        return time.process_time() - begun_s

    tracemalloc.start()
    looked.get()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 120e6
    views: list[tuple[str, dict[str, str]]] = [
        ("rollouts", {}),
        ("rollouts", {"page": "700"}),
        ("rollouts", {"outcome": "timeout", "lowest": "0.5", "order": "highest"}),
        ("rollouts", {"search": "answer 777"}),
        ("rollouts", {"step": "200"}),
        ("prompts", {}),
        ("in_flight", {}),
    ]
    assert {
        f"{part} {query}": took for part, query in views if (took := took_s(part, **query)) > 1
    } == {}
    assert looked.get(search="answer 777 ")["matching"] == 1
