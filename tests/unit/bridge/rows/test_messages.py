"""What processes announce of a run, put together."""

import itertools

import pytest

from otel_rl.bridge.journal.state import decode, encode
from otel_rl.bridge.rows.messages import (
    MAX_CONFIG_KEYS,
    MAX_HOSTS,
    MAX_TAGS,
    RunMetadata,
)
from otel_rl.records import Announcement, ExperimentStatus, Provenance

RUNNING = ExperimentStatus.RUNNING
COMPLETE = ExperimentStatus.COMPLETE
ABORTED = ExperimentStatus.ABORTED
CRASHED = ExperimentStatus.CRASHED


def about(*announcements: Announcement) -> RunMetadata:
    made = RunMetadata()
    made.add(announcements)
    return made


def after_a_restart(said: RunMetadata) -> RunMetadata:
    return decode(encode(said), RunMetadata)


def test_the_config_of_all_processes_is_one() -> None:
    said = about(Announcement(1, config={"lr": 0.1}), Announcement(2, config={"tp": 8}))
    assert said.describe().config == {"lr": 0.1, "tp": 8}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_in_which_announcements_come_makes_no_difference(order: tuple[int, ...]) -> None:
    announcements = [
        Announcement(1, RUNNING, {"lr": 0.1, "seed": 1}, "first", ["a"], "old", "train"),
        Announcement(2, None, {"lr": 0.2}, None, ["b"], "new", None),
        Announcement(2, None, {"lr": 0.3}, "second", ["b"], None, None),
        Announcement(3, COMPLETE),
    ]
    description = about(*(announcements[place] for place in order)).describe()
    assert description.config == {"lr": 0.3, "seed": 1}
    assert (description.notes, description.group, description.job_type) == (
        "second",
        "new",
        "train",
    )
    assert sorted(description.tags) == ["a", "b"]
    assert description.status is COMPLETE


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_run_stays_in_the_project_that_was_named_first(order: tuple[int, ...]) -> None:
    announcements = [
        Announcement(1, project="first", mode="offline"),
        Announcement(2, project="second", entity="team", mode="online", name="old"),
        Announcement(3, project="", name="new"),
    ]
    said = about(*(announcements[place] for place in order))
    for one in (said, after_a_restart(said)):
        found = one.describe()
        assert (found.project, found.entity, found.mode) == ("first", "team", "offline")
        assert found.name == "new"


def test_the_first_run_of_the_programs_own_that_can_be_joined_stays_the_one() -> None:
    said = about()
    assert said.describe().own_run is None
    found = []
    for time_ns, path in ((5, ""), (4, "team/grpo/a"), (1, "team/grpo/b"), (9, "")):
        said.add([Announcement(time_ns, own_run=path), Announcement(7)])
        said = after_a_restart(said)
        found.append(said.describe().own_run)
    assert found == ["", *["team/grpo/a"] * 3]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_defaults_hold_where_no_process_gives_the_key(order: tuple[int, ...]) -> None:
    announcements = [
        Announcement(1, RUNNING, {"lr": 0.8}, defaults={"lr": 0.1, "seed": 1}),
        Announcement(2, RUNNING, defaults={"lr": 0.1, "seed": 2}),
        Announcement(3, RUNNING, {"tp": 8}),
        Announcement(0, RUNNING, {"model": "q"}, defaults={"model": "p"}),
    ]
    said = about()
    for place in order:
        said.add([announcements[place]])
        said = after_a_restart(said)
    assert said.describe().config == {"lr": 0.8, "seed": 2, "tp": 8, "model": "q"}


def test_what_is_repeated_changes_nothing() -> None:
    once = Announcement(1, RUNNING, {"lr": 0.1}, tags=["a"])
    assert about(once, once).describe() == about(once).describe()


def test_a_process_that_starts_after_the_end_makes_the_run_running_again() -> None:
    assert about(Announcement(2, RUNNING), Announcement(1, ABORTED)).describe().status is RUNNING


def test_what_was_said_of_the_end_wins_over_what_workers_did() -> None:
    assert about(Announcement(1, ABORTED)).describe(CRASHED).status is ABORTED


def test_without_a_word_of_the_end_what_workers_did_counts() -> None:
    assert about(Announcement(1, RUNNING)).describe(CRASHED).status is CRASHED


def test_keys_and_tags_beyond_the_bounds_are_left_out_and_told() -> None:
    said = RunMetadata()
    config = {f"key{n}": n for n in range(MAX_CONFIG_KEYS + 2)}
    tags = [f"tag{n}" for n in range(MAX_TAGS + 3)]
    assert said.add([Announcement(1, config=config, tags=tags)]) == 5
    assert len(said.describe().config) == MAX_CONFIG_KEYS
    assert said.add([Announcement(2, config={"key0": 7})]) == 0
    assert said.describe().config["key0"] == 7


def started(role: str, index: int = 0, *, host: str = "n1", second: int = 0) -> Announcement:
    provenance = Provenance(role=role, index=index, host=host, time_ns=second, commit=f"c{second}")
    return Announcement(second, provenance=provenance)


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_the_first_trainer_stands_for_the_run_as_it_was_started_last(
    order: tuple[int, ...],
) -> None:
    said = [
        started("generator", host="n2", second=9),
        started("trainer", 1, second=8),
        started("trainer", 0, second=1),
        started("trainer", 0, second=5),
    ]
    description = about(*(said[place] for place in order)).describe()
    assert description.provenance == said[3].provenance
    assert description.hosts == {"n1": ["trainer"], "n2": ["generator"]}


def test_machines_beyond_the_bound_are_left_out_and_told() -> None:
    run = RunMetadata()
    left_out = run.add(started("env", n, host=f"n{n}") for n in range(MAX_HOSTS + 5))
    assert left_out == 5
    assert len(run.describe().hosts) == MAX_HOSTS
