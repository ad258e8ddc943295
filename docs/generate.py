# ruff: noqa: INP001  # a script, not a package
"""Writes the tables of the documentation that must not rot: ``python docs/generate.py [--check]``.

A page marks where a table goes, and the code says what is in it:

    <!-- generated: settings -->
    ...
    <!-- end -->

With ``--check`` nothing is written, and pages that are out of date make it exit with 1.
"""

import argparse
import difflib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from otel_rl import cli, errors
from otel_rl.bridge.config import ENV_PREFIX, BridgeSettings
from otel_rl.bridge.counters import COUNTERS, GAUGES
from otel_rl.bridge.receive.status import ANSWERS
from otel_rl.bridge.track.wandb_account import WandbSettings
from otel_rl.demo.faults import Fault, Kind, who_may
from otel_rl.errors import OtelRLError
from otel_rl.worker.drops import DropReason

DOCS: Final = Path(__file__).parent
EXAMPLES: Final = DOCS.parent / "examples"

_REGION: Final = re.compile(
    r"(<!-- generated: (?P<name>[a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL
)

# One entry of a Google-style "Attributes:" section, which may go on in deeper lines.
_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def settings() -> Iterator[str]:
    """Every setting of the bridge."""
    yield from _header("setting", "variable", "default", "meaning")
    for path, default, meaning in _settings(BridgeSettings, BridgeSettings.model_construct(), ()):
        variable = ENV_PREFIX + "__".join(path).upper()
        yield _line(f"`{'.'.join(path)}`", f"`{variable}`", _toml(default), meaning)


def wandb_options() -> Iterator[str]:
    """Every option of the W&B tracker."""
    meanings = _attributes(WandbSettings)
    yield from _header("option", "default", "meaning")
    for field in fields(WandbSettings):
        yield _line(f"`{field.name}`", _toml(field.default), meanings[field.name])


def commands() -> Iterator[str]:
    """Every command of ``otel-rl`` with its options."""
    for name, parser in _parsers().items():
        yield from ("", f"### otel-rl {name}", "", " ".join((parser.description or "").split()), "")
        yield from _header("option", "meaning")
        for action in parser._actions:  # noqa: SLF001  # argparse has no public list of them
            if isinstance(action, argparse._HelpAction):  # noqa: SLF001
                continue
            words = [*action.option_strings[-1:], "" if action.nargs == 0 else action.metavar]
            meaning = (action.help or "").replace("%(default)s", str(action.default))
            yield _line(f"`{' '.join(str(word) for word in words if word)}`", meaning)


def counters() -> Iterator[str]:
    """Every counter of the bridge."""
    yield from _header("counter", "what it counts", "reasons")
    for counter, spec in COUNTERS.items():
        reasons = f"[{spec.reasons.__name__}](#{_anchor(spec.reasons)})" if spec.reasons else "-"
        yield _line(f"`{counter}`", spec.description, reasons)
    yield ""
    yield from _header("gauge", "what it shows", "unit")
    for gauge, shown in GAUGES.items():
        yield _line(f"`{gauge}`", shown.description, f"`{shown.unit}`")
    for kind in dict.fromkeys(spec.reasons for spec in COUNTERS.values() if spec.reasons):
        yield from ("", f"### {kind.__name__}", "", _summary(kind), "")
        yield from _reasons(kind)


def drops() -> Iterator[str]:
    """Every reason for which a worker drops measurements."""
    yield from _reasons(DropReason)


def exceptions() -> Iterator[str]:
    """Every exception, and what a sender is answered where it is about a request."""
    yield from _header("exception", "is a", "meaning", "answer to the sender")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, OtelRLError):
            base = "-" if kind is OtelRLError else f"`{kind.__bases__[0].__name__}`"
            answer = ANSWERS.get(kind)
            told = f"HTTP {answer.http}, gRPC {answer.grpc.name}" if answer else "-"
            yield _line(f"`{name}`", base, _summary(kind), told)


