"""``python -m exams.dataset``: faults across roles in the middle of runs, as a data set.

python -m exams.dataset write OUT [--seed N] [--cases M] [--jobs 2]
python -m exams.dataset answer OUT > answers.jsonl      what otel_rl says of it
python -m exams.dataset score OUT/labels.jsonl answers.jsonl
"""

import argparse
import json
import multiprocessing
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from exams.dataset.answers import answered
from exams.dataset.card import card
from exams.dataset.score import baselines, scored, table
from exams.dataset.write import names, written


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m exams.dataset", description=(__doc__ or "").partition("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="draw cases and write them")
    write.add_argument("out", type=Path, metavar="OUT")
    write.add_argument("--seed", type=int, help="draws everything; without it a new one")
    write.add_argument("--cases", type=int, default=60, metavar="M")
    answer = commands.add_parser("answer", help="print what otel_rl says of each case")
    answer.add_argument("out", type=Path, metavar="OUT")
    for one in (write, answer):
        one.add_argument("--jobs", type=int, default=2, metavar="N")
    score = commands.add_parser("score", help="score answers, beside two that look at nothing")
    score.add_argument("labels", type=Path, metavar="LABELS")
    score.add_argument("answers", type=Path, metavar="ANSWERS")
    options = parser.parse_args(argv)
    if options.command == "write":
        _write(options)
    elif options.command == "answer":
        cases = read(options.out / "cases.jsonl")
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for said in pool.imap(partial(answered, options.out), cases):
                print(json.dumps(said), flush=True)
    else:
        labels = [*read(options.labels)]
        answers = {"these answers": [*read(options.answers)], **baselines(labels)}
        print(table({name: scored(labels, some) for name, some in answers.items()}))


def _write(options: argparse.Namespace) -> None:
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    options.out.mkdir(parents=True, exist_ok=True)
    made = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        make = partial(written, options.out, seed=seed)
        for one in pool.imap(make, names(seed, options.cases)):
            made.append(one)
            print(f"{len(made)}/{options.cases}", flush=True)
    cases, labels = zip(*sorted(made, key=lambda one: one[0]["case"]), strict=True)
    for name, lines in (("cases", cases), ("labels", labels)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (options.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    text = card(seed=seed, labels=labels)
    (options.out / "README.md").write_text(text, encoding="utf-8")


def read(path: Path) -> Iterator[Any]:
    """Yield the objects of a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


if __name__ == "__main__":
    main()
