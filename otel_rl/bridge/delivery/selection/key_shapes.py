"""Choice among the values of all rows that have the same keys in the same order, made once."""

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from otel_rl.bridge.delivery.selection.value_budget import Kind
from otel_rl.records import GPUS, HOSTS

__all__ = ["DEVICES", "KeyShape", "Picked", "Sent"]

Sent = Sequence[tuple[str, float]]
"""Names of a key in the tracker, each with the divisor of its values."""

DEVICES: Final = (f"{GPUS}/", f"{HOSTS}/")

_Pick = Callable[[Sequence[Any]], Sequence[Any]]


class Picked:
    """Names, places and divisors of the values that are sent.

    Args:
        keys: Of a row, in its order.
        sent: Names of each key.
        left_out: Keys whose values are not sent.

    Attributes:
        is_all: Whether the tracker gets each value under its own key, and nothing else.
    """

    def __init__(
        self, keys: Sequence[str], sent: Mapping[str, Sent], left_out: Collection[str]
    ) -> None:
        places: list[int] = []
        divisors: list[float] = []
        self._names: list[str] = []
        self._devices: list[tuple[str, int]] = []
        for place, key in enumerate(keys):
            for name, divisor in () if key in left_out else sent[key]:
                self._names.append(name)
                places.append(place)
                divisors.append(divisor)
            if key.startswith(DEVICES) and key not in self._names:
                self._devices.append((key, place))
        self._divided = [(n, divisor) for n, divisor in enumerate(divisors) if divisor != 1]
        self._pick = _pick(places)
        self.is_all = self._names == [*keys] and not self._divided

    def values(self, values: Sequence[float]) -> dict[str, float]:
        """Return the values that are sent, by their names."""
        picked = self._pick(values)
        if self._divided:
            picked = [*picked]
            for n, divisor in self._divided:
                picked[n] /= divisor
        return dict(zip(self._names, picked, strict=True))

    def devices(self, values: Sequence[float]) -> dict[str, float]:
        """Return the values of GPUs and hosts that have no chart."""
        return {key: values[place] for key, place in self._devices}


class KeyShape:
    """Keys of rows, while their names and kinds stay the same.

    Args:
        keys: Of the values of a row, in its order.
        sent: Names of each key.
        kinds: Kind of each key; a basic one if unknown.
        crowded: Keys for which there is no room in the run.

    Attributes:
        wanted: Number of values of each kind, for the budget.
        crowded: Number of selected keys for which there is no room.
    """

    def __init__(
        self,
        keys: Sequence[str],
        sent: Mapping[str, Sent],
        kinds: Mapping[str, Kind],
        crowded: Collection[str],
    ) -> None:
        self._keys = keys
        self._sent = sent
        selected = [key for key in keys if sent[key]]
        self.crowded = sum(key in crowded for key in selected)
        self._left_out = crowded
        self._kinds = {key: kinds.get(key, Kind.BASIC) for key in selected if key not in crowded}
        self.wanted = [0] * len(Kind)
        for key, kind in self._kinds.items():
            self.wanted[kind] += len(sent[key])
        self._picked: dict[Kind, Picked] = {}

    def picked(self, last: Kind) -> Picked:
        """Return the values that are sent up to a kind."""
        found = self._picked.get(last)
        if found is None:
            left_out = {key for key, kind in self._kinds.items() if kind > last}
            left_out.update(self._left_out)
            found = self._picked[last] = Picked(self._keys, self._sent, left_out)
        return found

    def folded(self, last: Kind) -> Sequence[Kind]:
        """Return the kinds of the selected keys beyond a kind."""
        return [kind for kind in self._kinds.values() if kind > last]


def _pick(places: Sequence[int]) -> _Pick:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[place] for place in places]
