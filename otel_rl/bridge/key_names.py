"""The name of each key for people: the same on the page, in a terminal, over MCP and in trackers.

Rows and histories hold the keys of ``tracker_keys``, which begin with the role that a diagnosis
reads. The catalogue of a run says how its program calls each key, and people see the program's
name: an alert in a tracker, a chart on the page and an answer to an agent name a key alike.
``tracker.names`` gives a tracker, and a diagnosis's alerts in that tracker, other names than the
page. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from otel_rl.bridge.tracker_keys import MAX_KEY_BYTES
from otel_rl.records import GPUS, HOSTS, KeySpec

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
