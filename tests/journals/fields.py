"""The fields of the state, as text: what must not change without another format."""

import re

import msgspec

from otel_rl.bridge.journal.formats import state_format as wire

__all__ = ["fields_of_state"]

_MODULE = re.compile(r"\b[a-z_]\w*\.(?=\w)")


def fields_of_state() -> str:
    """One line for each field of each struct, in order: struct, encoded name, type, default."""
    lines = []
    for struct in _structs():
        for field in msgspec.structs.fields(struct):
            kind = _MODULE.sub("", str(field.type))  # a class may move
            default = "" if field.default is msgspec.NODEFAULT else f" = {field.default!r}"
            lines.append(f"{struct.__name__} {field.encode_name}: {kind}{default}")
    return "\n".join(lines) + "\n"


def _structs() -> list[type[msgspec.Struct]]:
    public = [one for name, one in sorted(vars(wire).items()) if not name.startswith("_")]
    return [one for one in public if isinstance(one, type) and issubclass(one, msgspec.Struct)]
