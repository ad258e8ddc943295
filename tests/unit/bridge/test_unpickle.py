"""What is read from the journal makes nothing but what a bridge keeps."""

import array
import builtins
import collections
import copyreg
import functools
import operator
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.align import Aligner
from otel_rl.bridge.align.series import Standing
from otel_rl.bridge.unpickle import ALLOWED, StateRefused, unpickle
from otel_rl.records import ExperimentStatus, SpanRecord, Worker

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Calls:
    """Pickles to a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call


HOSTILE = {
    "a command": Calls(os.system, "touch mark"),
    "another process": Calls(subprocess.Popen, ["touch", "mark"]),
    "evaluated text": Calls(eval, "open('mark', 'w')"),
    "executed text": Calls(exec, "open('mark', 'w')"),
    "a file": Calls(open, "mark", "w"),
    "an import": Calls(__import__, "antigravity"),
    "attributes": Calls(getattr, Calls(getattr, "text", "join"), "__call__"),
    "a getter of attributes": operator.attrgetter("system"),
    "a method by its name": Calls(operator.methodcaller("touch"), Path("mark")),
    "a partial call": functools.partial(os.system, "touch mark"),
    "a path": Path("mark"),
    "a map that is looked through": Calls(collections.deque, Calls(map, os.system, ["touch mark"])),
    "the registry of pickles": Calls(copyreg.pickle, Worker, os.system),
    "what makes anything": Calls(copyreg._reconstructor, SpanRecord, object, None),  # type: ignore[attr-defined]
    "an unpickler within": Calls(pickle.loads, pickle.dumps(Calls(os.system, "touch mark"))),
    "a weaker container": collections.defaultdict(list),
    "an exception": ValueError("no state has one"),
    "a class of ours that no state has": Calls(Calls, os.system),
}


@pytest.mark.parametrize("what", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_no_state_has_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: object, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    body = pickle.dumps(what, protocol)
    with pytest.raises(StateRefused, match="which no state has"):
        unpickle(body)
    assert list(tmp_path.iterdir()) == []


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


def named(module: str, name: str) -> bytes:
    """A look-up as of protocol 4, which takes names with dots."""
    return (
        b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"
    )


FORGED = {
    "a name with dots": opcodes(named("otel_rl.bridge.align", "Aligner.add.__globals__")),
    "what a module of ours imports": opcodes(named("otel_rl.bridge.align.trail", "pickle")),
    "a module's dict": opcodes(named("otel_rl.bridge.align.trail", "__dict__")),
    "a name of protocol 0": b"cos\nsystem\n(S'true'\ntR.",
    "an instance of protocol 0": b"(S'true'\nios\nsystem\n.",
    "an extension": opcodes(b"\x82\x01"),
    "an object of another store": opcodes(b"K\x01Q"),
    "nothing": b"",
    "no pickle": b"\xff\xfe state",
    "one that breaks off": pickle.dumps([1, 2, 3])[:-3],
    "text that is no text": opcodes(b"\x8c\x02\xff\xff"),
    "a list that is called": opcodes(b"]", b")", b"R"),
}


@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED)
def test_what_is_no_pickle_of_a_state_is_refused_with_a_reason(body: bytes) -> None:
    with pytest.raises(StateRefused) as refused:
        unpickle(body)
    assert str(refused.value).startswith("it ")


def attribute(name: str, value: bytes) -> bytes:
    """BUILD, with a state for slots: it sets an attribute of whatever stands before it."""
    return b"N}" + b"\x8c" + bytes([len(name)]) + name.encode() + value + b"s\x86b"


@pytest.mark.parametrize(
    "changed",
    [
        named("otel_rl.bridge.align", "Aligner") + attribute("add", b"K\x07"),
        named("otel_rl.bridge.align", "Aligner") + attribute("brand_new", b"K\x07"),
        named("otel_rl.records", "Worker") + attribute("__hash__", named("collections", "deque")),
        named("collections", "Counter") + attribute("update", b"N"),
        named("otel_rl.records", "ExperimentStatus")
        + b"\x8c\x07running\x85R"
        + attribute("_value_", b"\x8c\x04gone"),
        named("otel_rl.bridge.align.series", "Standing") + b"K\x01\x85R" + attribute("x", b"K\x07"),
    ],
    ids=["a method", "a new attribute", "a hash", "Python's own", "a member", "a number"],
)
@pytest.mark.parametrize("ending", [b"", b"0" + named("os", "system")], ids=["read", "refused"])
def test_a_class_that_all_runs_use_is_as_it_was(changed: bytes, ending: bytes) -> None:
    classes = (Aligner, Worker, collections.Counter, ExperimentStatus, Standing)
    everybodys = [*classes, *ExperimentStatus, *Standing]
    before = [dict(vars(one)) for one in everybodys]
    with pytest.raises(StateRefused):
        unpickle(opcodes(changed, ending))
    assert [dict(vars(one)) for one in everybodys] == before


def test_of_python_only_containers_may_be_asked_for() -> None:
    ours = {module for module in ALLOWED if module.startswith("otel_rl.")}
    assert {module: ALLOWED[module] for module in ALLOWED.keys() - ours} == {
        "array": {"array", "_array_reconstructor"},
        "collections": {"Counter", "deque"},
    }
    assert builtins.__name__ not in ALLOWED


def values() -> Iterator[object]:
    worker = Worker("trainer", "a", index=0, count=2)
    yield [None, True, 1.5, "text", b"bytes", (1, {2: {3}}), frozenset({4})]
    yield array.array("q", range(100)), array.array("d", [0.5]), collections.deque([1], 7)
    yield collections.Counter({1: 2}), ExperimentStatus.COMPLETE, Standing.FAILED, worker


@pytest.mark.parametrize("value", list(values()), ids=str)
@pytest.mark.parametrize("protocol", [pickle.HIGHEST_PROTOCOL])
def test_what_a_state_has_is_read_as_it_was_written(value: object, protocol: int) -> None:
    assert unpickle(pickle.dumps(value, protocol)) == value
