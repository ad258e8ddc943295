"""The programs of the lab: which, of which version, where they are, and how they are built.

They are built from Go modules once (one from npm packages), and kept for all checkouts in
``$XDG_CACHE_HOME/otel_rl/lab`` (``~/.cache/otel_rl/lab``). A program's directory is named by
everything that it is made of, so a changed manifest makes another one. Needs no package but
Python's own.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_MANIFEST = Path(__file__).parents[2] / "collector_config" / "builder.yaml"
_EMITTERS = Path(__file__).parent / "emitters"
_BUILDER = "go.opentelemetry.io/collector/cmd/builder"

_GO = (1, 26)
"""What the modules below need; each `go.mod` says it."""

_NODE = (20, 6)
"""What the packages of the Node emitter need."""

_FETCHES_ITSELF = (1, 21)
"""Since this version go can replace itself by a newer one, if `GOTOOLCHAIN` lets it."""

_TELL_EVERY_S = 10.0

_LINK = "-s -w"  # without what only a debugger reads


class CannotBuild(Exception):
    """A program cannot be built here; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the lab.

    Attributes:
        name: Of the file.
        version: That it has to say of itself, or that its module has.
        asks_version: The arguments to which it says it.
        made_of: Everything that decides what the file holds.
        make: Builds it into a directory, as a file of its name.
    """

    name: str
    version: str
    asks_version: tuple[str, ...]
    made_of: str
    make: Callable[[Path], None]

    @property
    def path(self) -> Path:
        """Where it is once it is built."""
        digest = hashlib.sha256(self.made_of.encode()).hexdigest()[:12]
        return lab_directory() / f"{self.name}-{self.version}-{digest}" / self.name

    def is_built(self) -> bool:
        """Whether it is there and says that it is this version."""
        if not self.path.is_file():
            return False
        try:
            said = subprocess.run(
                [self.path, *self.asks_version], capture_output=True, text=True, timeout=120
            )
        except OSError:  # of another kind of machine
            return False
        return said.returncode == 0 and self.version in said.stdout


def lab_directory() -> Path:
    """Where the programs of the lab are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "otel_rl" / "lab"


def build(program: Program) -> bool:
    """Build a program unless it is there. Returns whether it had to be built.

    Interrupted, it goes on where it was: go keeps each package that it has compiled. Two at a
    time wait for each other.

    Raises:
        CannotBuild: Go is missing, too old, or fails.
    """
    if program.is_built():
        return False
    with alone("lock"):
        if program.is_built():  # by whoever was first
            return False
        _check_go()
        work = lab_directory() / "work" / program.path.parent.name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        program.make(work)
        program.path.parent.mkdir(exist_ok=True)
        (work / program.name).replace(program.path)
        shutil.rmtree(work)
        if not program.is_built():
            raise CannotBuild(f"{program.path} does not say that it is {program.version}.")
        return True


def _make_collector(work: Path) -> None:
    shutil.copy(_MANIFEST, work)
    builder = f"{_BUILDER}@v{COLLECTOR.version}"
    run("its builder", ["go", "install", "-trimpath", builder], work, GOBIN=str(work))
    # The builder writes the sources only, because go itself can say how far it is.
    command = ["./builder", f"--config={_MANIFEST.name}", "--skip-compilation"]
    run("its modules", command, work)
    tags = _manifest_field("build_tags")
    _compile(work / "source", ["-tags", tags, f"-ldflags={_LINK}"], work / COLLECTOR.name, ".")


def _of_a_module(
    name: str, version: str, asks_version: str, module: str, package: str, tags: str, symbol: str
) -> Program:
    """A program that is released as a Go module, which is told its version by ``symbol``."""
    flags = ["-tags", tags, f"-ldflags={_LINK} -X {symbol}"]

    def make(work: Path) -> None:
        # In the module's own directory, so that all versions are those that it was released with.
        command = ["go", "mod", "download", "-json", module]
        source = Path(json.loads(run("its modules", command, work))["Dir"])
        _compile(source, flags, work / name, package)

    return Program(name, version, (asks_version,), " ".join([module, *flags]), make)


def _compile(source: Path, flags: Sequence[str], target: Path, package: str) -> None:
    command = ["go", "build", "-v", "-trimpath", *flags, "-o", str(target), package]
    run("its packages", command, source)


def _make_emitter_go(work: Path) -> None:
    source = shutil.copytree(_EMITTERS / "go", work / "source")
    _compile(source, [f"-ldflags={_LINK}"], work / EMITTER_GO.name, ".")


def _make_emitter_node(work: Path) -> None:
    for file in (_EMITTERS / "node").iterdir():
        shutil.copy(file, work)
    run("its packages", ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], work)
    beside = EMITTER_NODE.path.parent
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    (work / "node_modules").replace(beside / "node_modules")


def _made_of(directory: Path) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(directory.iterdir()))


def _version_in(file: str, pattern: str) -> str:
    match = re.search(pattern, (_EMITTERS / file).read_text(encoding="utf-8"))
    assert match, file
    return match[1]


