"""``run.summary``: the last value of everything, and numbers of the program's own."""

from collections.abc import Callable, Iterator, Mapping

from otel_rl.compat.wandb._mapping import AttributeMapping
from otel_rl.worker.values import NotANumber, number

__all__ = ["Summary"]

Record = Callable[[Mapping[str, object]], None]


class Summary(AttributeMapping):
    """Reading gives the last committed value. Writing a number brings it into the run.

    Args:
        record: Takes what the program writes.
    """

    def __init__(self, record: Record) -> None:
        self._values: dict[str, object] = {}
        self._record = record

    def logged(self, values: Mapping[str, object]) -> None:
        """Take note of a committed row."""
        self._values.update(values)

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        measured = number(value)
        # What is no number was written by the program itself.
        return value if isinstance(measured, NotANumber) else measured

    def __setitem__(self, key: str, value: object) -> None:
        self._values[key] = value
        self._record({key: value})

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
