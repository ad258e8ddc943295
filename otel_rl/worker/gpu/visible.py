"""Which devices a process can see: the forms of ``CUDA_VISIBLE_DEVICES``. Pure.

Indices are read in NVML's order, which is that of the PCI bus. CUDA's own is the same where all
GPUs of the machine are alike, and with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Instance", "Listed", "choose"]


@dataclass(frozen=True, slots=True)
class Instance:
    """A part of a GPU that is a device by itself (MIG).

    Attributes:
        uuid: Its own id, ``MIG-...``.
        place: Ids of its GPU instance and compute instance.
    """

    uuid: str
    place: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Listed:
    """A GPU as NVML lists it.

    Attributes:
        uuid: Its id, ``GPU-...``.
        is_divided: Whether MIG is on: CUDA then sees instances only.
        instances: Those it is divided into.
    """

    uuid: str
    is_divided: bool = False
    instances: tuple[Instance, ...] = ()


def choose(listed: Sequence[Listed], wanted: str | None) -> tuple[str, ...]:
    """The ids of the devices that ``wanted`` shows, each once, in its order.

    As CUDA does it, a word that names no device ends the list, so that an empty text, ``-1`` and
    ``NoDevFiles`` show none. Of a GPU that is named by its index and is divided, the first instance
    is shown.

    Args:
        listed: In NVML's order.
        wanted: The variable's value; None if it is not set, which shows everything.
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
    # An id may be cut short as long as it is clear whose it is.
    if not word.startswith(("GPU-", "MIG-")):
        return None
    known = [gpu.uuid for gpu in listed]
    known += [instance.uuid for gpu in listed for instance in gpu.instances]
    found = [uuid for uuid in known if uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _find_by_place(listed: Sequence[Listed], word: str) -> str | None:
    """``MIG-GPU-<uuid>/<GPU instance>/<compute instance>``: how older drivers name instances."""
    uuid, _, place = word.removeprefix("MIG-").partition("/")
    for gpu in listed:
        if gpu.uuid == uuid:
            for instance in gpu.instances:
                if "/".join(map(str, instance.place)) == place or instance.uuid == word:
                    return instance.uuid
    return None
