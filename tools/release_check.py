"""Builds what a release consists of, and tries it as its users will.

    python3 tools/release_check.py            everything, into build/release
    python3 tools/release_check.py --extras bridge wandb

It builds the source distribution and the wheel from the last commit, checks their metadata and
contents, installs the wheel with each extra into an empty environment, runs the example of the
quickstart there, and writes a list of components (CycloneDX) and the hashes. uv makes the
environments, from the index that it is configured for. Needs only the standard library, git and
pip.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
_TOOLS = [_CHECKOUT / "tools" / f"{name}.lock.txt" for name in ("release", "uv")]
_EXTRAS = (
    *("", "bridge", "wandb", "dashboard", "mlflow", "trackio", "tensorboard", "postgres"),
    *("archive", "mcp", "demo", "all"),
)

# What each extra is for, beside the bridge that all of them bring.
_TRACKERS = {name: name for name in ("wandb", "mlflow", "trackio", "tensorboard")}
_COMMANDS = {
    "bridge": ("view", "--html", "run.html"),
    "demo": ("demo", "--steps", "2", "--no-kill", "--tracker", "jsonl"),
    "all": ("view", "--html", "run.html"),
}
_MODULES = {
    "archive": "otel_rl.bridge.archive.file_writer, pyarrow.parquet",
    "dashboard": "otel_rl.bridge.delivery.wandb, wandb_workspaces.workspaces",
    "mcp": "otel_rl.mcp.tools",
    "postgres": "otel_rl.bridge.journal.postgres",
}

# As in docs/tutorials/first-run.md, which a test of the documentation runs too.
_PROGRAM = """
import otel_rl

otel_rl.init(experiment="release", role="trainer")
for step in range(1, 21):
    with otel_rl.step(step):
        otel_rl.log({"rl.train.loss": 1 / step})
"""


class _Failed(Exception):
    """A check of the release found something."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a release; the exit status is 1 if something is wrong, with a line that says what."""
    parser = argparse.ArgumentParser(
        prog="tools/release_check.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--directory", type=Path, default=_CHECKOUT / "build" / "release")
    parser.add_argument("--extras", nargs="*", default=_EXTRAS, metavar="EXTRA")
    options = parser.parse_args(arguments)
    directory: Path = options.directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    dist = directory / "dist"
    dist.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            tools = _tools(Path(scratch) / "tools")
            wheel, source = _build(tools, Path(scratch), dist)
            _check_contents(tools, wheel, source)
            for extra in options.extras:
                _try(tools, wheel, extra, Path(scratch) / f"with-{extra}")
            _write_components(tools, wheel, Path(scratch), dist)
        _write_hashes(dist)
    except _Failed as failed:
        sys.stderr.write(f"release-check: {failed}\n")
        return 1
    except subprocess.CalledProcessError as error:
        said = f"{error.stdout or ''}{error.stderr or ''}".strip()
        sys.stderr.write(f"release-check: {' '.join(map(str, error.cmd))} failed:\n{said}\n")
        return 1
    _show(f"All of it holds. The release is in {dist}:")
    for file in sorted(dist.iterdir()):
        _show(f"  {file.name}  {file.stat().st_size:,} bytes")
    return 0


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _run(*command: object, cwd: Path = _CHECKOUT, **variables: str) -> str:
    """Run a program; returns what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**_clean_environment(), **variables},
        check=True,
        text=True,
        capture_output=True,
    )
    return done.stdout


def _clean_environment() -> dict[str, str]:
    """The variables, without those that would bring this checkout or a run into a trial."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith(("OTEL_", "WANDB_"))
    }


def _tools(directory: Path) -> Path:
    """Install what a release is made and checked with; returns the directory of its programs."""
    venv.create(directory, with_pip=True, symlinks=True)
    programs = directory / "bin"
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, "--require-hashes", *(f"--requirement={lock}" for lock in _TOOLS))
    return programs


def _environment(tools: Path, directory: Path, *packages: str) -> Path:
    """Make an environment with packages; returns the directory of its programs."""
    _run(tools / "uv", "venv", "--quiet", "--python", sys.executable, directory)
    _install(tools, directory / "bin", *packages)
    return directory / "bin"


def _install(tools: Path, programs: Path, *packages: str) -> None:
    _run(*_uv(tools, "install", programs), "--quiet", *packages)


def _uv(tools: Path, command: str, programs: Path) -> Sequence[object]:
    return (tools / "uv", "pip", command, "--python", programs / "python")


