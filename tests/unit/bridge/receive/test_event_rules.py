"""What a log event must have to be taken, and in what words its sender is told otherwise."""

import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import Validated, validate
from otel_rl.records import Signal, Value
from tests.support.otlp_requests import Attributes, event, every_event, key_values, logs_request

NOW_NS = 1_800_000_000_000_000_000
S = 1_000_000_000
LIMITS = ReceiveLimits()

START, END = "rl.experiment.start", "rl.experiment.end"
WORKER_END, SAMPLE = "rl.worker.end", "rl.rollout.sample"
CONSOLE = "rl.worker.console"
CONFIG = "rl.experiment.config"


def admit_event(
    name: str, attributes: Attributes, body: Value = None, limits: ReceiveLimits = LIMITS
) -> Validated:
    return admit_record(event(name, attributes, body, time_ns=NOW_NS), limits)


def admit_record(record: LogRecord, limits: ReceiveLimits = LIMITS) -> Validated:
    return validate(Signal.LOGS, logs_request(record), limits, NOW_NS)


def nested(levels: int) -> dict[str, Value]:
    """A map of so many maps within each other, itself included."""
    innermost: dict[str, Value] = {}
    for _ in range(levels - 1):
        innermost = {"deeper": innermost}
    return innermost


@pytest.mark.parametrize("record", every_event(), ids=lambda record: record.event_name)
def test_an_event_with_all_that_it_can_say_is_taken(record: LogRecord) -> None:
    record.time_unix_nano = NOW_NS
    admitted = admit_record(record)
    assert (admitted.accepted, admitted.message) == (1, "")


@pytest.mark.parametrize(
    ("name", "attributes", "body"),
    [
        (START, {}, None),
        (START, {CONFIG: {}, "rl.experiment.tags": []}, None),
        (START, {"rl.experiment.group": "", "rl.experiment.notes": ""}, None),
        (START, {CONFIG: nested(16)}, None),
        (START, {CONFIG: {"any\ttext": {"\x1b": 1}}}, None),
        (START, {"rl.experiment.tags": ["é" * 128] * 64}, None),
        (START, {CONFIG: {"text": "v" * (128 << 10)}}, None),
        (START, {f"{CONFIG}_defaults": {"text": "v" * (128 << 10)}}, None),
        (START, {"rl.experiment.notes": "n" * 100_000}, "a body that nobody asked for"),
        (END, {"rl.experiment.status": "aborted"}, None),
        (END, {"rl.experiment.status": "crashed", "of somebody else": [1, {}]}, None),
        (WORKER_END, {"rl.worker.status": "complete"}, None),
        (CONSOLE, {}, ""),
        (SAMPLE, {}, {"prompt": "p"}),
        (SAMPLE, {"rl.loop.iteration": 0}, {"empty": None}),
        (SAMPLE, {"rl.sample.table": "评估 7"}, {f"f{i}": i for i in range(64)}),
    ],
)
def test_what_an_event_may_leave_out_or_add(name: str, attributes: Attributes, body: Value) -> None:
    admitted = admit_event(name, attributes, body)
    assert (admitted.accepted, admitted.message) == (1, "")


