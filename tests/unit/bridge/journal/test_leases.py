"""Each run has one owner at a time, whatever becomes of the bridges."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TypeVar

import pytest

from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.leases import BridgeLeases, LeaseTable
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.errors import JournalUnavailable
from otel_rl.records import Batch, ExperimentKey, Offset, Row, Signal
from tests.support import waiting
from tests.support.postgres import PostgresServer

LEASE_S = 1.5
PATIENT_LEASE_S = 6.0  # a third of it is longer than a busy machine keeps a thread waiting
LONG_S = 600.0
"""By the clock of the database no lease of this length ends in a test."""

DEADLINE_S = 90.0
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

    def __init__(self, name: str, url: str, left: Callable[[], float], lease_s: float) -> None:
        self.line = Line(url, connections=2)
        self.gained: list[tuple[ExperimentKey, bool]] = []
        self.lost: list[ExperimentKey] = []
        self.left_s = 0.0
        self._left = left
        self.leases = BridgeLeases(
            self.line,
            owner=name,
            trackers=["jsonl"],
            lease_s=lease_s,
            gained=lambda key, has_rows: self.gained.append((key, has_rows)),
            lost=self._lose,
        )
        self.leases.start()

    def owned(self) -> dict[ExperimentKey, int]:
        return {key: epoch for key in KEYS if (epoch := self.leases.epoch(key)) is not None}

    def wait_until_it_owns_all(self) -> dict[ExperimentKey, int]:
        """The turn of each run, at a moment in which it has all of them."""
        seen: list[dict[ExperimentKey, int]] = []

        def owns_all() -> bool:
            seen.append(self.owned())
            return seen[-1].keys() == set(KEYS)

        wait_until(owns_all, "not all are claimed")
        return seen[-1]

    def crash(self) -> None:
        """It renews nothing any more, and nobody is told."""
        self.line.is_cut = True

    def _lose(self, keys: Collection[ExperimentKey]) -> None:
        self.left_s = self._left()
        self.lost += keys


class Site:
    """Some bridges on one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.journal = PostgresJournal(url, connections=2)
        self.bridges: list[Bridge] = []

    def bridge(self, lease_s: float = LEASE_S) -> Bridge:
        made = Bridge(f"bridge-{len(self.bridges)}", self.url, self._left, lease_s)
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
    bridges = [site.bridge(LONG_S) for _ in range(3)]
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
    bridge = site.bridge(LONG_S)
    wait_until(lambda: len(bridge.owned()) == len(KEYS) - 1, "a run has no owner")
    assert KEYS[0] not in bridge.owned()


def test_the_runs_of_a_bridge_that_is_gone_are_taken_over_in_a_later_turn(site: Site) -> None:
    site.work(*KEYS)
    gone = site.bridge()
    before = gone.wait_until_it_owns_all()
    other = site.bridge()
    gone.crash()
    after = other.wait_until_it_owns_all()
    assert all(after[key] > before[key] for key in KEYS)
    assert gone.owned() == {}


def test_a_bridge_that_is_cut_off_leaves_its_runs_before_anybody_can_take_them(site: Site) -> None:
    site.work(*KEYS)
    bridge = site.bridge(PATIENT_LEASE_S)
    bridge.wait_until_it_owns_all()
    bridge.line.is_cut = True
    wait_until(lambda: sorted(bridge.lost) == KEYS, "they are not let go")
    assert bridge.left_s > 0, "somebody else could have had them"


def test_a_bridge_that_is_back_owns_its_runs_in_a_new_turn(site: Site) -> None:
    site.work(*KEYS)
    bridge = site.bridge()
    before = bridge.wait_until_it_owns_all()
    bridge.line.is_cut = True
    wait_until(lambda: not bridge.owned(), "they are not let go")
    bridge.line.is_cut = False
    after = bridge.wait_until_it_owns_all()
    assert all(after[key] > before[key] for key in KEYS)


