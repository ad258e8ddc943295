"""What a release says of itself is the same everywhere; what its workflows call is there."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import otel_rl.version

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]


def test_the_version_is_the_same_wherever_it_stands() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (otel_rl.version.__version__, citation["version"]) == (VERSION, VERSION)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_of_the_makefile(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set(re.findall(r"\bmake ([a-z-]+)", workflow.read_text()))
    assert called
    assert called <= targets


def test_the_tests_must_pass_on_every_python_that_the_package_is_said_to_run_on() -> None:
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    matrix = ci["jobs"]["test"]["strategy"]["matrix"]
    classified = [
        found[1]
        for one in PROJECT["project"]["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one))
    ]
    assert matrix["may-fail"] == [False]
    assert matrix["python"] == classified
    assert PROJECT["project"]["requires-python"] == f">={classified[0]}"


@pytest.mark.parametrize("page", ["RELEASING", "SECURITY", "CODE_OF_CONDUCT", "CHANGELOG"])
def test_a_page_for_contributors_links_to_what_is_there(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / f"{page}.md").read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#:]+)[)#]", text)
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_image_is_built_from_all_that_the_wheel_needs() -> None:
    """``*`` stands first in ``.dockerignore``: the image has what is let in after it."""
    let_in = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [ROOT / source for source in wheel["force-include"]]
    pages = [page for one in needed for page in (one.rglob("*.md") if one.is_dir() else [one])]
    assert len(pages) > len(needed)
    left_out = {
        str(page.relative_to(ROOT))
        for page in pages
        if not any(page.relative_to(ROOT).match(pattern) for pattern in let_in)
    }
    assert left_out == set()
    assert "COPY docs ./docs/\n" in (ROOT / "Dockerfile").read_text()
