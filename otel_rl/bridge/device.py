"""The attributes of points that say which GPU they are about. Pure.

A device is known by ``hw.id`` alone. The rest describes it, so it is no part of a key: two workers
that share a device may call its host or its name otherwise.
"""

from typing import Final, NamedTuple

from otel_rl.semconv import names

__all__ = ["Labels", "at_host", "gpu_metric", "is_shared", "labels_of", "without_labels"]

Attributes = tuple[tuple[str, str], ...]

_ID: Final = "hw.id"

_HOST: Final = "host.name"

_TYPE: Final = "hw.type"

_LABELS: Final = frozenset({_ID, _HOST, "hw.model", "hw.name", "hw.parent", "hw.vendor"})

_NAMESPACES: Final = ("hw.gpu.", "rl.gpu.")
_COMMON: Final = "hw."  # of hardware of all kinds; hw.type says which


class Labels(NamedTuple):
    """What the points of a device say of it.

    Attributes:
        uuid: Its id.
        host: Where it is, possibly empty.
        name: What it is called there; a short form of the id if nobody says.
        model: Possibly empty.
    """

    uuid: str
    host: str
    name: str
    model: str


def gpu_metric(name: str, attributes: Attributes) -> str:
    """What a metric says of a GPU, e.g. ``utilization``; empty if it is not about one."""
    for namespace in _NAMESPACES:
        if name.startswith(namespace):
            return name[len(namespace) :]
    if name.startswith(_COMMON) and (_TYPE, "gpu") in attributes:
        return name[len(_COMMON) :]
    return ""


def labels_of(name: str, attributes: Attributes) -> Labels | None:
    """Which device a point is about; None if it is about none, or does not say which."""
    if not gpu_metric(name, attributes):
        return None
    found = dict(attributes)
    uuid = found.get(_ID, "")
    if not uuid:
        return None
    short = uuid.removeprefix("GPU-").removeprefix("MIG-")[:8] or uuid
    return Labels(
        uuid, found.get(_HOST, ""), found.get("hw.name") or short, found.get("hw.model", "")
    )


def without_labels(name: str, attributes: Attributes) -> Attributes:
    """The attributes that are not about which device it is, if the metric is about a GPU.

    The type stays where only that says that it is.
    """
    if not gpu_metric(name, attributes):
        return attributes
    labels = _LABELS | {_TYPE} if name.startswith(_NAMESPACES) else _LABELS
    return tuple(pair for pair in attributes if pair[0] not in labels)


def at_host(attributes: Attributes, host: str) -> Attributes:
    """The attributes with the host that the resource names, if a device's do not say it."""
    said = {key for key, _ in attributes}
    if _ID not in said or _HOST in said:
        return attributes
    return tuple(sorted((*attributes, (_HOST, host))))


def is_shared(name: str) -> bool:
    """Whether all who report the metric of one device report the same thing."""
    return name != names.RL_GPU_PROCESS_MEMORY_USAGE and not name.startswith("rl.gpu.owner.")