def test_a_bridge_that_ends_gives_its_runs_back_at_once(site: Site) -> None:
    site.work(*KEYS)
    ending = site.bridge(LONG_S)
    ending.wait_until_it_owns_all()
    ending.leases.claim_no_more()
    ending.leases.stop()
    with site.journal.read() as connection:
        assert connection.execute("SELECT DISTINCT owner FROM runs").fetchall() == [("",)]
    site.bridge(LONG_S).wait_until_it_owns_all()


def test_a_run_without_work_has_no_owner_until_something_comes(site: Site) -> None:
    site.work(KEYS[0])
    bridge = site.bridge()
    wait_until(lambda: KEYS[0] in bridge.owned(), "it is not claimed")
    site.journal.write(lambda c: c.execute("UPDATE waiting SET bytes = 0"))
    wait_until(lambda: not bridge.owned(), "it is not released")
    site.work(KEYS[0])
    wait_until(lambda: KEYS[0] in bridge.owned(), "it is not claimed again")


def test_rows_that_are_only_to_be_removed_have_an_owner_who_opens_no_run(site: Site) -> None:
    site.work(*KEYS[:1])
    run_store, deliveries = RunStore(site.journal), DeliveryStore(site.journal, "jsonl")
    rows = [Row(0, 0, 0, {"x": 1.0})]
    run_store.commit([Commit(KEYS[0], rows, 1, b"", taken_of(site))])
    deliveries.confirmed(KEYS[0], 1)
    deliveries.finish(KEYS[0], 1)
    bridge = site.bridge(LONG_S)
    wait_until(lambda: bridge.gained == [(KEYS[0], False)], "it is not claimed")


def taken_of(site: Site) -> list[Offset]:
    return [one.offset for one in Spool(site.journal).read(KEYS[0], max_bytes=1 << 20)]


def test_a_run_has_work_until_its_steps_are_closed_its_trackers_done_and_its_rows_gone(
    site: Site,
) -> None:
    site.work(*KEYS[:1])
    table = LeaseTable("one", ["jsonl", "wandb"], lease_ns=1 << 60)
    run_store = RunStore(site.journal)
    first = DeliveryStore(site.journal, "jsonl", others=["wandb"])
    (claimed,) = site.journal.write(lambda connection: table.claim(connection, owned=0))
    epoch = claimed[1]

    def has_work() -> bool:
        with site.journal.read() as connection:
            return not table.without_work(connection)

    def commit(rows: list[Row], *, is_open: bool) -> None:
        taken = taken_of(site)
        run_store.commit([Commit(KEYS[0], rows, 1, b"", taken, is_open=is_open, epoch=epoch)])

    assert has_work(), "a batch waits"
    commit([Row(0, 0, 0, {"x": 1.0})], is_open=True)
    for store in (first, first.of("wandb")):
        assert has_work(), "a tracker lacks rows"
        store.confirmed(KEYS[0], 1)
        store.finish(KEYS[0], 1)
    first.prune_finished(confirmed_before_ns=1 << 62)
    assert has_work(), "a step is open"
    commit([], is_open=False)
    assert not has_work()


@pytest.mark.slow
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


class Hand:
    """An owner without threads, by a clock that is set by hand."""

    def __init__(self, name: str, url: str) -> None:
        self.now_s = 100.0
        self.before_write: Callable[[Callable[..., object]], None] = lambda function: None
        self.in_write: Callable[[Callable[..., object]], None] = lambda function: None
        self.lost: list[ExperimentKey] = []
        self.line = HandLine(self, url)
        self.leases = BridgeLeases(
            self.line,
            owner=name,
            trackers=["jsonl"],
            lease_s=LONG_S,
            gained=lambda key, has_rows: None,
            lost=lambda keys: self.lost.extend(sorted(keys)),
            monotonic=lambda: self.now_s,
        )

    def owned(self) -> dict[ExperimentKey, int]:
        return {key: epoch for key in KEYS if (epoch := self.leases.epoch(key)) is not None}

    def turn_after(self, part: float) -> None:
        """Take a turn when so much of a lease has passed by its own clock."""
        self.now_s += part * LONG_S
        self.leases.turn()


