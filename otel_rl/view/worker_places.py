"""Finds where workers of a run are, from what its journal keeps."""

from collections.abc import Iterable, Mapping

from otel_rl.bridge.journal.formats.state_format import StateRefused
from otel_rl.bridge.journal.run_reader import read_standing, span_parts
from otel_rl.bridge.rows.history.span_window import read_spans
from otel_rl.diagnose.places import Place
from otel_rl.records import SpanRecord
from otel_rl.view.journals import Found

__all__ = ["places_of", "spans_in"]


def spans_in(parts: Iterable[bytes]) -> list[SpanRecord]:
    """Return the spans of a journal's parts, each once; damaged parts are left out."""
    found: dict[bytes, SpanRecord] = {}
    for body in parts:
        try:
            for some in read_spans(body):
                found.update((span.span_id, span) for span in some)
        except StateRefused:
            continue
    return list(found.values())


def places_of(found: Found) -> Mapping[str, Place]:
    """Return the places of workers whose spans or stacks the journal has, by worker."""
    with found.open() as connection:
        known = {one.instance: one.name for one in read_standing(connection, found.id).workers}
        spans = spans_in(span_parts(connection, found.id, since_ns=0))
    return {
        known[span.worker]: Place(host=span.host)
        for span in spans
        if span.host and span.worker in known
    }
