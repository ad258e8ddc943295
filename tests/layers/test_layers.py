"""Bridges with a layer of their safety taken out are found out."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from tests.layers.bridges import ROOT, Judged, Layer, judge, load, source_without
from tests.support.slow import selected

LAYERS = load()


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_the_layer_is_in_the_source_and_its_tests_are_there(layer: Layer) -> None:
    assert source_without(layer) != (ROOT / layer.file).read_text()
    for tests in layer.tests:
        path, _, name = tests.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()


@pytest.mark.process
def test_the_cases_that_judge_a_layer_are_there() -> None:
    cases = {test for layer in LAYERS.values() for test in layer.tests if "[" in test}
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *sorted(cases)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout


@pytest.fixture(scope="module")
def layers(request: pytest.FixtureRequest) -> Iterator[Mapping[str, "Future[Judged]"]]:
    """The verdict on each chosen bridge that lacks a layer. The tests pass with all layers."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        yield {
            name: pool.submit(partial(judge, LAYERS[name], timeout_s=500))
            for name in selected(request, "name")
        }


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, one in LAYERS.items() if not one.survives])
def test_a_bridge_with_a_layer_of_its_safety_removed_is_noticed(
    layers: Mapping[str, "Future[Judged]"], name: str
) -> None:
    assert layers[name].result().is_noticed


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, one in LAYERS.items() if one.survives])
def test_a_second_layer_does_what_a_removed_one_did(
    layers: Mapping[str, "Future[Judged]"], name: str
) -> None:
    assert not layers[name].result().is_noticed
