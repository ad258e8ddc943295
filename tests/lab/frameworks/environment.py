"""A virtual environment with real training frameworks, for the tests of tests/frameworks.

It stands beside the programs of the lab and is named by everything that it is made of, so several
checkouts share it. It therefore holds no ``otel_rl``: a test puts its own checkout on the path.
"""

import hashlib
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.lab.programs import CannotBuild, alone, lab_directory, run

_LOCKS = Path(__file__).parent

_PYTHONS = ((3, 11), (3, 12))
"""verl's metadata excludes newer ones."""


class Frameworks:
    """An environment of the lab in which real frameworks are installed.

    Args:
        name: Of its directory.
        lock: Pinned requirements with hashes. Nothing else is installed.
        warm_up: Proves that what was left out of the lock is not needed, and compiles what tests
            import first.
        base: Environment whose packages it has, too.
    """

    def __init__(
        self, name: str, lock: Path, warm_up: str, base: "Frameworks | None" = None
    ) -> None:
        self.name = name
        self._lock = lock
        self._warm_up = warm_up
        self._base = base

    @property
    def path(self) -> Path:
        """Where it is once it is built."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        made_of = self._lock.read_text(encoding="utf-8") + python + platform.machine()
        if self._base is not None:
            made_of += self._base.path.name
        digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
        return lab_directory() / f"{self.name}-{python}-{digest}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    def refusal(self) -> str:
        """Why it cannot be built on this machine; empty if it can."""
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            return "real frameworks are locked for Linux on x86_64 only"
        if sys.version_info[:2] not in _PYTHONS:
            found = platform.python_version()
            return f"real frameworks need Python 3.11 or 3.12, and this is {found}"
        return ""

    def is_built(self) -> bool:
        """Whether everything was installed and its interpreter still starts."""
        if not self._complete.is_file() or not (self._base is None or self._base.is_built()):
            return False
        try:
            return subprocess.run([self.python, "-c", ""], timeout=60).returncode == 0
        except OSError:  # the Python that it was made with is gone
            return False

    def build(self) -> bool:
        """Install them unless they are there. Returns whether they had to be installed.

        Two at a time wait for each other. What uv has fetched it keeps in its own cache.

        Raises:
            CannotBuild: The machine is of another kind, or a command fails.
        """
        if self.is_built():
            return False
        if refusal := self.refusal():
            raise CannotBuild(f"{refusal[0].upper()}{refusal[1:]}.")
        if self._base is not None:
            self._base.build()
        with alone("frameworks.lock"):
            if self.is_built():  # by whoever was first
                return False
            shutil.rmtree(self.path, ignore_errors=True)
            work = lab_directory() / "work" / self.path.name
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            uv = self._fetch_uv(work)
            python = str(self.python)
            run("its interpreter", [uv, "venv", "--python", sys.executable, str(self.path)], work)
            command = [
                uv, "pip", "install", "--python", python, "--no-deps", "--require-hashes",
                "--no-progress", "--requirement", str(self._lock),
            ]  # fmt: skip
            run("its packages", command, work)
            if self._base is not None:
                (self._packages / "base.pth").write_text(f"{self._base._packages}\n")
            run("its first import", [python, "-c", self._warm_up], work)
            self._complete.touch()
            shutil.rmtree(work)
            return True

    @property
    def _packages(self) -> Path:
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.path / "lib" / python / "site-packages"

    @property
    def _complete(self) -> Path:
        return self.path / "complete"

    def _fetch_uv(self, work: Path) -> str:
        """The uv of the lock, from the registry that pip is set up for."""
        lock = self._lock.read_text(encoding="utf-8")
        pin = re.search(r"^uv==.*\\\n(?: .*\n)+", lock, re.MULTILINE)
        assert pin
        (work / "uv.lock").write_text(pin[0], encoding="utf-8")
        target = work / "uv"
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--require-hashes", "--target", str(target), "--requirement", "uv.lock",
        ]  # fmt: skip
        run("its installer", command, work)
        return str(target / "bin" / "uv")


FRAMEWORKS = Frameworks(
    "frameworks",
    _LOCKS / "requirements.lock",
    "import ray, stable_baselines3, torch.utils.tensorboard, trl, verl.utils.tracking, wandb",
)
"""The newest releases; 5 GB on disk."""

OLDEST = Frameworks(
    "oldest",
    _LOCKS / "oldest.lock",
    "import ray, stable_baselines3, torch.utils.tensorboard, trl, wandb",
)
"""The oldest releases that are supported, and the lower bounds of otel_rl's own dependencies."""

OLDEST_SDK = Frameworks(
    "oldest-sdk", _LOCKS / "oldest_sdk.lock", "import opentelemetry.sdk.metrics, fastapi, grpc"
)
"""OpenTelemetry as old as it may be, which is older than W&B needs, and no tracker."""

TUNIX = Frameworks("tunix", _LOCKS / "tunix.lock", "import tunix.sft.metrics_logger")
"""Tunix on JAX; its packages agree with no other environment's."""

VLLM = Frameworks("vllm", _LOCKS / "vllm.lock", "import vllm.v1.engine.async_llm")
"""vLLM's engine on CPUs, with the torch of the newest releases; 1 GB more on disk."""

RLLIB = Frameworks(
    "rllib", _LOCKS / "rllib.lock", "import ray.rllib.algorithms.ppo", base=FRAMEWORKS
)
"""What RLlib and launchers of sweeps need beside the newest releases."""

ENVIRONMENTS = (FRAMEWORKS, OLDEST, OLDEST_SDK, TUNIX, VLLM, RLLIB)
"""What `make lab` installs, and the tests of tests/frameworks use."""
