"""Reads what a bridge has pickled, and makes nothing but what a bridge keeps.

A pickle is a program: it may call whatever can be imported. Whoever can write to a database that
bridges share could run code in each of them. So only what is named here is ever looked up.

This is no sandbox for the rest of the program: a forged state can still be wrong, or take time and
memory. It harms its own run, and it is refused where that can be told.
"""

import importlib
import io
import pickle
from collections.abc import Mapping
from enum import EnumMeta
from types import MappingProxyType
from typing import Any, Final

__all__ = ["ALLOWED", "StateRefused", "unpickle"]

ALLOWED: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        module: frozenset(found.split())
        for module, found in {
            # Of Python: containers, made of what they are given. No function that calls another,
            # reads an attribute, or opens anything.
            "array": "array _array_reconstructor",
            "collections": "Counter deque",
            # Of the bridge: what the state of a run is made of.
            "otel_rl.bridge.about": "About",
            "otel_rl.bridge.align": "Aligner",
            "otel_rl.bridge.align.axis": "StepAxis Timeline",
            "otel_rl.bridge.align.chronicle": "Chronicle",
            "otel_rl.bridge.align.finding": "Finding",
            "otel_rl.bridge.align.hearing": "Hearing",
            "otel_rl.bridge.align.notice": "Notice",
            "otel_rl.bridge.align.passes": "Passes Returned",
            "otel_rl.bridge.align.remarks": "Dropped Remark",
            "otel_rl.bridge.align.roster": "Roster _Role _Vacancy",
            "otel_rl.bridge.align.series": "Standing",
            "otel_rl.bridge.align.settings": "AlignSettings",
            "otel_rl.bridge.align.steps": "OpenSteps _OpenStep _Role",
            "otel_rl.bridge.align.streams": "StreamTable _Ended _Identities _State",
            "otel_rl.bridge.align.tables": "OpenTables _Table",
            "otel_rl.bridge.align.tally": "Tally",
            "otel_rl.bridge.align.trail": "Trail _Known",
            "otel_rl.bridge.align.windows": "OpenWindows _Counted _Window",
            "otel_rl.bridge.cumulative": "CounterStream HistogramStream _HistogramLife _Life",
            "otel_rl.bridge.drain": "_State",
            "otel_rl.bridge.reduce": "Distribution Moments",
            "otel_rl.records": (
                "Device ExperimentStatus RoleStanding Series SpanRecord TextSample Worker"
            ),
            "otel_rl.semconv.spec": "Instrument Reduction",
        }.items()
    }
)
"""What a state may be made of: by module, the names in it."""


class StateRefused(Exception):
    """What was to be read is none that a bridge has kept. Its text says what is wrong with it."""


def unpickle(body: bytes) -> object:
    """The object of which ``body`` is the pickle.

    Any thread may call it. What comes of a pickle that no bridge made is of no use: nothing of it
    may be kept.

    Raises:
        StateRefused: It asks for anything that is not ``ALLOWED``, or cannot be read. Nothing that
            others use was changed.
    """
    reader = _Reader(io.BytesIO(body))
    try:
        found: object = reader.load()
    except StateRefused:
        raise
    # A forged one fails in any way, in the methods of what it is made of, too.
    except Exception as exc:
        raise StateRefused(f"it cannot be read ({type(exc).__name__}: {exc})") from exc
    finally:
        reader.mend()
    return found


class _Reader(pickle.Unpickler):
    """The C implementation: as fast as ``pickle.loads`` but for a look at the name of each class.

    A pickle may also set attributes of what it has looked up: of a class, too, which is
    everybody's, and of the members of an enumeration. So they are remembered and mended.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._before: list[tuple[object, dict[str, Any]]] = []

    def find_class(self, module: str, name: str, /) -> Any:
        if name not in ALLOWED.get(module, ()):
            raise StateRefused(f"it asks for {module}.{name}, which no state has")
        found = getattr(importlib.import_module(module), name)
        members = found if isinstance(found, EnumMeta) else ()
        if isinstance(found, type):
            self._before += [(one, dict(vars(one))) for one in (found, *members)]
        return found

    def mend(self) -> None:
        """Undo what was done to any of them.

        Raises:
            StateRefused: Something was.
        """
        mended = [_mend(one, before) for one, before in self._before]
        if any(mended):
            raise StateRefused("it changes classes")


def _mend(one: object, before: Mapping[str, Any]) -> bool:
    now = vars(one)
    changed = [name for name, value in before.items() if now.get(name, before) is not value]
    added = [name for name in now if name not in before]
    for name in added:
        delattr(one, name)
    for name in changed:
        setattr(one, name, before[name])
    return bool(changed or added)
