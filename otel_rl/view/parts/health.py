"""Data of the page *Health*: waiting data, losses, and bounds that are near."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from otel_rl.bridge.config import RUN_SHARE, BridgeSettings
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.dashboard.arrange import unit_words
from otel_rl.records import Description, KeySpec
from otel_rl.redaction import redacted
from otel_rl.view.found import Found
from otel_rl.view.run_data import RunData
from otel_rl.view.text import label, passage

_OWN: Final = "otel_rl/"
_MAX_COUNTS: Final = 200
_MAX_HOSTS: Final = 100
_MAX_CONFIG: Final = 200
_NS_PER_S: Final = 1e9


def health(
    found: Found, data: RunData, keys: Sequence[KeySpec], settings: BridgeSettings, now_ns: int
) -> dict[str, Any]:
    """Return how the run gets to its tracker.

    Args:
        found: The run.
        data: Its columns.
        keys: Its catalogue, for units.
        settings: Of the bridge, for its bounds.
        now_ns: By the clock of this machine.
    """
    run = found.run
    stored_bytes = run.made_bytes + run.waiting_bytes
    share_bytes = int(settings.journal.max_bytes * RUN_SHARE)
    return {
        "tracker": label(run.tracker),
        "location": label(redacted(run.location)),
        "state": label(run.state),
        "error": label(redacted(run.error)),
        "error_s": (now_ns - run.error_ns) / _NS_PER_S if run.error_ns and run.error else None,
        "rows": run.rows,
        "unconfirmed": run.lag_rows,
        "waiting_bytes": run.waiting_bytes,
        "bounds": [
            {"name": name, "used": used, "bound": bound}
            for name, used, bound in (
                ("batches and rows in the journal", stored_bytes, share_bytes),
                ("keys", len(data.series), AlignSettings.of(settings.rows).max_keys),
            )
        ],
        "counts": list(_counts(data, {spec.key: unit_words(spec.unit) for spec in keys})),
        "failures": [label(str(one)) for one in data.failures[-50:]],
        "left_out": data.left_out,
        "environment": environment(run.description),
    }


def environment(description: Description) -> dict[str, str]:
    """Return the provenance and the config of a run, in words."""
    return dict(_environment(description))


def _environment(description: Description) -> Iterator[tuple[str, str]]:
    made = description.provenance
    if made is not None:
        yield "command", passage(shlex.join(made.command))
        yield "commit", label(made.commit)
        yield "repository", label(redacted(made.repository))
        yield "Python", label(made.runtime)
        yield "system", label(made.system)
    hosts = (f"{host}: {', '.join(roles)}" for host, roles in description.hosts.items())
    yield "machines", passage("\n".join(islice(hosts, _MAX_HOSTS)))
    for key, value in islice(_flat(description.config), _MAX_CONFIG):
        yield f"config {label(key)}", passage(str(value))[:1_000]


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by dotted names, so that a difference is that of one value."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _counts(data: RunData, units: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return otel_rl's own counters of this run, by their last values."""
    found = []
    for key in sorted(data.series):
        if key.startswith(_OWN):
            value = next((one for one in reversed(data.series[key].values) if one == one), math.nan)
            found.append(
                {
                    "key": label(key.removeprefix(_OWN)),
                    "value": value,
                    "unit": label(units.get(key, "")),
                }
            )
    return found[:_MAX_COUNTS]
