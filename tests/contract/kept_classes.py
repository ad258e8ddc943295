"""Every class that the state of a run may be made of, by what its classes say of themselves.

What is in a class is what ``__getstate__`` says that it returns; else the fields of a dataclass,
named tuple or model; else what its methods assign to ``self``: by the annotation, or by the class
that is called.
"""

import ast
import enum
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel

__all__ = ["kept_classes"]


def kept_classes(*roots: type) -> set[type]:
    """The classes of otel_rl that instances of ``roots`` may hold, with these."""
    found: set[type] = set()
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        names = vars(sys.modules[one.__module__])
        waiting += [part for hint in _hints(one) for part in _classes(hint, names)]
    return found


def _hints(one: type) -> Iterable[Any]:
    names = vars(sys.modules[one.__module__])
    if issubclass(one, enum.Enum):
        return []
    own = vars(one).get("__getstate__")
    if own is not None and own.__module__ == one.__module__:
        return [_evaluated(own.__annotations__["return"], names)]
    if issubclass(one, BaseModel):
        return [field.annotation for field in one.model_fields.values()]
    # The arguments of a generic class.
    hints: list[Any] = [*getattr(one, "__orig_bases__", ())]
    if is_dataclass(one) or issubclass(one, tuple):
        return [
            *hints,
            *(
                _evaluated(hint, vars(sys.modules[base.__module__]))
                for base in one.__mro__
                for hint in vars(base).get("__annotations__", {}).values()
            ),
        ]
    return [*hints, *_assigned(one, names)]


def _assigned(one: type, names: dict[str, Any]) -> Iterator[Any]:
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one)))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            yield _evaluated(ast.unparse(node.annotation), names)
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Attribute) for target in node.targets
        ):
            for part in ast.walk(node.value):
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                    yield names.get(part.func.id)
                elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                    yield names.get(part.value.id)  # a member of an enumeration


def _evaluated(hint: Any, names: dict[str, Any]) -> Any:
    if isinstance(hint, typing.ForwardRef):
        hint = hint.__forward_arg__
    if not isinstance(hint, str):
        return hint
    # An array cannot be subscripted before Python 3.12.
    return eval(hint, {**names, "array": list})  # our own source


def _classes(
    hint: Any, names: dict[str, Any], above: frozenset[str] = frozenset()
) -> Iterator[type]:
    if isinstance(hint, typing.ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):  # quoted within another, which it may be a part of
        if hint in above:
            return
        above |= {hint}
        hint = _evaluated(hint, names)
    if isinstance(hint, typing.TypeVar):
        yield from _classes(hint.__bound__, names, above)
    elif inspect.isclass(hint) and hint.__module__.startswith("otel_rl"):
        yield hint
    if typing.get_origin(hint) is not typing.Literal:
        for part in typing.get_args(hint):
            yield from _classes(part, names, above)
