"""``python -m exams.public.learning DIR``: curves of real GRPO and RLOO runs, for false alarms.

DIR is the folder ``runs`` of a clone of https://github.com/Aarav500/flight-recorder: JSON lines of
some thirty runs of small language models, with the reward that is trained, a held-out one
("oracle"), KL, entropy and the length of answers, by step. The runs count as healthy: each alarm
is printed, so that a reader can look at its curve.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Diagnosis

_KEYS: Final = {
    "train_reward": "trainer/reward/mean",
    "oracle_reward": "eval/reward",
    "kl_mean": "trainer/kl",
    "entropy_mean": "trainer/entropy",
    "gen_len_mean": "trainer/response_length/mean",
}


def history_of(path: Path) -> RunHistory:
    """Return a run of its file, with the time between its steps as the time of a step."""
    return RunHistory(_facts(path))


def _facts(path: Path) -> Iterator[Facts]:
    before_ns: int | None = None
    for step, (time_ns, values) in sorted(_by_step(path).items()):
        if before_ns is not None:
            values["trainer/iteration/duration"] = (time_ns - before_ns) / 1e9
        before_ns = time_ns
        yield Facts(time_ns, step, [RowFacts(step, time_ns, values)])


def _by_step(path: Path) -> Mapping[int, tuple[int, dict[str, float]]]:
    """Return of each step its time (ns) and values."""
    found: dict[int, tuple[int, dict[str, float]]] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            record: Mapping[str, Any] = json.loads(line)
            _, values = found.setdefault(record["step"], (int(record["ts"] * 1e9), {}))
            of = record["payload"]
            values.update({key: float(of[name]) for name, key in _KEYS.items() if name in of})
    return found


def diagnosed(path: Path) -> Diagnosis:
    """Return the diagnosis of a run that is over."""
    return diagnose(history_of(path), passed=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m exams.public.learning", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    directory = parser.parse_args().directory
    alarms, paths = 0, sorted(directory.rglob("*.jsonl"))
    for path in paths:
        found = diagnosed(path)
        alarms += bool(found.causes)
        said = "; ".join(f"{one.kind}: {one.words}" for one in found.causes) or found.verdict
        print(f"{path.relative_to(directory)}, {found.last} steps: {said}")
    print(f"{alarms} of {len(paths)} runs with an alarm")


if __name__ == "__main__":
    main()
