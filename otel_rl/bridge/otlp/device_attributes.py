"""Attributes that identify the device of a point: a GPU, or a whole host. Pure.

A GPU is identified by ``hw.id`` alone. The rest describes it and is not part of a key: two workers
that share a GPU may name its host or model differently. A host is identified by ``host.name``, on
the points of ``system.*``. Without it they are of the worker that reports them.
"""

from typing import Final, NamedTuple

from otel_rl.records import GPUS, HOST_ID, HOSTS
from otel_rl.semconv import names

__all__ = [
    "Labels",
    "at_host",
    "device_metric",
    "gpu_metric",
    "is_shared",
    "labels_of",
    "without_labels",
]

Attributes = tuple[tuple[str, str], ...]

_ID: Final = "hw.id"

_HOST: Final = "host.name"

_TYPE: Final = "hw.type"

_LABELS: Final = frozenset({_ID, _HOST, "hw.model", "hw.name", "hw.parent", "hw.vendor"})

_NAMESPACES: Final = ("hw.gpu.", "rl.gpu.")
_COMMON: Final = "hw."  # common to hardware of all kinds; hw.type is the kind
_OF_HOSTS: Final = ("system.", "rl.host.")


class Labels(NamedTuple):
    """Description of a device by its points.

    Attributes:
        uuid: Its id, see ``Device``.
        host: Its host, possibly empty.
        name: Its name on the host, a short form of the id without one; empty for a host.
        model: Possibly empty.
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
    """Return the section and the metric of a device's name, e.g. ``host`` and ``cpu.utilization``.

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
    """Return the device of a point; None if it has none or does not identify it."""
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

    The type stays where only it marks the metric as a GPU's.
    """
    if _is_of_host(name, attributes):
        return tuple(pair for pair in attributes if pair[0] != _HOST)
    if not gpu_metric(name, attributes):
        return attributes
    labels = _LABELS | {_TYPE} if name.startswith(_NAMESPACES) else _LABELS
    return tuple(pair for pair in attributes if pair[0] not in labels)


def at_host(attributes: Attributes, host: str) -> Attributes:
    """Return the attributes, with the resource's host if a device has none."""
    keys = {key for key, _ in attributes}
    if _ID not in keys or _HOST in keys:
        return attributes
    return tuple(sorted((*attributes, (_HOST, host))))


def is_shared(name: str) -> bool:
    """Return whether all reporters of the metric report the same value of one device."""
    return name != names.RL_GPU_PROCESS_MEMORY_USAGE and not name.startswith("rl.gpu.owner.")


def _is_of_host(name: str, attributes: Attributes) -> bool:
    return name.startswith(_OF_HOSTS) and any(key == _HOST and text for key, text in attributes)
