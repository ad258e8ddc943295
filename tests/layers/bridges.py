"""Bridges with a layer of their safety taken out: private copies of the checkout with one change.

``layers.toml`` beside this module lists them:

    file = "otel_rl/bridge/journal/runs.py"           # of the layers that name no other
    tests = ["tests/simulation/test_simulation.py"]   # which notice

    [name_of_the_layer]
    old = 'if value != value:'                  # exactly once in the file
    new = 'if False:'
    breaks = "what a bridge without the layer does wrong"
    survives = "which second layer does the same"   # of those that no test can notice

``old`` and ``new`` may be lists of one length: several changes that take out one layer.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Layer:
    """A change of one file that takes out a layer.

    Attributes:
        name: No other layer has it.
        file: Relative to the root of the repository.
        changes: (old, new) texts.
        tests: Arguments of pytest: those that should fail.
        survives: Which second layer does the same; empty if the tests should fail.
    """

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]
    survives: str = ""


@cache
def load() -> Mapping[str, Layer]:
    """All layers by name."""
    listed = tomllib.loads(Path(__file__).with_name("layers.toml").read_text())
    file, tests = listed.pop("file"), listed.pop("tests")
    return {
        name: Layer(
            name,
            entry.get("file", file),
            tuple(zip(_texts(entry["old"]), _texts(entry["new"]), strict=True)),
            _texts(entry.get("tests", tests)),
            entry.get("survives", ""),
        )
        for name, entry in listed.items()
    }


def source_without(layer: Layer) -> str:
    """Return the source of the layer's file without the layer.

    Raises:
        ValueError: An old text does not occur exactly once, or the result is no Python.
    """
    source = (ROOT / layer.file).read_text()
    for old, new in layer.changes:
        if (n := source.count(old)) != 1:
            raise ValueError(f"{layer.name}: {old!r} occurs {n} times in {layer.file}")
        source = source.replace(old, new)
    try:
        # No tree: some 3.11 interpreters fail if two threads build one (python/cpython#106905).
        compile(source, layer.file, "exec", dont_inherit=True)
    except SyntaxError as exc:
        raise ValueError(f"{layer.name}: {exc}") from exc
    return source


class BridgeWithout:
    """A copy of the checkout without a layer, as long as the context lasts."""

    def __init__(self, layer: Layer) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="otel-rl-layers-"))
        for file in _files_of_checkout():
            target = self.path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, target)
            # With the time of its source, which is copied, too: else each copy is compiled anew.
            for compiled in (ROOT / file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
                (target.parent / "__pycache__").mkdir(exist_ok=True)
                shutil.copy2(compiled, target.parent / "__pycache__")
        (self.path / layer.file).write_text(source_without(layer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Judged:
    """How the tests of a bridge without a layer ended.

    Attributes:
        is_noticed: Whether a test failed. Tests that never end have noticed something, too.
        output: Of pytest.
    """

    is_noticed: bool
    output: str


def judge(layer: Layer, *, timeout_s: float) -> Judged:
    """Run the tests of a layer on a bridge without it, until the first fails.

    Raises:
        RuntimeError: The tests could not be run.
    """
    with BridgeWithout(layer) as bridge:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-x", "-q", "--tb=line"),
                *("-p", "no:cacheprovider", *layer.tests),
            ],
            cwd=bridge.path,
            env={**os.environ, "PYTHONPATH": str(bridge.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Judged(True, f"no end after {timeout_s:.0f} s")
        finally:
            # Also what the tests had started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    # 2 and more: interrupted, no such test, nothing collected.
    if process.returncode not in {0, 1}:
        raise RuntimeError(f"{layer.name}: {output[-2000:]}")
    return Judged(process.returncode == 1, output)


def _files_of_checkout() -> list[Path]:
    """What git knows or would know, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (ROOT / (path := Path(name))).is_file()]


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
