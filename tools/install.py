"""Installs otel_rl and one set of locked packages into a virtual environment.

    python3 tools/install.py demo    what `make demo` needs
    python3 tools/install.py dev     that, tests and linters

uv does the work where it is on the path. Elsewhere pip installs uv first. Where uv cannot be had or
fails, pip does all of it. Every package is checked against its hash. Needs only the standard
library.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
_LOCKS = {
    "demo": _CHECKOUT / "requirements-demo.lock",
    "dev": _CHECKOUT / "requirements.lock",
}
_UV_LOCK = Path(__file__).with_name("uv.lock.txt")
_PIN = re.compile(r"^[a-zA-Z0-9._-]+==", re.MULTILINE)
_LOCKED = ("--require-hashes", "--requirement")
_PACKAGE = _CHECKOUT / "otel_rl"
_COMPILED = (
    "wandb, otel_rl.cli.commands.demo, otel_rl.demo, otel_rl.worker.session, "
    "otel_rl.worker.export.http_transport"
)
_OWN = ("--no-deps", "--no-build-isolation", "--editable", str(_CHECKOUT))


def main(arguments: Sequence[str] | None = None) -> int:
    """Install; the exit status is that of the program that failed, else 0."""
    parser = argparse.ArgumentParser(prog="tools/install.py", description=__doc__)
    parser.add_argument("packages", choices=_LOCKS)
    parser.add_argument("--venv", type=Path, default=_CHECKOUT / ".venv")
    options = parser.parse_args(arguments)
    directory: Path = options.venv
    lock = _LOCKS[options.packages]
    count = len(set(_PIN.findall(lock.read_text(encoding="utf-8"))))
    _show(f"Installing {count} packages for `make {options.packages}` into {directory}, once.")
    try:
        python = _environment(directory)
        uv = _uv(directory)
        is_dev = options.packages == "dev"
        if uv is None or not _install_with_uv(uv, python, lock, compiles_all=is_dev):
            _install_with_pip(python, lock, count)
        if is_dev:
            _ensure_pip(python)  # `make lab` uses it
        _compile(python)
    except subprocess.CalledProcessError as error:
        _show(f"Failed: {' '.join(map(str, error.cmd))}")
        return error.returncode
    _show(f"Installed into {directory}.")
    return 0


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _environment(directory: Path) -> Path:
    """Make the environment unless it is there; returns its interpreter."""
    python = directory / "bin" / "python"
    if not python.exists():
        _show("  environment")
        # Without pip: for pip to install itself takes as long as for uv to install everything.
        venv.create(directory, with_pip=False, symlinks=True)
    return python


def _uv(directory: Path) -> str | None:
    """Find uv, or install it with pip; None if that fails."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(directory / "uv" / "bin")])
    found = shutil.which("uv", path=path)
    if found or importlib.util.find_spec("pip") is None:
        return found
    _show("  uv, which installs the rest")
    target = ["--target", str(directory / "uv")]
    command = [*_pip(sys.executable), "--quiet", *target, *_LOCKED, str(_UV_LOCK)]
    return (
        None if subprocess.run(command, check=False).returncode else shutil.which("uv", path=path)
    )


def _install_with_uv(uv: str, python: Path, lock: Path, *, compiles_all: bool) -> bool:
    """Install a lock and the checkout; False if uv cannot, for want of an index that pip knows."""
    install = [uv, "pip", "install", "--python", str(python)]
    compiling = ["--compile-bytecode"] if compiles_all else []
    locked = subprocess.run([*install, *compiling, *_LOCKED, str(lock)], check=False)
    if locked.returncode:
        _show("uv failed; pip tries the same.")
        return False
    subprocess.run([*install, "--quiet", *_OWN], check=True)
    return True


def _compile(python: Path) -> None:
    """Write the bytecode of what runs import: else each of their processes compiles it anew."""
    _show("  bytecode")
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    program = f"import {_COMPILED}, compileall; compileall.compile_dir({str(_PACKAGE)!r}, quiet=1)"
    subprocess.run([str(python), "-c", program], env=environment, check=True)


def _install_with_pip(python: Path, lock: Path, count: int) -> None:
    """Install a lock and the checkout, and show each package as pip comes to it."""
    _ensure_pip(python)
    command = [*_pip(python), "--progress-bar=off", *_LOCKED, str(lock)]
    number = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("Collecting "):
                number += 1
                _show(f"  {number}/{count} {line.split()[1]}")
            elif line.startswith("Installing collected packages"):
                _show("  unpacking all of them")
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    subprocess.run([*_pip(python), "--quiet", *_OWN], check=True)


def _ensure_pip(python: Path) -> None:
    if not (python.parent / "pip").exists():
        command = [str(python), "-m", "ensurepip", "--default-pip"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _pip(python: Path | str) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "install"]


if __name__ == "__main__":
    sys.exit(main())
