"""Key of a metric in rows and trackers, role and name as a path; and its name for people. Pure.

All rules of a key, in order:

1. A prefix ``rl.`` of a name is removed.
2. Eight families have a section of their own: phases ``phase/<role>/<phase>``, the critical path of
  a step ``critical_path/<role>/<phase>``, the use of a step's processes ``health/<role>/...``, the
  value of the allocation's time ``goodput/<role>/<part>``, GPUs ``gpu/<role>/...``, replicas of a
  service and a role's liveness ``service/<role>/...``, metrics of otel_rl itself
  ``otel_rl/<role>/...``, and hosts, which have no role, ``host/...``. All other metrics are under
  ``<role>/...``. Metrics of one GPU are under ``gpu/<host>/<device>/...``, of all GPUs under
  ``gpu/...``, and of one host under ``host/<host>/...``.
3. A name that begins with its own role does not repeat it: ``rl.train.loss`` of a trainer is
  ``trainer/loss``, ``rl.generator.queue.depth`` of a generator is ``generator/queue/depth``.
4. Dots and colons of a name become slashes: ``sglang:gen_throughput`` of a generator is
  ``generator/sglang/gen_throughput``. Leading, trailing and repeated slashes are removed.
5. The values of the remaining attributes follow, in the order of the attributes' names; their
  colons become slashes, too. Attributes that identify the GPU are left out. The overflow point of
  an SDK, ``otel.metric.overflow``, is ``overflow``.
6. A key is printable and reads as its metric: ``Train Loss``, ``acc@1`` and letters of any script
  stay. What is not printable, a space at either end of a segment, a slash within one, and asterisks
  and backslashes, which have a meaning in W&B, become ``_x<code point in hex>_``. So do the dots of
  a segment of dots, and an underscore that would look like the beginning of an escape. A key that
  would not begin with a letter gets the prefix ``x_``. A tracker that refuses more maps it itself.
  The key of a table is the name of a file in several trackers, so that only ASCII letters, digits,
  ``_``, ``-`` and ``.`` stay.

A statistic is one more suffix (``/max``, ``/p99``, ``/rate``). The series of a single worker is
under ``workers/<role>/<index>/...``, with the rest of the key as above.

A program's own names, ``actor/entropy``, are the exception that trackers get: ``own_key`` is a
second name of the role's key, and ``delivery/selection.py`` chooses between the two.

Rules 1 to 5 make a path, ``metric_path``, and rule 6 a key of it that ``read_key`` turns back. Two
metrics have one key only if they have one path: ``a.b`` and ``a/b``. The second one then gets a
last segment ``_xh<digits>_``, a digest of its whole identity. A key of more than ``MAX_KEY_BYTES``
in UTF-8, for a table ``MAX_TABLE_KEY_BYTES``, is cut, and ends in such a segment as well.

Rows and histories hold these keys, which begin with the role that a diagnosis reads. The catalogue
of a run says how its program calls each key, and ``NamedKeys`` shows people the program's name: an
alert in a tracker, a chart on the page, a terminal and an answer to an agent name a key alike.
``tracker.names`` gives a tracker, and a diagnosis's alerts in that tracker, other names than the
page.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from otel_rl.bridge.otlp.device_attributes import device_metric, without_labels
from otel_rl.records import GPUS, HOSTS, KeySpec
from otel_rl.semconv import names

DIAGNOSIS_CAUSE = "diagnosis/cause"
"""Label: kind of the fault that a diagnosis found, if any."""

DIAGNOSIS_WORKER = "diagnosis/worker"
"""Label: the worker of that fault, or its role, if it has one."""

DIAGNOSIS_ALERT = "diagnosis/alert"
"""Label of the row for which trackers that support it send an alert: the finding in words."""

NO_FINDING = "none"
"""Value of these labels after a finding is withdrawn: trackers keep the last value of a label."""

MAX_KEY_BYTES = 1024
"""Length of a key without its statistic, in bytes of UTF-8."""

MAX_TABLE_KEY_BYTES = 56
"""Length of the key of a table in bytes. W&B limits artifact names to 128 characters, and a table's
contains the id of the run, up to 64, and the key.
"""

OVERFLOW = ("otel.metric.overflow", "true")
"""Only attribute of the overflow point of an SDK, as name and text."""

# In a segment whose forbidden characters are NUL: these, a space at either end, and an underscore
# that would be read as the beginning of an escape, as it stands or before an escaped character.
_UNSAFE = re.compile(r"\0|\A | \Z|_(?=xh?[0-9a-f]+(?:_|\0| \Z))")
_FORBIDDEN = frozenset("/*\\")
_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_ESCAPED = re.compile(r"_x([0-9a-f]+)_")
_VARIANT = re.compile(r"_xh[0-9a-f]+_")
_ONLY_DOTS = re.compile(r"\.+")
_IN_NAMES = re.compile(r"[./:]+")
_IN_VALUES = re.compile(r"[/:]+")

# Prefixes of metric names that stand for a role, where they differ from its name.
_NAMESPACES = {"trainer": ("trainer", "train")}

# (name prefix, section) in order of precedence.
_SECTIONS = (
    ("rl.phase.", "phase"),
    ("rl.critical_path.", "critical_path"),
    ("rl.health.", "health"),
    ("rl.goodput.", "goodput"),
    ("rl.replica.", "service"),
    ("rl.service.", "service"),
    ("otel_rl.worker.", "otel_rl"),
    ("otel_rl.", "otel_rl"),
)

# The attribute that stands for the metric's name, in these sections.
_NAMED_BY = {
    "phase": names.RL_PHASE,
    "critical_path": names.RL_PHASE,
    "goodput": names.RL_GOODPUT_PART,
}

# Attributes that are an axis, or repeat another part of the key.
_NOT_IN_KEY = frozenset({names.RL_LOOP_ITERATION, names.RL_PHASE_CLASS, names.RL_SAMPLE_TABLE})


def tracker_key(role: str, name: str, attributes: Iterable[tuple[str, str]] = ()) -> str:
    """Return the tracker key of metric ``name`` reported by ``role``.

    Args:
        role: The worker's role; empty for metrics of all roles.
        attributes: The point's attributes as (name, value).
    """
    attributes = tuple(attributes)
    is_table = any(key == names.RL_SAMPLE_TABLE for key, _ in attributes)
    limit = MAX_TABLE_KEY_BYTES if is_table else MAX_KEY_BYTES
    return _key(metric_path(role, name, attributes), limit, is_file=is_table)


def metric_path(
    role: str, name: str, attributes: Iterable[tuple[str, str]] = ()
) -> tuple[str, ...]:
    """Return the path behind ``tracker_key``: section, role, name and raw attribute values."""
    attributes = tuple(attributes)
    section, rest = device_metric(name, attributes)
    attributes, rest = without_labels(name, attributes), rest or name
    shown = {key: value for key, value in sorted(attributes) if key not in _NOT_IN_KEY}
    if OVERFLOW in attributes:
        shown[OVERFLOW[0]] = "overflow"
    if section:
        shown.pop("hw.type", None)
    for prefix, candidate in _SECTIONS:
        if name.startswith(prefix):
            section, rest = candidate, name[len(prefix) :]
            break
    if _NAMED_BY.get(section) in shown:
        path = _segments(shown.pop(_NAMED_BY[section]), _IN_VALUES)
    else:
        path = _segments(rest.removeprefix("rl."), _IN_NAMES)
        if not section:
            path = _without_role(path, role)
    own = [] if section == HOSTS or (section and not role) else _of_role(role)
    head = [section, *own] if section else own
    # A name of separators only has no segments; its key must differ from that of the role.
    path = path or [rest or name]
    values = [part for value in shown.values() for part in _segments(value, _IN_VALUES)]
    return (*head, *path, *values)


def own_key(name: str, attributes: Iterable[tuple[str, str]] = ()) -> str:
    """Return a name of the program as a key: as it is written, without a role in front.

    Only slashes divide the name, rule 6 applies, and the values of attributes follow.
    """
    shown = [value for key, value in sorted(attributes) if key not in _NOT_IN_KEY]
    path = [segment for segment in name.split("/") if segment] or [name]
    values = [part for value in shown for part in _segments(value, _IN_VALUES)]
    return _key((*path, *values), MAX_KEY_BYTES, is_file=False)


def worker_key(role: str, label: str, key: str) -> str:
    """Return the key of one worker's own series, e.g. ``workers/trainer/1/loss``."""
    own = "/".join(map(_escaped, _of_role(role)))
    key = key.removeprefix("x_") if not _begins_well(own) else key
    if key.startswith(f"{own}/"):
        return _cut("/".join(("workers", own, _escaped(label), key[len(own) + 1 :])))
    # phase/trainer/train -> workers/trainer/1/phase/train: the role is not repeated.
    section, _, rest = key.partition("/")
    rest = rest.removeprefix(f"{own}/")
    return _cut("/".join(("workers", own, _escaped(label), section, rest)))


