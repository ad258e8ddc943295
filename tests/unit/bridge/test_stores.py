"""What a bridge keeps: one journal for all of it, and one set of owners."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from otel_rl.bridge.config import load_settings
from otel_rl.bridge.counters import Counters
from otel_rl.bridge.journal.runs import Commit
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.bridge.rows.scheduler import Around, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.stores import Stores
from otel_rl.errors import JournalLocked, LeaseLost
from otel_rl.records import Batch, ExperimentKey, Offset, Row, Signal
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.postgres import PostgresServer

KEY = ExperimentKey("e")


S = 1_000_000_000
T0 = 1_700_000_000 * S
MIB = 1 << 20


def opened(
    directory: Path,
    teams: Sequence[str] = (),
    clock_s: Callable[[], float] = time.monotonic,
    **journal: object,
) -> Stores:
    team = [
        {"name": name, "experiments": [f"{name}/*"], "sha256": [sha256(name.encode()).hexdigest()]}
        for name in teams
    ]
    given = load_settings(
        None, {"data": directory, "tracker": {"name": "jsonl"}, "journal": journal, "team": team}
    )
    return Stores(
        given,
        TokenShares(given.team),
        tenant=team_of,
        gained=lambda *_: None,
        lost=lambda _: None,
        clock_s=clock_s,
    )


def team_of(key: ExperimentKey) -> str:
    return key.experiment.split("/")[0]


def wide(key: ExperimentKey) -> Batch:
    """One step with a row of 25 kB: its keys are long."""
    metrics = []
    for number in range(200):
        one = point(float(number), T0)
        one.attributes.extend(key_values({"n": number}))
        metrics.append(gauge(one, name=f"{'long' * 25}.{number}"))
    of = {"rl.experiment.name": key.experiment, "rl.worker.role": "trainer"}
    request = metrics_request(*metrics, resource=of)
    return Batch(key, Signal.METRICS, request.SerializeToString(), T0)


def test_a_closed_journal_can_be_opened_again(tmp_path: Path) -> None:
    stores = opened(tmp_path)
    with pytest.raises(JournalLocked):
        opened(tmp_path)
    stores.close()
    opened(tmp_path).close()


def test_alone_every_run_is_its_own(tmp_path: Path) -> None:
    stores = opened(tmp_path)
    assert stores.leases is None
    assert stores.run_store.is_ours(KEY)
    stores.close()


def test_with_others_nothing_of_a_run_is_written_without_its_lease(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    stores = opened(tmp_path, url=postgres.new_url())
    try:
        with stores.journal.read() as connection:
            connection.execute("SELECT 1").fetchone()
        for change in (
            lambda: stores.deliveries.confirmed(KEY, 1),
            lambda: stores.spool.set_aside(KEY, Offset(1)),
            lambda: stores.run_store.rows(KEY, start=0, limit=1),
        ):
            with pytest.raises(LeaseLost):
                change()
        assert not stores.run_store.is_ours(KEY)
    finally:
        stores.close()


def test_a_run_that_may_not_have_more_rows_is_pruned_at_once(tmp_path: Path) -> None:
    stores = opened(tmp_path, max_bytes=1 << 20)
    row = Row(0, 0, 1, {"k" * 600_000: 1.0})
    stores.run_store.commit([Commit(KEY, [row], 1, b"")])
    stores.deliveries.confirmed(KEY, 1)
    stores.deliveries.finish(KEY, 1)
    stores.deliveries.prune_finished(confirmed_before_ns=0)
    left = stores.run_store.rows(KEY, start=0, limit=1)
    stores.close()
    assert left == []


def test_steps_that_become_rows_wait_for_room_in_the_share_of_their_team(
    tmp_path: Path,
) -> None:
    now_s = 0
    first, second, third = (
        [ExperimentKey(f"a/{group}-{n}") for n in range(12)] for group in range(3)
    )

    def until(end: int) -> None:
        nonlocal now_s
        while now_s < end:
            now_s += 1
            while drain.round(T0 + now_s * S):
                pass

    with closing(opened(tmp_path, ["a", "b"], lambda: float(now_s), max_bytes=MIB)) as stores:
        drain = Scheduler(
            stores.spool,
            stores.run_store,
            AlignSettings(),
            Counters(),
            around=Around(tenant=team_of),
        )
        for some in (first, second, third):
            for key in some:
                stores.spool.append([wide(key)])
            until(now_s + 4)
        until(now_s + 60)  # all steps are complete; no tracker takes a row
        # Each run has one row of its start, and one of its step.
        assert [stores.run_store.next_row(key) for key in second] == [2] * 12
        assert [stores.run_store.next_row(key) for key in third] == [1] * 12
        stores.spool.append([wide(ExperimentKey("b/0"))])  # is not refused
        # Once the tracker has rows, the other steps become rows.
        for key in first:
            stores.deliveries.confirmed(key, stores.run_store.next_row(key))
            stores.deliveries.prune(key, stores.run_store.next_row(key))
        until(now_s + 60)
        assert [stores.run_store.next_row(key) for key in third] == [2] * 12
