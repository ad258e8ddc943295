"""Attributes that identify the device of a point: a GPU, or a whole host. Pure.

A GPU is identified by ``hw.id`` alone. Its other attributes describe it and are not part of a key:
two workers that share a GPU may name its host or model differently. A host is identified by
``host.name``, on the points of ``system.*``. Points without it are attributed to the worker that
reports them.
"""

from typing import Final, NamedTuple

from otel_rl.records import GPUS, HOST_ID, HOSTS
from otel_rl.semconv import names

Attributes = tuple[tuple[str, str], ...]

_ID: Final = "hw.id"

_HOST: Final = "host.name"

_TYPE: Final = "hw.type"

_LABELS: Final = frozenset({_ID, _HOST, "hw.model", "hw.name", "hw.parent", "hw.vendor"})

_NAMESPACES: Final = ("hw.gpu.", "rl.gpu.")
_COMMON: Final = "hw."  # common to hardware of all kinds; hw.type is the kind
_OF_HOSTS: Final = ("system.", "rl.host.")


class Labels(NamedTuple):
    """Description of a device, taken from its points.

    Attributes:
        uuid: Id of the device, see ``Device``.
        host: Host of the device, possibly empty.
        name: Name of the device on its host, or a short form of its id; empty for a host.
        model: Model of the device, possibly empty.
    """

    uuid: str
    host: str
    name: str
    model: str


def gpu_metric(name: str, attributes: Attributes) -> str:
    """Return the GPU metric of a name, e.g. ``utilization``; empty if it is no GPU metric."""
    for namespace in _NAMESPACES:
        if name.startswith(namespace):
            return name[len(namespace) :]
    if name.startswith(_COMMON) and (_TYPE, "gpu") in attributes:
        return name[len(_COMMON) :]
    return ""


def device_metric(name: str, attributes: Attributes) -> tuple[str, str]:
    """Return the section and the metric of a device's metric, e.g. ``host``, ``cpu.utilization``.

    Both are empty for other metrics.
    """
    rest = gpu_metric(name, attributes)
    if rest:
        return GPUS, rest
    if not _is_of_host(name, attributes):
        return "", ""
    namespace = next(one for one in _OF_HOSTS if name.startswith(one))
    return HOSTS, name.removeprefix(namespace)


def labels_of(name: str, attributes: Attributes) -> Labels | None:
    """Return the device of a point; None if the point names no device that can be identified."""
    found = dict(attributes)
    if _is_of_host(name, attributes):
        host = found[_HOST]
        return Labels(f"{HOST_ID}{host}", host, "", "")
    if not gpu_metric(name, attributes):
        return None
    uuid = found.get(_ID, "")
    if not uuid:
        return None
    short = uuid.removeprefix("GPU-").removeprefix("MIG-")[:8] or uuid
    return Labels(
        uuid, found.get(_HOST, ""), found.get("hw.name") or short, found.get("hw.model", "")
    )


def without_labels(name: str, attributes: Attributes) -> Attributes:
    """Return the attributes of a device's metric without those that identify the device.

    The type stays where only the type marks the metric as a GPU's.
    """
    if _is_of_host(name, attributes):
        return tuple(pair for pair in attributes if pair[0] != _HOST)
    if not gpu_metric(name, attributes):
        return attributes
    labels = _LABELS | {_TYPE} if name.startswith(_NAMESPACES) else _LABELS
    return tuple(pair for pair in attributes if pair[0] not in labels)


def at_host(attributes: Attributes, host: str) -> Attributes:
    """Return the attributes; a device without a host gets ``host``, that of the resource."""
    keys = {key for key, _ in attributes}
    if _ID not in keys or _HOST in keys:
        return attributes
    return tuple(sorted((*attributes, (_HOST, host))))


def is_shared(name: str) -> bool:
    """Return whether all reporters of a metric report the same value of one device."""
    return name != names.RL_GPU_PROCESS_MEMORY_USAGE and not name.startswith("rl.gpu.owner.")


def _is_of_host(name: str, attributes: Attributes) -> bool:
    return name.startswith(_OF_HOSTS) and any(key == _HOST and text for key, text in attributes)