def device_prefix(host: str, device: str) -> str:
    """Return the prefix of the keys of one GPU, ``gpu/<host>/<device>``, or of a host."""
    section, own = (GPUS, [device]) if device else (HOSTS, [])
    return "/".join(map(_escaped, (section, *_segments(host, _IN_VALUES), *own)))


def device_key(prefix: str, name: str, attributes: Iterable[tuple[str, str]] = ()) -> str:
    """Return the key of a metric of one device, e.g. ``gpu/node1/gpu0/utilization``."""
    _, *path = metric_path("", name, attributes)
    return _cut("/".join((prefix, *map(_escaped, path))))


def variant_key(key: str, identity: str) -> str:
    """Return a distinct key for a metric that has the same path as another metric."""
    return f"{key}/_xh{hashlib.sha256(identity.encode(errors='replace')).hexdigest()[:10]}_"


def read_key(key: str) -> tuple[str, ...]:
    """Undo rule 6: return the path of a key, with its statistic if there is one.

    A part that was cut off is lost.
    """
    return tuple(
        _ESCAPED.sub(lambda code: chr(int(code[1], 16)), segment)
        for segment in key.removeprefix("x_").split("/")
        if not _VARIANT.fullmatch(segment)
    )


def alert_text(labels: Mapping[str, str]) -> str | None:
    """Return the finding that a row with these labels raises an alert for; None for no alert.

    A row that only updates the estimate of a known finding has no label of its cause.
    """
    words = labels.get(DIAGNOSIS_ALERT, NO_FINDING)
    return None if words == NO_FINDING or DIAGNOSIS_CAUSE not in labels else words