INVALID: Sequence[tuple[str, Mapping[str, Value], Value, str]] = [
    (START, {CONFIG: "lr=1"}, None, "rl.experiment.config is text, not a map"),
    (START, {CONFIG: ["lr", 1]}, None, "rl.experiment.config is an array, not a map"),
    (START, {CONFIG: None}, None, "rl.experiment.config is empty, not a map"),
    (START, {f"{CONFIG}_defaults": 1}, None, "rl.experiment.config_defaults is an integer, not a"),
    (START, {"rl.experiment.notes": 1}, None, "rl.experiment.notes is an integer, not text"),
    (START, {"rl.experiment.tags": "a,b"}, None, "rl.experiment.tags is text, not an array"),
    (START, {"rl.experiment.tags": [1]}, None, "a word of rl.experiment.tags is an integer"),
    (START, {"rl.experiment.group": True}, None, "rl.experiment.group is a boolean, not text"),
    (START, {"rl.experiment.job_type": {}}, None, "rl.experiment.job_type is a map, not text"),
    (START, {"log.record.uid": 7}, None, "log.record.uid is an integer, not text"),
    (END, {}, None, "rl.experiment.status is missing"),
    (END, {"rl.experiment.status": 1}, None, "rl.experiment.status is an integer, not text"),
    (
        END,
        {"rl.experiment.status": "running"},
        None,
        "rl.experiment.status is 'running', which is none of complete, aborted, crashed",
    ),
    (END, {"rl.experiment.status": "Complete"}, None, "is 'Complete', which is none of"),
    (WORKER_END, {}, None, "rl.worker.status is missing"),
    (WORKER_END, {"rl.worker.status": "crashed"}, None, "which is none of complete, failed"),
    (
        WORKER_END,
        {"rl.worker.status": "failed", "error.type": 7},
        None,
        "error.type is an integer, not text",
    ),
    (SAMPLE, {"rl.loop.iteration": "7"}, {"a": 1}, "rl.loop.iteration is text, not an integer"),
    (
        SAMPLE,
        {"rl.loop.iteration": 7.0},
        {"a": 1},
        "rl.loop.iteration is a number with a fraction, not an integer",
    ),
    (SAMPLE, {"rl.sample.table": 7}, {"a": 1}, "rl.sample.table is an integer, not text"),
    (CONSOLE, {}, None, "the body is empty, not text"),
    (CONSOLE, {}, {"text": "a"}, "the body is a map, not text"),
    (CONSOLE, {"log.iostream": 1}, "a", "log.iostream is an integer, not text"),
    (SAMPLE, {}, None, "the body is empty, not a map"),
    (SAMPLE, {}, "text", "the body is text, not a map"),
    (SAMPLE, {}, {}, "the body has no fields"),
    (SAMPLE, {}, {"tokens": [1, 2]}, "field 'tokens' is an array, not text, a number or a boolean"),
    (SAMPLE, {}, {"info": {"a": 1}}, "field 'info' is a map, not text, a number or a boolean"),
]


@pytest.mark.parametrize(("name", "attributes", "body", "words"), INVALID)
def test_an_event_that_says_something_else_is_refused_in_clear_words(
    name: str, attributes: Attributes, body: Value, words: str
) -> None:
    admitted = admit_event(name, attributes, body)
    assert admitted.refused == {Refusal.INVALID_EVENT: 1}
    assert f"Event {name}: " in admitted.message
    assert words in admitted.message
    assert "`otel-rl help semantic-conventions`" in admitted.message


@pytest.mark.parametrize(
    ("name", "attributes", "body", "words"),
    [
        (START, {CONFIG: {"": 1}}, None, "a key in rl.experiment.config is empty"),
        (START, {CONFIG: {"a": [{" ": 1}]}}, None, "a key in rl.experiment.config is empty"),
        (START, {CONFIG: {"k" * 257: 1}}, None, "is over 256 bytes"),
        (START, {"rl.experiment.tags": [""]}, None, "a word of rl.experiment.tags is empty"),
        (START, {"rl.experiment.tags": ["t" * 129]}, None, "is over 128 characters"),
        (START, {"rl.experiment.group": "\x1b[31m"}, None, "group has control characters"),
        (START, {"rl.experiment.job_type": " "}, None, "rl.experiment.job_type is empty"),
        (SAMPLE, {"rl.sample.table": "a\u202eb"}, {"a": 1}, "table has control characters"),
        (SAMPLE, {"rl.sample.table": "t" * 129}, {"a": 1}, "is over 128 characters"),
        (SAMPLE, {}, {"a\x00": 1}, "a key in the body has control characters"),
    ],
)
def test_a_name_in_an_event_is_short_and_printable(
    name: str, attributes: Attributes, body: Value, words: str
) -> None:
    admitted = admit_event(name, attributes, body)
    assert admitted.refused == {Refusal.INVALID_NAME: 1}
    assert words in admitted.message


def test_a_key_that_is_given_twice_is_refused() -> None:
    record = event(SAMPLE, {}, {"a": 1}, time_ns=NOW_NS)
    record.body.kvlist_value.values.extend(key_values({"a": 2}))
    admitted = admit_record(record)
    assert admitted.refused == {Refusal.INVALID_NAME: 1}
    assert "key 'a' in the body is given twice" in admitted.message


def test_an_attribute_that_is_given_twice_is_refused_if_the_bridge_reads_it() -> None:
    record = event(END, {"rl.experiment.status": "complete", "mine": 1}, time_ns=NOW_NS)
    record.attributes.extend(key_values({"mine": 2}))
    assert admit_record(record).refused == {}
    record.attributes.extend(key_values({"rl.experiment.status": "crashed"}))
    admitted = admit_record(record)
    assert admitted.refused == {Refusal.INVALID_EVENT: 1}
    assert "rl.experiment.status is given twice" in admitted.message


