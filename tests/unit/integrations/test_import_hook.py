"""A callback runs when a program imports a module, and the import is as without it."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from otel_rl.integrations import import_hook
from otel_rl.integrations.import_hook import when_imported
from otel_rl.worker.session import GUARD

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(code: str = "VALUE = 3", name: str = "waited_for") -> str:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
        importlib.invalidate_caches()
        return name

    yield written
    for name in [*sys.modules]:
        if name.startswith("waited_"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def nothing_is_waited_for_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_hook, "_waiting", {})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])


def test_it_runs_after_the_module_and_not_before(write: Write) -> None:
    name = write()
    seen: list[int] = []
    when_imported(name, lambda module: seen.append(module.VALUE))
    assert seen == []
    assert name not in sys.modules
    importlib.import_module(name)
    importlib.reload(sys.modules[name])
    assert seen == [3]


def test_a_module_that_is_there_is_there_at_once(write: Write) -> None:
    module = importlib.import_module(write())
    seen: list[ModuleType] = []
    when_imported(module.__name__, seen.append)
    assert seen == [module]


def test_the_module_knows_only_its_own_loader(write: Write) -> None:
    name = write("def f():\n    return 1\n")
    when_imported(name, lambda _module: None)
    module = importlib.import_module(name)
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert "return 1" in inspect.getsource(module.f)


def test_a_spec_that_is_only_asked_for_can_read_the_source(write: Write) -> None:
    name = write()
    when_imported(name, lambda _module: None)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    assert spec.loader.get_source(name) == "VALUE = 3"  # type: ignore[attr-defined]  # as runpy asks
    importlib.import_module(name)


def test_what_a_callback_raises_is_counted_and_the_import_goes_on(write: Write) -> None:
    name = write()
    GUARD.drops.reset()
    seen: list[int] = []
    when_imported(name, lambda _module: seen.append(1 // 0))
    when_imported(name, lambda module: seen.append(module.VALUE))
    assert importlib.import_module(name).VALUE == 3
    assert seen == [3]
    assert GUARD.drops.counts() == {"internal": 1}
    GUARD.drops.reset()


def test_a_module_that_fails_is_tried_again(write: Write, tmp_path: Path) -> None:
    name = write("raise RuntimeError('first')")
    seen: list[int] = []
    when_imported(name, lambda module: seen.append(module.VALUE))
    with pytest.raises(RuntimeError, match="first"):
        importlib.import_module(name)
    write("VALUE = 12345")
    importlib.import_module(name)
    assert seen == [12345]


def test_a_module_that_is_missing_stays_missing() -> None:
    when_imported("there_is_no_such_module", lambda _module: None)
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        importlib.import_module("there_is_no_such_module")


def test_a_module_that_puts_another_in_its_place(write: Write) -> None:
    name = write("import sys, types\nother = types.SimpleNamespace(VALUE=5)\n"
                 "sys.modules[__name__] = other")  # fmt: skip
    seen: list[int] = []
    when_imported(name, lambda module: seen.append(module.VALUE))
    importlib.import_module(name)
    assert seen == [5]


def test_a_module_of_a_package(write: Write) -> None:
    write("", "waited_package.__init__")
    name = write("VALUE = 4", "waited_package.inner")
    seen: list[int] = []
    when_imported(name, lambda module: seen.append(module.VALUE))
    importlib.import_module(name)
    assert seen == [4]