def _build(tools: Path, scratch: Path, dist: Path) -> tuple[Path, Path]:
    """Build wheel and source distribution of the last commit; the wheel is made of the latter."""
    _show("Building the source distribution and, of it, the wheel")
    tree = scratch / "tree"
    tree.mkdir()
    archive = scratch / "tree.tar"
    _run("git", "archive", "--output", archive, "HEAD")
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    _run(tools / "python", "-m", "build", "--outdir", dist, tree)
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return wheel, source


def _check_contents(tools: Path, wheel: Path, source: Path) -> None:
    _show("Checking metadata and contents")
    _run(tools / "twine", "check", "--strict", wheel, source)
    _run(tools / "check-wheel-contents", "--toplevel", "otel_rl", wheel)
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    committed = set(_run("git", "ls-files", "otel_rl").split())
    folders = (":(glob)docs/*.md", "docs/tutorials", "docs/how-to", "docs/explanation")
    pages = {f"otel_rl/{page}" for page in _run("git", "ls-files", *folders).split()}
    if lacking := sorted((committed | pages) - names):
        raise _Failed(f"the wheel lacks {', '.join(lacking[:5])}")
    if strays := sorted(names - committed - pages):
        raise _Failed(f"the wheel has files that no user needs: {', '.join(strays[:5])}")


def _try(tools: Path, wheel: Path, extra: str, directory: Path) -> None:
    """Install the wheel with an extra, and run what it is for."""
    name = f"otel-rl[{extra}]" if extra else "otel-rl"
    _show(f"Trying {name}")
    needed = f"otel-rl[{extra}] @ {wheel.as_uri()}" if extra else f"otel-rl @ {wheel.as_uri()}"
    programs = _environment(tools, directory, needed)
    run = directory / "run"
    run.mkdir()
    _run(programs / "otel-rl", "--version", cwd=run)
    _run(programs / "otel-rl", "help", "first-run", cwd=run)
    if extra:
        _try_training(programs, run)
    if extra in _TRACKERS:
        _train(programs, run, _TRACKERS[extra])
    if extra in _COMMANDS:
        _run(programs / "otel-rl", *_COMMANDS[extra], cwd=run)
    if extra in _MODULES:
        _run(programs / "python", "-c", f"import {_MODULES[extra]}", cwd=run)
    listed = json.loads(_run(*_uv(tools, "list", programs), "--format=json"))
    _show(f"  {len(listed)} packages")
    shutil.rmtree(directory)


def _try_training(programs: Path, run: Path) -> None:
    """Run the quickstart's program below ``otel-rl run``, look for its rows, and read the run."""
    said = _train(programs, run, "jsonl")
    files = [*run.rglob("*.jsonl")]
    rows = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    steps = {row["step"] for row in rows if "trainer/loss" in row["values"]}
    if not {*range(1, 21)} <= steps:
        raise _Failed(f"the quickstart's program left the steps {sorted(steps, key=str)}:\n{said}")
    for command in ("runs", "diagnose"):
        if "release" not in (said := _run(programs / "otel-rl", command, "--json", cwd=run)):
            raise _Failed(f"`otel-rl {command} --json` does not know the run:\n{said}")


def _train(programs: Path, run: Path, tracker: str) -> str:
    """Run the program into a tracker; a run of which something was lost is a failure."""
    program = run / "train.py"
    program.write_text(_PROGRAM, encoding="utf-8")
    options = ["--tracker", tracker, "--fail-on-loss"]
    command = [programs / "otel-rl", "run", *options, "--", programs / "python", program]
    return _run(*command, cwd=run, WANDB_MODE="offline", OTEL_RL_EXIT_TIMEOUT="60")


def _write_components(tools: Path, wheel: Path, scratch: Path, dist: Path) -> None:
    """Write what an installation with all extras of the release's image contains."""
    _show("Writing the list of components")
    lock = _CHECKOUT / "requirements-image.lock"
    pinned = ("--no-deps", "--require-hashes", "--requirement", str(lock))
    programs = _environment(tools, scratch / "all", *pinned)
    _install(tools, programs, "--no-deps", str(wheel))
    file = dist / f"{wheel.name.partition('-py3')[0]}.cdx.json"
    _run(tools / "cyclonedx-py", "environment", "--output-file", file, programs / "python")
    components = json.loads(file.read_text(encoding="utf-8"))["components"]
    if "otel-rl" not in {one["name"] for one in components}:
        raise _Failed("the list of components lacks otel-rl itself")
    _show(f"  {len(components)} components")


def _write_hashes(dist: Path) -> None:
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(dist.iterdir())
    ]
    (dist / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