class HandLine(PostgresJournal):
    """Its way to the database, on which a test may do something."""

    def __init__(self, hand: Hand, url: str) -> None:
        self._hand = hand
        super().__init__(url, connections=2)

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        self._hand.before_write(function)

        def held(connection: Connection) -> _T:
            result = function(connection)
            self._hand.in_write(function)
            return result

        return super().write(held)


@pytest.fixture
def hands(site: Site) -> Iterator[Callable[[], Hand]]:
    made: list[Hand] = []

    def hand() -> Hand:
        made.append(Hand(f"hand-{len(made)}", site.url))
        return made[-1]

    yield hand
    for one in made:
        one.before_write = one.in_write = lambda function: None
        one.leases.stop()
        one.line.close()


def is_(function: Callable[..., object], name: str) -> bool:
    return name in function.__qualname__


def test_two_bridges_that_claim_at_once_wait_for_nobody_and_share_no_run(
    site: Site, hands: Callable[[], Hand]
) -> None:
    first, second = hands(), hands()
    for hand in (first, second):
        hand.leases.turn()  # both are heard of
    site.work(*KEYS)
    claimed, go = threading.Event(), threading.Event()

    def hold(function: Callable[..., object]) -> None:
        if is_(function, "BridgeLeases._claim."):
            claimed.set()
            assert go.wait(DEADLINE_S)

    first.in_write = hold
    threads = [threading.Thread(target=hand.leases.turn) for hand in (first, second)]
    try:
        threads[0].start()
        assert claimed.wait(DEADLINE_S)
        threads[1].start()
        threads[1].join(DEADLINE_S / 2)
        assert not threads[1].is_alive(), "it waits for the other one"
        assert len(second.owned()) == 4
    finally:
        go.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert len(first.owned()) == 5
    assert first.owned().keys().isdisjoint(second.owned())


def test_a_run_that_was_claimed_again_meanwhile_is_lost_at_the_renewal(
    site: Site, hands: Callable[[], Hand]
) -> None:
    site.work(KEYS[0])
    hand = hands()
    hand.leases.turn()
    assert hand.owned() == {KEYS[0]: 1}
    site.journal.write(lambda c: c.execute("UPDATE runs SET epoch = epoch + 1"))
    hand.turn_after(0.4)
    assert hand.lost == [KEYS[0]]
    assert hand.owned() == {KEYS[0]: 3}, "a turn goes on that is over in the database"


def test_a_lease_that_had_ended_goes_on_as_another_turn(
    site: Site, hands: Callable[[], Hand]
) -> None:
    site.work(KEYS[0])
    hand = hands()
    hand.leases.turn()
    hand.turn_after(0.7)
    assert hand.lost == [KEYS[0]]
    assert hand.owned() == {KEYS[0]: 2}


@pytest.mark.parametrize("write", ["LeaseTable.renew", "BridgeLeases._claim."])
def test_a_lease_counts_from_before_it_was_asked_for(
    site: Site, hands: Callable[[], Hand], write: str
) -> None:
    site.work(KEYS[0])
    hand = hands()
    if write == "LeaseTable.renew":
        hand.leases.turn()

    def takes_long(function: Callable[..., object]) -> None:
        if is_(function, write):
            hand.now_s += 0.2 * LONG_S

    hand.before_write = takes_long
    hand.turn_after(0.34)
    assert KEYS[0] in hand.owned()
    hand.now_s += 0.48 * LONG_S  # 0.68 since it was asked for
    assert hand.owned() == {}
    assert hand.lost == []
    hand.leases.let_go()
    assert hand.lost == [KEYS[0]]


