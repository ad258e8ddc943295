"""Devices visible to a process, from ``CUDA_VISIBLE_DEVICES``. Pure.

Indices are in NVML's order, which is that of the PCI bus. CUDA's own order is the same if all GPUs
of the machine are of one model, and with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Instance", "Listed", "choose"]


@dataclass(frozen=True, slots=True)
class Instance:
    """Part of a GPU that is a device of its own (MIG).

    Attributes:
        uuid: Its own id, ``MIG-...``.
        place: Ids of its GPU instance and compute instance.
    """

    uuid: str
    place: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Listed:
    """GPU as listed by NVML.

    Attributes:
        uuid: Its id, ``GPU-...``.
        is_divided: True if MIG is on: CUDA then shows instances only.
        instances: Its MIG instances.
    """

    uuid: str
    is_divided: bool = False
    instances: tuple[Instance, ...] = ()


def choose(listed: Sequence[Listed], wanted: str | None) -> tuple[str, ...]:
    """Return the ids of the devices in ``wanted``, each once, in its order.

    As in CUDA, a word that names no device ends the list, so that an empty text, ``-1`` and
    ``NoDevFiles`` show none. An index of a divided GPU shows its first instance.

    Args:
        listed: In NVML's order.
        wanted: The variable's value; None if unset, which shows everything.
    """
    if wanted is None:
        return tuple(uuid for gpu in listed for uuid in _all_of(gpu))
    found: dict[str, None] = {}
    for word in wanted.split(","):
        uuid = _find(listed, word.strip())
        if uuid is None:
            break
        found[uuid] = None
    return tuple(found)


def _all_of(gpu: Listed) -> Iterator[str]:
    if gpu.is_divided:
        yield from (instance.uuid for instance in gpu.instances)
    else:
        yield gpu.uuid


def _find(listed: Sequence[Listed], word: str) -> str | None:
    if word.isascii() and word.isdigit():
        shown = list(_all_of(listed[int(word)])) if int(word) < len(listed) else []
        return shown[0] if shown else None
    if word.startswith("MIG-GPU-"):
        return _find_by_place(listed, word)
    # A unique prefix of an id is enough.
    if not word.startswith(("GPU-", "MIG-")):
        return None
    known = [gpu.uuid for gpu in listed]
    known += [instance.uuid for gpu in listed for instance in gpu.instances]
    found = [uuid for uuid in known if uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _find_by_place(listed: Sequence[Listed], word: str) -> str | None:
    """Find an instance by ``MIG-GPU-<uuid>/<GPU instance>/<compute instance>`` (older drivers)."""
    uuid, _, place = word.removeprefix("MIG-").partition("/")
    for gpu in listed:
        if gpu.uuid == uuid:
            for instance in gpu.instances:
                if "/".join(map(str, instance.place)) == place or instance.uuid == word:
                    return instance.uuid
    return None
