"""The wheel in an environment of its own: a base for training processes, extras for the rest."""

import shlex
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from otel_rl.run_id import run_id
from tests.process.commands import clean_environment, jsonl_rows
from tests.support.installations import Installation, build_wheel, install
from tests.support.otlp_sink import Sink, serve
from tests.support.wandb_offline import run_directories

pytestmark = [pytest.mark.process, pytest.mark.slow]


Environments = Callable[[str], Installation]

WEB_SERVER = {"fastapi", "starlette", "uvicorn", "h11", "anyio"}
FRAMEWORKS = {  # their users have them
    "forge",
    "nemo_rl",
    "openrlhf",
    "opentelemetry.instrumentation",
    "prime_rl",
    "roll",
    "slime",
    "stable_baselines3",
    "transformers",
    "tunix",
    "verl",
    "vllm",
}
OF_THE_BRIDGE = WEB_SERVER | {
    "pydantic",
    "orjson",
    "wandb",
    "psycopg",
    "numpy",
}

TRAIN = """
import otel_rl
otel_rl.init(experiment="e", role="trainer")
for step in range(3):
    otel_rl.log({"rl.train.loss": 1.0}, step=step)
assert otel_rl.finish(timeout_s=60)
"""

LOADED_BY_IMPORT = """
import sys
import otel_rl
libraries = {"opentelemetry", "requests", "grpc", "google", "psutil", "pynvml"}
print(sorted(libraries & {name.partition(".")[0] for name in sys.modules}))
"""

