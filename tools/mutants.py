"""``make mutants``: mutmut over the pure core, with the share of killed mutants by file.

``[tool.mutmut]`` in ``pyproject.toml`` names the files and the tests. Arguments select mutants by
name, as in ``otel_rl.bridge.rows.reduce*``. Exits with 1 below 90 %.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_MUTATED = Path("mutants/otel_rl")
_REPORT = Path("build/mutants.json")
_LEAST = 0.9

_SURVIVED, _UNREACHED = 0, {5, 33}
"""mutmut's codes: those of pytest, and 33 where no test calls the function."""


def main(arguments: Sequence[str]) -> int:
    """Run mutmut and tell the figures."""
    status = subprocess.call([Path(sys.executable).with_name("mutmut"), "run", *arguments])
    if status:
        return status
    files = {
        str(path.relative_to("mutants").with_suffix("")): figures
        for path in sorted(_MUTATED.rglob("*.py.meta"))
        if (figures := _figures(json.loads(path.read_text())["exit_code_by_key"]))["mutants"]
    }
    killed, mutants = (sum(one[name] for one in files.values()) for name in ("killed", "mutants"))
    _REPORT.parent.mkdir(exist_ok=True)
    _REPORT.write_text(json.dumps({"killed": killed, "mutants": mutants, "files": files}, indent=2))
    for file, one in {**files, "all": {"killed": killed, "mutants": mutants}}.items():
        share = one["killed"] / max(1, one["mutants"])
        sys.stdout.write(f"{share:6.1%} of {one['mutants']:5} killed: {file}\n")
    sys.stdout.write("`mutmut results` lists the survivors, `mutmut show NAME` shows one.\n")
    return int(killed < _LEAST * mutants)


def _figures(codes: Mapping[str, int | None]) -> dict[str, int]:
    judged = [code for code in codes.values() if code is not None]
    survived = sum(code == _SURVIVED for code in judged)
    unreached = sum(code in _UNREACHED for code in judged)
    return {
        "mutants": len(judged),
        "killed": len(judged) - survived - unreached,
        "survived": survived,
        "unreached": unreached,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
