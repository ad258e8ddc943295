"""A measured buffer does what the buffer does, and its counts add up."""

import queue
import threading
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rl
from otel_rl.integrations.buffers import MeasuredBuffer, measured
from tests.support.otlp_sink import Sink


class World:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def values(self) -> dict[str, float]:
        otel_rl.flush(timeout_s=60)
        found: dict[str, float] = {}
        for request in self._sink.metrics:
            for of in request.resource_metrics:
                for scope in of.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name.startswith("rl.replay_buffer."):
                            name = metric.name.removeprefix("rl.replay_buffer.")
                            for point in metric.sum.data_points:
                                found[name] = point.as_int or point.as_double
                            for one in metric.exponential_histogram.data_points:
                                found[name] = one.count
        return found


@pytest.fixture
def world(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OTEL_RL_HOST", "off")
    otel_rl.init(experiment="e", role="replay_buffer", endpoint=sink.url, export_interval_s=60)
    yield World(sink)
    otel_rl.finish(timeout_s=60)


def test_a_full_deque_evicts(world: World) -> None:
    buffer = measured(deque([0], maxlen=4))
    buffer.extend(iter(range(5)))
    buffer.append(7)
    assert (buffer.popleft(), buffer.pop()) == (2, 7)
    assert [*buffer] == [3, 4]
    found = world.values()
    assert (found["size"], found["writes"], found["reads"]) == (2, 6, 2)
    assert found["evictions"] == 1 + 6 - 2 - 2
    assert found["retrieval.duration"] == 2


def test_a_queue_tells_who_waits_and_a_failed_read_is_none(world: World) -> None:
    buffer = measured(queue.Queue[int](maxsize=8))
    with pytest.raises(queue.Empty):
        buffer.get_nowait()
    reader = threading.Thread(target=buffer.get)
    reader.start()
    buffer.put(1)
    reader.join(60)
    found = world.values()
    assert (found["writes"], found["reads"], found["queue.depth"]) == (1, 1, 0)
    assert "evictions" not in found


def test_samples_stay_and_own_methods_can_be_named(world: World) -> None:
    class Replay:
        def __init__(self) -> None:
            self.kept: list[int] = []

        def __len__(self) -> int:
            return len(self.kept)

        def store(self, item: int) -> None:
            self.kept.append(item)

        def sample(self, n: int) -> dict[str, list[int]]:
            return {"tokens": self.kept[:n], "rewards": self.kept[:n]}

    buffer = measured(Replay(), one=["store"])
    for item in range(6):
        buffer.store(item)
    assert buffer.sample(4)["tokens"] == [0, 1, 2, 3]
    found = world.values()
    assert (found["size"], found["writes"], found["reads"]) == (6, 6, 4)
    assert "evictions" not in found


@given(
    st.lists(st.sampled_from(["append", "pop", "extend", "clear"]), max_size=40), st.integers(1, 6)
)
def test_it_behaves_as_the_buffer_without_a_worker(calls: list[str], most: int) -> None:
    plain: deque[int] = deque(maxlen=most)
    buffer: MeasuredBuffer = measured(deque[int](maxlen=most))
    for call in calls:
        for one in (plain, buffer):
            if call == "append":
                one.append(1)
            elif call == "extend":
                one.extend([2, 3])
            elif call == "pop" and one:
                one.pop()
            elif call == "clear":
                one.clear()
    assert (len(buffer), [*buffer], 2 in buffer) == (len(plain), [*plain], 2 in plain)
