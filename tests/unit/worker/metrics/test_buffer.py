"""The buffer between training threads and the exporter: no lock, nothing lost, nothing twice."""

import gc
from threading import Thread
from weakref import ref

from opentelemetry.context import Context
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.worker.metrics.buffer import Buffer, Logged, Measured
from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.tensors import Deferred

STREAM = Stream(InstrumentationScope("m"), "loss")


def entry(number: int) -> Measured:
    return STREAM, number, None, number, Context()


def test_what_was_put_comes_out_in_order() -> None:
    buffer = Buffer()
    entries = [entry(number) for number in range(3000)]
    buffer.entries.extend(entries)
    assert list(buffer.take_all()) == entries
    assert not buffer.entries


def test_what_is_put_while_it_is_emptied_stays_for_the_next_time() -> None:
    buffer = Buffer()
    buffer.entries.extend(entry(number) for number in range(3))
    for _ in buffer.take_all():
        buffer.entries.append(entry(9))
    assert len(buffer.entries) == 3


def test_two_threads_that_empty_it_share_what_is_there() -> None:
    buffer = Buffer()
    buffer.entries.extend(entry(number) for number in range(50_000))
    taken: list[int] = []

    def take() -> None:
        for found in buffer.take_all():
            taken.append(found[3])  # noqa: PERF401  # an entry at a time, so that they interleave

    threads = [Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(50_000))


def test_what_is_abandoned_is_counted_in_measurements() -> None:
    buffer = Buffer()
    buffer.entries.append(entry(1))
    buffer.entries.append(Logged({"a": 1, "b": 2}, None, None, 1, Context()))
    assert buffer.abandon() == 3


def test_what_is_abandoned_waits_for_no_device_any_more() -> None:
    buffer = Buffer()
    buffer.put_back([entry(1)])
    buffer.abandon()
    assert buffer.unready_since_ns is None


class Pinned(Deferred):
    """A copy of a tensor."""

    is_ready = False

    def read(self) -> float:
        return 0.5


def test_a_forked_child_forgets_entries_but_frees_no_copy_of_a_tensor() -> None:
    buffer = Buffer()
    copies = [Pinned(), Pinned()]
    alive = [ref(copy) for copy in copies]
    buffer.entries.append((STREAM, copies[0], None, 1, Context()))
    buffer.entries.append(Logged({"loss": copies[1]}, None, None, 1, Context()))
    copies.clear()
    buffer.forget()
    gc.collect()
    assert not buffer.entries
    assert all(copy() is not None for copy in alive)
