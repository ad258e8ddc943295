"""``wandb.config`` and ``run.summary``: dicts with access by item and by attribute."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path

from otel_rl.integrations.wandb._absent import warn_once
from otel_rl.worker.tensors import NotANumber, number

__all__ = ["Config", "Summary", "config_of"]

OnChange = Callable[[Mapping[str, object]], None]


class _Attributes(MutableMapping[str, object]):
    """Makes ``x.name`` equal ``x["name"]`` for every name without a leading underscore.

    Args:
        on_change: Called with new values at each change.
    """

    def __init__(self, on_change: OnChange = lambda _values: None) -> None:
        self._values: dict[str, object] = {}
        self._on_change = on_change

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # also for an object without state, during a copy
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as exc:
            raise AttributeError(f"there is no {name!r}") from exc

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self[name] = value

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __setitem__(self, key: str, value: object) -> None:
        self._values[key] = value
        self._on_change({key: value})

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self))


class Config(_Attributes):
    """Hyper-parameters of the run. A value may be changed at any time; W&B requires a flag."""

    def update(  # type: ignore[override]  # W&B's signature, which is narrower
        self, d: object, allow_val_change: bool | None = None
    ) -> None:
        """Merge a dict, ``argparse.Namespace``, dataclass, or a JSON or YAML file."""
        del allow_val_change
        new = config_of(d)
        self._values.update(new)
        if new:
            self._on_change(new)

    def setdefaults(self, d: object) -> None:
        """Merge only missing keys."""
        self.update({k: v for k, v in config_of(d).items() if k not in self._values})

    def update_locked(
        self, d: object, user: object = None, _allow_val_change: bool | None = None
    ) -> None:
        """Merge values; none is locked."""
        self.update(d)

    merge_locked = update_locked

    def persist(self) -> None:
        """Do nothing: every change has already reached the run."""

    def as_dict(self) -> dict[str, object]:
        """Return a copy."""
        return dict(self._values)

    def user_items(self) -> Iterator[tuple[str, object]]:
        """Return names and values."""
        return iter(self._values.items())


class Summary(_Attributes):
    """Reading returns the last committed value. Writing a number sends it to the run."""

    def logged(self, values: Mapping[str, object]) -> None:
        """Store a committed row."""
        self._values.update(values)

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        measured = number(value)
        # A value that is not a number was written by the program itself.
        return value if isinstance(measured, NotANumber) else measured


def config_of(given: object) -> dict[str, object]:
    """Convert W&B's forms of a config to a dict. Any other gives a warning and an empty one."""
    match given:
        case None:
            return {}
        case Mapping():
            return {str(key): value for key, value in given.items()}
        case argparse.Namespace():
            return dict(vars(given))
        case str() | Path():
            return _of_file(Path(given))
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    warn_once(f"config: a {type(given).__name__} is not supported. Pass a dict.")
    return {}


def _of_file(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return config_of(json.loads(text))
        import yaml  # not a dependency; programs with YAML files have it

        return config_of(yaml.safe_load(text))
    except Exception as error:  # noqa: BLE001  # a file of any content; training goes on
        warn_once(f"config: {path} cannot be read ({error}). Pass a dict.")
        return {}
