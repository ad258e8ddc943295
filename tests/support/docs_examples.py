"""Runs the Python examples of a page as its readers do, each in a process of its own.

    otel-rl run ... -- python tests/support/docs_examples.py PAGE...

An example reports as a trial that is named after it (``README-0``), so that what it brought into
the run can be told. Processes are forked from one that has loaded the libraries: a fresh
interpreter for each would take most of a second.
"""

import os
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import opentelemetry.exporter.otlp.proto.http.metric_exporter
import opentelemetry.sdk.metrics

import otel_rl.worker.session

__all__ = ["anchors", "blocks", "examples"]

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
