"""Hosts that are short of something, and links that are slow."""

import math
import random

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.result import Kind
from tests.unit.diagnose.made import AT, Series, changed, made

STEAL = "cpu/utilization/steal"


def noisy(of: Series, name: object, sigma: float = 0.05) -> Series:
    return lambda step: of(step) * math.exp(random.Random(f"{name} {step}").gauss(0, sigma))


def hosts(measure: str, before: float, after: float, *, slower: float = 1.6) -> RunHistory:
    """Three hosts, of which the second one changes, with a rank each."""
    rows = {
        f"host/node-{n}/{measure}": noisy(changed(before, after if n == 1 else before), n, 0.002)
        for n in range(3)
    }
    spans = {
        ("trainer", "train", n): noisy(changed(1.0, slower if n == 1 else 1.0), ("t", n))
        for n in range(3)
    }
    return made(rows=rows, spans=spans, step_s=noisy(changed(1.3, 0.3 + slower), "step"))


def causes(history: RunHistory) -> list[tuple[Kind, str | None, str | None]]:
    return [(one.kind, one.host, one.worker) for one in diagnose(history).causes]


@pytest.mark.parametrize(
    ("measure", "before", "after"),
    [
        (STEAL, 0.01, 0.3),
        ("pressure/cpu", 0.1, 0.8),
        ("pressure/memory", 0.001, 0.3),
        ("pressure/io", 0.02, 0.7),
        ("memory/utilization/used", 0.6, 0.97),
        ("filesystem/utilization/used", 0.6, 0.98),
    ],
)
def test_a_host_that_is_short_of_something_explains_its_slow_rank(
    measure: str, before: float, after: float
) -> None:
    (cause,) = diagnose(hosts(measure, before, after)).causes
    assert (cause.kind, cause.host) == (Kind.HOST_PRESSURE, "node-1")
    assert abs((cause.since or 0) - AT) <= 1
    assert "on other hosts" in cause.words


@pytest.mark.parametrize(
    "history",
    [
        hosts(STEAL, 0.01, 0.3, slower=1.0),
        hosts(STEAL, 0.01, 0.03, slower=1.0),
        hosts(STEAL, 0.2, 0.2, slower=1.0),
        hosts("pressure/io", 0.02, 0.2, slower=1.0),
        hosts("memory/utilization/used", 0.5, 0.9, slower=1.0),
        hosts("memory/utilization/used", 0.97, 0.97, slower=1.0),
        hosts("filesystem/utilization/used", 0.6, 0.98, slower=1.0),
    ],
    ids=[
        "unfelt",
        "little",
        "always",
        "a little",
        "memory is free",
        "always full",
        "disk has room",
    ],
)
def test_a_host_is_no_fault_if_it_is(history: RunHistory) -> None:
    assert causes(history) == []


def test_a_slow_rank_is_not_explained_by_a_host_that_takes_a_little_more() -> None:
    assert causes(hosts(STEAL, 0.01, 0.03)) == [(Kind.STRAGGLER, None, "trainer/1")]


def test_answers_that_grow_are_not_slower_because_of_a_busy_neighbour() -> None:
    history = hosts(STEAL, 0.01, 0.2, slower=1.0)
    rows = {key: (lambda step, of=of: dict(zip(of.steps, of.values, strict=True))[step])
            for key, of in history.rows.items()}  # fmt: skip
    grows: Series = noisy(lambda step: 1 + 0.4 * step / 80, "grows")
    spans = {("trainer", "generate", n): grows for n in range(3)}
    assert causes(made(rows=rows, spans=spans, step_s=grows)) == []


def test_a_full_disk_is_told_before_anything_is_slower() -> None:
    history = hosts("filesystem/utilization/used", 0.6, 0.999, slower=1.0)
    assert causes(history) == [(Kind.HOST_PRESSURE, "node-1", None)]


def links(*slow: int, after: float = 15.0, size: str = "134-135MB") -> RunHistory:
    """Four hosts with two series each, of which some become slower."""
    workers = {
        (f"gpu/node/nccl/bus_bandwidth_gbs/RING_SIMPLE/{op}/{size}/4/32", f"node/{n}"): noisy(
            changed(44.0, after if n in slow else 44.0), (op, n)
        )
        for op in ("AllGather", "ReduceScatter")
        for n in range(4)
    }
    spans = {("trainer", "train", n): noisy(changed(1.0, 1.0), ("t", n)) for n in range(3)}
    return made(workers=workers, spans=spans)


@pytest.mark.parametrize(
    ("slow", "worker"), [((2,), "node/2"), ((0, 1, 2, 3), None), ((1, 2), None)]
)
def test_a_slow_link_is_told_with_who_has_it(slow: tuple[int, ...], worker: str | None) -> None:
    report = diagnose(links(*slow))
    assert [(one.kind, one.worker, one.since) for one in report.causes] == [
        (Kind.SLOW_LINK, worker, AT)
    ]
    assert any("next: errors and speed of links" in line for line in in_words(report))


@pytest.mark.parametrize(
    "history",
    [links(), links(2, after=36.0), links(2, size="4-5KB"), links(2, after=60.0)],
    ids=["as before", "a little slower", "with small messages", "faster"],
)
def test_a_link_is_no_fault_if_it_is(history: RunHistory) -> None:
    assert causes(history) == []
