"""The hook in code of Ray, with as much of Ray as it touches. The real one: tests/frameworks."""

import sys
from collections.abc import Callable
from threading import Thread
from types import ModuleType, SimpleNamespace

import pytest

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.export.ray_calls import watch_calls
from otel_rl.worker.guard import Guard


class Ray:
    """What there is of Ray in a process.

    Args:
        mode: 1 in a process that Ray has started, 0 in its driver.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mode: int = 1) -> None:
        self.packed: list[object] = []
        packed = self.packed

        class SerializationContext:
            def serialize(self, value: object) -> object:
                packed.append(value)
                return value

        worker, serialization = ModuleType("worker"), ModuleType("serialization")
        vars(worker).update(WORKER_MODE=1, global_worker=SimpleNamespace(mode=mode))
        vars(serialization).update(SerializationContext=SerializationContext)
        monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
        monkeypatch.setitem(sys.modules, "ray._private.serialization", serialization)
        self.context = SerializationContext()
        self.woken = 0
        self.drops = Drops()

    def watch(self, wake: Callable[[], None] | None = None) -> None:
        watch_calls(wake or self.wake, Guard(self.drops))

    def wake(self) -> None:
        self.woken += 1

    def main_loop(self) -> object:
        """As Ray's: its core packs what a call has returned, with this frame around."""
        return self.context.serialize("result")


def test_a_call_that_returns_wakes_once_and_its_result_is_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = Ray(monkeypatch)
    ray.watch()
    ray.watch()
    assert ray.main_loop() == "result"
    assert (ray.woken, ray.packed) == (1, ["result"])


def test_a_call_in_a_thread_of_rays_core_wakes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(monkeypatch)
    ray.watch()
    # No frame of Python is around it there; here that of the thread is.
    monkeypatch.setattr("otel_rl.worker.export.ray_calls._LOOP", Thread.run.__name__)
    thread = Thread(target=ray.context.serialize, args=("result",))
    thread.start()
    thread.join()
    assert (ray.woken, ray.packed) == (1, ["result"])


def test_what_a_program_packs_itself_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(monkeypatch)
    ray.watch()
    assert ray.context.serialize("argument") == "argument"
    assert (ray.woken, ray.packed) == (0, ["argument"])


def test_a_driver_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(monkeypatch, mode=0)
    ray.watch()
    ray.main_loop()
    assert ray.woken == 0


def test_a_process_without_ray_and_another_ray_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = Ray(monkeypatch)
    for name in ("ray._private.serialization", "ray._private.worker"):
        monkeypatch.delitem(sys.modules, name)
        ray.watch()
    assert ray.drops.counts() == {}


def test_nothing_that_goes_wrong_reaches_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray would end the process.
    def fail() -> None:
        raise RuntimeError("on purpose")

    ray = Ray(monkeypatch)
    ray.watch(fail)
    assert ray.main_loop() == "result"
    assert ray.drops.counts() == {DropReason.INTERNAL: 1}
