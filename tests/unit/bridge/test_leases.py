"""Each run has one owner at a time, whatever becomes of the bridges."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TypeVar

import pytest

from otel_rl.bridge.journal import Connection
from otel_rl.bridge.journal.leases import Leases
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.ledger import Commit, Ledger
from otel_rl.bridge.spool import Spool
from otel_rl.errors import JournalUnavailable
from otel_rl.records import Batch, ExperimentKey, Offset, Row, Signal
from tests import waiting
from tests.postgres import PostgresServer

LEASE_S = 1.5
DEADLINE_S = 30.0
wait_until = partial(waiting.wait_until, timeout_s=DEADLINE_S)
KEYS = [ExperimentKey(f"e{n}") for n in range(9)]

_T = TypeVar("_T")


class Line(PostgresJournal):
    """A way to the database that can be cut."""

    is_cut = False

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        if self.is_cut:
            raise JournalUnavailable("The line is cut.")
        return super().write(function)


class Bridge:
    """One owner."""

    def __init__(self, name: str, url: str, left: Callable[[], float]) -> None:
        self.line = Line(url, connections=2)
        self.gained: list[tuple[ExperimentKey, bool]] = []
        self.lost: list[ExperimentKey] = []
        self.left_s = 0.0
        self._left = left
        self.leases = Leases(
            self.line,
            owner=name,
            tracker="jsonl",
            lease_s=LEASE_S,
            gained=lambda key, has_rows: self.gained.append((key, has_rows)),
            lost=self._lose,
        )
        self.leases.start()

    def owned(self) -> dict[ExperimentKey, int]:
        return {key: epoch for key in KEYS if (epoch := self.leases.epoch(key)) is not None}

    def crash(self) -> None:
        """It renews nothing any more, and nobody is told."""
        self.line.is_cut = True

    def _lose(self, keys: Collection[ExperimentKey]) -> None:
        self.left_s = self._left()
        self.lost += keys


class Site:
    """Some bridges on one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.journal = PostgresJournal(url, connections=2)
        self.bridges: list[Bridge] = []

    def bridge(self) -> Bridge:
        made = Bridge(f"bridge-{len(self.bridges)}", self._url, self._left)
        self.bridges.append(made)
        return made

    def work(self, *keys: ExperimentKey) -> None:
        Spool(self.journal).append([Batch(key, Signal.METRICS, b"x", 5) for key in keys])

    def owners(self) -> Counter[ExperimentKey]:
        return Counter(key for bridge in self.bridges for key in bridge.owned())

    def all_are_owned(self) -> bool:
        return self.owners().keys() == set(KEYS)

    def _left(self) -> float:
        """Seconds until the first lease ends by the clock of the database."""
        with self.journal.read() as connection:
            (left,) = connection.execute(
                "SELECT MIN(expires_ns) / 1e9 - EXTRACT(EPOCH FROM clock_timestamp()) FROM runs"
                " WHERE owner <> ''"
            ).fetchone()
        return float(left or 0)


@pytest.fixture
def site(postgres: PostgresServer) -> Iterator[Site]:
    made = Site(postgres.new_url())
    yield made
    for bridge in made.bridges:
        bridge.leases.stop()
        bridge.line.close()
    made.journal.close()


def test_runs_with_work_are_shared_out_and_each_has_one_owner(site: Site) -> None:
    bridges = [site.bridge() for _ in range(3)]
    wait_until(lambda: len(bridges_alive(site)) == 3, "not all are heard of")
    site.work(*KEYS)
    wait_until(site.all_are_owned, "a run has no owner")
    assert set(site.owners().values()) == {1}
    assert [len(bridge.owned()) for bridge in bridges] == [3, 3, 3]


def bridges_alive(site: Site) -> list[str]:
    with site.journal.read() as connection:
        return [name for (name,) in connection.execute("SELECT owner FROM bridges").fetchall()]


def test_a_run_without_work_has_no_owner(site: Site) -> None:
    site.work(*KEYS)
    site.journal.write(
        lambda c: c.execute(
            "UPDATE waiting SET bytes = 0 WHERE run_id ="
            " (SELECT run_id FROM runs WHERE experiment = ?)",
            (KEYS[0].experiment,),
        )
    )
    bridge = site.bridge()
    wait_until(lambda: len(bridge.owned()) == len(KEYS) - 1, "a run has no owner")
    assert KEYS[0] not in bridge.owned()


