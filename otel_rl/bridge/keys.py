"""The name under which a tracker shows a metric: role and name as a path. Pure.

The whole rule, in order:

1. ``rl.`` in front of a name says nothing inside an RL run, and goes.
2. Four families have a section of their own: phases ``phase/<role>/<phase>``, GPUs
   ``gpu/<role>/...``, replicas of a service ``service/<role>/...``, and what otel_rl says of itself
   ``otel_rl/<role>/...``. Everything else is ``<role>/...``.
3. A name that begins with its own role does not say it twice: ``rl.train.loss`` of a trainer is
   ``trainer/loss``, ``rl.generator.queue.depth`` of a generator is ``generator/queue/depth``.
4. Dots become slashes.
5. The values of the remaining attributes follow, in the order of the attributes' names.
6. What is not a letter, a digit, ``_``, ``-``, ``.`` or ``/`` becomes ``_``.

A statistic is one more suffix (``/max``, ``/p99``, ``/rate``). One worker's own series stands under
``workers/<role>/<index>/...`` with the rest of the key as above.
"""

import re
from collections.abc import Iterable

from otel_rl.semconv import names

__all__ = ["tracker_key", "worker_key"]

_UNSAFE = re.compile(r"[^A-Za-z0-9_./-]+")
_SLASHES = re.compile(r"/{2,}")

# What a role calls itself in metric names, where that is not only the role's own name.
_NAMESPACES = {"trainer": ("trainer", "train")}

# (name prefix, section) in order of precedence.
_SECTIONS = (
    ("rl.phase.", "phase"),
    ("hw.gpu.", "gpu"),
    ("rl.replica.", "service"),
    ("otel_rl.worker.", "otel_rl"),
    ("otel_rl.", "otel_rl"),
)

# Attributes that are an axis, or that repeat what another part of the key says.
_NOT_IN_KEY = frozenset({names.RL_LOOP_ITERATION, names.RL_PHASE_CLASS})


def tracker_key(role: str, name: str, attributes: Iterable[tuple[str, str]] = ()) -> str:
    """The tracker key of metric ``name`` reported by ``role``.

    Args:
        role: The worker's role.
        name: The metric's OpenTelemetry name.
        attributes: The point's attributes as (name, value).
    """
    shown = {key: value for key, value in sorted(attributes) if key not in _NOT_IN_KEY}
    section, rest = "", name
    for prefix, candidate in _SECTIONS:
        if name.startswith(prefix):
            section, rest = candidate, name[len(prefix) :]
            break
    if section == "phase" and names.RL_PHASE in shown:
        rest = shown.pop(names.RL_PHASE)
        path = [rest]
    else:
        path = _segments(rest.removeprefix("rl."))
        if not section:
            path = _without_role(path, role)
    head = [section, role] if section else [role]
    return _safe([*head, *path, *shown.values()])


def worker_key(role: str, label: str, key: str) -> str:
    """The key of one worker's own series of ``key``, e.g. ``workers/trainer/1/loss``."""
    head, _, rest = key.partition("/")
    if head == role:
        return _safe(["workers", role, label, rest])
    # phase/trainer/train -> workers/trainer/1/phase/train: the role is not said twice.
    return _safe(["workers", role, label, head, rest.removeprefix(f"{role}/")])


def _segments(name: str) -> list[str]:
    return [segment for segment in re.split(r"[./]", name) if segment]


def _without_role(path: list[str], role: str) -> list[str]:
    own = _NAMESPACES.get(role, (role,))
    return path[1:] if len(path) > 1 and path[0] in own else path


def _safe(parts: Iterable[str]) -> str:
    cleaned = (_UNSAFE.sub("_", part).strip("/") for part in parts)
    return _SLASHES.sub("/", "/".join(part for part in cleaned if part))
