"""Whether calls that W&B takes are taken by the drop-in: run with the ``wandb`` that is installed.

python -m tests.support.wandb_signatures
"""

import inspect
from collections.abc import Iterator
from typing import Any

import wandb as theirs

import otel_rl.integrations.wandb as ours

FUNCTIONS = ("init", "log", "define_metric", "finish", "login")
METHODS = {
    "Run": ("log", "define_metric", "finish"),
    "Config": ("update", "setdefaults", "as_dict"),
    "Table": ("__init__", "add_data", "add_column", "get_column"),
}
ATTRIBUTES = (
    "config", "dir", "disabled", "entity", "group", "id", "job_type", "name", "notes", "offline",
    "path", "project", "resumed", "start_time", "starting_step", "step", "summary", "sweep_id",
    "tags", "url",
)  # fmt: skip


REFUSED = {
    "Api", "agent", "attach", "controller", "restore", "sweep", "use_artifact", "use_model",
}  # fmt: skip
"""Names whose result a program needs: they are an ``AttributeError`` with the way out."""


def differences() -> list[str]:
    """Calls of W&B's that the drop-in refuses or reads otherwise, and names it does not know."""
    found = []
    for name, our_call, their_call in _calls():
        found += [f"{name}: {problem}" for problem in _problems(our_call, their_call)]
    run = ours.init(mode="disabled")
    found += [f"run.{name}: not the run's own" for name in ATTRIBUTES if not _has(run, name)]
    for place, own, names in (("wandb", ours, theirs.__all__), ("run", run, dir(theirs.Run))):
        found += [
            f"{place}.{name}: neither carried nor known to be missing"
            for name in names
            if not name.startswith("_") and not hasattr(own, name) and name not in REFUSED
        ]
    ours.finish()
    return found + [
        f"wandb.Run.{name}: W&B has none" for name in ATTRIBUTES if not _is_theirs(name)
    ]


def _calls() -> Iterator[tuple[str, Any, Any]]:
    for name in FUNCTIONS:
        # Before init W&B's are stand-ins for those of its run.
        yield name, getattr(ours, name), getattr(theirs.Run, name, None) or getattr(theirs, name)
    for kind, methods in METHODS.items():
        for name in methods:
            place = f"{kind}.{name}"
            yield place, getattr(getattr(ours, kind), name), getattr(getattr(theirs, kind), name)


def _problems(our_call: Any, their_call: Any) -> Iterator[str]:
    own = inspect.signature(our_call)
    parameters = inspect.signature(their_call).parameters.values()
    named = [one for one in parameters if one.name != "self" and one.kind != one.VAR_POSITIONAL]
    selves = [None] * ("self" in own.parameters)
    for one in named:
        try:
            own.bind_partial(*selves, **{one.name: 0})
        except TypeError as error:
            yield f"{one.name}=...: {error}"
    # What W&B itself discourages is taken by its name only, with what stands behind it.
    placed = [one.name for one in named if one.kind == one.POSITIONAL_OR_KEYWORD]
    for discouraged in ("anonymous", "goal"):
        placed = placed[: placed.index(discouraged)] if discouraged in placed else placed
    try:
        bound = own.bind_partial(*selves, *placed).arguments
    except TypeError as error:
        yield f"{len(placed)} arguments: {error}"
        return
    for name, value in bound.items():
        if isinstance(value, str) and value != name:
            yield f"{value} is read as {name}"


def _has(run: Any, name: str) -> bool:
    return name in vars(run) or hasattr(type(run), name)


def _is_theirs(name: str) -> bool:
    return isinstance(inspect.getattr_static(theirs.Run, name, None), property) or name == "summary"
