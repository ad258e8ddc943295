"""Writes one case: OTLP/JSON as it arrives, the same as Parquet, and its label."""

import base64
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf.json_format import MessageToDict
from pyarrow import parquet

from exams.first.case import Case, draw, with_symptoms
from exams.first.events import Recording
from exams.first.play import play
from exams.first.requests import EPOCH_NS, arrivals
from otel_rl.bridge.receive.signal_specs import SIGNALS
from otel_rl.signals import Signal

AFTER_END_NS: Final = 30_000_000_000
"""A run that has ended is observed for as long after its last request."""

_BYTES: Final = frozenset({"traceId", "spanId", "parentSpanId"})
_STEP: Final = "rl.loop.iteration"
_TITLE: Final = {Signal.METRICS: "Metrics", Signal.TRACES: "Spans", Signal.LOGS: "Logs"}

_OF_WORKER: Final = [
    ("case", pa.string()),
    ("arrived_ns", pa.int64()),
    ("service", pa.string()),
    ("instance", pa.string()),
    ("host", pa.string()),
]

SCHEMAS: Final = {
    "metrics": pa.schema(
        [
            *_OF_WORKER,
            ("name", pa.string()),
            ("unit", pa.string()),
            ("kind", pa.string()),
            ("start_ns", pa.int64()),
            ("time_ns", pa.int64()),
            ("step", pa.int64()),
            ("value", pa.float64()),
            ("count", pa.int64()),
            ("attributes", pa.string()),
        ]
    ),
    "spans": pa.schema(
        [
            *_OF_WORKER,
            ("name", pa.string()),
            ("trace_id", pa.string()),
            ("span_id", pa.string()),
            ("parent_span_id", pa.string()),
            ("links", pa.list_(pa.string())),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("step", pa.int64()),
            ("attributes", pa.string()),
        ]
    ),
    "events": pa.schema(
        [
            *_OF_WORKER,
            ("name", pa.string()),
            ("time_ns", pa.int64()),
            ("step", pa.int64()),
            ("attributes", pa.string()),
        ]
    ),
}
"""Columns of the tables; each is a folder with a file for each case that has such rows."""

_Row = dict[str, Any]


def names(seed: int, cases: int) -> Sequence[tuple[int, str]]:
    """Return number and name of each case: the names do not tell that every fifth is healthy."""
    places = random.Random(f"names-{seed}").sample(range(cases), cases)
    return [(number, f"{place:04d}") for number, place in enumerate(places)]


