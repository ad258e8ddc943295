"""``python -m bench.diagnose``: accuracy of ``otel-rl diagnose`` on injected faults of the demo.

    python -m bench.diagnose [--seeds 5] [--healthy 20] [--kinds KIND ...] [--steps 70]
                             [--variants] [--keep DIR] [--recorded DIR] [--out FILE]

Runs the demo for each kind of fault and each seed, one after the other, with a bridge and the jsonl
tracker, and runs ``otel-rl diagnose --json`` on the bridge's journal. The seed selects the process
of a fault.

``--variants`` selects other sizes, places and directions of the faults than the usual ones, one for
each seed. ``--keep`` keeps each bridge's data directory, and ``--recorded`` diagnoses kept
directories again without running the demo.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from otel_rl.demo.faults import Fault, Kind
from otel_rl.demo.settings import DemoSettings

CASE_FILE = "case.json"
EXPERIMENT, TRIAL = "diagnose-bench", "case"
DEMO_TIMEOUT_S = 600
DIAGNOSE_TIMEOUT_S = 120
HEALTHY = "healthy"
VARIANTS = {
    Kind.SLOW_GENERATION: (":10", ":40", "@generator/0", "@generator/2"),
    Kind.SLOW_REWARD: (":0.05", ":0.3", ":0.2@reward/0", ":0.2@reward/1"),
    Kind.SLOW_TRAINING: (":2.5", ":8"),
    Kind.STRAGGLER: (":2.5@trainer/0", ":8@trainer/1"),
    Kind.SLOW_SYNC: (":0.4", ":2"),
    Kind.STARVATION: (":3", ":10"),
    Kind.EVICTION: (":2", ":10"),
    Kind.STALE_POLICY: (":8", "@generator/1"),
    Kind.CRASH_LOOP: (":10@generator/0", ":100@generator/1"),
    Kind.KV_THRASH: (":3", "@generator/0"),
    Kind.GC_PAUSES: ("@generator/1", "@reward/0", "@replay_buffer/0", ":0.25@trainer/0"),
    Kind.NETWORK_DELAY: (":0.05@generator", ":0.05@reward", ":0.5@trainer/1", ":0.1"),
    Kind.NAN: ("@trainer/0",),
    Kind.REWARD_BUG: (":-1", ":1", ":0@reward/1", ":-1@reward/0"),
    Kind.CLOCK_SKEW: (":-20@trainer/1", ":5@reward/0", ":-300@generator/0"),
    Kind.MEMORY_GROWTH: ("@trainer/0", ":32"),
}
"""Unusual sizes, places and directions."""


_TOLD_AS = {"stale_server": "wrong_weights"}
"""Causes with another name than the fault, which is one of several with the same cause."""


@dataclass(frozen=True)
class Case:
    """One run of the demo.

    Attributes:
        kind: Of the fault.
        seed: Of the run.
        fault: In the format of ``otel-rl demo --fault``.
        step: First step of the fault; None in a healthy run.
        worker: Affected worker; None if it is not a single one.
    """

    kind: str
    seed: int
    fault: str
    step: int | None
    worker: str | None

    @property
    def name(self) -> str:
        """Return the name of its directory."""
        return f"{self.kind}-{self.seed}"


@dataclass(frozen=True)
class Verdict:
    """Diagnosis of a case.

    Attributes:
        case: The case.
        said: Kind of the first cause, ``healthy`` or ``no clear cause``.
        worker: Of the first cause.
        seconds: Duration of the run; 0 if it is a recorded one.
        error: Error of the diagnosis; empty without one.
    """

    case: Case
    said: str
    worker: str | None
    seconds: float
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Return whether the first cause is the fault; in a healthy run, whether there is none."""
        if self.case.kind == Kind.NONE:
            return not self.error and not self.is_false_alarm
        return self.said == _TOLD_AS.get(self.case.kind, self.case.kind)

    @property
    def is_false_alarm(self) -> bool:
        """Return whether a cause was found in a healthy run."""
        return self.case.kind == Kind.NONE and self.said not in {HEALTHY, "no clear cause", ""}

    @property
    def names_worker(self) -> bool | None:
        """Return whether the right process was named; None if no single one is at fault."""
        return None if self.case.worker is None else self.worker == self.case.worker


def cases(
    kinds: Sequence[Kind], *, seeds: int, healthy: int, steps: int, variants: bool = False
) -> Iterator[Case]:
    """Yield all cases, seed by seed, so that a part of them is already informative.

    Args:
        kinds: Of faults.
        seeds: Runs of each.
        healthy: Healthy runs.
        steps: Of each run.
        variants: Whether to use unusual faults.
    """
    settings = DemoSettings(steps=steps)
    for seed in range(max(seeds, healthy)):
        for kind in kinds:
            if seed < (healthy if kind is Kind.NONE else seeds):
                yield _case(kind, seed, settings, variants=variants)


