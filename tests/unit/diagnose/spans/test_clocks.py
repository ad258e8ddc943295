"""By how much clocks differ, as their spans say."""

import pytest

from otel_rl.diagnose.spans.clocks import Clock, estimate_clocks, with_one_clock
from otel_rl.diagnose.spans.critical_path import critical_path
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord
from tests.unit.diagnose.span_builder import span

MS = 1_000_000


def exchange(ahead_ms: int) -> list[SpanRecord]:
    """A step that sends weights and gets samples, 2 ms each way; the generator's clock is ahead."""
    ahead = ahead_ms * MS
    return [
        span("step", 0, 100 * MS, step=1, uses=["generate"], host="a"),
        span("weight_push", 0, 10 * MS, within="step", host="a"),
        span("wait", 10 * MS, 82 * MS, within="step", waits=True, uses=["generate"], host="a"),
        span(
            "weight_pull",
            2 * MS + ahead,
            12 * MS + ahead,
            worker="generator-0",
            waits=True,
            uses=["weight_push"],
            host="b",
        ),
        span("generate", 12 * MS + ahead, 80 * MS + ahead, worker="generator-0", host="b"),
    ]


@pytest.mark.parametrize("ahead_ms", [-5000, -50, 50, 5000])
def test_a_clock_that_is_ahead_or_behind_is_found_out_and_corrected(ahead_ms: int) -> None:
    spans = exchange(ahead_ms)
    clocks = estimate_clocks(Forest(spans), "a")
    assert clocks["b"] == Clock(ahead_ms * MS, ahead_ns_of(ahead_ms - 2), ahead_ns_of(ahead_ms + 2))
    assert list(with_one_clock(spans, clocks)) == exchange(0)


def ahead_ns_of(ms: int) -> int:
    return ms * MS


@pytest.mark.parametrize("ahead_ms", [-2, 0, 1])
def test_clocks_that_may_be_right_are_left_alone(ahead_ms: int) -> None:
    assert estimate_clocks(Forest(exchange(ahead_ms)), "a")["b"].ahead_ns == 0


def test_with_messages_of_one_way_only_the_impossible_is_corrected() -> None:
    ahead = [
        span("step", 0, 100, step=1, uses=["generate"], host="a"),
        span("generate", 50, 130, worker="generator-0", host="b"),
    ]
    clocks = estimate_clocks(Forest(ahead), "a")
    assert clocks["b"] == Clock(30, 30, None)


def test_who_waits_for_those_it_has_sent_to_may_have_sent_before_it_ends() -> None:
    early = [
        span("step", 0, 100, step=1, host="a"),
        span("weight_sync", 0, 90, within="step", waits=True, host="a"),
        span("weight_pull", 20, 30, worker="generator-0", uses=["weight_sync"], host="b"),
    ]
    assert estimate_clocks(Forest(early), "a")["b"] == Clock(0, None, 30)


def test_a_clock_is_compared_over_others() -> None:
    spans = [
        span("step", 0, 100, step=1, uses=["reward"], host="a"),
        span("reward", 0, 150, worker="reward-0", uses=["generate"], host="b"),
        span("generate", 0, 270, worker="generator-0", host="c"),
    ]
    clocks = estimate_clocks(Forest(spans), "a")
    assert (clocks["b"].ahead_ns, clocks["c"].ahead_ns) == (50, 170)


def test_hosts_that_exchange_nothing_are_not_known() -> None:
    spans = [span("step", 0, 100, step=1, host="a"), span("env", 0, 1, worker="env-0", host="b")]
    assert [*estimate_clocks(Forest(spans), "a")] == ["a"]


def test_the_path_over_two_clocks_is_that_of_one() -> None:
    spans = exchange(5000)
    aligned = Forest(with_one_clock(spans, estimate_clocks(Forest(spans), "a")))
    root = aligned.get(b"step")
    assert root is not None
    assert [segment.phase for segment in critical_path(aligned, root)] == [
        "weight_push",
        "weight_pull",
        "generate",
        "wait",
        "unaccounted",
    ]
