"""``otel-rl help``: prints a page of the documentation, which is installed with the package."""

import argparse
import pydoc
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import otel_rl
from otel_rl.errors import ConfigError

DESCRIPTION: Final = "Print a page of the documentation, or list the topics."

_PACKAGE: Final = Path(otel_rl.__file__).parent

_CONTENTS: Final = "README.md"
"""Page with a line for each other page, which is a topic named like its file."""

_PAGE: Final = re.compile(
    r"- \[[^\]]+\]\((?P<path>(?:(?:tutorials|how-to|explanation)/)?(?P<topic>[\w-]+)\.md)\): "
    r"(?P<words>.+)"
)
_HEADING: Final = re.compile(r"\*\*(?P<words>.+)\*\*")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_COMMENT: Final = re.compile(r"<!-- [^\n]* -->\n+")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topic", nargs="?", metavar="TOPIC", help="name of a page (default: list the topics)"
    )


def command(arguments: argparse.Namespace) -> int:
    directory = _directory()
    topic: str | None = arguments.topic
    if topic is None:
        print("\n".join(_list(directory)))
        return 0
    listed = (_PAGE.fullmatch(line) for line in _read(directory, _CONTENTS).splitlines())
    topics = {page["topic"]: page["path"] for page in listed if page}
    if topic not in topics:
        near = get_close_matches(topic, topics, 1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"There is no topic {topic!r}.",
            hint=f"{meant}`otel-rl help` lists the topics; `otel-rl COMMAND --help` explains a "
            "command.",
        )
    pydoc.pager(_COMMENT.sub("", _read(directory, topics[topic])).rstrip("\n"))
    return 0


def _directory() -> Path:
    """Return the folder of the pages: in the installed package, else in the checkout."""
    installed = _PACKAGE / "docs"
    return installed if installed.is_dir() else _PACKAGE.parent / "docs"


def _read(directory: Path, name: str) -> str:
    return (directory / name).read_text(encoding="utf-8")


def _list(directory: Path) -> Iterator[str]:
    contents = _read(directory, _CONTENTS).splitlines()
    pages = [_PAGE.fullmatch(line) for line in contents]
    width = max(len(page["topic"]) for page in pages if page)
    yield "usage: otel-rl help TOPIC"
    for line, page in zip(contents, pages, strict=True):
        if page:
            words = _LINK.sub(lambda link: link[1], page["words"])
            yield f"  {page['topic']:{width}}  {words}"
        elif heading := _HEADING.fullmatch(line):
            yield f"\n{heading['words']}:"
