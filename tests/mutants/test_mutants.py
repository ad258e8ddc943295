"""The table of mutants fits the source, and its runner tells killed ones from survivors.

Bridges with a layer of their safety taken out are found out.
All others are a matter of ``make mutants``.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mutants.run import BaselineFailed, Judged, run
from tests.mutants.table import ROOT, Mutant, load, mutated
from tests.mutants.tree import Outcome, Tree, files_of_checkout
from tests.slow import selected

AREAS = {
    "align",
    "cumulative",
    "decode",
    "diagnose",
    "encode",
    "journal",
    "leases",
    "phases",
    "reduce",
    "track",
}

LAYERS = {name: mutant for name, mutant in load().items() if name.startswith("layers.")}

ARITHMETIC = Mutant(
    "arithmetic",
    "otel_rl/bridge/rows/reduce.py",
    (("return self.total / self.count", "return self.total"),),
    "a mean is a sum",
    ("tests/unit/bridge/rows/test_reduce.py::test_each_reduction_of_three_values",),
)


@pytest.mark.parametrize("mutant", load().values(), ids=load())
def test_the_old_text_of_a_mutant_is_in_the_source_once(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert mutated(source, mutant) != source


@pytest.mark.parametrize("tests", sorted({one for m in load().values() for one in m.tests}))
def test_the_tests_of_a_mutant_are_there(tests: str) -> None:
    path, _, name = tests.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()


def test_the_table_has_a_hundred_mutants_of_all_parts_and_argues_for_few_of_them() -> None:
    areas = Counter(name.partition(".")[0] for name in load())
    assert len(load()) >= 100
    assert min(areas[area] for area in AREAS) >= 5
    assert sum(bool(mutant.survives) for mutant in load().values()) <= len(load()) / 20


@pytest.mark.process
@pytest.mark.slow
def test_one_that_is_noticed_is_killed_and_one_that_is_not_survives() -> None:
    harmless = Mutant(
        "harmless",
        ARITHMETIC.file,
        (("reduce many values to one", "reduce one value of many"),),
        "nothing",
        ARITHMETIC.tests,
    )
    before = (ROOT / ARITHMETIC.file).read_bytes()
    judged = {one.mutant.name: one for one in run([ARITHMETIC, harmless], jobs=1)}
    assert judged["arithmetic"].is_killed
    assert judged["arithmetic"].result.failed.startswith(ARITHMETIC.tests[0])
    assert not judged["harmless"].is_killed
    assert (ROOT / ARITHMETIC.file).read_bytes() == before


@pytest.mark.process
@pytest.mark.slow
def test_tests_that_never_end_have_noticed_something(tmp_path: Path) -> None:
    with Tree(files_of_checkout()) as tree:
        (tree.path / "tests/test_endless.py").write_text(
            "def test_():\n    while True:\n        pass\n"
        )
        result = tree.test(["tests/test_endless.py"], timeout_s=5)
        assert result.outcome is Outcome.TIMEOUT
        assert Judged(ARITHMETIC, result).is_killed


@pytest.mark.process
@pytest.mark.slow
def test_tests_that_are_not_there_show_nothing() -> None:
    absent = Mutant(
        "absent", ARITHMETIC.file, ARITHMETIC.changes, "", ("tests/unit/bridge/test_absent.py",)
    )
    with pytest.raises(BaselineFailed):
        run([absent], jobs=1)
    with pytest.raises(BaselineFailed):
        run([absent], jobs=1, limit_s=500)


@pytest.fixture(scope="module")
def layers(request: pytest.FixtureRequest) -> Iterator[Mapping[str, "Future[Judged]"]]:
    """The verdict on each chosen bridge that lacks a layer. The tests pass with all layers."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        yield {
            name: pool.submit(lambda mutant: run([mutant], jobs=1, limit_s=500)[0], LAYERS[name])
            for name in selected(request, "name")
        }


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, one in LAYERS.items() if not one.survives])
def test_a_bridge_with_a_layer_of_its_safety_removed_is_noticed(
    layers: Mapping[str, "Future[Judged]"], name: str
) -> None:
    assert layers[name].result().is_killed


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, one in LAYERS.items() if one.survives])
def test_a_second_layer_does_what_a_removed_one_did(
    layers: Mapping[str, "Future[Judged]"], name: str
) -> None:
    assert not layers[name].result().is_killed
