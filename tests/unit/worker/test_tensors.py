import decimal
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from otel_rl.worker.tensors import NotANumber, as_step, hold, number


class FakeTensor:
    """The part of a torch tensor that matters here; counts what would make a device wait."""

    def __init__(self, cell: list[float], count: int = 1) -> None:
        self.cell = cell
        self.count = count
        self.waits = 0
        self.shape = (count,)

    def numel(self) -> int:
        return self.count

    def detach(self) -> "FakeTensor":
        return self

    def clone(self) -> "FakeTensor":
        return FakeTensor(list(self.cell), self.count)

    def item(self) -> float:
        self.waits += 1
        return self.cell[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (3, 3),
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(2.5), 2.5),
        (np.array([[4]]), 4),
        (np.bool_(True), 1),
        (Fraction(1, 2), 0.5),
        (decimal.Decimal("0.25"), 0.25),
        (1 << 70, float(1 << 70)),
    ],
)
def test_numbers_of_any_library_are_read(value: object, expected: float) -> None:
    found = number(hold(value))
    assert found == expected
    assert type(found) is type(expected)


def test_nan_is_a_number() -> None:
    found = number(hold(np.float64("nan")))
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize(
    "value",
    ["0.5", None, b"1", 1j, np.array([1.0, 2.0]), np.array([]), [1.0], {"a": 1}, object(), 10**400],
)
def test_what_is_no_number_is_said_so(value: object) -> None:
    assert isinstance(number(hold(value)), NotANumber)


def test_an_array_that_changes_after_the_call_does_not_change_the_measurement() -> None:
    array = np.array([1.0])
    held = hold(array)
    array[0] = 2.0
    assert number(held) == 1.0


def test_a_tensor_is_copied_without_waiting_for_its_device() -> None:
    tensor = FakeTensor([1.0])
    held = hold(tensor)
    tensor.cell[0] = 2.0
    assert tensor.waits == 0
    assert number(held) == 1.0


def test_a_large_tensor_is_refused_without_a_copy() -> None:
    held = hold(FakeTensor([0.0], count=1 << 30))
    assert isinstance(held, NotANumber)
    assert held.description == f"FakeTensor of shape ({1 << 30},)"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (7, 7),
        (-1, -1),
        (7.0, 7),
        (np.int32(7), 7),
        (np.array(7), 7),
        ((1 << 63) - 1, (1 << 63) - 1),
        (1 << 63, None),
        (-(1 << 63) - 1, None),
        (7.5, None),
        (float("nan"), None),
        (True, None),
        ("7", None),
        (None, None),
        (np.array([7, 8]), None),
    ],
)
def test_a_step_is_an_integer_of_64_bits_of_any_library(step: object, expected: int | None) -> None:
    found = as_step(step)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.process
def test_what_is_kept_for_ever_is_not_freed_at_the_end_of_a_forked_child() -> None:
    program = """
import os, sys
from otel_rl.worker.tensors import keep_for_ever

class Pinned:
    def __del__(self):
        os.write(1, b"freed by the child" if os.getpid() != parent else b"")

parent = os.getpid()
held = [Pinned()]
child = os.fork()
if not child:
    keep_for_ever(held)
    del held
    sys.exit()
sys.exit(os.waitpid(child, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"", b"")
