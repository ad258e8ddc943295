"""The bridge's own metrics for Prometheus to scrape: ``GET /metrics`` beside ``/healthz``.

The names are those that Prometheus gives the same metrics when they come by OTLP, so alerts and
dashboards hold for both.
"""

import os
import resource
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final

from otel_rl.bridge.counters import DELAY_BOUNDS_S, Counter, Counters, Delay, Gauge
from otel_rl.bridge.telemetry import GaugeValue
from otel_rl.semconv import names
from otel_rl.version import __version__

_UNITS: Final = {"By": "_bytes"}


def exposition(counters: Counters, levels: Iterable[GaugeValue]) -> str:
    """Return the present values in Prometheus's text format.

    Args:
        levels: Values of the gauges. A gauge without a value is left out.
    """
    lines: list[str] = []
    for counter in Counter:
        name = f"{_name(counter)}_total"
        lines += _head(name, "counter", counter.description)
        for reason in counter.reasons or [None]:
            labels = {} if reason is None else {names.RL_REASON: str(reason)}
            lines.append(_sample(name, labels, counters.value(counter, reason=reason)))
    found = [*levels]
    for gauge in Gauge:
        name = f"{_name(gauge)}{_UNITS.get(gauge.unit, '')}"
        lines += _head(name, "gauge", gauge.description)
        lines += [_sample(name, one.attributes, one.value) for one in found if one.gauge is gauge]
    for delay in Delay:
        name = f"{_name(delay)}_seconds"
        lines += _head(name, "histogram", delay.description)
        for attributes, of in counters.delays(delay):
            through = [*accumulate(of.counts)]
            for bound, count in zip([*map(str, DELAY_BOUNDS_S), "+Inf"], through, strict=True):
                lines.append(_sample(f"{name}_bucket", {**attributes, "le": bound}, count))
            lines.append(_sample(f"{name}_sum", attributes, of.total_s))
            lines.append(_sample(f"{name}_count", attributes, through[-1]))
    lines += _head("otel_rl_bridge_info", "gauge", "Version of the bridge; always 1.")
    lines.append(_sample("otel_rl_bridge_info", {"version": __version__}, 1))
    cpu, memory = "process_cpu_seconds_total", "process_resident_memory_bytes"
    lines += _head(cpu, "counter", "CPU time of the bridge, in seconds, without its writers.")
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines.append(_sample(cpu, {}, used.ru_utime + used.ru_stime))
    if (resident := _resident_bytes()) is not None:
        lines += _head(memory, "gauge", "Memory of the bridge, in bytes, without its writers.")
        lines.append(_sample(memory, {}, resident))
    return "\n".join(lines) + "\n"


def _name(name: str) -> str:
    return name.replace(".", "_")


def _head(name: str, kind: str, description: str) -> list[str]:
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    if not labels:
        return f"{name} {value}"
    told = ",".join(f'{_name(label)}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{told}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _resident_bytes() -> int | None:
    """Return the memory of this process; None where there is no ``/proc``."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  # read at each scrape
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
