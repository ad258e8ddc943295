"""Joins and leaves otel_rl, for the processes that use it."""

from collections.abc import Iterator
from contextlib import contextmanager

import otel_rl
from otel_rl.demo.machine import observe_process
from otel_rl.demo.seat import Seat

__all__ = ["report_as", "reporting"]


@contextmanager
def reporting(role: str, seat: Seat) -> Iterator[None]:
    """Report for the ``with`` block; what was reported is sent before it ends."""
    with report_as(role, index=seat.index, count=seat.count):
        yield


@contextmanager
def report_as(role: str, *, index: int, count: int) -> Iterator[None]:
    """As :func:`reporting`, for a process that has no seat."""
    otel_rl.init(role=role, index=index, count=count)
    observe_process()
    try:
        yield
    finally:
        otel_rl.shutdown()
