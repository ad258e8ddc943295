"""The delivery store: rows go only after this tracker has confirmed them. Both kinds of journal."""

import time
from collections.abc import Callable

import pytest

from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.retention import delete_run
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.records import ExperimentKey, Row
from tests.support.stores import Store

KEY = ExperimentKey("exp", "trial")


@pytest.fixture
def journal(store: Store) -> Journal:
    return store.open()


def stores(
    journal: Journal, *, max_share: float = 1.0, clock_ns: Callable[[], int] = time.time_ns
) -> tuple[RunStore, DeliveryStore]:
    run_store = RunStore(journal, max_share=max_share)
    deliveries = DeliveryStore(journal, "wandb", has_room=run_store.has_room, clock_ns=clock_ns)
    return run_store, deliveries


def row(number: int, **values: float) -> Row:
    return Row(number, number, number, values or {"loss": float(number)})


def commit(*rows: Row) -> Commit:
    return Commit(KEY, rows, len(rows), b"")


def kept(run_store: RunStore) -> list[int]:
    return [row.number for row in run_store.rows(KEY, start=0, limit=10_000)]


def test_a_run_is_unfinished_until_the_tracker_has_closed_it_with_every_row(
    journal: Journal,
) -> None:
    run_store, deliveries = stores(journal)
    run_store.commit([commit(row(0), row(1))])
    deliveries.finish(KEY, 1)
    assert deliveries.unfinished() == [KEY]
    deliveries.finish(KEY, 2)
    assert deliveries.unfinished() == []
    assert DeliveryStore(journal, "jsonl").unfinished() == [KEY]


def test_rows_below_the_number_are_pruned(journal: Journal) -> None:
    run_store, deliveries = stores(journal)
    run_store.commit([commit(*(row(n) for n in range(5_000)))])
    deliveries.confirmed(KEY, 5_000)
    deliveries.prune(KEY, 4_990)
    assert kept(run_store) == list(range(4_990, 5_000))
    assert run_store.next_row(KEY) == 5_000


def test_rows_that_this_tracker_has_not_confirmed_are_never_pruned(journal: Journal) -> None:
    run_store, deliveries = stores(journal)
    run_store.commit([commit(*(row(n) for n in range(10)))])
    DeliveryStore(journal, "jsonl").confirmed(KEY, 10)
    deliveries.prune(KEY, 10)
    assert kept(run_store) == list(range(10))
    deliveries.confirmed(KEY, 4)
    deliveries.prune(KEY, 10)
    assert kept(run_store) == list(range(4, 10))


def test_pruned_rows_make_room_for_others(store: Store) -> None:
    small = store.open(max_bytes=1 << 20)
    run_store, deliveries = stores(small, max_share=0.01)
    run_store.commit([commit(*(row(n, **{"k" * 100: 1.0}) for n in range(100)))])
    assert not run_store.has_room(KEY)
    deliveries.confirmed(KEY, 100)
    deliveries.prune(KEY, 100)
    assert run_store.has_room(KEY)


def test_a_finished_run_is_pruned_when_its_rows_have_been_confirmed_for_long(
    journal: Journal,
) -> None:
    now_ns = 1_000
    run_store, deliveries = stores(journal, clock_ns=lambda: now_ns)
    run_store.commit([commit(*(row(n) for n in range(10)))])
    deliveries.confirmed(KEY, 10)
    deliveries.prune_finished(confirmed_before_ns=now_ns)
    assert kept(run_store) == list(range(10)), "it is not finished"
    deliveries.finish(KEY, 10)
    deliveries.prune_finished(confirmed_before_ns=now_ns - 1)
    assert kept(run_store) == list(range(10)), "it was confirmed just now"
    deliveries.prune_finished(confirmed_before_ns=now_ns)
    assert kept(run_store) == []


def test_a_finished_run_that_has_used_up_its_room_is_pruned_at_once(store: Store) -> None:
    small = store.open(max_bytes=1 << 20)
    run_store, deliveries = stores(small, max_share=0.01)
    run_store.commit([commit(*(row(n, **{"k" * 100: 1.0}) for n in range(100)))])
    deliveries.confirmed(KEY, 100)
    deliveries.finish(KEY, 100)
    deliveries.prune_finished(confirmed_before_ns=0)
    assert run_store.has_room(KEY)


def test_a_finished_run_that_was_never_confirmed_is_kept(journal: Journal) -> None:
    run_store, deliveries = stores(journal)
    run_store.commit([commit(*(row(n) for n in range(10)))])
    deliveries.finish(KEY, 10)  # an offline run
    deliveries.prune_finished(confirmed_before_ns=1 << 62)
    assert kept(run_store) == list(range(10))


def two(journal: Journal) -> tuple[RunStore, DeliveryStore, DeliveryStore]:
    """Ten rows, and the stores of two trackers of one bridge."""
    run_store = RunStore(journal)
    run_store.commit([commit(*(row(n) for n in range(10)))])
    first = DeliveryStore(journal, "wandb", others=["trackio"])
    return run_store, first, first.of("trackio")


def test_rows_stay_until_every_tracker_of_the_bridge_allows_their_removal(
    journal: Journal,
) -> None:
    run_store, first, second = two(journal)
    first.confirmed(KEY, 10)
    first.prune(KEY, 8)
    assert kept(run_store) == list(range(10))
    second.confirmed(KEY, 10)
    assert kept(run_store) == list(range(10))
    second.prune(KEY, 5)
    assert kept(run_store) == list(range(5, 10))


def test_a_tracker_that_has_confirmed_nothing_keeps_rows_from_a_bridge_that_was_started_again(
    journal: Journal,
) -> None:
    run_store, first, _ = two(journal)
    first.confirmed(KEY, 10)
    first.finish(KEY, 10)
    again = DeliveryStore(journal, "wandb", others=["trackio"])
    again.prune_finished(confirmed_before_ns=1 << 62)
    assert kept(run_store) == list(range(10))
    assert again.unfinished() == []
    assert again.of("trackio").unfinished() == [KEY]


def test_rows_that_one_tracker_has_never_confirmed_are_kept_whatever_is_allowed(
    journal: Journal,
) -> None:
    run_store, first, second = two(journal)
    first.confirmed(KEY, 10)
    first.prune(KEY, 10)
    second.prune(KEY, 10)
    assert kept(run_store) == list(range(10))


def test_what_a_tracker_says_of_a_run_that_was_removed_leaves_nothing(journal: Journal) -> None:
    run_store, deliveries = stores(journal)
    run_store.commit([commit(row(0))])
    delete_run(journal, KEY, 1)
    deliveries.confirmed(KEY, 1)
    deliveries.opened(KEY, "there")
    deliveries.reported(KEY, "failed", "late")
    deliveries.prune(KEY, 1)
    with journal.read() as connection:
        assert connection.execute("SELECT * FROM deliveries").fetchall() == []
