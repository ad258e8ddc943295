"""Leases in the database: shares, turns, and what is given back."""

from collections.abc import Iterator

import pytest

from otel_rl.bridge.journal.leases import LeaseTable
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.journal.spool import Spool
from otel_rl.records import Batch, ExperimentKey, Signal
from tests.postgres import PostgresServer

KEYS = [ExperimentKey(f"e{n}") for n in range(4)]
LONG_NS = 600 * 10**9


@pytest.fixture
def journal(postgres: PostgresServer) -> Iterator[PostgresJournal]:
    opened = PostgresJournal(postgres.new_url(), connections=2)
    Spool(opened).append([Batch(key, Signal.METRICS, b"x", 5) for key in KEYS])
    yield opened
    opened.close()


def table(owner: str, *, lease_ns: int = LONG_NS) -> LeaseTable:
    return LeaseTable(owner, ["jsonl"], lease_ns=lease_ns)


def claimed(journal: PostgresJournal, leases: LeaseTable, owned: int = 0) -> list[ExperimentKey]:
    found = journal.write(lambda connection: leases.claim(connection, owned=owned))
    return sorted(key for key, _, _ in found)


def test_each_of_two_owners_gets_an_even_share(journal: PostgresJournal) -> None:
    first, second = table("first"), table("second")
    for leases in (first, second):
        journal.write(leases.renew)  # heard of
    shares = [claimed(journal, leases) for leases in (first, second)]
    assert [len(share) for share in shares] == [2, 2]
    assert sorted(key for share in shares for key in share) == KEYS


def test_who_has_its_share_claims_no_more(journal: PostgresJournal) -> None:
    leases = table("first")
    journal.write(leases.renew)
    assert claimed(journal, leases, owned=len(KEYS)) == []


def test_a_lease_that_ended_is_another_owners_in_a_later_turn(journal: PostgresJournal) -> None:
    short, second = table("first", lease_ns=-1), table("second")
    assert claimed(journal, short) == KEYS
    journal.write(second.renew)
    found = journal.write(lambda connection: second.claim(connection, owned=0))
    assert [epoch for _, epoch, _ in found] == [2] * len(KEYS)
    assert journal.write(short.renew) == {}


def test_only_the_owners_runs_are_given_back(journal: PostgresJournal) -> None:
    first, second = table("first"), table("second")
    journal.write(first.renew)
    assert claimed(journal, first) == KEYS
    journal.write(lambda connection: second.give_back(connection, KEYS))
    assert journal.write(second.give_all_back) == 1  # the first, which is alive
    assert sorted(journal.write(first.renew)) == KEYS
    journal.write(lambda connection: first.give_back(connection, KEYS[:1]))
    assert sorted(journal.write(first.renew)) == KEYS[1:]
    assert journal.write(first.give_all_back) == 0
    assert journal.write(first.renew) == {}
