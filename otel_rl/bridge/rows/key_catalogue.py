"""Catalogue of a run's tracker keys: the meaning of each, written with its first row.

A known key costs one lookup in a set. A new key is described by its group, or else by the stage
that made it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from otel_rl.bridge.keys import DIAGNOSIS_ALERT, DIAGNOSIS_CAUSE, DIAGNOSIS_WORKER
from otel_rl.bridge.rows.messages import TOLD
from otel_rl.bridge.rows.series.streams import Group
from otel_rl.records import CONSOLE, KeySource, KeySpec
from otel_rl.semconv import names
from otel_rl.semconv.spec import MetricSpec, Tier

STEP: Final = "step"
"""Axis of keys in the rows of steps."""

TIME: Final = "time"
"""Axis of all others."""

_BRIDGE: Final = {
    name.replace(".", "/"): name for name in names.METRICS if name.startswith("otel_rl.bridge.")
}
"""The keys of the bridge's own counters, without their reasons."""

_WITHOUT_METRIC: Final = {
    "critical_path/partial": Tier.FULL,
    "diagnosis/causes": Tier.BASIC,
    "diagnosis/ranked": Tier.BASIC,
}
"""Keys of no metric."""

_TABLES: Final = frozenset({CONSOLE, "diagnosis/ranked"})

_SENT_TEXTS: Final = frozenset(
    {
        DIAGNOSIS_ALERT,
        DIAGNOSIS_CAUSE,
        "diagnosis/verdict",
        DIAGNOSIS_WORKER,
        "critical_path/trace_url",
        *TOLD,
    }
)
"""Texts that a person should read, or has asked for; the others are no charts."""

_QUANTILE: Final = re.compile(r"p[0-9.]+")


class KeyCatalogue:
    """Describes each key of one run once. Keys are never forgotten."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._new: list[KeySpec] = []

    def note(
        self,
        keys: Mapping[str, object],
        axis: str,
        find: Callable[[str], tuple[Group, str] | None],
        sources: Mapping[str, KeySource] | None = None,
    ) -> None:
        """Describe the new keys of a row.

        Args:
            keys: Keys of the row's values or tables.
            axis: ``STEP`` or ``TIME``.
            find: Returns the group of a key, and the statistic as the suffix of the key.
            sources: The metrics of keys without a group.
        """
        if keys.keys() <= self._known:  # nearly always
            return
        for key in keys:
            if key not in self._known:
                self._add(_described(key, axis, find(key), (sources or {}).get(key)))

    def note_texts(self, keys: Iterable[str], axis: str) -> None:
        for key in keys:
            if key not in self._known:
                tier = Tier.BASIC if key in _SENT_TEXTS else Tier.FULL
                self._add(
                    KeySpec(key, statistic="text", axis=axis, section=_section(key), tier=tier)
                )

    def take(self) -> list[KeySpec]:
        new, self._new = self._new, []
        return new

    def restore(self, keys: Iterable[KeySpec]) -> None:
        self._known.update(one.key for one in keys)

    def _add(self, spec: KeySpec) -> None:
        self._known.add(spec.key)
        self._new.append(spec)


def _described(
    key: str, axis: str, found: tuple[Group, str] | None, source: KeySource | None
) -> KeySpec:
    if found is not None:
        return _of_group(key, axis, *found)
    reason = ""
    if source is None:
        name = _BRIDGE.get(key, "")
        if not name:
            path, _, reason = key.rpartition("/")
            name = _BRIDGE.get(path, "")
        attributes = ((names.RL_REASON, reason),) if name and reason else ()
        source = KeySource("", name, attributes)
        axis = TIME if name else axis
    spec = names.METRICS.get(source.name)
    if spec is None:
        tier = _WITHOUT_METRIC.get(key, Tier.BASIC)
        statistic = "table" if key in _TABLES else "value"
        return KeySpec(key, statistic=statistic, axis=axis, section=_section(key), tier=tier)
    statistic = "total" if spec.instrument is spec.instrument.COUNTER else "value"
    return KeySpec(
        key,
        source.name,
        source.role,
        source.attributes,
        statistic,
        spec.unit,
        axis,
        _section(key),
        spec.tier_of(statistic),
        spec.reduction,
    )


def _of_group(key: str, axis: str, group: Group, suffix: str) -> KeySpec:
    spec = names.METRICS.get(group.name)
    statistic, plain = suffix, "value"
    if any(name == names.RL_SAMPLE_TABLE for name, _ in group.attributes):
        statistic = "table"
    elif not suffix:
        if "rate" in group.extra:
            statistic = plain = "total"
        else:
            statistic = "mean" if "count" in group.extra else "value"
    unit = group.unit if spec is None else spec.unit
    return KeySpec(
        key,
        group.name,
        group.role,
        group.attributes,
        statistic,
        f"{unit}/s" if statistic == "rate" and unit else unit,
        TIME if group.name.startswith("rl.service.") else axis,
        _section(key),
        _tier(key, group, spec, suffix, suffix or plain),
        group.reduction,
        _worker(key, group.role) if group.own else "",
        _own_name(group, suffix),
        group.own_scale,
    )


def _own_name(group: Group, suffix: str) -> str:
    """Return the framework's name of a key; a negative scale swaps minimum and maximum."""
    if group.own or not group.own_name or (suffix and group.own_scale < 0):
        return ""
    return f"{group.own_name}/{suffix}" if suffix else group.own_name


def _tier(key: str, group: Group, spec: MetricSpec | None, suffix: str, value: str) -> Tier:
    """Return the tier of a group's key; ``value`` is the registry's name of its statistic."""
    if group.own:
        is_plain = not suffix or suffix == "rate"
        return Tier.FULL if spec is not None and spec.per_worker and is_plain else Tier.EVERYTHING
    if group.own_name and not suffix:
        return Tier.BASIC  # the framework logged it
    if spec is None:
        usual = {"", "rate"} if "rate" in group.extra else {"", "p50", "p99"}
        if not group.extra and _QUANTILE.fullmatch(key.rpartition("/")[2]):
            return Tier.FULL  # of a summary
        return Tier.BASIC if suffix in usual else Tier.FULL
    if value == "value":
        value = dict(group.attributes).get(names.RL_STATISTIC, value)
    tier = spec.tier_of(value)
    if group.name == names.RL_GOODPUT_TIME and group.role:
        return Tier.FULL  # the run's are the charts to keep
    is_device = not group.role and any(name == "hw.id" for name, _ in group.attributes)
    return Tier.FULL if is_device and tier is Tier.BASIC else tier


def _section(key: str) -> str:
    return key.removeprefix("x_").partition("/")[0]


def _worker(key: str, role: str) -> str:
    segments = [segment for segment in role.split("/") if segment] or [role]
    path = key.split("/")
    return path[1 + len(segments)] if len(path) > 1 + len(segments) else ""