def run(what: str, command: Sequence[str], directory: Path, **extra: str) -> str:
    """Run a command and tell how far it is. Returns its standard output.

    Raises:
        CannotBuild: It fails; the text ends with the last that it wrote.
    """
    begin_s = told_s = time.monotonic()
    _say(f"  {what}")
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=_environment() | extra,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            now_s = time.monotonic()
            if now_s - told_s > _TELL_EVERY_S:
                told_s = now_s
                _say(f"    {now_s - begin_s:4.0f} s  {len(said):5d}  {line.strip()[:70]}")
        out = process.stdout.read()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        last = "".join(said[-20:])
        raise CannotBuild(f"{' '.join(command)} failed in {directory}:\n{last}")
    return out


def _environment() -> dict[str, str]:
    """CGO would make the programs depend on the machine. A checkout above is none of go's."""
    flags = f"{os.environ.get('GOFLAGS', '')} -buildvcs=false".strip()
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": flags, "GOWORK": "off"}


def _check_go() -> None:
    needed = f"{_GO[0]}.{_GO[1]}"
    if shutil.which("go") is None:
        raise CannotBuild(
            f"Go {needed} or newer is needed to build the lab, and there is no `go` on the PATH. "
            "Install it from your system's packages or from the Go project."
        )
    asked = subprocess.run(
        ["go", "env", "GOVERSION", "GOTOOLCHAIN"], capture_output=True, text=True, check=True
    )
    said, toolchain = asked.stdout.split()
    found = tuple(int(part) for part in re.findall(r"\d+", said)[:2])
    if found < (_GO if toolchain == "local" else _FETCHES_ITSELF):
        hint = "" if found < _FETCHES_ITSELF else ", or let go fetch it: GOTOOLCHAIN=auto make lab"
        raise CannotBuild(
            f"Go {needed} or newer is needed to build the lab, and this is {said}. "
            f"Install a newer one{hint}."
        )


def node_refusal() -> str:
    """Why the emitter in JavaScript cannot be built here; empty if it can."""
    needed = f"Node {_NODE[0]}.{_NODE[1]} or newer with npm is needed, and"
    if shutil.which("node") is None or shutil.which("npm") is None:
        return f"{needed} there is no `node` or no `npm` on the PATH"
    asked = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    found = tuple(int(part) for part in re.findall(r"\d+", asked.stdout)[:2])
    return f"{needed} this is {asked.stdout.strip()}" if found < _NODE else ""


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Wait for every other process that is inside the lock of this name."""
    lab_directory().mkdir(parents=True, exist_ok=True)
    with (lab_directory() / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("  waiting for another build of the lab")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _manifest_field(name: str) -> str:
    match = re.search(rf"^  {name}: (.+)$", _MANIFEST.read_text(encoding="utf-8"), re.MULTILINE)
    assert match, name
    return match[1]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


COLLECTOR = Program(
    name="otelcol-rl",
    version=_manifest_field("version"),
    asks_version=("--version",),
    made_of=_MANIFEST.read_text(encoding="utf-8") + _LINK,
    make=_make_collector,
)
"""The OpenTelemetry Collector, with the components of the manifest."""

# v2.13.0 has no module version of its own: it is the same commit as v1.76.0.
JAEGER = _of_a_module(
    "jaeger",
    "2.13.0",
    "version",
    "github.com/jaegertracing/jaeger@v1.76.0",
    "./cmd/jaeger",
    "grpcnotrace",
    "github.com/jaegertracing/jaeger/internal/version.latestVersion=v2.13.0",
)
"""Jaeger v2, all in one; a placeholder stands for its web page, the query API is complete."""

# v3.13.2 is v0.313.2 as a module; the Collector's receiver has the same, so half of it is compiled.
PROMETHEUS, PROMTOOL = (
    _of_a_module(
        name,
        "3.13.2",
        "--version",
        "github.com/prometheus/prometheus@v0.313.2",
        f"./cmd/{name}",
        "remove_all_sd,grpcnotrace",
        "github.com/prometheus/common/version.Version=3.13.2",
    )
    for name in ("prometheus", "promtool")
)
"""Keeps metrics and evaluates rules, without its web page; and checks and plays rules."""

HELM = _of_a_module(
    "helm",
    "4.3.2",
    "version",
    "helm.sh/helm/v4@v4.3.2",
    "./cmd/helm",
    "grpcnotrace",
    "helm.sh/helm/v4/internal/version.version=v4.3.2",
)
"""Checks, renders and packs the chart."""

PROGRAMS = (COLLECTOR, JAEGER, PROMETHEUS, PROMTOOL, HELM)

EMITTER_GO = Program(
    name="emitter",
    version=_version_in("go/go.mod", r"go\.opentelemetry\.io/otel v(\S+)"),
    asks_version=("--version",),
    made_of=_made_of(_EMITTERS / "go") + _LINK,
    make=_make_emitter_go,
)
"""The stock SDK of Go, told what to measure."""

EMITTER_NODE = Program(
    name="emitter.mjs",
    version=_version_in("node/package.json", r'sdk-metrics": "(\S+)"'),
    asks_version=("--version",),
    made_of=_made_of(_EMITTERS / "node"),
    make=_make_emitter_node,
)
"""The stock SDK of Node, told what to measure."""

EMITTERS = (EMITTER_GO, EMITTER_NODE)
"""What only the tests of other languages' SDKs need."""
