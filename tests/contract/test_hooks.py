"""What otel_rl touches in other packages is public, or is on the page that says why."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "otel_rl"
PAGE = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")

DOCUMENTED = {
    "asyncio_module._get_running_loop", "metrics._Gauge", "os._exit", "sys._current_frames"
}  # fmt: skip
"""Names with an underscore that Python documents, or that a package has in ``__all__``."""

MADE_TO_BE_SET = {"os.environ", "threading.excepthook"}

OF_MODULES = {f"sys.modules.{name}" for name in ("pop", "setdefault", "update")}

OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}

OF_ENUMS = {"_value_"}  # Python documents it for the ``__new__`` of a class

BY_NAME = {"getattr", "hasattr", "wrap", "before", "after"}
"""Functions that take an object and the name of an attribute."""

_PRIVATE_MODULE = re.compile(r"[a-z]\w*(?:\.\w+)*\._[a-z]\w*(?:\.\w+)*")


def is_private(name: str) -> bool:
    return (
        name.startswith("_") and not name.endswith("__") and name not in OF_NAMED_TUPLES | OF_ENUMS
    )


class Module:
    """What one module of otel_rl touches in packages of others.

    Args:
        source: Its text.
        sets_others: Whether each ``setattr`` is of an object of others.
    """

    def __init__(self, source: str, *, sets_others: bool) -> None:
        self.nodes = [*ast.walk(ast.parse(source))]
        self.sets_others = sets_others
        self.foreign: set[str] = set()
        self.own = {
            node.attr
            for node in self.nodes
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        }
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.own.add(node.id)
            elif isinstance(node, ast.Import):
                self.foreign |= {
                    alias.asname or alias.name.partition(".")[0]
                    for alias in node.names
                    if not alias.name.startswith("otel_rl")
                }
            elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith("otel_rl"):
                self.foreign |= {alias.asname or alias.name for alias in node.names}

    def findings(self) -> Iterator[str]:
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                yield from self._attribute(node)
            elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith("otel_rl"):
                yield from _imported(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if _PRIVATE_MODULE.fullmatch(node.value) and "otel_rl" not in node.value:
                    yield f"names {node.value}"
            elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
                targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
                yield from (found for one in targets for found in self._assigned(one))
            elif isinstance(node, ast.Call):
                yield from self._called(node)

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        if not is_private(node.attr):
            return
        text, of = ast.unparse(node), ast.unparse(node.value)
        if of in ("self", "cls", "super()") or text in DOCUMENTED:
            return
        if _root(node) in self.foreign or node.attr not in self.own:
            yield f"reads {text}"

    def _assigned(self, target: ast.expr) -> Iterator[str]:
        text = ast.unparse(target)
        is_attribute = isinstance(target, ast.Attribute) and _root(target) in self.foreign
        is_entry = isinstance(target, ast.Subscript) and text.startswith(("sys.modules[", "vars("))
        if text not in MADE_TO_BE_SET and (is_attribute or is_entry):
            yield f"sets {text}"

    def _called(self, node: ast.Call) -> Iterator[str]:
        called = ast.unparse(node.func)
        first = ast.unparse(node.args[0]) if node.args else ""
        of_vars = re.fullmatch(r"vars\((\w+)\)\.update", called)
        if called in BY_NAME and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            name = str(node.args[1].value)
            if is_private(name) and name not in self.own and f"{first}.{name}" not in DOCUMENTED:
                yield f"reads {first}.{name}"
        if called in ("setattr", "delattr") and first != "self":
            if self.sets_others or first.partition(".")[0] in self.foreign:
                yield f"sets an attribute of {first}"
        elif called in OF_MODULES or (of_vars is not None and of_vars[1] in self.foreign):
            yield f"calls {called}"


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    module = str(node.module)
    if any(is_private(part) for part in module.split(".")):
        yield f"imports {module}"
    for alias in node.names:
        if is_private(alias.name) and alias.name not in importlib.import_module(module).__all__:
            yield f"imports {module}.{alias.name}"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def touched(path: Path) -> list[str]:
    place = path.relative_to(PACKAGE).parts[0]
    module = Module(
        path.read_text(encoding="utf-8"), sets_others=place in ("worker", "integrations")
    )
    return [*dict.fromkeys(module.findings())]


def is_on_the_page(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return any(
        name == place or (place.endswith("/") and name.startswith(place))
        for place in re.findall(r"`(otel_rl/[\w/.]+)`", PAGE)
    )


def test_what_is_touched_in_other_packages_is_public_or_on_the_page() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): touched(path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if not is_on_the_page(path)
    }
    assert {name: what for name, what in found.items() if what} == {}


def test_an_adapter_touches_nothing_private_even_if_it_is_on_the_page() -> None:
    adapters = sorted((PACKAGE / "integrations").rglob("*.py"))
    private = [
        f"{path.name} {one}"
        for path in adapters
        for one in touched(path)
        if not one.startswith("sets ")  # marks of its own, and the user's sitecustomize
    ]
    assert private == []


def test_every_function_that_an_adapter_replaces_is_in_its_row_of_the_page() -> None:
    rows = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `otel_rl")}
    missing = []
    for path in sorted((PACKAGE / "integrations").rglob("*.py")):
        if path.name == "adapter.py":  # which offers the functions that replace
            continue
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("wrap", "before", "after"):
                replaced = node.args[1]
                of = str(replaced.value) if isinstance(replaced, ast.Constant) else ""
                if f"{of}`" not in rows.get(name, "").replace("()`", "`"):
                    missing.append(f"{name} {of}")
    assert missing == []


def test_what_the_page_names_is_there() -> None:
    places = re.findall(r"`(otel_rl/[\w/.]+)`", PAGE)
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import threading\nthreading._shutdown()", "reads threading._shutdown"),
        ("import traceback as t\nt.print_exc = print", "sets t.print_exc"),
        ("import sys\nsys.modules['psutil'] = None", "sets sys.modules['psutil']"),
        ("import sys\nsys.modules.get('ray._private.worker')", "names ray._private.worker"),
        ("from opentelemetry.sdk._logs import x", "imports opentelemetry.sdk._logs"),
        ("from threading import _shutdown", "imports threading._shutdown"),
        ("def f(run):\n    run._interface()", "reads run._interface"),
        ("def f(job):\n    getattr(job, '_value', 1)", "reads job._value"),
        ("import os\nsetattr(os, 'fork', None)", "sets an attribute of os"),
        ("import inspect\nvars(inspect).update({})", "calls vars(inspect).update"),
    ],
)
def test_what_touches_others_is_found(source: str, what: str) -> None:
    assert [*Module(source, sets_others=False).findings()] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(1)",
        "from opentelemetry.metrics import _Gauge",
        "class A:\n    def __init__(self): self._a = 1\n    def of(self, other): return other._a",
        "import os\nos.environ['A'] = 'b'",
    ],
)
def test_what_is_public_or_ones_own_is_not(source: str) -> None:
    assert [*Module(source, sets_others=False).findings()] == []