@pytest.mark.parametrize(
    ("name", "attributes", "body", "words"),
    [
        (START, {CONFIG: nested(17)}, None, "config is nested deeper than 16 levels"),
        (START, {CONFIG: {"a": [[[nested(13)]]]}}, None, "nested deeper than 16 levels"),
        (START, {CONFIG: {"a": ["é" * 70_000]}}, None, "has a text of 140000 bytes, over 131072"),
        (START, {"rl.experiment.notes": "n" * 140_000}, None, "has a text of 140000 bytes"),
        (SAMPLE, {}, {"completion": "c" * 140_000}, "the body has a text of 140000 bytes"),
        (START, {CONFIG: {f"k{i}": "v" * 1000 for i in range(1100)}}, None, ", over 1048576"),
    ],
)
def test_an_event_that_is_too_large_or_too_deep_is_refused(
    name: str, attributes: Attributes, body: Value, words: str
) -> None:
    admitted = admit_event(name, attributes, body)
    assert admitted.refused == {Refusal.EVENT_TOO_LARGE: 1}
    assert words in admitted.message
    assert "Shorten it." in admitted.message


def test_bounds_of_events_are_settings() -> None:
    limits = ReceiveLimits(max_event_depth=1, max_event_text_bytes=4, max_event_bytes=1024)
    assert admit_event(START, {CONFIG: {"a": "four"}}, limits=limits).refused == {}
    too_large: list[Attributes] = [{"a": "fives"}, {"a": {}}, {f"k{i}": i for i in range(200)}]
    for config in too_large:
        admitted = admit_event(START, {CONFIG: config}, limits=limits)
        assert admitted.refused == {Refusal.EVENT_TOO_LARGE: 1}


def test_attributes_of_an_event_are_few_and_short() -> None:
    good: Attributes = {"rl.worker.status": "complete"}
    for attributes, reason in (
        ({f"k{i}": i for i in range(64)}, Refusal.TOO_MANY_ATTRIBUTES),
        ({"note": "v" * 5000}, Refusal.ATTRIBUTE_TOO_LONG),
        ({"k" * 257: 1}, Refusal.ATTRIBUTE_TOO_LONG),
        ({f"note{i}": "v" * 3000 for i in range(3)}, Refusal.ATTRIBUTE_TOO_LONG),
    ):
        assert admit_event(WORKER_END, {**good, **attributes}).refused == {reason: 1}


def test_a_run_has_at_most_64_tags_of_a_worker() -> None:
    admitted = admit_event(START, {"rl.experiment.tags": ["t"] * 65})
    assert admitted.refused == {Refusal.TOO_MANY_ATTRIBUTES: 1}
    assert "rl.experiment.tags has 65 words, over 64" in admitted.message


def test_a_sample_has_at_most_64_fields() -> None:
    admitted = admit_event(SAMPLE, {}, {f"f{i}": i for i in range(65)})
    assert admitted.refused == {Refusal.TOO_MANY_ATTRIBUTES: 1}
    assert "the body has 65 fields, over 64" in admitted.message


@pytest.mark.parametrize(
    ("time_ns", "observed_ns", "is_taken"),
    [
        (NOW_NS, 0, True),
        (0, 0, True),
        (0, NOW_NS, True),
        (NOW_NS, 1, True),  # the time of the event counts where there is one
        (0, 1, False),
        (1, NOW_NS, False),
        (NOW_NS - 14 * 86_400 * S - 1, 0, False),
        (NOW_NS + 600 * S + 1, 0, False),
        (2**64 - 1, 0, False),
    ],
)
def test_events_are_near_now_or_of_unknown_time(
    time_ns: int, observed_ns: int, *, is_taken: bool
) -> None:
    record = event(time_ns=time_ns)
    record.observed_time_unix_nano = observed_ns
    refused = {} if is_taken else {Refusal.TIME_OUT_OF_RANGE: 1}
    assert admit_record(record).refused == refused


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    name=st.sampled_from([START, END, WORKER_END, SAMPLE]),
    attributes=st.dictionaries(
        st.sampled_from(
            [
                CONFIG,
                "rl.experiment.notes",
                "rl.experiment.tags",
                "rl.experiment.group",
                "rl.experiment.status",
                "rl.worker.status",
                "rl.loop.iteration",
                "rl.sample.table",
                "log.record.uid",
            ]
        ),
        json_values,
    ),
    body=json_values,
)
def test_whatever_an_event_says_it_is_taken_or_refused_in_one_printable_line(
    name: str, attributes: dict[str, Value], body: Value
) -> None:
    admitted = admit_event(name, attributes, body)
    assert admitted.accepted + sum(admitted.refused.values()) == 1
    assert bool(admitted.message) == bool(admitted.refused)
    assert re.fullmatch(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*", admitted.message)