def _segments(text: str, separators: re.Pattern[str]) -> list[str]:
    return [segment for segment in separators.split(text) if segment]


def _of_role(role: str) -> list[str]:
    return [segment for segment in role.split("/") if segment] or [role]


def _without_role(path: list[str], role: str) -> list[str]:
    own = _NAMESPACES.get(role, (role,))
    return path[1:] if len(path) > 1 and path[0] in own else path


def _key(path: Sequence[str], limit: int, *, is_file: bool) -> str:
    key = "/".join(_escaped(segment, is_file=is_file) for segment in path)
    return _cut(key if _begins_well(key) else f"x_{key}", limit)


def _begins_well(key: str) -> bool:
    return key[:1].isalpha() and not key.startswith("x_")


def _escaped(segment: str, *, is_file: bool = False) -> str:
    if _ONLY_DOTS.fullmatch(segment):
        return "_x2e_" * len(segment)
    marked = "".join(
        character if character.isprintable() and character not in _FORBIDDEN else "\0"
        for character in (_NO_FILE_NAME.sub("\0", segment) if is_file else segment)
    )
    return _UNSAFE.sub(lambda found: f"_x{ord(segment[found.start()]):x}_", marked)


def _cut(key: str, limit: int = MAX_KEY_BYTES) -> str:
    as_bytes = key.encode()
    if len(as_bytes) <= limit:
        return key
    return variant_key(as_bytes[: limit - 20].decode(errors="ignore").rstrip("/ "), key)


