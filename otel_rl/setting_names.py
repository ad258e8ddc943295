"""Names of settings, for a message about one that does not exist."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from pydantic import BaseModel

__all__ = ["unknown_setting"]

_ALIKE: Final = 0.6
_SEE: Final = "See `otel-rl help bridge`."


def unknown_setting(model: type[BaseModel], path: Sequence[str], *, written: str = "") -> str:
    """Return a message about a setting that does not exist, with what may have been meant.

    Args:
        model: All settings.
        path: Sections and name.
        written: The name as it was written; default: with dots.
    """
    dotted = ".".join(path)
    known = list(_paths(model))
    beside = [one for one in known if one.rpartition(".")[0] == dotted.rpartition(".")[0]]
    near = get_close_matches(dotted, beside, 1, _ALIKE) or get_close_matches(
        dotted, known, 1, _ALIKE
    )
    hint = f"Did you mean {near[0]}? {_SEE}" if near else _SEE
    return f"{written or dotted}: unknown setting. {hint}"


def _paths(model: type[BaseModel], section: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{section}{name}"
        below = field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield from _paths(below, f"{section}{name}.")
