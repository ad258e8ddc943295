"""Names of settings, for a message about one that does not exist."""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from pydantic import BaseModel

from otel_rl.setting_types import fields_of

__all__ = ["setting_paths", "unknown_setting"]

_ALIKE: Final = 0.7
_SEE: Final = "See `otel-rl help bridge`."


def unknown_setting(
    model: type[BaseModel],
    path: Sequence[str],
    *,
    variable: tuple[str, Callable[[Sequence[str]], str]] | None = None,
) -> str:
    """Return a message about a setting that does not exist, with what may have been meant.

    Args:
        model: All settings.
        path: Sections and name.
        variable: Its variable, as it was written, and the names of others by their path; None for
            a setting of a file.
    """
    dotted = ".".join(path)
    known = list(setting_paths(model))
    section, dot, name = dotted.rpartition(".")
    # A section that both names have makes them no more alike.
    beside = [one.rpartition(".")[2] for one in known if one.rpartition(".")[0] == section]
    near = [f"{section}{dot}{one}" for one in get_close_matches(name, beside, 1, _ALIKE)]
    near = near or [one for one in known if one.rpartition(".")[2] == name]
    near = near or get_close_matches(dotted, known, 1, _ALIKE)
    near = near or [one for one in known if one.rpartition(".")[2] == path[0] != one]
    written, meant = dotted, near[0] if near else ""
    if variable is not None:
        written, name_of = variable
        meant = name_of(meant.split(".")) if meant else ""
    return f"{written}: unknown setting. {f'Did you mean {meant}? ' if meant else ''}{_SEE}"


def setting_paths(model: type[BaseModel], section: str = "") -> Iterator[str]:
    """Yield the path of each section and setting, with dots."""
    for name, field in fields_of(model).items():
        yield f"{section}{name}"
        below = field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield from setting_paths(below, f"{section}{name}.")
