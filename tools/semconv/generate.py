"""Writes ``names.py``, ``registry.json`` and two pages of documentation from the registry.

    python -m tools.semconv.generate            writes what is not up to date
    python -m tools.semconv.generate --check    writes nothing; exits 1 and names what differs

Needs PyYAML, which is a development dependency: what is generated is committed and shipped.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.semconv import definition, proposal, render, rules

_CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGE = Path("otel_rl/semconv")
_CODE = ("otel_rl", "tests", "tools", "docs", "bench", "exams", "examples")
_WORD = re.compile(r"\b[A-Z]\w+")
REGISTRY = _CHECKOUT / _PACKAGE / "registry"
TEMPLATE = Path(__file__).with_name("semantic-conventions.md.in")
PROPOSAL = Path(__file__).with_name("proposal.md.in")


def rendered(registry_directory: Path = REGISTRY) -> Mapping[Path, str]:
    """Render every generated file, as path in the checkout to content.

    Raises:
        definition.RegistryError: The registry breaks a rule; nothing can be generated.
    """
    registry = definition.read(registry_directory)
    rules.check(registry)
    return {
        _PACKAGE / "names.py": render.names(registry, _words_of_code()),
        _PACKAGE / "registry.json": render.data(registry),
        Path("docs/semantic-conventions.md"): render.page(
            registry, TEMPLATE.read_text(encoding="utf-8")
        ),
        Path("docs/upstream/reinforcement-learning.md"): proposal.document(
            registry, PROPOSAL.read_text(encoding="utf-8")
        ),
    }


def _words_of_code() -> frozenset[str]:
    """Return the words of all code, without the file whose names they may use."""
    files = (
        path
        for folder in _CODE
        for path in (_CHECKOUT / folder).rglob("*.py")
        if path != _CHECKOUT / _PACKAGE / "names.py"
    )
    return frozenset(word for path in files for word in _WORD.findall(path.read_text("utf-8")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate or check; the exit status is 0 if all is up to date afterwards."""
    parser = argparse.ArgumentParser(prog="python -m tools.semconv.generate")
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    parser.add_argument("--registry", type=Path, default=REGISTRY, help="directory to read")
    parser.add_argument("--root", type=Path, default=_CHECKOUT, help="checkout to write to")
    options = parser.parse_args(arguments)
    root: Path = options.root
    try:
        files = rendered(options.registry)
    except definition.RegistryError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    stale = [
        path
        for path, content in files.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != content
    ]
    for path in stale:
        if options.check:
            sys.stderr.write(f"{path}: differs from the registry\n")
            continue
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(files[path], encoding="utf-8")
        sys.stdout.write(f"{path}: written\n")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
