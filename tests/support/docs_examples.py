"""Runs what a page shows as its readers do: its Python examples, or all of it, from top to bottom.

    otel-rl run ... -- python tests/support/docs_examples.py PAGE...

A tutorial is followed by ``follow``: a code block with a title is a file, and a block ``console``
has commands after ``$``, each with what it prints.

An example reports as a trial that is named after it (``README-0``), so that what it brought into
the run can be told. Processes are forked from one that has loaded the libraries: a fresh
interpreter for each would take most of a second.
"""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import opentelemetry.exporter.otlp.proto.http.metric_exporter
import opentelemetry.sdk.metrics

import otel_rl.worker.session

_LOADED = (opentelemetry.exporter.otlp, opentelemetry.sdk.metrics, otel_rl.worker.session)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of one language, in order."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return fence.findall(page.read_text(encoding="utf-8"))


def examples(pages: list[Path]) -> Iterator[tuple[str, str]]:
    """(name, code) of every Python example."""
    for page in pages:
        for place, code in enumerate(blocks(page, "python")):
            yield f"{page.stem}-{place}", code


_BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<file>[\w./-]+)")?\n(?P<text>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)

IN_THE_LAB = frozenset({"ray", "stable-baselines3", "trl", "verl", "vllm"})
"""How-to pages whose commands need a real framework: tests/frameworks follows them."""

_RUN = frozenset({"console", "python", "toml", "text", "mermaid"})
"""Languages of blocks that tests run or load, and of those that are nothing to run."""


def followed_pages(folder: Path) -> set[str]:
    """The names of a folder's pages that have commands to follow."""
    return {page.stem for page in folder.glob("*.md") if blocks(page, "console")}


def unrun(page: Path) -> list[str]:
    """The code blocks of a page that no test runs as they stand."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [one["text"] for one in found if not one["file"] and one["language"] not in _RUN]


def files(page: Path) -> dict[str, str]:
    """The files that a page has its reader save: text by name."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return {one["file"]: one["text"] for one in found if one["file"]}


# What no two runs have in common: names of launches and runs, addresses, times, sizes, and the
# figures of a training, which have a decimal point.
_VARYING = [
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\b\d{8}-\d{6}(-\d+)?-\w{4,5}\b", "LAUNCH"),
        (r"\b\d{8}_\d{6}\b", "TIME"),
        (r"\b[a-z2-7]{16}\b", "RUN"),
        (r"http://127\.0\.0\.1:\d+/?(\?token=[\w.-]+)?", "ADDRESS"),
        (r"(grpc://)?127\.0\.0\.1:\d+", "ADDRESS"),
        (r"\b\d+ (rows|snapshots|steps)\b", r"N \1"),
        (r"\bsince step \d+", "since step N"),
        (r"\b\d+(\.\d+)? times\b", "N times"),
        (r"-?\b\d+(\.\d+)? ?(ms|s|min|h|kB|MB|x|%)(?=\W|$)", "AMOUNT"),
        (r"-?\b\d+\.\d+(e-?\d+)?\b", "FIGURE"),
        (r"\s+", " "),
    )
]


_ON_A_BUSY_MACHINE = re.compile(
    r"otel-rl: writing the rest: |(?:no clear cause|slow_training trainer/0); evidence "
)
"""Begins a line of a busy machine alone: the end takes a while there, and so do steps, with or
without the work of theirs that is named. A line that names another cause is none of them.
"""

_WORKER = re.compile(r"\w+/\d+ ")
"""Begins a worker's line in a table."""


@dataclass(frozen=True)
class Said:
    """A command of a page, what the page shows of it, and what it has printed."""

    command: str
    status: int
    shown: str
    printed: str


def follow(page: Path, directory: Path, environment: Mapping[str, str]) -> Iterator[Said]:
    """Do what a page says: write its files, run its commands, in the order of the page.

    Args:
        page: A tutorial. Blocks in other languages, without a title, are not run.
        directory: An empty one; the page shows it as ``/home/you/`` and its own name.
        environment: Of the commands.
    """
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["file"]:
            (directory / block["file"]).write_text(block["text"], encoding="utf-8")
        elif block["language"] == "console":
            for one in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                command, _, shown = one.partition("\n")
                done = subprocess.run(
                    ["sh", "-c", command],
                    cwd=directory,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=1_000,  # a busy machine
                    check=False,
                )
                printed = done.stdout.replace(str(directory), f"/home/you/{directory.name}")
                yield Said(command, done.returncode, shown, printed)


def cells(notebook: Path) -> list[Said]:
    """The code of each cell of a notebook, with the text that the notebook shows below it."""
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            shown = "".join(line for output in cell["outputs"] for line in output["text"])
            found.append(Said("".join(cell["source"]), 0, shown, ""))
    return found


def is_shown(said: Said) -> bool:
    """Whether a command has printed what its page shows.

    A line ``...`` of the page stands for any lines, and ``...`` within a line for anything. The
    workers of a table may stand in any order: on a busy machine one of them has a problem, and the
    table begins with that one.
    """
    lines = [re.escape(line) for line in _lines(said.shown)]
    pattern = "".join(
        r"(?:.*\n)*?" if line == r"\.\.\." else line.replace(r"\.\.\.", ".*") + r"\n"
        for line in lines
    )
    printed = "".join(f"{line}\n" for line in _lines(said.printed))
    return re.fullmatch(pattern, printed) is not None


def _lines(text: str) -> list[str]:
    """Return the lines without what varies, those of workers that follow each other sorted."""
    lines = [_constant(line) for line in text.splitlines() if not _ON_A_BUSY_MACHINE.match(line)]
    groups = groupby(lines, key=lambda line: _WORKER.match(line) is not None)
    return [
        line for are_workers, group in groups for line in (sorted(group) if are_workers else group)
    ]


def _constant(line: str) -> str:
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return line.strip()


def _start(name: str, code: str) -> int:
    """Run an example in a forked child, from a file in the working directory."""
    pid = os.fork()
    if pid:
        return pid
    trial = os.environ["OTEL_RL_TRIAL"]
    resource = os.environ["OTEL_RESOURCE_ATTRIBUTES"]
    os.environ["OTEL_RESOURCE_ATTRIBUTES"] = resource.replace(f"={trial}", f"={name}")
    # As if the names were typed: examples name runs of their own, too.
    os.environ |= {"OTEL_RL_TRIAL": name, "OTEL_RL_TYPED": "experiment,trial"}
    if "exact_view" in code:
        # It brings a provider of its own, and is started as the page says such a program is.
        del os.environ["OTEL_PYTHON_METER_PROVIDER"]
    script = Path(f"{name}.py")
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    sys.exit()


def main(pages: list[Path]) -> int:
    """Run all examples side by side and name those that fail."""
    started = {_start(name, code): name for name, code in examples(pages)}
    failed = [name for pid, name in started.items() if os.waitpid(pid, 0)[1]]
    sys.stderr.write("".join(f"failed: {name}\n" for name in failed))
    return len(failed)


if __name__ == "__main__":
    sys.exit(main([Path(page) for page in sys.argv[1:]]))


def anchors(path: Path) -> set[str]:
    """Return the anchor of every heading of a page."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
