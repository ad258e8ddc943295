"""The card of a written data set, ``README.md`` beside its files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from exams.dataset.write import SCHEMAS

_UNITS = {
    "case": "name of the run",
    "arrived_ns": "when the request was received, ns since the epoch, by the receiver's clock",
    "service": "`service.name`: the role, or the program's name for it",
    "instance": "`service.instance.id`: one process; a restart is another",
    "host": "`host.name`",
    "name": "of the metric, span or event, as the sender writes it",
    "unit": "of the value; `1` and empty are numbers",
    "kind": "`gauge`, `sum` (cumulative) or `histogram` (cumulative; `value` is its sum)",
    "start_ns": "begin, ns since the epoch, by the sender's clock, which may be wrong",
    "time_ns": "when it was measured, likewise",
    "end_ns": "end, likewise",
    "step": "step of the training loop, where the sender tells it",
    "value": "the measurement; null where none was recorded (a heartbeat)",
    "count": "measurements of a histogram",
    "attributes": "JSON object",
    "trace_id": "hexadecimal",
    "span_id": "hexadecimal",
    "parent_span_id": "hexadecimal; perhaps of another worker",
    "links": "`span_id` of the work whose samples are used",
}
_CARD: Final = Path(__file__).with_name("card.md")


def card(*, seed: int, labels: Sequence[Mapping[str, Any]]) -> str:
    """Return the card of a data set with these labels."""
    names = Counter(" + ".join(one["name"] for one in label["faults"]) for label in labels)
    healthy = names.pop("", 0)
    faults = [f"| {name} | {n} |" for name, n in sorted(names.items())]
    tables = []
    for name, schema in SCHEMAS.items():
        tables += [f"`{name}`:", "", "| column | type | what |", "| --- | --- | --- |"]
        tables += [f"| `{of.name}` | {of.type} | {_UNITS[of.name]} |" for of in schema]
        tables.append("")
    return _CARD.read_text(encoding="utf-8").format(
        cases=len(labels),
        healthy=healthy,
        faulty=len(labels) - healthy,
        seed=seed,
        schema="\n".join(tables).rstrip(),
        faults="\n".join(faults),
    )
