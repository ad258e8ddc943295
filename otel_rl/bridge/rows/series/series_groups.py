"""Groups into which the values of a series are reduced: of its role, its worker and its device."""

import math
import re
from typing import Final, NamedTuple

from otel_rl.bridge.keys import OVERFLOW, device_key, own_key, tracker_key
from otel_rl.bridge.otlp.device_attributes import (
    device_metric,
    is_shared,
    labels_of,
    without_labels,
)
from otel_rl.bridge.rows.reduce import OVER_RANKS
from otel_rl.bridge.rows.series.key_groups import GroupIdentity, GroupTable
from otel_rl.bridge.rows.series.streams import Group, WorkerState
from otel_rl.bridge.rows.series.worker_table import DeviceTable
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import HOSTS, Series
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

# Share of the bound on series for those without a key of their own: other metrics find room.
_FOLDED = 0.5

# Values written beside the statistics of the registry.
_EXTRA = {Instrument.COUNTER: ("rate", "per_step"), Instrument.HISTOGRAM: ("count",)}

_HISTOGRAM_STATISTICS = ("p50", "p90", "p99", "min", "max")

_LOGGED: Final = ("otel_rl.integrations.", "otel_rl@")
"""Begins the instrumentation scopes of adapters and of ``otel_rl.log``."""

_COLLECTED: Final = "/receiver/"
"""Is in the instrumentation scopes of a Collector, which collects from other programs."""

_NAMESPACED: Final = re.compile("[.:]")
"""Is in names by the conventions of OpenTelemetry and Prometheus: those of libraries."""

_OWN: Final = frozenset({names.OTEL_RL_FRAMEWORK_METRIC, names.OTEL_RL_FRAMEWORK_SCALE})
"""Attributes of an adapter that say how its framework calls a metric."""

_Attributes = tuple[tuple[str, str], ...]


class SeriesGroups:
    """Finds the groups of a series, and makes new groups."""

    def __init__(self, keys: GroupTable, devices: DeviceTable) -> None:
        self._keys = keys
        self._devices = devices

    def has_room(self, series: Series, settings: AlignSettings, *, folded: int) -> bool:
        """Return whether a series may be added: its group exists, or there is room for one."""
        identity = self._identity(series, settings)
        if is_folded(identity) and folded >= _FOLDED * settings.max_series:
            return False
        return self._keys.has_room_for(identity, settings)

    def of_role(self, series: Series, settings: AlignSettings) -> Group:
        _, statistics, _ = _reduction_of(series)
        before = len(self._keys.groups)
        key = ""
        identity = self._identity(series, settings)
        if _is_of_host(series):
            key = device_key(HOSTS, series.name, _key_attributes(series, identity))
        group = self._keys.group(identity, statistics, key=key, unit=series.unit)
        is_of_others = is_folded(group) or labels_of(series.name, series.attributes) is not None
        if len(self._keys.groups) > before and not is_of_others:
            self._keys.name_as_written(group, *_own_name_of(series))
        return group

    def of_worker(
        self, series: Series, worker: WorkerState, group: Group, settings: AlignSettings
    ) -> Group | None:
        """Return the worker's own group beside its role's; None if there is none, or no room."""
        spec = names.METRICS.get(series.name)
        if settings.per_worker or (spec is not None and spec.per_worker):
            return self._keys.own(worker, group, settings)
        return None

    def of_device(
        self, series: Series, worker: WorkerState, settings: AlignSettings
    ) -> tuple[tuple[Group, ...], str]:
        """Return further groups of a device's series, and the device if other workers report it.

        The groups are that of all GPUs, and the device's own unless there are too many devices.
        """
        labels = labels_of(series.name, series.attributes)
        if labels is None:
            return (), ""
        _, statistics, _ = _reduction_of(series)
        wider: list[Group] = []
        of_all = self._identity(series, settings, role="")
        if not _is_of_host(series) and self._keys.has_room_for(of_all, settings):
            key = tracker_key("", series.name, _key_attributes(series, of_all))
            wider.append(self._keys.group(of_all, statistics, key=key, unit=series.unit))
        prefix = self._devices.prefix(
            labels, f"{worker.role}/{worker.label}", at_most=settings.max_devices
        )
        its_id = ("hw.id", labels.uuid) if labels.name else ("host.name", labels.host)
        of_one = self._identity(series, settings, role="", device=(its_id,))
        if prefix and self._keys.has_room_for(of_one, settings):
            key = device_key(prefix, series.name, _key_attributes(series, of_one))
            before = len(self._keys.groups)
            one = self._keys.group(of_one, key=key)
            if len(self._keys.groups) > before and not is_folded(one):
                one.own_name, one.own_scale = _own_name_of(series)
            wider.append(one)
        return tuple(wider), labels.uuid if is_shared(series.name) else ""

    def derived_of_device(self, uuid: str, name: str) -> Group | None:
        """Return the group of a derived value of one GPU; None if it has no keys of its own."""
        prefix = self._devices.known_prefix(uuid)
        if not prefix:
            return None
        identity = GroupIdentity("", name, (("hw.id", uuid),), Reduction.MEAN)
        return self._keys.group(identity, key=device_key(prefix, name))

    def _identity(
        self,
        series: Series,
        settings: AlignSettings,
        role: str | None = None,
        device: _Attributes = (),
    ) -> GroupIdentity:
        """Return the identity of a series' group, with the series' role unless one is given."""
        if role is None:
            role = "" if _is_of_host(series) else series.worker.role
        reduction, _, extra = _reduction_of(series)
        return self._keys.identify(
            role,
            series.name,
            _attributes_of(series),
            reduction,
            series.unit,
            most=settings.max_metric_keys,
            device=device,
            extra=extra,
        )


