"""``python -m exams.public.stragglers DIR``: public traces of training jobs with known causes.

DIR is the folder ``data`` of a clone of https://github.com/ByteDance-Seed/StragglerAnalysis, whose
traces name the operations of each worker: AR (one worker made slower), SE (unequal lengths), ST
(unequal stages). Nothing of it is kept here.

Of each trace the diagnosis names a worker, and what a step takes without it. Published are, for
the same: T (of a step), T_rem (without the slowest 3 % of workers), T_ideal (all operations alike),
and M_W = (T - T_rem) / (T - T_ideal): the part of the slowdown that single workers explain. M_S is
the same of the last stage.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as parquet

from otel_rl.diagnose.costs import cost_of
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts
from otel_rl.diagnose.history.run_history import RunHistory

_NS: Final = 1_000_000_000
_WORK: Final = ("forward-compute", "backward-compute", "optimizer", "gc")
_Operation = Mapping[str, Any]


class Judged(NamedTuple):
    """A trace.

    Attributes:
        name: AR, SE or ST.
        workers: Their number.
        cause: The first one in words; empty without one.
        worker: Of the cause.
        slowest: The worker with most work in the median step.
        share: Told part of the published slowdown: (T - told) / (T - T_ideal).
        of_workers: M_W.
        of_stage: M_S.
    """

    name: str
    workers: int
    cause: str
    worker: str | None
    slowest: str
    share: float
    of_workers: float
    of_stage: float


def history_of(operations: list[_Operation]) -> RunHistory:
    """Return a run whose workers report the time of each kind of operation in a step."""
    of_step: dict[int, list[_Operation]] = defaultdict(list)
    for one in operations:
        of_step[one["step"]].append(one)
    return RunHistory(_facts(of_step))


def _worker(one: _Operation) -> str:
    """Return the name of a worker: stages of a pipeline have unlike work, and are roles."""
    return f"trainer_stage{one['stage']}/{one['dp_rank']}"


def _facts(of_step: Mapping[int, list[_Operation]]) -> Iterator[Facts]:
    time_ns = 1_000 * _NS
    for number, (_, some) in enumerate(sorted(of_step.items())):
        begun_s = min(one["start_ts"] for one in some)
        took_s = max(one["start_ts"] + one["duration"] for one in some) - begun_s
        time_ns += int(took_s * _NS)
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for one in some:
            times[one["optype"], _worker(one)].append(one["duration"])
        spans = [
            SpanFacts(
                *(number, worker.partition("/")[0], kind, worker, kind not in _WORK),
                *(1, sum(each), sum(each), 0),
            )
            for (kind, worker), each in times.items()
        ]
        row = RowFacts(number, time_ns, {"trainer_stage0/iteration/duration": took_s})
        yield Facts(time_ns, number, [row], spans=spans)


def judged(name: str, directory: Path) -> Judged:
    """Diagnose a trace, and compare with what is published of it."""
    operations = parquet.read_table(directory / f"trace-{name}.parquet").to_pylist()
    published = json.loads((directory / f"mw-{name}.json").read_text())
    of_stage = json.loads((directory / f"ms-{name}.json").read_text())
    history = history_of(operations)
    causes = diagnose(history).causes
    cost = cost_of(history, causes[0]) if causes else None
    saved_s = 0.0 if cost is None else cost.lost_s / len({one["step"] for one in operations})
    work: dict[str, float] = defaultdict(float)
    for one in operations:
        work[_worker(one)] += one["duration"] if one["optype"] in _WORK else 0.0
    return Judged(
        name,
        len(work),
        causes[0].words if causes else "",
        causes[0].worker if causes else None,
        max(work, key=lambda worker: work[worker]),
        saved_s / (published["tori"] - published["tideal"]),
        published["Mw"],
        of_stage["Ms"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m exams.public.stragglers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    for name in ("AR", "SE", "ST"):
        found = judged(name, parser.parse_args().directory)
        print(
            f"{found.name}, {found.workers} workers, most work: {found.slowest}: "
            f"{found.cause or 'no cause'}\n"
            f"   share of the slowdown: told {found.share:.1%}, M_W {found.of_workers:.1%}, "
            f"M_S {found.of_stage:.1%}"
        )


if __name__ == "__main__":
    main()
