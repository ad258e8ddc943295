"""The fields of everything that is stored, as text: the format of the journal."""

import dataclasses
import json
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from otel_rl.bridge.journal.state import encode_row
from otel_rl.bridge.rows.archived_points import ArchivedPart
from otel_rl.bridge.rows.dedup.dedup_log import Part
from otel_rl.bridge.rows.rollouts import Head, InFlight
from otel_rl.bridge.rows.series.table_state import Identities
from otel_rl.bridge.rows.steps.written_steps import LogPart
from otel_rl.bridge.rows.stored_run import StoredRun
from otel_rl.records import KeySpec, Row, SpanRecord, Table

_STORED = (
    *(StoredRun, Identities, Part, LogPart, ArchivedPart, KeySpec, SpanRecord),
    *(Head, InFlight),
)


def fields_of_state() -> str:
    """One line for each field of each class, in order: class, name, type, default; then rows."""
    found: dict[type, list[str]] = {}
    for kind in _STORED:
        _find(kind, found)
    in_order = sorted(found.items(), key=lambda one: one[0].__name__)
    lines = [f"{kind.__name__} {line}" for kind, lines in in_order for line in lines]
    return "".join(f"{line}\n" for line in [*lines, *_fields_of_rows()])


def _fields_of_rows() -> Iterator[str]:
    """Yield a line for rows of values alone and one for all others: JSON lists without names."""
    axes: dict[str, Any] = {"step": 2, "time_ns": 3, "policy_version": 4, "values": {"a": 0.5}}
    more: dict[str, Any] = {"labels": {"b": "c"}, "attempt": 6, "replaces": True}
    names = {json.dumps(value): name for name, value in {**axes, "stored_ns": 5, **more}.items()}
    for what, row in (
        ("of values", Row(1, **axes)),
        ("of all", Row(1, **axes, **more, tables={"d": Table(("e",), (("f",),))})),
    ):
        stored = map(json.dumps, json.loads(encode_row(row, now_ns=5)))
        yield f"rows {what}: {', '.join(names.get(one, one) for one in stored)}"


def _find(kind: Any, found: dict[type, list[str]]) -> None:
    """Add the fields of a type, and of all types in them."""
    for inner in typing.get_args(kind):
        _find(inner, found)
    if not isinstance(kind, type) or kind in found or not _has_fields(kind):
        return
    types, found[kind] = typing.get_type_hints(kind, include_extras=True), []
    for name, default in _fields(kind):
        found[kind].append(f"{name}: {_text(types[name])}{default}")
        _find(types[name], found)


def _has_fields(kind: type) -> bool:
    is_named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return issubclass(kind, msgspec.Struct) or is_named or dataclasses.is_dataclass(kind)


def _fields(kind: Any) -> Iterator[tuple[str, str]]:
    if issubclass(kind, msgspec.Struct):
        for one in msgspec.structs.fields(kind):
            default = "" if one.default is msgspec.NODEFAULT else f" = {one.default!r}"
            yield one.name, default
    elif dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
            yield field.name, default
    else:
        for name in kind._fields:
            default = kind._field_defaults.get(name, dataclasses.MISSING)
            yield name, "" if default is dataclasses.MISSING else f" = {default!r}"


def _text(kind: Any) -> str:
    """The type as text, without the modules of its classes: a class may move."""
    if typing.get_origin(kind) is Annotated:
        inner, *bounds = typing.get_args(kind)
        return f"{_text(inner)} {', '.join(map(str, bounds))}"
    if arguments := typing.get_args(kind):
        name = getattr(typing.get_origin(kind), "__name__", "Union")
        return f"{name}[{', '.join(map(_text, arguments))}]"
    return kind.__name__ if isinstance(kind, type) else str(kind)
