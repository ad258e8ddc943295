"""``wandb.Table``: rows of texts and numbers; each becomes a sample of the run's table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from otel_rl.integrations.wandb._log_once import warn_once
from otel_rl.integrations.wandb._stand_ins.stand_in import is_optional, stand_in

__all__ = ["Samples", "Table", "Tables"]

Samples = Sequence[Mapping[str, object]]


class Table:
    """Writable part of W&B's table. Anything else does nothing. Never raises.

    Args:
        columns: Names of the fields; default W&B's own three.
        data: Rows of values.
        rows: An old name of ``data``.
        dataframe: A pandas ``DataFrame``, instead of both.
        others: Ignored: W&B's settings of types and modes.
    """

    def __init__(
        self,
        columns: Iterable[object] | None = None,
        data: Any = None,  # a list, an array, a data frame
        rows: Any = None,
        dataframe: Any = None,
        **others: object,
    ) -> None:
        del others
        given = data if data is not None else rows
        frame = dataframe if dataframe is not None else given if hasattr(given, "columns") else None
        if frame is not None:
            columns, given = list(frame.columns), frame.to_numpy().tolist()
        self.columns = [str(name) for name in columns or ("Input", "Output", "Expected")]
        self.data: list[list[object]] = [list(row) for row in (given if given is not None else ())]

    def add_data(self, *data: object) -> None:
        """Append a row."""
        if len(data) != len(self.columns):
            warn_once(f"a row of {len(data)} values for {len(self.columns)} columns is dropped.")
            return
        self.data.append(list(data))

    def add_row(self, *row: object) -> None:
        """Append a row; an old name of ``add_data``."""
        self.add_data(*row)

    def add_column(self, name: object, data: Iterable[object], optional: bool = False) -> None:
        """Append a column."""
        del optional
        values = list(data)
        if self.data and len(values) != len(self.data):
            warn_once(f"a column of {len(values)} values for {len(self.data)} rows is dropped.")
            return
        self.columns.append(str(name))
        rows = self.data or [[] for _ in values]
        self.data = [[*row, value] for row, value in zip(rows, values, strict=True)]

    def get_column(self, name: str, convert_to: str | None = None) -> list[object]:
        """Return the values of a column."""
        del convert_to
        place = self.columns.index(name)
        return [row[place] for row in self.data]

    def samples(self) -> Samples:
        """Return its present rows."""
        return [dict(zip(self.columns, row, strict=False)) for row in self.data]

    def __getattr__(self, name: str) -> Any:
        if is_optional(name) or name in ("columns", "data"):
            raise AttributeError(name)
        return stand_in(f"Table.{name}")

    def __repr__(self) -> str:
        return f"<wandb.Table of {len(self.data)} rows>"


class Tables:
    """Written rows of each table: programs log a table again with additional rows.

    W&B keeps the last table of a name. A run of otel_rl keeps every row once, with its step.
    """

    def __init__(self) -> None:
        self._written: dict[str, list[int]] = {}

    def news(self, name: str, samples: Samples) -> Samples:
        """Return the samples that the previous table of this name did not contain."""
        known = [hash(str(sample)) for sample in samples]
        before = self._written.get(name, [])
        self._written[name] = known
        return samples[len(before) :] if known[: len(before)] == before else samples