def faults() -> Iterator[str]:
    """Every fault of the demo."""
    yield from _header("kind", "what happens, by default", "to whom")
    for kind in Kind:
        yield _line(f"`{kind}`", Fault(kind=kind).words, who_may(kind))


def diff(script: str) -> Iterator[str]:
    """What a script of ``examples/five_ways`` has that the one without instrumentation has not."""
    plain, instrumented = (
        (EXAMPLES / "five_ways" / name).read_text(encoding="utf-8").splitlines()
        for name in ("train.py", script)
    )
    yield "```diff"
    lines = difflib.unified_diff(plain, instrumented, "train.py", script, n=1, lineterm="")
    yield from (line.rstrip() for line in lines)
    yield "```"


TABLES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "settings": settings,
    "wandb options": wandb_options,
    "commands": commands,
    "counters": counters,
    "drops": drops,
    "exceptions": exceptions,
    "faults": faults,
    "diff otel api": partial(diff, "otel_api.py"),
    "diff with mlogger": partial(diff, "with_mlogger.py"),
    "diff drop in": partial(diff, "drop_in.py"),
    "diff own run": partial(diff, "own_run.py"),
}
"""What a page may ask for, by the name in its mark."""


def _settings(
    model: type[BaseModel], values: BaseModel, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object, str]]:
    """(path, default, meaning) of each setting, nested models after plain values."""
    nested: list[tuple[str, BaseModel]] = []
    for name, field in model.model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            nested.append((name, value))
        else:
            yield (*path, name), value, field.description or ""
    for name, value in nested:
        yield from _settings(type(value), value, (*path, name))


def _parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, in the order of its name."""
    commands = argparse.ArgumentParser().add_subparsers()
    for module in pkgutil.iter_modules(cli.__path__):
        add_parser = getattr(
            importlib.import_module(f"{cli.__name__}.{module.name}"), "add_parser", None
        )
        if add_parser is not None:
            add_parser(commands)
    return dict(commands.choices)


def _reasons(kind: type[StrEnum]) -> Iterator[str]:
    meanings = _attributes(kind)
    yield from _header("reason", "meaning")
    for reason in kind:
        yield _line(f"`{reason}`", meanings[reason.name])


def _attributes(kind: type) -> dict[str, str]:
    """What the "Attributes:" section of a docstring says, by name."""
    # Before Python 3.13 the docstring of a class keeps the indentation of its source.
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    return dict(_ATTRIBUTE.findall(section))


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _anchor(kind: type) -> str:
    return kind.__name__.lower()


def _toml(value: object) -> str:
    """A default as it stands in a TOML file."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | Path):
        return f'`"{value}"`'
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        mebibytes = value >> 20
        size = f"{mebibytes >> 10} GiB" if mebibytes % 1024 == 0 else f"{mebibytes} MiB"
        return f"`{value}` ({size})"
    return f"`{value}`"


def _header(*cells: str) -> tuple[str, str]:
    return _line(*cells), _line(*("---" for _ in cells))


def _line(*cells: str) -> str:
    """A table row, from text that may be wrapped and in the markup of docstrings."""
    cleaned = (" ".join(cell.replace("``", "`").split()).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(cleaned)} |"


def _filled(page: str) -> str:
    return _REGION.sub(lambda found: f"{found[1]}{_text(TABLES[found['name']]())}{found[3]}", page)


def _text(lines: Iterable[str]) -> str:
    return "\n" + "\n".join(lines).strip("\n") + "\n\n"


def main(argv: list[str] | None = None) -> int:
    """Fill the pages, or with ``--check`` say which would change."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    check = parser.parse_args(argv).check
    stale = False
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        filled = _filled(page)
        if filled == page:
            continue
        if check:
            stale = True
            sys.stderr.write(f"docs/{path.name} is out of date. Run: make docs\n")
        else:
            path.write_text(filled, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
