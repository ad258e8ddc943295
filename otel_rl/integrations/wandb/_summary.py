"""``run.summary``: last values of all metrics, and numbers of the program."""

from collections.abc import Callable, Iterator, Mapping

from otel_rl.integrations.wandb._mapping import AttributeMapping
from otel_rl.worker.tensors import NotANumber, number

__all__ = ["Summary"]

Record = Callable[[Mapping[str, object]], None]


class Summary(AttributeMapping):
    """Reading returns the last committed value. Writing a number sends it to the run.

    Args:
        record: Receives values that the program writes.
    """

    def __init__(self, record: Record) -> None:
        self._values: dict[str, object] = {}
        self._record = record

    def logged(self, values: Mapping[str, object]) -> None:
        """Store a committed row."""
        self._values.update(values)

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        measured = number(value)
        # A value that is not a number was written by the program itself.
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