def test_a_bridge_that_claims_no_more_leaves_new_runs_to_others(
    site: Site, hands: Callable[[], Hand]
) -> None:
    site.work(KEYS[0])
    hand = hands()
    hand.leases.turn()
    hand.leases.claim_no_more()
    site.work(KEYS[1])
    hand.turn_after(0.4)
    assert [*hand.owned()] == [KEYS[0]]


def test_a_run_that_is_given_back_is_worked_on_no_more(
    site: Site, hands: Callable[[], Hand]
) -> None:
    site.work(KEYS[0])
    hand = hands()
    hand.leases.turn()
    site.journal.write(lambda c: c.execute("UPDATE waiting SET bytes = 0"))
    hand.turn_after(0.4)
    assert (hand.owned(), hand.lost) == ({}, [KEYS[0]])


def test_what_another_bridge_has_claimed_meanwhile_is_not_given_back(
    site: Site, hands: Callable[[], Hand]
) -> None:
    site.work(KEYS[0])
    hand = hands()
    hand.leases.turn()
    site.journal.write(lambda c: c.execute("UPDATE waiting SET bytes = 0"))

    def is_robbed(function: Callable[..., object]) -> None:
        if is_(function, "BridgeLeases._release."):
            site.journal.write(lambda c: c.execute("UPDATE runs SET owner = 'other'"))

    hand.before_write = is_robbed
    hand.leases.claim_no_more()
    hand.turn_after(0.4)
    with site.journal.read() as connection:
        ((owner, expires_ns),) = connection.execute("SELECT owner, expires_ns FROM runs").fetchall()
    assert owner == "other"
    assert expires_ns > 0


def test_a_run_with_open_steps_whose_senders_are_silent_has_an_owner(
    site: Site, hands: Callable[[], Hand]
) -> None:
    site.work(KEYS[0])
    RunStore(site.journal).commit([Commit(KEYS[0], [], 0, b"", taken_of(site), is_open=True)])
    hand = hands()
    hand.leases.turn()
    assert [*hand.owned()] == [KEYS[0]]


NUMBERED = [ExperimentKey(f"e{n}") for n in range(4)]
LONG_NS = 600 * 10**9


@pytest.fixture
def journal(postgres: PostgresServer) -> Iterator[PostgresJournal]:
    opened = PostgresJournal(postgres.new_url(), connections=2)
    Spool(opened).append([Batch(key, Signal.METRICS, b"x", 5) for key in NUMBERED])
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
    assert sorted(key for share in shares for key in share) == NUMBERED


def test_who_has_its_share_claims_no_more(journal: PostgresJournal) -> None:
    leases = table("first")
    journal.write(leases.renew)
    assert claimed(journal, leases, owned=len(NUMBERED)) == []


def test_a_lease_that_ended_is_another_owners_in_a_later_turn(journal: PostgresJournal) -> None:
    short, second = table("first", lease_ns=-1), table("second")
    assert claimed(journal, short) == NUMBERED
    journal.write(second.renew)
    found = journal.write(lambda connection: second.claim(connection, owned=0))
    assert [epoch for _, epoch, _ in found] == [2] * len(NUMBERED)
    assert journal.write(short.renew) == {}


def test_only_the_owners_runs_are_given_back(journal: PostgresJournal) -> None:
    first, second = table("first"), table("second")
    journal.write(first.renew)
    assert claimed(journal, first) == NUMBERED
    journal.write(lambda connection: second.give_back(connection, NUMBERED))
    assert journal.write(second.give_all_back) == 1  # the first, which is alive
    assert sorted(journal.write(first.renew)) == NUMBERED
    journal.write(lambda connection: first.give_back(connection, NUMBERED[:1]))
    assert sorted(journal.write(first.renew)) == NUMBERED[1:]
    assert journal.write(first.give_all_back) == 0
    assert journal.write(first.renew) == {}