def _case(kind: Kind, seed: int, settings: DemoSettings, *, variants: bool) -> Case:
    rng = random.Random(f"{kind}-{seed}")
    if kind is Kind.NONE:
        return Case(kind, seed, str(kind), None, None)
    suffix = VARIANTS[kind][seed % len(VARIANTS[kind])] if variants else ""
    fault = Fault.parse(f"{kind}{suffix}")
    step = fault.first_step(settings.steps)
    if step > 1:
        step += rng.randrange(-settings.steps // 20, settings.steps // 20 + 1)
    victims = fault.victims(settings.processes)
    worker = None
    if fault.worker is not None:
        worker = fault.worker if fault.is_of_one else None
    elif fault.is_of_one:
        role = victims[0][0]
        count = sum(each == role for each, _ in settings.processes)
        worker = f"{role}/{rng.randrange(count)}"
    text = str(kind) if step == 1 else f"{kind}@{step}"
    if fault.size is not None:
        text += f":{fault.size:g}"
    whom = worker or fault.worker
    if whom is not None:
        text += f"@{whom}"
    return Case(kind, seed, text, step, worker)


def record(case: Case, directory: Path, *, steps: int) -> float:
    """Run the demo with its bridge's data in ``directory``.

    Returns:
        Duration in seconds.

    Raises:
        CalledProcessError: The demo failed.
    """
    directory.mkdir(parents=True)
    begun_s = time.monotonic()
    command = [
        *(sys.executable, "-m", "otel_rl", "demo", "--tracker", "jsonl"),
        *("--experiment", EXPERIMENT, "--trial", TRIAL, "--data", str(directory)),
        *("--steps", str(steps), "--seed", str(case.seed), "--fault", case.fault),
    ]
    with (directory / "demo.log").open("w") as log:
        subprocess.run(
            command, stdout=log, stderr=log, env=_environment(), timeout=DEMO_TIMEOUT_S, check=True
        )
    (directory / CASE_FILE).write_text(json.dumps(asdict(case)))
    return time.monotonic() - begun_s


def judge(case: Case, directory: Path, *, seconds: float) -> Verdict:
    """Run ``otel-rl diagnose`` on a run."""
    command = [
        *(sys.executable, "-m", "otel_rl", "diagnose"),
        *("--data", str(directory), "--json"),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=_environment(),
        timeout=DIAGNOSE_TIMEOUT_S,
        check=False,
    )
    try:
        found = json.loads(done.stdout)
        causes = found["causes"]
        said = causes[0]["kind"] if causes else found["verdict"]
        return Verdict(case, said, causes[0]["worker"] if causes else None, seconds)
    except (ValueError, KeyError, TypeError) as error:
        words = done.stderr.strip().splitlines() or [repr(error)]
        return Verdict(case, "", None, seconds, words[-1])


def summary(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """Return the figures, and each case."""
    faults = [each for each in verdicts if each.case.kind != Kind.NONE]
    workers = [each.names_worker for each in faults if each.names_worker is not None]
    return {
        "cases": len(verdicts),
        "faults": len(faults),
        "healthy": len(verdicts) - len(faults),
        "right_first": sum(each.is_right for each in faults),
        "with_worker": len(workers),
        "right_worker": sum(workers),
        "false_alarms": sum(each.is_false_alarm for each in verdicts),
        "failed": sum(bool(each.error) for each in verdicts),
        "each": [
            {
                **asdict(each.case),
                "said": each.said,
                "worker_said": each.worker,
                "right": each.is_right,
                "seconds": round(each.seconds, 1),
                "error": each.error,
            }
            for each in verdicts
        ],
    }


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the result in Markdown, a line for each kind."""
    lines = [
        "| kind | runs | right first cause | right worker | said otherwise |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in dict.fromkeys(each.case.kind for each in verdicts):
        of_kind = [each for each in verdicts if each.case.kind == kind]
        workers = [each.names_worker for each in of_kind if each.names_worker is not None]
        others = sorted({each.said or "(failed)" for each in of_kind if not each.is_right})
        right = sum(each.is_right for each in of_kind)
        at_fault = f"{sum(workers)} of {len(workers)}" if workers else "-"
        lines.append(
            f"| {kind} | {len(of_kind)} | {right} | {at_fault} | {', '.join(others) or '-'} |"
        )
    return "\n".join(lines)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}


def _recorded(directory: Path) -> Iterator[tuple[Case, Path]]:
    for found in sorted(directory.glob(f"*/{CASE_FILE}")):
        yield Case(**json.loads(found.read_text())), found.parent


def _run_all(options: argparse.Namespace, note: Callable[[Verdict], None]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases(
            options.kinds,
            seeds=options.seeds,
            healthy=options.healthy,
            steps=options.steps,
            variants=options.variants,
        ):
            directory = (options.keep or Path(scratch)).absolute() / case.name
            try:
                seconds = record(case, directory, steps=options.steps)
            except (subprocess.SubprocessError, OSError) as error:
                note(Verdict(case, "", None, 0, str(error)))
                continue
            note(judge(case, directory, seconds=seconds))


def main() -> None:
    """Run, diagnose, and write ``build/diagnose-bench.json``."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.diagnose", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each fault")
    parser.add_argument("--healthy", type=int, default=20, metavar="N", help="runs without one")
    parser.add_argument("--kinds", nargs="+", type=Kind, default=list(Kind), metavar="KIND")
    parser.add_argument("--steps", type=int, default=70, metavar="N", help="of each run")
    parser.add_argument(
        "--variants", action="store_true", help="faults that are not the usual ones"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a directory of each run in DIR")
    parser.add_argument("--recorded", type=Path, metavar="DIR", help="what --keep has kept")
    parser.add_argument("--out", type=Path, default=Path("build/diagnose-bench.json"))
    options = parser.parse_args()
    verdicts: list[Verdict] = []

    def note(verdict: Verdict) -> None:
        verdicts.append(verdict)
        mark = "right" if verdict.is_right else "WRONG"
        said = verdict.error or " ".join(filter(None, (verdict.said, verdict.worker)))
        print(f"{verdict.case.fault:<34} {verdict.seconds:5.0f} s  {mark}  {said}", flush=True)

    if options.recorded:
        for case, directory in _recorded(options.recorded):
            note(judge(case, directory, seconds=0))
    else:
        _run_all(options, note)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figures = summary(verdicts)
    options.out.write_text(json.dumps(figures, indent=1))
    print(f"\n{table(verdicts)}\n")
    print(", ".join(f"{name} {figures[name]}" for name in figures if name != "each"), options.out)


if __name__ == "__main__":
    main()
