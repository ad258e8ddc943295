"""A setting in the environment: its variable, the kind of its value, and its default. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import ulp
from typing import Any, Final, Generic, TypeVar

from otel_rl.errors import ConfigError
from otel_rl.signals import Signal

_CORRECT: Final = "Correct or unset it."

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Kind(Generic[_T]):
    """Kind of a setting's value.

    Attributes:
        must: What the text of a variable must be, for the error.
        cast: Returns the value of a text; raises ``ValueError`` or ``LookupError``.
        hint: Remedy for the error.
    """

    must: str
    cast: Callable[[str], _T]
    hint: str = _CORRECT

    def given(self, where: str, value: object) -> _T:
        """Return the value of an argument, which must be a number.

        Raises:
            ConfigError: The value is wrong. The error names the argument, its value and the remedy.
        """
        try:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError
            return self.cast(str(float(value)))
        except (ValueError, OverflowError):
            raise ConfigError(
                f"{where}: must be {self.must} (got {value!r}).", hint="Correct it or leave it out."
            ) from None


@dataclass(frozen=True, slots=True)
class Setting(Generic[_T]):
    """An entry of the table of settings.

    Attributes:
        default: Text that holds if the variable is not set.
        otherwise: What holds without the variable, in words, where ``default`` does not tell.
        argument: Argument of ``init``, or an option within one, which takes precedence.
        attribute: The resource attribute with the same meaning.
        is_internal: Whether one process of otel_rl sets the variable for another one.
        run: The value that ``otel-rl run`` sets if the user sets none; None removes the user's.
        is_replaced: Whether ``otel-rl run`` replaces the user's value.
    """

    variable: str
    kind: Kind[_T]
    default: str = ""
    otherwise: str = ""
    argument: str = ""
    attribute: str = ""
    is_internal: bool = False
    run: str | None = ""
    is_replaced: bool = False

    def find(self, environ: Mapping[str, str], signal: Signal | None = None) -> tuple[str, str]:
        """Return text and name of the signal's own variable, else of the common variable."""
        own = self.variable.replace("_OTLP_", f"_OTLP_{signal.upper()}_" if signal else "_OTLP_")
        for name in (own, self.variable):
            if text := environ.get(name, "").strip():
                return text, name
        return "", self.variable

    def read(self, environ: Mapping[str, str], signal: Signal | None = None) -> _T:
        """Return the value in an environment, or the default.

        Raises:
            ConfigError: The value is wrong. The error names the variable, its value and the remedy.
        """
        text, name = self.find(environ, signal)
        try:
            return self.kind.cast(text or self.default)
        except (ValueError, LookupError):
            raise ConfigError(
                f"{name}: must be {self.kind.must} (got {text[:80]!r}).", hint=self.kind.hint
            ) from None


def settings_in(group: type) -> dict[str, Setting[Any]]:
    return {one.name: one.metadata["setting"] for one in fields(group) if one.metadata}


def setting(variable: str, kind: Kind[_T], default: str = "", **more: Any) -> _T:
    """Return a field for a class of the table, whose value is of the given kind."""
    compares = more.pop("compares", True)
    entry = Setting(variable, kind, default, **more)
    made: _T = field(
        default_factory=lambda: kind.cast(default), compare=compares, metadata={"setting": entry}
    )
    return made


def number(
    must: str, least: float = ulp(0.0), most: float = 1e9, *, per: float = 1, hint: str = _CORRECT
) -> Kind[float]:
    """Return the kind of a number within bounds; ``per`` is 1000 for milliseconds as seconds."""

    def cast(text: str) -> float:
        number = float(text) / per
        if not least <= number <= most:
            raise ValueError
        return number

    return Kind(must, cast, hint)


def word(words: Mapping[str, _T], hint: str = _CORRECT) -> Kind[_T]:
    must = " or ".join(", ".join(words).rsplit(", ", 1))
    return Kind(must, lambda text: words[text.lower()], hint)


def optional(kind: Kind[_T]) -> Kind[_T | None]:
    return Kind(kind.must, lambda text: kind.cast(text) if text else None, kind.hint)


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


_SWITCHED: Final = {"on": True, "off": False}
_ALSO: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

TEXT: Final = Kind("a text", str)
PATH: Final = Kind("a path", lambda text: text or None)
TRUE: Final = Kind("true or false", lambda text: text.lower() == "true")  # as in OpenTelemetry
SWITCH: Final = Kind("on or off", lambda text: (_SWITCHED | _ALSO)[text.lower()])