def test_the_runs_of_a_bridge_that_is_gone_are_taken_over_in_a_later_turn(site: Site) -> None:
    site.work(*KEYS)
    gone = site.bridge()
    wait_until(lambda: len(gone.owned()) == len(KEYS), "not all are claimed")
    before = gone.owned()
    other = site.bridge()
    gone.crash()
    wait_until(lambda: len(other.owned()) == len(KEYS), "not all are taken over")
    assert all(other.owned()[key] > before[key] for key in KEYS)
    assert gone.owned() == {}


def test_a_bridge_that_is_cut_off_leaves_its_runs_before_anybody_can_take_them(site: Site) -> None:
    site.work(*KEYS)
    bridge = site.bridge()
    wait_until(lambda: len(bridge.owned()) == len(KEYS), "not all are claimed")
    bridge.line.is_cut = True
    wait_until(lambda: sorted(bridge.lost) == KEYS, "they are not let go")
    assert bridge.left_s > 0, "somebody else could have had them"


def test_a_bridge_that_is_back_owns_its_runs_in_a_new_turn(site: Site) -> None:
    site.work(*KEYS)
    bridge = site.bridge()
    wait_until(lambda: len(bridge.owned()) == len(KEYS), "not all are claimed")
    before = bridge.owned()
    bridge.line.is_cut = True
    wait_until(lambda: not bridge.owned(), "they are not let go")
    bridge.line.is_cut = False
    wait_until(lambda: len(bridge.owned()) == len(KEYS), "they are not claimed again")
    assert all(bridge.owned()[key] > before[key] for key in KEYS)


def test_a_bridge_that_ends_gives_its_runs_back_at_once(site: Site) -> None:
    site.work(*KEYS)
    ending, other = site.bridge(), None
    wait_until(lambda: len(ending.owned()) == len(KEYS), "not all are claimed")
    ending.leases.claim_no_more()
    ending.leases.stop()
    with site.journal.read() as connection:
        assert connection.execute("SELECT DISTINCT owner FROM runs").fetchall() == [("",)]
    other = site.bridge()
    wait_until(lambda: len(other.owned()) == len(KEYS), "not all are claimed again")


def test_a_run_that_is_settled_has_no_owner_until_something_comes(site: Site) -> None:
    site.work(KEYS[0])
    bridge = site.bridge()
    wait_until(lambda: KEYS[0] in bridge.owned(), "it is not claimed")
    site.journal.write(lambda c: c.execute("UPDATE waiting SET bytes = 0"))
    bridge.leases.settle([KEYS[0]])
    wait_until(lambda: not bridge.owned(), "it is not released")
    site.work(KEYS[0])
    wait_until(lambda: KEYS[0] in bridge.owned(), "it is not claimed again")


def test_rows_that_are_only_to_be_removed_have_an_owner_who_opens_no_run(site: Site) -> None:
    site.work(*KEYS[:1])
    ledger = Ledger(site.journal)
    rows = [Row(0, 0, 0, {"x": 1.0})]
    ledger.commit([Commit(KEYS[0], rows, 1, None, taken_of(site))])
    ledger.confirmed(KEYS[0], "jsonl", 1)
    ledger.finish(KEYS[0], "jsonl", 1)
    assert ledger.settled("jsonl") == []
    bridge = site.bridge()
    wait_until(lambda: bridge.gained == [(KEYS[0], False)], "it is not claimed")


def taken_of(site: Site) -> list[Offset]:
    return [one.offset for one in Spool(site.journal).read(KEYS[0], max_bytes=1 << 20)]


def test_a_run_whose_rows_are_gone_is_settled(site: Site) -> None:
    site.work(*KEYS[:1])
    ledger = Ledger(site.journal)
    ledger.commit([Commit(KEYS[0], [Row(0, 0, 0, {"x": 1.0})], 1, None, taken_of(site))])
    ledger.confirmed(KEYS[0], "jsonl", 1)
    ledger.finish(KEYS[0], "jsonl", 1)
    ledger.prune(KEYS[0], "jsonl", 1)
    assert ledger.settled("jsonl") == KEYS[:1]


def test_a_transaction_that_its_bridge_has_begun_and_left_holds_up_nobody(site: Site) -> None:
    site.work(*KEYS)
    bridge = site.bridge()
    wait_until(site.all_are_owned, "a run has no owner")
    others = site.journal

    def leave(connection: Connection) -> None:
        connection.execute("SELECT run_id FROM runs FOR UPDATE").fetchall()
        wait_until(lambda: bool(bridge.lost), "the lock is in nobody's way")
        wait_until(site.all_are_owned, "nobody ends the transaction")
        connection.execute("SELECT 1").fetchone()

    with pytest.raises(JournalUnavailable):
        others.write(leave)
