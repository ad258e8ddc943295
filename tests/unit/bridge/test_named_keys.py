"""Names of keys in sentences."""

from otel_rl.bridge.keys import NamedKeys
from otel_rl.records import KeySpec


def test_a_sentence_has_the_names_of_all_keys_that_are_known_by_then() -> None:
    names = NamedKeys([KeySpec("trainer/acc", own_name="acc")])
    assert names.in_words("trainer/acc fell, judge/x rose") == "acc fell, judge/x rose"
    names.add(KeySpec("judge/x", own_name="x"))
    assert names.in_words("trainer/acc fell, judge/x rose") == "acc fell, x rose"


def test_a_key_within_a_longer_key_is_no_key_of_the_sentence() -> None:
    names = NamedKeys([KeySpec(key, own_name=key.upper()) for key in ("a/x", "a/x/max", "a/x y")])
    told = "a/x/max, a/x/min, b/a/x, a/x y, a/xy and a/x"
    assert names.in_words(told) == "A/X/MAX, a/x/min, b/a/x, A/X Y, a/xy and A/X"
