import math
from fractions import Fraction

import numpy as np
import pytest

import otel_rl.integrations.wandb as wandb
from otel_rl.integrations.wandb._values import Row, flat_row
from otel_rl.worker.tensors import number


def taken(data: dict[str, object], time_ns: int = 1) -> tuple[Row, dict[str, str]]:
    """The row of one call, and name and kind of what is left out of it."""
    left_out: dict[str, str] = {}
    return flat_row(data, time_ns, left_out.__setitem__), left_out


def numbers(data: dict[str, object]) -> dict[str, object]:
    row, skipped = taken(data)
    assert skipped == {}
    return {name: number(value) for name, value in row.values.items()}


def skipped(data: dict[str, object]) -> dict[str, str]:
    row, left_out = taken(data)
    assert not row
    return left_out


def test_nested_dicts_are_dotted_names() -> None:
    assert numbers({"a": {"b": 1, "c": {"d/e": 2.5}}, "f": {}}) == {"a.b": 1, "a.c.d/e": 2.5}


def test_scalars_of_any_library_are_numbers() -> None:
    given = {"np": np.float32(1.5), "zero_d": np.array(2), "one": np.array([[3.0]])}
    assert numbers({**given, "half": Fraction(1, 2), "flag": True}) == {
        "np": 1.5,
        "zero_d": 2,
        "one": 3.0,
        "half": 0.5,
        "flag": 1,
    }


def test_a_value_is_taken_as_it_is_now() -> None:
    loss = np.array(1.0)
    row, _ = taken({"loss": loss})
    loss += 1
    assert number(row.values["loss"]) == 1.0


def test_nan_is_a_value_and_none_is_none() -> None:
    found = numbers({"nan": math.nan, "none": None})
    assert list(found) == ["nan"]
    assert math.isnan(found["nan"])  # type: ignore[arg-type]  # a float, as asserted


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("text", "text"),
        (b"bytes", "text"),
        ([1, 2], "list"),
        (np.zeros(3), "ndarray of shape (3,)"),
        (wandb.Image("no file"), "Image"),
        (object(), "object"),
    ],
)
def test_what_is_no_number_is_left_out_by_name(value: object, kind: str) -> None:
    assert skipped({"x": {"y": value}}) == {"x.y": kind}


def test_of_the_columns_of_wandb_a_program_sets_the_time() -> None:
    row, _ = taken({"_timestamp": 1.5, "_step": 3, "_runtime": 9, "x": 1}, 7)
    assert (row.values, row.time_ns) == ({"x": 1}, 1_500_000_000)


def test_a_circular_dict_ends() -> None:
    circle: dict[str, object] = {}
    circle["again"] = circle
    assert set(skipped(circle).values()) == {"dict nested too deep"}