DEVICES: Final = (f"{GPUS}/", f"{HOSTS}/")
"""Begins of the keys of GPUs and hosts."""

_RESERVED: Final = frozenset(
    {"step", "hours", "attempt", "policy_version"}
    | {"project", "run", "timestamp", "time", "metrics"}  # Trackio's
)
"""Keys of a tracker's axes and columns. For all trackers, so that names agree."""

_RESERVED_PREFIXES: Final = ("_", "otel_rl/", *DEVICES, "diagnosis/", "step/attempt_")

_OTHER: Final = "/otel_rl"
"""Ends a key whose name is a tracker's own, or already that of a framework's metric."""

_IN_WORDS: Final = r"(?<![\w/])(?:{})(?![\w/])"


class KeyNames(StrEnum):
    """Names of metrics that a framework logged through its adapter.

    Attributes:
        FRAMEWORK: The framework's own names.
        OTEL_RL: The names that frameworks share.
        BOTH: Each value under both names.
    """

    FRAMEWORK = "framework"
    OTEL_RL = "otel_rl"
    BOTH = "both"


class NamedKeys:
    """Keys of one run under their names, in the order of its catalogue.

    Args:
        catalogue: The catalogue as the journal has it.
        names: Which names are used for metrics of frameworks.
    """

    def __init__(
        self, catalogue: Iterable[KeySpec] = (), names: KeyNames = KeyNames.FRAMEWORK
    ) -> None:
        self._names = names
        self._taken: set[str] = set()
        self._of: dict[str, Sequence[KeySpec]] = {}
        for spec in catalogue:
            self.add(spec)

    @property
    def specs(self) -> Sequence[KeySpec]:
        """Return the meaning of the keys, by their names."""
        return [one for named in self._of.values() for one in named]

    def add(self, spec: KeySpec) -> Sequence[KeySpec]:
        """Return a further key under each of its names; keys that were added before keep theirs.

        The value under a name is the row's value divided by the ``own_scale`` of the result.
        """
        named = self._of[spec.key] = [*self._named(spec)]
        self._taken.update(one.key for one in named)
        return named

    def of(self, key: str) -> tuple[str, float]:
        """Return the name of a row's key, and the divisor of its values."""
        named = self._of.get(key)
        return (named[0].key, named[0].own_scale) if named else (key, 1.0)

    def in_words(self, text: str) -> str:
        """Return a sentence in which the keys of rows are replaced by their names.

        A key whose values have another scale or sign under its name stays, because the numbers in
        the sentence are those of rows.
        """
        within = (key for key in self._of if key in text and self.of(key)[1] == 1)
        longest_first = sorted(within, key=len, reverse=True)
        if not longest_first:
            return text
        # Of those alone: to compile thousands of names takes most of a second.
        pattern = _IN_WORDS.format("|".join(map(re.escape, longest_first)))
        return re.sub(pattern, lambda found: self.of(found[0])[0], text)

    def _named(self, spec: KeySpec) -> Iterator[KeySpec]:
        own = spec.own_name
        has_own = self._names is not KeyNames.OTEL_RL and own and self._is_free(own)
        if has_own:
            # Of a value with another scale, the framework does not tell the unit.
            unit = spec.unit if abs(spec.own_scale) == 1 else ""
            yield replace(spec, key=own, unit=unit)
        if not has_own or (self._names is KeyNames.BOTH and own != spec.key):
            name = spec.key
            while name in self._taken or name in _RESERVED:
                name += _OTHER
            is_same = name == spec.key and spec.own_scale == 1
            yield spec if is_same else replace(spec, key=name, own_scale=1.0)

    def _is_free(self, own: str) -> bool:
        return (
            own not in self._taken
            and own not in _RESERVED
            and not own.startswith(_RESERVED_PREFIXES)
            and len(own.encode(errors="replace")) <= MAX_KEY_BYTES
        )
