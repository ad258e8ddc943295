"""Digests of weights: equal where the weights are, and what a server tells of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rl
from otel_rl import lineage
from otel_rl.demo.processes import generator as a_plain_server
from otel_rl.worker.api import weights
from otel_rl.worker.drops import DropReason
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Sink

CHANCE = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return CHANCE.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    weights._known.clear()


def test_layout_order_and_precision_do_not_count_but_values_names_and_shapes_do() -> None:
    a, b = drawn(300, 200), drawn(7)
    found = lineage.digest({"a": a, "b": b})
    assert found == lineage.digest({"b": b, "a": np.asfortranarray(a)})
    assert found == lineage.digest({"a": a.astype(np.float64), "b": b})
    others = (
        {"a": a, "c": b},
        {"a": a.reshape(200, 300), "b": b},
        {"a": a * np.float32(1.01), "b": b},
        {"a": np.roll(a, 1, axis=0), "b": b},
        {"a": a[:150], "b": b},
    )
    assert found not in {lineage.digest(other) for other in others}


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.integers(1, 300))
def test_a_server_without_otel_rl_computes_the_same(values: list[float], times: int) -> None:
    flat = np.tile(np.array(values, np.float32), times)
    assert lineage.digest([flat]) == a_plain_server.digest(flat.tobytes())


def test_what_is_no_tensor_is_refused_and_costs_no_training(started: Sink) -> None:
    with pytest.raises(TypeError, match="got str"):
        lineage.digest(["weights"])
    before = GUARD.drops.counts().get(DropReason.INTERNAL, 0)
    assert lineage.signed("stamp", ["weights"]) == "stamp"
    assert GUARD.drops.counts()[DropReason.INTERNAL] == before + 1


def test_a_signed_stamp_is_a_stamp(started: Sink) -> None:
    text = lineage.signed(lineage.stamp(policy_version=7), [drawn(10)])
    origin = lineage.read(text)
    assert origin is not None
    assert origin.version == 7


def states(sink: Sink) -> dict[str, float]:
    otel_rl.flush(timeout_s=60)
    found: dict[str, float] = {}
    for request in sink.metrics:
        for of in request.resource_metrics:
            for scope in of.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == "rl.policy.weights.checked":
                        for point in metric.sum.data_points:
                            (word,) = [
                                one.value.string_value
                                for one in point.attributes
                                if one.key == "rl.weights.state"
                            ]
                            found[word] = max(found.get(word, 0.0), point.as_int or point.as_double)
    return found


def test_a_server_tells_whether_it_has_what_it_was_sent(started: Sink) -> None:
    pushed = [[drawn(64, 64)] for _ in range(4)]
    sent = [lineage.signed(lineage.stamp(policy_version=n), one) for n, one in enumerate(pushed)]
    assert lineage.verify(sent[0], pushed[0]) is True
    assert lineage.verify(sent[1], pushed[0]) is False  # loads fail from here on
    assert lineage.verify(sent[2], pushed[0]) is False
    assert lineage.verify(sent[3], [pushed[3][0][:32]]) is False  # a shard
    assert lineage.verify(lineage.stamp(), pushed[0]) is None
    assert states(started) == {"equal": 1, "stale": 2, "different": 1, "unsigned": 1}


def test_weights_that_never_change_are_stale_from_the_second_check_on(started: Sink) -> None:
    base = [drawn(64)]
    for n in range(3):
        assert (
            lineage.verify(lineage.signed(lineage.stamp(policy_version=n), [drawn(64)]), base)
            is False
        )
    assert states(started) == {"different": 1, "stale": 2}
