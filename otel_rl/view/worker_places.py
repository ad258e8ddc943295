"""Spans of a run, and what completes a diagnosis: hosts of workers, names of keys."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import read_named_keys, read_tables, span_parts
from otel_rl.bridge.journal.state import StateRefused
from otel_rl.bridge.keys import KeyNames
from otel_rl.bridge.rows.span_log import read_spans
from otel_rl.diagnose.places import Place, with_names, with_places
from otel_rl.diagnose.prescriptions import prescribed
from otel_rl.diagnose.result import Diagnosis, Kind
from otel_rl.records import STACKS, Row, SpanRecord
from otel_rl.view.found import Found


def spans_of(
    connection: Connection, run: str, tell: Callable[[str], None] = lambda _: None
) -> list[SpanRecord]:
    """Return the spans of chosen steps and of the last minute or more, each once.

    Args:
        connection: To the journal.
        run: Its id.
        tell: Told in words how many damaged parts are left out, if any are.
    """
    found: dict[bytes, SpanRecord] = {}
    damaged = 0
    for body in span_parts(connection, run):
        try:
            for some in read_spans(body):
                found.update((span.span_id, span) for span in some)
        except StateRefused:
            damaged += 1
    if damaged:
        tell(f"{damaged} damaged parts of the spans are left out")
    return list(found.values())


def completed(found: Found, report: Diagnosis, names: KeyNames = KeyNames.FRAMEWORK) -> Diagnosis:
    """Return a report with the places of its workers, what to try, and the names of keys."""
    report = with_places(report, _places_of(found, report))
    made = found.run.description.provenance
    packages = () if made is None else made.packages
    tried = [replace(one, tries=[*prescribed(one.kind, packages)]) for one in report.causes]
    observed = [
        replace(one, tries=[*prescribed(one.against, packages)]) for one in report.observations
    ]
    report = replace(report, causes=tried, observations=observed)
    if not (report.causes or observed or report.symptoms or report.changes):
        return report
    with found.open() as connection:
        return with_names(report, read_named_keys(connection, found.id, names).in_words)


def _places_of(found: Found, report: Diagnosis) -> Mapping[str, Place]:
    """Return the places of the workers of causes, as far as the journal has them, by worker.

    Hosts are those of spans and stacks, which a worker sends whose phase takes too long.
    """
    if not any(cause.worker for cause in report.causes):
        return {}
    # Imported here: the state of a run loads the rows with their settings, and so pydantic. The
    # diagnosis process of a bridge needs none of them before a cause names a worker.
    from otel_rl.bridge.rows.stored_run import read_standing

    with found.open() as connection:
        known = {one.instance: one.name for one in read_standing(connection, found.id).workers}
        spans = spans_of(connection, found.id)
        is_stalled = any(cause.kind is Kind.STALL for cause in report.causes)
        rows = [*read_tables(connection, found.id)] if is_stalled else []
    places = {
        known[span.worker]: Place(host=span.host)
        for span in spans
        if span.host and span.worker in known
    }
    for row in reversed(rows):  # the newest one counts
        places.update(_stacks(row))
    return places


def _stacks(row: Row) -> Iterator[tuple[str, Place]]:
    for key, table in row.tables.items():
        role, _, name = key.rpartition("/")
        if name != STACKS:
            continue
        for line in table.rows:
            fields = dict(zip(table.columns, line, strict=False))
            pid = fields.get("pid")
            yield (
                f"{role}/{fields.get('worker')}",
                Place(
                    host=str(fields.get("host") or "") or None,
                    pid=pid if isinstance(pid, int) else None,
                    stack=str(fields.get("stack") or "").splitlines(),
                    collective=str(fields.get("collective") or ""),
                    step=row.step,
                ),
            )
