"""Single files that no environment of the lab has: of frameworks that install on machines with
GPUs only, and the rules of axe.

They are fetched once, each checked against ``sources.toml``, and stand beside the environments.
"""

import hashlib
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.programs import CannotBuild, lab_directory

_TABLE = Path(__file__).with_name("sources.toml")

_TIMEOUT_S = 60.0

_PLATFORMS = [f"--platform=manylinux_2_{version}_x86_64" for version in (5, 28, 34)]
"""Of the wheels; only their Python files are used, so the machine's own does not matter."""


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one framework.

    Attributes:
        name: Of its adapter.
        version: Release or commit.
        files: Checksum of each.
        url: Where they are, unless a wheel has them.
        requirement: The release whose wheel has them.
        sha256: Of that wheel.
        root: Directory in it, with a slash at its end.
    """

    name: str
    version: str
    files: Mapping[str, str]
    url: str = ""
    requirement: str = ""
    sha256: str = ""
    root: str = ""

    @property
    def path(self) -> Path:
        """Directory for the path once they are fetched."""
        made_of = f"{self.name} {self.version} {sorted(self.files.items())}"
        digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
        return lab_directory() / f"source-{self.name}-{self.version}-{digest}"

    def is_built(self) -> bool:
        """Whether every file is there, and is the one of the table."""
        return all(_is(self.path / file, digest) for file, digest in self.files.items())

    def not_verified(self) -> str:
        """Return what its tests leave unverified where it is not built."""
        return f"NOT VERIFIED against {self.name} {self.version}: its source could not be fetched"

    def build(self) -> None:
        """Fetch them.

        Raises:
            CannotBuild: They cannot be reached, or are others.
        """
        work = lab_directory() / "work" / self.path.name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            self._from_wheel(work) if self.requirement else self._from_url(work)
        except (OSError, subprocess.CalledProcessError) as exc:
            raise CannotBuild(f"sources of {self.name} cannot be fetched: {exc}") from exc
        for file, digest in self.files.items():
            if not _is(work / file, digest):
                raise CannotBuild(f"{file} is not what {_TABLE.name} says: {self.name} has changed")
            for directory in [*Path(file).parents][:-1]:
                (work / directory / "__init__.py").touch()  # without what their own would import
        shutil.rmtree(self.path, ignore_errors=True)
        work.rename(self.path)

    def _from_wheel(self, work: Path) -> None:
        lock = work / "lock"
        lock.write_text(f"{self.requirement} --hash=sha256:{self.sha256}\n")
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version", "3.12",
            *_PLATFORMS, "--dest", str(work), "--requirement", str(lock),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        (wheel,) = work.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for file in self.files:
                _write(work / file, archive.read(f"{self.root}{file}"))
        wheel.unlink()

    def _from_url(self, work: Path) -> None:
        for file in self.files:
            with urllib.request.urlopen(self.url + file, timeout=_TIMEOUT_S) as answer:
                _write(work / file, answer.read())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


SOURCES = {
    name: Source(name, **fields) for name, fields in tomllib.loads(_TABLE.read_text()).items()
}
"""By adapter, or by the name of what is no framework."""