def written(
    out: Path, case: tuple[int, str], *, seed: int
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Draw a case, of a number and a name, and write its data.

    Returns:
        What who answers may know of it, and the label.
    """
    number, name = case
    drawn = draw(seed, number)
    made = play(drawn.program, drawn.effects, has_end_reports=drawn.how.is_ours)
    place = out / "otlp"
    place.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[_Row]] = defaultdict(list)
    at_ns = 0
    with (
        (place / f"{name}.jsonl").open("w", encoding="utf-8") as requests,
        (place / f"{name}.arrivals").open("w", encoding="ascii") as times,
    ):
        for at_ns, some in arrivals(drawn.program, drawn.how, drawn.effects, made):
            for one in some:
                message = SIGNALS[one.signal].request.FromString(one.body)
                request = _with_hex(MessageToDict(message, use_integers_for_enums=True))
                requests.write(json.dumps(request, separators=(",", ":")) + "\n")
                times.write(f"{at_ns}\n")
                for kind, row in _rows(one.signal, request):
                    rows[kind].append({"case": name, "arrived_ns": at_ns, **row})
    for kind, some_rows in rows.items():
        folder = out / "parquet" / kind
        folder.mkdir(parents=True, exist_ok=True)
        made_table = pa.Table.from_pylist(some_rows, SCHEMAS[kind])
        parquet.write_table(made_table, folder / f"{name}.parquet", compression="zstd")
    until_ns = at_ns + AFTER_END_NS * made.is_over
    return {"case": name, "observed_until_ns": until_ns}, _label(name, drawn, made)


def _label(name: str, drawn: Case, made: Recording) -> Mapping[str, Any]:
    return {
        "case": name,
        "faults": [
            {
                "name": one.name,
                "kinds": sorted(one.kinds),
                "role": one.role,
                "worker": one.worker,
                "step": one.step,
                "size": one.in_words,
                "symptom_ns": EPOCH_NS + int((one.symptom_s or 0.0) * 1e9),
            }
            for one in with_symptoms(drawn.truth, drawn, made).faults
        ],
        "changes": [*drawn.truth.changes],
        "topology": str(drawn.program.topology),
        "instrumentation": str(drawn.how.style),
        "sender": "otel_rl" if drawn.how.is_ours else "OpenTelemetry SDK",
        "workers": sum(drawn.program.sizes.values()),
        "steps": drawn.program.steps,
        "usual_step_s": round(drawn.program.usual_step_s, 3),
    }


def _with_hex(value: Any) -> Any:  # JSON of any shape
    """Return OTLP/JSON of protobuf's JSON: ids are hexadecimal."""
    if isinstance(value, list):
        return [_with_hex(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(one).hex() if key in _BYTES else _with_hex(one)
        for key, one in value.items()
    }


def _rows(signal: Signal, request: Mapping[str, Any]) -> Iterator[tuple[str, _Row]]:
    for of in request.get(f"resource{_TITLE[signal]}", ()):
        about = _plain(of["resource"])
        worker = {
            "service": about["service.name"],
            "instance": about["service.instance.id"],
            "host": about["host.name"],
        }
        for scope in of[f"scope{_TITLE[signal]}"]:
            if signal is Signal.METRICS:
                for metric in scope["metrics"]:
                    yield from (("metrics", {**worker, **row}) for row in _points(metric))
            elif signal is Signal.TRACES:
                yield from (("spans", {**worker, **_span(one)}) for one in scope["spans"])
            else:
                yield from (("events", {**worker, **_event(one)}) for one in scope["logRecords"])


def _points(metric: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield a row for each measurement: those of an exact gauge are its exemplars."""
    (kind,) = {"gauge", "sum", "histogram"} & metric.keys()
    of_metric = {"name": metric["name"], "unit": metric.get("unit", ""), "kind": kind}
    for point in metric[kind]["dataPoints"]:
        attributes = _plain(point)
        start_ns = int(point.get("startTimeUnixNano", 0)) or None
        for one in point.get("exemplars") or [point]:
            step = _plain(one, "filteredAttributes").get(_STEP, attributes.get(_STEP))
            value = one.get("asDouble", one.get("sum"))
            yield {
                **of_metric,
                "start_ns": start_ns,
                "time_ns": int(one["timeUnixNano"]),
                "step": step,
                "value": None if value is None else float(value),
                "count": int(point["count"]) if kind == "histogram" else None,
                "attributes": json.dumps(attributes),
            }


def _span(one: Mapping[str, Any]) -> _Row:
    attributes = _plain(one)
    return {
        "name": one["name"],
        "trace_id": one["traceId"],
        "span_id": one["spanId"],
        "parent_span_id": one.get("parentSpanId"),
        "links": [link["spanId"] for link in one.get("links", ())],
        "start_ns": int(one["startTimeUnixNano"]),
        "end_ns": int(one["endTimeUnixNano"]),
        "step": attributes.get(_STEP),
        "attributes": json.dumps(attributes),
    }


def _event(one: Mapping[str, Any]) -> _Row:
    attributes = _plain(one)
    return {
        "name": one["eventName"],
        "time_ns": int(one["timeUnixNano"]),
        "step": attributes.get(_STEP),
        "attributes": json.dumps(attributes),
    }


def _plain(of: Mapping[str, Any], name: str = "attributes") -> dict[str, Any]:
    found = {}
    for pair in of.get(name, ()):
        ((kind, value),) = pair["value"].items()
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found
