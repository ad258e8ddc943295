"""Private copies of the checkout, in which mutants are applied and tests run."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from tests.mutants.table import ROOT, Mutant, mutated

__all__ = ["Outcome", "Result", "Tree", "files_of_checkout"]


class Outcome(StrEnum):
    """End of a run of tests."""

    FAILED = "failed"
    PASSED = "passed"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    """They could not be run: nothing is shown."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run of tests.

    Attributes:
        outcome: Its end.
        seconds: Duration.
        failed: The first test that failed; empty if none did.
        output: Of pytest.
    """

    outcome: Outcome
    seconds: float
    failed: str = ""
    output: str = ""


class Tree:
    """A copy of the checkout, as long as the context lasts. One thread at a time.

    Args:
        files: To copy, relative to the root.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="otel-rl-mutants-"))
        for file in files:
            target = self.path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    @contextlib.contextmanager
    def applied(self, mutant: Mutant) -> Iterator[None]:
        """Change the copy for the length of the context."""
        path = self.path / mutant.file
        source = path.read_text()
        _write(path, mutated(source, mutant))
        try:
            yield
        finally:
            _write(path, source)

    def environment(self) -> dict[str, str]:
        """For processes that are to import what is in the copy."""
        return {**os.environ, "PYTHONPATH": str(self.path)}

    def test(self, tests: Sequence[str], *, timeout_s: float) -> Result:
        """Run tests until the first fails."""
        started = os.times().elapsed
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-x", "-q", "--tb=line"),
                *("-p", "no:cacheprovider", *tests),
            ],
            cwd=self.path,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Result(Outcome.TIMEOUT, timeout_s)
        finally:
            # Also what the tests had started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = os.times().elapsed - started
        failed = next(
            (line.split()[1] for line in output.splitlines() if line.startswith("FAILED ")), ""
        )
        # 2 and more: interrupted, no such test, nothing collected.
        outcome = {0: Outcome.PASSED, 1: Outcome.FAILED}.get(process.returncode, Outcome.BROKEN)
        return Result(outcome, seconds, failed, output)


def files_of_checkout() -> list[Path]:
    """What git knows or would know, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (ROOT / (path := Path(name))).is_file()]


def _write(path: Path, source: str) -> None:
    path.write_text(source)
    # Python tells a stale file of bytecode by seconds and size, and a mutant may change neither.
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        stale.unlink()
