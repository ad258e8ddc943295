"""What one token uses up does not refuse another; with one token, or none, nothing changes."""

import hashlib
from collections.abc import Mapping, Sequence

import pytest
from pydantic import TypeAdapter, ValidationError

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.journal.interface import Use
from otel_rl.bridge.receive.experiments import Experiments
from otel_rl.bridge.receive.gate import Held, InFlight
from otel_rl.bridge.receive.journal_shares import JournalShares
from otel_rl.bridge.receive.tokens import NO_TOKEN, Teams, TeamSettings, TokenShares
from otel_rl.errors import JournalFull, Overloaded
from otel_rl.records import Batch, ExperimentKey, Signal


def auth(*names: str, **shares: float) -> Sequence[TeamSettings]:
    """Tokens that may each write what begins with their names."""
    return tuple(
        TeamSettings(
            name=name,
            experiments=(f"{name}*",),
            sha256=(hashlib.sha256(name.encode()).hexdigest(),),
            share=shares.get(name),
        )
        for name in names
    )


def key(name: str, number: int = 0) -> ExperimentKey:
    return ExperimentKey(f"{name}/{number}")


# The parts


def test_tokens_have_equal_parts() -> None:
    shares = TokenShares(auth("a", "b", "c", "d"))
    assert {shares.of(token, 1000) for token in "abcd"} == {250}


def test_a_part_can_be_given_and_the_others_share_the_rest() -> None:
    shares = TokenShares(auth("a", "b", "c", a=0.5))
    assert [shares.of(token, 1000) for token in "abc"] == [500, 250, 250]


@pytest.mark.parametrize("settings", [auth(), auth("a"), auth("a", "a")])
def test_one_token_or_none_has_everything(settings: Sequence[TeamSettings]) -> None:
    shares = TokenShares(settings)
    assert [shares.of(token, 1000) for token in ("a", NO_TOKEN)] == [1000, 1000]


@pytest.mark.parametrize("given", [{"a": 0.6, "b": 0.5}, {"a": 0.5, "b": 0.5}])
def test_shares_that_leave_nothing_to_others_are_refused(given: Mapping[str, float]) -> None:
    with pytest.raises(ValidationError, match="add up to more than 1"):
        TypeAdapter(Teams).validate_python(auth("a", "b", "c", **given))


def test_parts_that_are_all_given_may_use_up_everything() -> None:
    assert TokenShares(auth("a", "b", a=0.9, b=0.1)).of("b", 1000) == 100


def test_the_owner_of_what_was_there_before_is_the_closest_pattern() -> None:
    def entry(name: str, *experiments: str) -> TeamSettings:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return TeamSettings(name=name, experiments=experiments, sha256=(digest,))

    entries = (entry("all", "*"), entry("team", "team/*"), entry("one", "team/one"))
    shares = TokenShares(entries)
    owners = {name: shares.owner_of(ExperimentKey(name)) for name in ("x", "team/x", "team/one")}
    assert owners == {"x": "all", "team/x": "team", "team/one": "one"}
    assert TokenShares(auth("a", "b")).owner_of(key("c")) == NO_TOKEN


# Experiments


def begin(experiments: Experiments, token: str, n: int) -> list[Refusal]:
    """Begin so many experiments; why those that were refused were."""
    refused = []
    for number in range(n):
        with experiments.request(token) as request:
            problem = request.problem(key(token, number))
            if problem is None:
                request.keep([key(token, number)])
            else:
                refused.append(problem[0])
    return refused


def test_experiments_of_one_token_leave_another_its_share() -> None:
    experiments = Experiments(10, clock_s=lambda: 0.0, shares=TokenShares(auth("a", "b")))
    assert begin(experiments, "a", 1000) == [Refusal.SHARE_USED_UP] * 995
    assert begin(experiments, "b", 6) == [Refusal.SHARE_USED_UP]
    assert begin(experiments, "a", 5) == []  # known ones go on


def test_experiments_of_one_token_alone_may_be_all() -> None:
    experiments = Experiments(10, clock_s=lambda: 0.0, shares=TokenShares(auth("a")))
    assert begin(experiments, "a", 11) == [Refusal.TOO_MANY_EXPERIMENTS]


def test_after_a_restart_experiments_count_for_those_who_may_write_them() -> None:
    experiments = Experiments(
        10, lambda: [key("a", n) for n in range(5)], shares=TokenShares(auth("a", "b"))
    )
    with experiments.request("a") as request:
        problem = request.problem(key("a", 5))
    assert problem is not None
    assert problem[0] is Refusal.SHARE_USED_UP
    assert begin(experiments, "b", 5) == []