IMPORT_ALL = """
import importlib, pkgutil
import otel_rl
missing = set()
for package in ("worker", "integrations", "semconv"):
    root = importlib.import_module(f"otel_rl.{package}")
    for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing.add(error.name)
print(*sorted(missing))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))

    @cache
    def made(extra: str) -> Installation:
        return install(wheel, extra, tmp_path_factory.mktemp(extra or "base"))

    return made


def python(
    installation: Installation, *arguments: str, cwd: Path, **extra: str
) -> "subprocess.CompletedProcess[str]":
    """Run the interpreter of an environment, with nothing of this checkout on its path."""
    return subprocess.run(
        [str(installation.python), *arguments],
        cwd=cwd,
        env={**clean_environment(cwd), "PYTHONPATH": "", **extra},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def otel_rl(
    installation: Installation, *arguments: str, cwd: Path
) -> "subprocess.CompletedProcess[str]":
    return python(installation, "-m", "otel_rl", *arguments, cwd=cwd)


def test_the_base_has_no_web_server_and_nothing_of_the_bridge(environment: Environments) -> None:
    assert environment("").distributions.isdisjoint(OF_THE_BRIDGE)


def test_importing_the_base_loads_no_library(environment: Environments, tmp_path: Path) -> None:
    done = python(environment(""), "-c", LOADED_BY_IMPORT, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_module_of_a_training_process_can_be_imported_with_the_base(
    environment: Environments, tmp_path: Path
) -> None:
    done = python(environment(""), "-c", IMPORT_ALL, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) <= FRAMEWORKS


def test_a_worker_sends_with_the_base(environment: Environments, tmp_path: Path) -> None:
    with serve(Sink()) as sink:
        done = python(
            environment(""), "-c", TRAIN, cwd=tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=sink.url
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert [each.step for each in sink.measurements("rl.train.loss")] == [0, 1, 2]


def test_the_base_has_what_grpc_needs(environment: Environments, tmp_path: Path) -> None:
    needed = "import grpc, google.rpc.error_details_pb2"  # loaded at the first request
    assert python(environment(""), "-c", needed, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_the_command_explains_itself_with_the_base(
    arguments: list[str], environment: Environments, tmp_path: Path
) -> None:
    done = otel_rl(environment(""), *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_documentation_is_there_with_the_base(
    environment: Environments, tmp_path: Path
) -> None:
    listed = otel_rl(environment(""), "help", cwd=tmp_path)
    topics = [line.split()[0] for line in listed.stdout.splitlines() if line.startswith("  ")]
    assert len(topics) > 20, listed.stderr
    pages = [otel_rl(environment(""), "help", topic, cwd=tmp_path) for topic in topics]
    assert [page.returncode for page in pages] == [0] * len(topics)
    assert all("# " in page.stdout for page in pages)


@pytest.mark.parametrize(
    ("has", "arguments", "needs", "extra"),
    [
        ("", ["run", "--", "true"], "`otel-rl run` needs", "bridge"),
        ("", ["bridge"], "`otel-rl bridge` needs", "bridge"),
        ("", ["bridge", "--help"], "`otel-rl bridge` needs", "bridge"),
        ("", ["diagnose"], "`otel-rl diagnose` needs", "bridge"),
        ("", ["doctor"], "`otel-rl doctor` needs", "bridge"),
        ("", ["demo"], "`otel-rl demo` needs", "demo"),
        ("bridge", ["demo", "--steps", "1"], "`otel-rl demo` needs numpy", "demo"),
        ("bridge", ["run", "--", "true"], "tracker: wandb needs", "wandb"),
    ],
)
def test_a_command_names_the_packages_that_it_lacks(
    has: str,
    arguments: list[str],
    needs: str,
    extra: str,
    environment: Environments,
    tmp_path: Path,
) -> None:
    done = otel_rl(environment(has), *arguments, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert needs in line
    # What is named and what is there is the extra: no word of the command is needless.
    named = packages_to_install(line)
    assert named
    assert named.isdisjoint(environment(has).distributions)
    assert named <= environment(extra).distributions
    assert environment(extra).direct <= named | environment(has).distributions


def packages_to_install(line: str) -> set[str]:
    """The packages of the shell command at the end of a line; each word is one that pip takes."""
    _, _, command = line.partition("Install it: pip install ")
    return {canonicalize_name(Requirement(word).name) for word in shlex.split(command)}


def test_a_journal_in_a_database_names_the_package_that_it_lacks(
    environment: Environments, tmp_path: Path
) -> None:
    (tmp_path / "otel-rl.toml").write_text('journal.url = "postgresql://127.0.0.1:1/none"\n')
    for has, named in (("bridge", {"psycopg"}), ("postgres", set[str]())):
        done = otel_rl(
            environment(has),
            *("bridge", "--tracker", "jsonl", "--config", "otel-rl.toml", "--http", "0"),
            cwd=tmp_path,
        )
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2
        assert packages_to_install(line) == named, line


def test_a_run_with_the_bridge_alone_ends_in_json_lines(
    environment: Environments, tmp_path: Path
) -> None:
    installation = environment("bridge")
    done = otel_rl(
        installation,
        *("run", "--experiment", "e", "--trial", "t", "--tracker", "jsonl", "--"),
        *(str(installation.python), "-c", TRAIN),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    losses = [row.values.get("trainer/loss") for row in jsonl_rows(tmp_path, "e", "t")]
    assert [loss for loss in losses if loss is not None] == [1.0] * 3


def test_a_run_with_the_extra_of_wandb_ends_in_an_offline_run(
    environment: Environments, tmp_path: Path
) -> None:
    installation = environment("wandb")
    done = otel_rl(
        installation,
        *("run", "--experiment", "e", "--trial", "t", "--"),
        *(str(installation.python), "-c", TRAIN),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(run_directories(tmp_path, run_id("e", "t"))) == 1


def test_the_demo_trains_with_its_extra(environment: Environments, tmp_path: Path) -> None:
    done = otel_rl(
        environment("demo"),
        "demo",
        "--no-kill",
        "--steps",
        "2",
        "--tracker",
        "jsonl",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "step   2/2" in done.stdout


def test_all_is_what_every_extra_brings(environment: Environments) -> None:
    extras = ("bridge", "wandb", "dashboard", "postgres", "archive", "demo", "mcp")
    together = frozenset[str]().union(*(environment(extra).distributions for extra in extras))
    assert environment("all").distributions == together