def is_folded(group: Group | GroupIdentity) -> bool:
    """Return whether a key belongs to attributes for which there was no room."""
    return OVERFLOW in group.attributes


def _reduction_of(series: Series) -> tuple[Reduction, tuple[str, ...], tuple[str, ...]]:
    spec = names.METRICS.get(series.name)
    extra = _EXTRA.get(series.instrument, ())
    if spec is not None:
        statistics = spec.statistics
        is_level = series.instrument in {Instrument.GAUGE, Instrument.UP_DOWN_COUNTER}
        is_of_device = any(device_metric(series.name, series.attributes))
        if is_level and not is_of_device:  # those are over devices
            statistics = tuple(OVER_RANKS + statistic for statistic in statistics)
        return series.reduction or spec.reduction, statistics, extra
    additive = series.instrument in {Instrument.COUNTER, Instrument.UP_DOWN_COUNTER}
    statistics = _HISTOGRAM_STATISTICS if series.instrument is Instrument.HISTOGRAM else ()
    return series.reduction or (Reduction.SUM if additive else Reduction.MEAN), statistics, extra


def _is_of_host(series: Series) -> bool:
    return device_metric(series.name, series.attributes)[0] == HOSTS


def _attributes_of(series: Series) -> _Attributes:
    return without_labels(series.name, _without_own_name(series.attributes))


def _key_attributes(series: Series, identity: GroupIdentity) -> _Attributes:
    """Return the attributes of a series that appear in the key of its device."""
    shown = _without_own_name(series.attributes)
    if not is_folded(identity):
        return shown
    own = without_labels(series.name, shown)
    return (*(pair for pair in shown if pair not in own), OVERFLOW)


class _OwnName(NamedTuple):
    """Name of a metric in its framework.

    Attributes:
        name: The name; empty without one.
        scale: Factor from the framework's value to the reported one.
    """

    name: str = ""
    scale: float = 1.0


def _own_name_of(series: Series) -> _OwnName:
    """Return the name of a series in its program: given by its adapter, or the unchanged name.

    A metric that a library reports has no such name: several roles use the library, so the keys
    name the role.
    """
    said = dict(series.attributes) if series.attributes else {}
    name = said.get(names.OTEL_RL_FRAMEWORK_METRIC, "")
    if name:
        return _OwnName(name, _scale(said.get(names.OTEL_RL_FRAMEWORK_SCALE, "1")))
    if series.name in names.METRICS or not _is_of_program(series):
        return _OwnName()
    return _OwnName(own_key(series.name, _attributes_of(series)))


def _is_of_program(series: Series) -> bool:
    """Return whether the program itself has chosen the name, which the registry does not have."""
    if series.scope.startswith(_LOGGED):
        return True
    is_collected = _COLLECTED in series.scope
    return not is_collected and _NAMESPACED.search(series.name) is None


def _without_own_name(attributes: _Attributes) -> _Attributes:
    if not attributes or not any(key in _OWN for key, _ in attributes):
        return attributes
    return tuple(pair for pair in attributes if pair[0] not in _OWN)


def _scale(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        return 1.0
    return scale if scale and math.isfinite(scale) else 1.0
