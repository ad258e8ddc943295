"""Names the packages of an extra for messages about a missing library."""

import re
import shlex
from collections.abc import Mapping

_OWN = "otel-rl"
_REQUIREMENT = re.compile(r"([^;]+?)\s*;.*\bextra\s*==\s*['\"]([\w-]+)['\"]")
_NAME = re.compile(r"[\w.-]+")


def how_to_install(extra: str) -> str:
    """Return a shell command that installs the packages that an extra needs and that are missing.

    The command names the packages themselves. otel_rl was installed from a checkout or a wheel: an
    index does not have it, or has somebody else's package of that name.
    """
    needed = _needed(extra)
    if not needed:  # a source folder on the path
        return f"in a clone of otel_rl, pip install '.[{extra}]'"
    lacking = [one for name, one in needed.items() if not _is_installed(name)]
    # Nothing is lacking where a library is too old or broken: all but what each command needs.
    own = [one for name, one in needed.items() if name not in _needed("bridge")]
    return shlex.join(["pip", "install", *(lacking or own or needed.values())])


def _needed(extra: str) -> Mapping[str, str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(_OWN) or ()
    except PackageNotFoundError:
        return {}
    found = (match for line in lines if (match := _REQUIREMENT.fullmatch(line)))
    return {
        name[0]: match[1]
        for match in found
        if match[2] == extra and (name := _NAME.match(match[1]))
    }


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