def test_an_experiment_counts_for_the_token_that_began_it_as_long_as_it_is_in_use() -> None:
    now_s = 0.0
    in_use: set[ExperimentKey] = set()
    experiments = Experiments(10, lambda: in_use, lambda: now_s, TokenShares(auth("a", "b")))
    for number in range(5):
        with experiments.request("a") as request:
            assert request.problem(key("shared", number)) is None
            request.keep([key("shared", number)])
    in_use = {key("shared", 1)}
    now_s = 2.0
    assert begin(experiments, "a", 5) == [Refusal.SHARE_USED_UP]
    assert experiments.owner_of(key("shared", 1)) == "a"
    assert experiments.owner_of(key("shared", 2)) == NO_TOKEN  # forgotten


def test_what_was_named_and_not_kept_takes_nothing_of_a_share() -> None:
    experiments = Experiments(2, shares=TokenShares(auth("a", "b")))
    for number in range(100):
        with experiments.request("a") as request:
            assert request.problem(key("a", number)) is None


# Bytes in flight


def test_bytes_of_one_token_leave_another_its_share() -> None:
    in_flight = InFlight(300, TokenShares(auth("a", "b")), for_all_bytes=100)
    with in_flight.hold("a") as of_a, in_flight.hold("b") as of_b:
        of_a.add(200)  # its share, and all that is for all
        with pytest.raises(Overloaded, match="token a"):
            of_a.add(1)
        of_b.add(100)
        with pytest.raises(Overloaded):
            of_b.add(1)


def test_what_is_given_back_can_be_taken_again() -> None:
    in_flight = InFlight(300, TokenShares(auth("a", "b")), for_all_bytes=100)
    for token in "abab":
        with in_flight.hold(token) as held, in_flight.hold(token) as other:
            held.add(150)
            other.add(50)
    held = Held(in_flight, "a")
    held.add(200)


def test_bytes_of_a_gateway_leave_the_teams_theirs() -> None:
    gateway = TeamSettings(name="g", gateway=True, sha256=("0" * 64,))
    shares = TokenShares((*auth("a", "b"), gateway))
    assert [shares.of(team, 1000) for team in "ab"] == [500, 500]  # nothing of the durable bounds
    in_flight = InFlight(500, shares, for_all_bytes=100)
    with in_flight.hold("g") as of_g, in_flight.hold("a") as of_a, in_flight.hold("b") as of_b:
        of_g.add(300)  # half of what is not for all, and all that is
        with pytest.raises(Overloaded, match="token g"):
            of_g.add(1)
        of_a.add(100)
        of_b.add(100)


def test_one_token_or_none_may_hold_everything() -> None:
    for settings, token in ((auth(), NO_TOKEN), (auth("a"), "a")):
        in_flight = InFlight(300, TokenShares(settings), for_all_bytes=100)
        with in_flight.hold(token) as held:
            held.add(300)
            with pytest.raises(Overloaded):
                held.add(1)


# The journal


def batch(name: str, n_bytes: int) -> Batch:
    return Batch(key(name), Signal.METRICS, bytes(n_bytes), 1)


def test_the_journal_of_one_token_leaves_another_its_share() -> None:
    now_s, used = 0.0, {key("a"): Use(40, 0)}
    shares = TokenShares(auth("a", "b"))
    room = JournalShares(shares, 100, lambda: used, shares.owner_of, lambda: now_s)
    room.take([batch("a", 10)])
    with pytest.raises(JournalFull, match="token a"):
        room.take([batch("a", 1)])
    room.take([batch("b", 50)])
    used = {key("a"): Use(10, 0), key("b"): Use(50, 0)}  # written to the tracker
    with pytest.raises(JournalFull):
        room.take([batch("a", 1)])
    now_s = 2.0
    room.take([batch("a", 40)])
    with pytest.raises(JournalFull):
        room.take([batch("a", 1)])


def test_what_is_larger_than_the_share_is_taken_when_there_is_nothing_else() -> None:
    shares = TokenShares(auth("a", "b"))
    room = JournalShares(shares, 100, dict, shares.owner_of, lambda: 0.0)
    room.take([batch("a", 70)])
    with pytest.raises(JournalFull):
        room.take([batch("a", 1)])


def test_what_is_made_of_batches_counts_for_the_share_and_has_a_bound_of_its_own() -> None:
    now_s, used = 0.0, {key("a"): Use(60, 30), key("b"): Use(0, 100)}
    shares = TokenShares(auth("a", "b"))
    room = JournalShares(shares, 200, lambda: used, shares.owner_of, lambda: now_s)
    assert room.is_left(key("a"))
    assert not room.is_left(key("b"))
    with pytest.raises(JournalFull, match="token a"):
        room.take([batch("a", 20)])
    now_s, used = 2.0, {key("a"): Use(0, 100)}
    assert not room.is_left(key("a"))
    now_s, used = 4.0, {}
    assert room.is_left(key("a"))


def test_with_one_token_the_journal_is_not_asked() -> None:
    def fail() -> Mapping[ExperimentKey, Use]:
        raise AssertionError

    JournalShares(TokenShares(auth("a")), 1, fail, lambda _: "a").take([batch("a", 100)])
