"""A measured buffer does what the buffer does, and its counts add up."""

import asyncio
import copy
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from typing import Any, NamedTuple

import numpy as np
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


class _Entered(queue.Queue[int]):
    """Queue that tells when a reader has called it."""

    entered: threading.Event

    def get(self, block: bool = True, timeout: float | None = None) -> int:
        self.entered.set()
        return super().get(block, timeout)


def test_a_queue_tells_who_waits_and_a_failed_read_is_none(world: World) -> None:
    plain = _Entered(maxsize=8)
    plain.entered = threading.Event()
    buffer = measured(plain)
    with pytest.raises(queue.Empty):
        buffer.get(block=False)
    plain.entered.clear()
    reader = threading.Thread(target=buffer.get)
    reader.start()
    assert plain.entered.wait(60)
    assert world.values()["queue.depth"] == 1
    buffer.put(1)
    reader.join(60)
    found = world.values()
    assert (found["writes"], found["reads"], found["queue.depth"]) == (1, 1, 0)
    assert "evictions" not in found


def test_a_sample_that_is_taken_counts_once_whatever_its_form(world: World) -> None:
    buffer = measured(deque([{"tokens": [1, 2, 3]}, [1, 2, 3, 4], (5, 6)]))
    for _ in range(3):
        buffer.popleft()
    buffer.append(1)
    found = world.values()
    assert (found["reads"], found["writes"], found["size"]) == (3, 1, 1)
    assert "evictions" not in found


class _Columns(NamedTuple):
    tokens: Any
    rewards: Any


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ({"tokens": [[1], [2], [3]], "rewards": [0, 0, 1]}, 3),
        (_Columns(np.zeros((5, 2)), np.zeros(5)), 5),
        (_Columns({"image": np.zeros((4, 2))}, np.zeros(4)), 4),
        ((np.zeros((6, 2)), np.zeros(6)), 6),
        (({"tokens": [1, 2, 3]}, {"tokens": [4]}), 2),
        ([{"tokens": [1, 2, 3]}, {"tokens": [4]}], 2),
        ("text", 1),
        (np.array(3.0), 1),
        ({}, 0),
    ],
)
def test_several_samples_may_be_columns(world: World, batch: Any, count: int) -> None:
    class Replay:
        def __len__(self) -> int:
            return 100

        def sample(self) -> Any:
            return batch

        def draw(self) -> Any:
            return batch

        def add_batch(self, samples: Any) -> None:
            pass

    buffer = measured(Replay(), takes_many=["draw"])
    buffer.sample()
    buffer.draw()
    buffer.add_batch(batch)
    buffer.add_batch(samples=batch)
    found = world.values()
    assert (found.get("reads", 0), found.get("writes", 0)) == (2 * count, 2 * count)


def test_a_batch_that_cannot_be_counted_reaches_the_buffer_all_the_same(world: World) -> None:
    class Odd:
        def __len__(self) -> int:
            raise RuntimeError("no length")

    class Replay:
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def __len__(self) -> int:
            return len(self.kept)

        def add_batch(self, samples: Any) -> None:
            self.kept.append(samples)

    buffer = measured(Replay())
    for samples in (Odd(), 7, np.array(3.0)):
        buffer.add_batch(samples)
    assert len(buffer) == 3
    assert world.values()["queue.depth"] == 0


def test_attributes_are_those_of_the_buffer() -> None:
    class Replay(list[int]):
        beta = 0.4

    plain = Replay([1])
    buffer = measured(plain)
    buffer.beta = 0.9
    assert (plain.beta, buffer.beta) == (0.9, 0.9)
    del buffer.beta
    assert plain.beta == 0.4
    buffer += [2, 3]
    assert isinstance(buffer, MeasuredBuffer)
    assert plain == [1, 2, 3]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_a_measured_buffer_of_its_own(copied: Any) -> None:
    buffer = measured(deque([1, 2]))
    other = copied(buffer)
    other.append(3)
    assert isinstance(other, MeasuredBuffer)
    assert ([*buffer], [*other]) == ([1, 2], [1, 2, 3])


def test_calls_of_asyncio_count_when_they_have_ended(world: World) -> None:
    async def work() -> dict[str, float]:
        buffer = measured(asyncio.Queue[int](maxsize=4))
        never = buffer.put(0)
        never.close()
        reader = asyncio.create_task(buffer.get())
        waits = asyncio.create_task(buffer.get())
        await asyncio.sleep(0)  # both wait
        await buffer.put(1)
        assert await reader == 1
        found = world.values()
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        return found

    found = asyncio.run(work())
    assert (found["reads"], found["writes"], found["queue.depth"]) == (1, 1, 1)
    assert "evictions" not in found
    assert world.values()["queue.depth"] == 0


def test_a_queue_between_processes_has_no_size_and_no_evictions(world: World) -> None:
    plain = multiprocessing.get_context("fork").Queue()
    buffer = measured(plain)
    for item in range(5):
        buffer.put(item)
    for _ in range(5):
        plain.get(timeout=60)  # as another process does
    buffer.put(5)
    assert buffer.get(timeout=60) == 5
    found = world.values()
    assert (found["writes"], found["reads"]) == (6, 1)
    assert not {"evictions", "size"} & set(found)
    plain.close()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_the_buffer_while_another_thread_does(world: World) -> None:
    class Slow(deque[int]):
        inside, go = threading.Event(), threading.Event()

        def __len__(self) -> int:  # asked within the lock
            if threading.current_thread() is not threading.main_thread():
                self.inside.set()
                self.go.wait(60)
            return super().__len__()

    buffer = measured(Slow())
    writer = threading.Thread(target=buffer.append, args=(1,))
    writer.start()
    assert Slow.inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)  # ends a child that hangs
        buffer.append(2)
        os._exit(0)
    Slow.go.set()
    writer.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
