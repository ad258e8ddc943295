"""Texts and values in the form in which trackers store them."""

import json
import math

from otel_rl.bridge.delivery.texts import storable, storable_text
from otel_rl.records import Value


def test_a_lone_surrogate_is_written_out() -> None:
    assert storable_text("a\udc80b") == "a\\udc80b"
    assert storable_text("naïve 語") == "naïve 語"


def test_texts_and_numbers_are_storable_at_any_depth() -> None:
    value: Value = {"k\udc80": ["\udcff", {"x": math.nan}, (math.inf, 1.5)], "n": None, "b": True}

    stored = storable(value)

    assert stored == {"k\\udc80": ["\\udcff", {"x": "nan"}, ["inf", 1.5]], "n": None, "b": True}
    json.dumps(stored, allow_nan=False, ensure_ascii=False).encode()


def test_a_tracker_that_writes_nan_itself_gets_it() -> None:
    stored = storable({"x": [math.nan]}, keeps_nan=True)

    assert isinstance(stored, dict)
    assert math.isnan(stored["x"][0])
