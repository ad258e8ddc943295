"""Settings of all sorts become what OTLP has a kind for, and never raise."""

import argparse
import enum
import math
import pathlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.worker.otlp.anyvalue import MAX_CONFIG_BYTES, key_value, plain_config


class Mode(enum.Enum):
    FAST = "fast"


@dataclass
class Optimizer:
    lr: float
    betas: tuple[float, float]


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError


class Interpolated(Mapping[str, object]):
    """A config of which one value cannot be read, as OmegaConf has them."""

    def __getitem__(self, key: str) -> object:
        if key == "broken":
            raise KeyError("no such interpolation")
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(["whole", "broken"])

    def __len__(self) -> int:
        return 2


VALUES = [
    ("a path", pathlib.PurePosixPath("/data"), "/data"),
    ("an enum", Mode.FAST, "fast"),
    ("a dataclass", Optimizer(1e-3, (0.9, 0.95)), {"lr": 1e-3, "betas": [0.9, 0.95]}),
    ("a namespace", argparse.Namespace(seed=1), {"seed": 1}),
    ("a simple namespace", types.SimpleNamespace(seed=1), {"seed": 1}),
    ("a mapping in a list", [{"a": 1}, None], [{"a": 1}, None]),
    ("a set", {3}, [3]),
    ("keys that are no text", {1: "a", None: "b"}, {"1": "a", "None": "b"}),
    ("a blank key", {"": 1}, {"_": 1}),
    ("a scalar of numpy", np.float32(0.5), 0.5),
    ("an array", np.zeros((2, 3)), "ndarray of shape (2, 3)"),
    ("bytes", b"ab", "b'ab'"),
    ("a type", dict, "<class 'dict'>"),
    ("what has no text", Unspeakable(), "<Unspeakable>"),
    ("a value that cannot be read", Interpolated(), {"whole": 1, "broken": "<KeyError>"}),
    ("truth", True, True),
    ("a long text", "a" * 5000, "a" * 4096 + " [... 904 characters cut]"),
]


@pytest.mark.parametrize(
    ("value", "expected"), [row[1:] for row in VALUES], ids=[r[0] for r in VALUES]
)
def test_a_setting_becomes_plain(value: object, expected: object) -> None:
    assert plain_config({"key": value}) == ({"key": expected}, [])


def test_nan_is_a_setting_too() -> None:
    taken, _ = plain_config({"key": math.nan})
    assert isinstance(taken["key"], float)
    assert math.isnan(taken["key"])


def test_what_is_nested_too_deep_is_text() -> None:
    nested: object = "core"
    for _ in range(12):
        nested = {"in": nested}
    taken, left_out = plain_config({"key": nested})
    depth, found = 0, taken["key"]
    while isinstance(found, Mapping):
        depth, found = depth + 1, found["in"]
    assert depth == 8
    assert isinstance(found, str)
    assert left_out == []


def test_a_mapping_that_holds_itself_ends() -> None:
    itself: dict[str, object] = {"lr": 1}
    itself["self"] = itself
    taken, _ = plain_config(itself)
    assert taken["lr"] == 1


def test_a_setting_with_too_many_values_is_left_out_and_the_rest_is_taken() -> None:
    taken, left_out = plain_config({"lr": 1, "vocabulary": list(range(20_000)), "seed": 2})
    assert taken == {"lr": 1, "seed": 2}
    assert left_out == ["vocabulary"]


def test_a_config_is_no_larger_than_its_bound() -> None:
    config = {f"key{number}": "x" * 4096 for number in range(100)}
    taken, left_out = plain_config(config)
    assert key_value("config", taken).ByteSize() <= MAX_CONFIG_BYTES + 64
    assert [*taken, *left_out] == list(config)
    assert left_out


def test_what_changes_after_the_call_is_not_seen() -> None:
    inner = {"lr": 1}
    taken, _ = plain_config({"optimizer": inner})
    inner["lr"] = 2
    assert taken == {"optimizer": {"lr": 1}}


names = st.text(min_size=1, max_size=20).filter(str.strip)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(names, json_like, max_size=5))
def test_what_is_plain_already_stays_as_it_is(config: dict[str, object]) -> None:
    assert plain_config(config) == (config, [])


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_an_integer_beyond_64_bits_is_sent_as_text(value: int) -> None:
    assert key_value("k", value).value.string_value == str(value)


@given(st.text())
def test_a_lone_surrogate_is_no_reason_to_fail(text: str) -> None:
    assert key_value(text, text).value.WhichOneof("value") == "string_value"
