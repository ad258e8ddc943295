"""Answers for the context of a model: bounded, clean, and JSON."""

import json
import math

import pytest

from otel_rl.mcp.tools import MAX_CHARS, fitted


def test_numbers_are_short_and_what_is_no_number_is_null() -> None:
    answer = {
        "step": 12.0,
        "now_ms": 1_795_680_123_456.7,
        "a": 1 / 3,
        "b": math.nan,
        "c": math.inf,
        "d": 12_345_678,
        "e": True,
        "f": None,
    }
    assert '"step":12,' in fitted(answer)
    assert json.loads(fitted(answer)) == {
        "step": 12,
        "now_ms": 1_795_680_123_457,
        "a": 0.333333,
        "b": None,
        "c": None,
        "d": 12_345_678,
        "e": True,
        "f": None,
    }


def test_texts_have_no_secret_and_no_control_character() -> None:
    text = fitted({"a": ["postgresql://me:hunter2@db/x", "\x1b[2J\u202e"]})
    assert "hunter2" not in text
    assert json.loads(text)["a"][1] == "\\x1b[2J\\u202e"


@pytest.mark.parametrize("size", [2_000, 20_000])
def test_a_long_list_is_cut_and_says_so(size: int) -> None:
    text = fitted({"values": [[number, "x" * 30] for number in range(size)]})
    assert len(text) <= MAX_CHARS
    found = json.loads(text)
    assert f"values has {size}" in found["cut"]
    assert f"the first {len(found['values'])}," in found["cut"]
    assert found["values"][0] == [0, "x" * 30]


def test_what_fits_is_whole_and_does_not_say_that_it_is_cut() -> None:
    values = [[number, number / 7] for number in range(1_000)]
    found = json.loads(fitted({"values": values}))
    assert len(found["values"]) == 1_000
    assert "cut" not in found


def test_texts_are_cut_before_lists_are_very_short() -> None:
    found = json.loads(fitted({"causes": [{"words": "x" * 5_000} for _ in range(60)]}))
    assert len(found["causes"]) == 60
    assert len(found["causes"][0]["words"]) == 501


def test_a_number_of_a_run_that_diverges_has_few_digits() -> None:
    assert fitted({"loss": [1.2345678e38, -1e300, 2.0**52]}) == (
        '{"loss":[1.23457e+38,-1e+300,4503599627370496]}'
    )
