"""What a bridge keeps: one journal for all of it, and one set of owners."""

from pathlib import Path

import pytest

from otel_rl.bridge.config import load_settings
from otel_rl.bridge.journal.runs import Commit
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.bridge.stores import Stores
from otel_rl.errors import JournalLocked, LeaseLost
from otel_rl.records import ExperimentKey, Offset, Row
from tests.support.postgres import PostgresServer

KEY = ExperimentKey("e")


def opened(directory: Path, **journal: object) -> Stores:
    given = load_settings(
        None, {"data": directory, "tracker": {"name": "jsonl"}, "journal": journal}
    )
    return Stores(
        given,
        TokenShares(given.team),
        tenant=lambda _: "",
        gained=lambda *_: None,
        lost=lambda _: None,
    )


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
