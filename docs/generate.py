# ruff: noqa: INP001  # a script, not a package
"""Writes the lists of the documentation that must not rot: ``python -m docs.generate [--check]``.

A page marks the place of a list, and the code provides its content:

    <!-- generated: settings -->
    ...
    <!-- end -->

With ``--check`` nothing is written, and pages that are out of date make it exit with 1.
"""

import argparse
import ast
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import BaseModel

import otel_rl
from bench import capacity
from bench.chart import chart
from bench.listing import listing
from bench.record import read
from otel_rl import errors
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import (
    DELAY_BOUNDS_S,
    Counter,
    Delay,
    Gauge,
    Outcome,
    Refusal,
    SampleDrop,
)
from otel_rl.bridge.delivery.mlflow import MlflowSettings
from otel_rl.bridge.delivery.trackio import TrackioSettings
from otel_rl.bridge.delivery.wandb.account import WandbSettings
from otel_rl.bridge.receive.answers import ANSWERS
from otel_rl.cli.main import COMMANDS, command_parser
from otel_rl.demo.faults import Fault, Kind, affected_roles
from otel_rl.diagnose.report_json import json_schema
from otel_rl.errors import OtelRLError
from otel_rl.semconv import names
from otel_rl.semconv.aliases import dialect
from otel_rl.setting_types import OFF, Address
from otel_rl.worker.drops import DropReason
from otel_rl.worker.settings import GROUPS, TABLE, GpuSettings, MfuSettings
from otel_rl.worker.variables import Setting, settings_in
from tools.semconv import definition
from tools.semconv.generate import REGISTRY

DOCS: Final = Path(__file__).parent

_ACTIONS: Final[Mapping[str, str]] = {
    "ConfigError": "Correct what the message names.",
    "MissingExtra": "Install the extra that the message names.",
    "MalformedRequest": "Fix the sender, or the proxy or port between it and the bridge.",
    "RequestTooLarge": "Let the sender make smaller batches, or raise `receive.max_body_bytes`.",
    "Unauthenticated": "Give the sender a [token](security.md#tokens).",
    "Overloaded": (
        "Let fewer senders report to this bridge, or raise `receive.max_body_bytes`, of which 16 "
        "times as much is held."
    ),
    "SlowSender": "Check the network, or let the sender make smaller batches.",
    "JournalLocked": "Stop the other process, or use another `--data`.",
    "JournalFull": "Free disk space, or raise `journal.max_bytes`.",
    "JournalClosed": "Nothing needs to be done: senders retry.",
    "JournalUnavailable": "Check the server of `journal.url`.",
    "JournalGone": (
        "Restore the database, or restart the bridge. Until then `/healthz` answers 503."
    ),
    "LeaseLost": (
        "Nothing needs to be done. If it happens often, see [what breaks first](scale.md#limits)."
    ),
    "JournalError": "Check the disk, keep `journal.db`, and start with another directory.",
    "TrackerUnavailable": "Nothing needs to be done: rows are retried.",
    "RunDiverged": "Use another trial name.",
    "TrackerRejected": "Check key, entity and project. Rows are retried every minute.",
}
"""What to do about each exception."""

# Reasons with a section of their own; the others share one.
_LONG_REASONS: Final = (Outcome, Refusal, SampleDrop)
_OTHER_REASONS: Final = "Reasons"

_NO_DEFAULT: Final = object()

_SEVERAL: Final = 3
"""Commands with the same option, from which on it is described once."""

_REGION: Final = re.compile(
    r"(<!-- generated: (?P<name>[a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL
)

# One entry of a Google-style "Attributes:" section, which may go on in deeper lines.
_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def settings() -> Iterator[str]:
    """Every setting of the bridge."""
    for path, default, meaning in _settings(BridgeSettings, BridgeSettings.model_construct(), ()):
        yield _item(".".join(path), meaning, default)


def worker_arguments() -> Iterator[str]:
    """Every argument of ``init`` that a variable may give, as a table."""
    yield from ("| argument | variable | resource attribute | default |", "|---|---|---|---|")
    for entry in TABLE:
        if entry.argument:
            attribute = f"`{entry.attribute}`" if entry.attribute else "-"
            default = _without(entry) or "-"
            yield f"| `{entry.argument}` | `{entry.variable}` | {attribute} | {default} |"


def worker_variables() -> Iterator[str]:
    """Every variable of workers and commands, with its default."""
    for group in GROUPS:
        yield from _variables(group)


def gpu_variables() -> Iterator[str]:
    """The variables of GPU sampling."""
    yield from _variables(GpuSettings, "gpu")


def mfu_variables() -> Iterator[str]:
    """The variables of the MFU."""
    yield from _variables(MfuSettings, "mfu")


def _variables(group: type, argument: str = "") -> Iterator[str]:
    meanings = _below_fields(group)
    for name, entry in settings_in(group).items():
        if not entry.is_internal:
            option = f"`{argument}.{name}`; " if argument and name != "enabled" else ""
            yield _item(entry.variable, meanings[name], shown=option + _without(entry))


def _without(entry: Setting[object]) -> str:
    """What holds without a variable."""
    return entry.otherwise or (f"`{entry.default}`" if entry.default else "")


def wandb_options() -> Iterator[str]:
    """Every option of the W&B tracker."""
    yield from _tracker_options(WandbSettings)


def mlflow_options() -> Iterator[str]:
    """Every option of the MLflow tracker."""
    yield from _tracker_options(MlflowSettings)


def trackio_options() -> Iterator[str]:
    """Every option of the Trackio tracker."""
    yield from _tracker_options(TrackioSettings)


def _tracker_options(kind: type[WandbSettings | MlflowSettings | TrackioSettings]) -> Iterator[str]:
    meanings = _attributes(kind)
    for field in fields(kind):
        yield _item(field.name, meanings[field.name], field.default)


def commands() -> Iterator[str]:
    """Usage and purpose of every command of ``otel-rl``, then the options of several commands."""
    parsers = _parsers()
    users: dict[str, list[str]] = {}
    for name, parser in parsers.items():
        for line in _options(parser).values():
            users.setdefault(line, []).append(name)
    shared = {line: names for line, names in users.items() if len(names) >= _SEVERAL}
    for name, parser in parsers.items():
        own = (usage for usage, line in _options(parser).items() if line not in shared)
        yield f"- `{' '.join(('otel-rl', name, *own))}`: {COMMANDS[name].summary}"
    of: dict[tuple[str, ...], list[str]] = {}
    for line, names_of in shared.items():
        of.setdefault(tuple(names_of), []).append(line)
    for users_of, lines in sorted(of.items(), key=lambda item: -len(item[0])):
        whose = "every command" if len(users_of) == len(parsers) else ", ".join(users_of)
        yield from ("", f"Options of {whose}:", "", *lines)


def _options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return a list item for each option or argument, by its usage."""
    found = {}
    for action in parser._actions:  # noqa: SLF001  # argparse has no public list of them
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:  # noqa: SLF001
            continue
        words = [*action.option_strings[-1:], "" if action.nargs == 0 else action.metavar]
        meaning = (action.help or "").replace("%(default)s", str(action.default))
        option = " ".join(str(word) for word in words if word)
        needed = action.required or (not action.option_strings and action.nargs is None)
        found[option if needed else f"[{option}]"] = _item(option, meaning.replace("%%", "%"))
    return found


def counters() -> Iterator[str]:
    """Every counter, gauge and histogram of the bridge, with the reasons of the counters."""
    for counter in Counter:
        reasons = f" [Reasons](#{_section(counter.reasons).lower()})." if counter.reasons else ""
        yield _item(counter, counter.description + reasons)
    yield from ("", "Gauges:", "")
    for gauge in Gauge:
        yield _item(gauge, f"{gauge.description.removesuffix('.')}, `{gauge.unit}`.")
    buckets = ", ".join(f"{bound:g}" for bound in DELAY_BOUNDS_S)
    yield from ("", f"Histograms, in seconds, with buckets through {buckets}:", "")
    for delay in Delay:
        yield _item(delay, delay.description)
    for kind in _LONG_REASONS:
        yield from ("", f"### {kind.__name__}", "", _summary(kind), "")
        yield from _reasons(kind)
    yield from ("", f"### {_OTHER_REASONS}")
    for counter in Counter:
        if counter.reasons and counter.reasons not in _LONG_REASONS:
            yield from ("", f"Of `{counter}`:", "", *_reasons(counter.reasons))


def _section(reasons: type[StrEnum]) -> str:
    return reasons.__name__ if reasons in _LONG_REASONS else _OTHER_REASONS


def drops() -> Iterator[str]:
    """Every reason for which a worker drops measurements."""
    yield from _reasons(DropReason)


def exceptions() -> Iterator[str]:
    """Every exception that is raised, with the answer to the sender and what to do."""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, OtelRLError) and name in _ACTIONS:
            answer = ANSWERS.get(kind)
            meaning = f"{_summary(kind).partition('. ')[0].removesuffix('.')}."
            told = f"{meaning} Answer: {answer.http}." if answer else meaning
            yield _item(name, f"{told} Action: {_ACTIONS[name]}")


def faults() -> Iterator[str]:
    """Every fault of the demo."""
    for kind in Kind:
        yield _item(kind, f"{Fault(kind=kind).words} ({affected_roles(kind)})")


def missed_goals() -> Iterator[str]:
    """Every published figure of the bench that misses its goal."""
    yield from listing(read(DOCS / "bench.json"))


_WATCH: Final = "`otel_rl.watch`"
_SET: Final = "your code, by this name"
_STEP: Final = "`otel_rl.step`"
_PHASE: Final = "`otel_rl.phase`"
_LINK: Final = "`lineage.link`"
_BUFFER: Final = "`integrations.buffers.measured`"
_NOT: Final = "-"
_PIPE: Final = "\\|"

_MEASURED_BY: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "rl.episode.length": ("", "", _NOT, "`lineage.score`, " + _LINK),
    "rl.generator.kv_cache.miss.ratio": (_NOT, _NOT, "the bridge, of queries and hits", _NOT),
    "rl.generator.requests": (_NOT, _NOT, "stat logger", _SET),
    "rl.generator.sampling.temperature": (
        *(_NOT, _NOT),
        "`gen_ai.request.temperature` of its spans",
        _SET,
    ),
    "rl.generator.sampling.top_p": (_NOT, _NOT, "`gen_ai.request.top_p` of its spans", _SET),
    "rl.iteration.duration": ("each optimizer step", "", _NOT, _STEP),
    "rl.pipeline.duration": ("the bridge, of phases", _NOT, _NOT, "the bridge, of phases"),
    "rl.policy.staleness": (_NOT, "", _NOT, _LINK),
    "rl.replay_buffer.evictions": ("", "", "", _BUFFER),
    "rl.replay_buffer.queue.depth": ("", "", "", _BUFFER),
    "rl.replay_buffer.reads": ("", "", "", _BUFFER),
    "rl.replay_buffer.retrieval.duration": ("", "", "", _BUFFER),
    "rl.replay_buffer.size": ("", "", "", _BUFFER),
    "rl.replay_buffer.writes": ("", "", "", _BUFFER),
    "rl.reward.sum": (_NOT, _NOT, _NOT, _SET),
    "rl.train.grad.abs_max": ("`OtelCallback(watch=True)`", _NOT, _NOT, _WATCH),
    "rl.train.grad.applied.norm": ("`OtelCallback(watch=True)`", _NOT, _NOT, _WATCH),
    "rl.train.grad.mean_square": ("`OtelCallback(watch=True)`", _NOT, _NOT, _WATCH),
    "rl.train.mfu": (_NOT, "", _NOT, "`init(mfu=...)`"),
    "rl.train.update.norm": ("`OtelCallback(watch=True)`", _NOT, _NOT, _WATCH),
    "rl.generator.kv_cache.limit": (_NOT, _NOT, "stat logger", _SET),
    "rl.phase: batch_create": ("phase of `_prepare_inputs`", "", _NOT, _PHASE),
    "rl.phase: model_load": (_NOT, _NOT, _NOT, _PHASE),
    "rl.phase: weight_pull": (_NOT, _NOT, _NOT, _PHASE),
    "rl.phase: weight_push": (_NOT, _NOT, _NOT, _PHASE),
    "rl.phase: weight_sync": ("phase of `sync_weights`", "", _NOT, _PHASE),
}
"""What measures a metric in TRL, verl, vLLM and a plain loop; empty where the dialect tells it."""


def required_metrics() -> Iterator[str]:
    """Every metric that the field asks for, with what measures it."""
    yield "| asked for | metric | TRL | verl | vLLM | a plain loop |"
    yield "|---|---|---|---|---|---|"
    registry = definition.read(REGISTRY)
    rows = [(item, metric.name) for metric in registry.metrics for item in metric.answers]
    for attribute in registry.attributes:
        if attribute.key == names.RL_PHASE:
            rows += [
                (item, f"rl.phase: {member.value}")
                for member in attribute.members
                for item in member.answers
            ]
    for item, name in sorted(rows):
        told = _MEASURED_BY.get(name, ("", "", "", ""))
        logged = [_logged_as(program, name) for program in ("trl", "verl")]
        of_engine = _NOT if _logged_as("vllm", name) == _NOT else "stat logger"
        cells = [*logged, of_engine, _SET]
        if item == "generator: idle time":
            told = ("", "", "stat logger: no request in an engine", "")
        shown = [own or found for own, found in zip(told, cells, strict=True)]
        yield f"| {item.replace('|', _PIPE)} | `{name}` | {' | '.join(shown)} |"


def _logged_as(program: str, name: str) -> str:
    """Return what a framework calls a metric, or a phase, which its adapter records."""
    metric, _, phase = name.partition(": ")
    wanted = {names.RL_PHASE: phase} if phase else {}
    found: list[str] = []
    for rule in dialect(program).rules:
        group = re.search(r"\(\?P<(\w+)>([\w|]+)\)", rule.match)
        of_phase = {key: text for key, text in rule.attributes.items() if key == names.RL_PHASE}
        if of_phase != wanted and metric in {"rl.phase", "rl.phase.duration"}:
            continue
        for value in group[2].split("|") if group else [""]:
            own = rule.match.replace(group[0], value) if group else rule.match
            named = rule.name.format(**{group[1]: value}) if group else rule.name
            if named == ("rl.phase.duration" if phase else metric):
                found.append(own.replace("|", _PIPE))
    return ", ".join(f"`{one}`" for one in found) or _NOT


TABLES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "settings": settings,
    "worker arguments": worker_arguments,
    "worker variables": worker_variables,
    "gpu variables": gpu_variables,
    "mfu variables": mfu_variables,
    "wandb options": wandb_options,
    "mlflow options": mlflow_options,
    "trackio options": trackio_options,
    "commands": commands,
    "counters": counters,
    "drops": drops,
    "exceptions": exceptions,
    "faults": faults,
    "missed goals": missed_goals,
    "capacity": lambda: capacity.table(read(DOCS / "bench.json")),
    "required metrics": required_metrics,
}
"""Tables by the name in a page's mark."""


def _settings(
    model: type[BaseModel], values: BaseModel, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object, str]]:
    """(path, default, meaning) of each setting, nested models after plain values."""
    nested: list[tuple[str, BaseModel]] = []
    meanings = _below_fields(model)
    for field, info in model.model_fields.items():
        value, name = getattr(values, field), info.alias or field
        if isinstance(value, BaseModel):
            nested.append((name, value))
        else:
            is_time = name != field
            if is_time:
                value = _time(value)
            elif name.endswith("_bytes"):
                value = _size(value)
            elif info.annotation == Address | None:
                value = OFF if value is None else str(value)
            yield (*path, name), value, meanings[field]
    for name, value in nested:
        yield from _settings(type(value), value, (*path, name))


def _size(n_bytes: int) -> str:
    """How a size is written in the settings."""
    mebibytes = n_bytes >> 20
    return f"{mebibytes >> 10}GiB" if mebibytes % 1024 == 0 else f"{mebibytes}MiB"


def _below_fields(model: type) -> dict[str, str]:
    """Return the text below each field of a class and of those that it extends.

    Pydantic would read it when the bridge starts, which takes a tenth of that time.
    """
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not kind.__module__.startswith(otel_rl.__name__):
            continue
        (definition,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(field.target)] = inspect.cleandoc(ast.literal_eval(text.value))
    return found


def _parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, in the order of its name."""
    return {name: command_parser(name) for name in sorted(COMMANDS)}


def _reasons(kind: type[StrEnum]) -> Iterator[str]:
    meanings = _attributes(kind)
    return (_item(reason, meanings[reason.name]) for reason in kind)


def _attributes(kind: type) -> dict[str, str]:
    """Entries of the "Attributes:" section of a docstring, by name."""
    # Before Python 3.13 the docstring of a class keeps the indentation of its source.
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    return dict(_ATTRIBUTE.findall(section))


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _time(seconds: float) -> str:
    """A time as a person writes it."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _toml(value: object) -> str:
    """A default as it stands in a TOML file."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | Path):
        return f'`"{value}"`'
    return f"`{value}`"


def _item(name: str, meaning: str, default: object = _NO_DEFAULT, *, shown: str = "") -> str:
    """A list item, from text that may be wrapped and in the markup of docstrings."""
    told = shown if default is _NO_DEFAULT else _toml(default)
    text = " ".join(meaning.replace("``", "`").split())
    return f"- `{name}` ({told}): {text}" if told else f"- `{name}`: {text}"


def _filled(page: str) -> str:
    return _REGION.sub(lambda found: f"{found[1]}{_text(TABLES[found['name']]())}{found[3]}", page)


def _text(lines: Iterable[str]) -> str:
    return "\n" + "\n".join(lines).strip("\n") + "\n\n"


def _files() -> Iterator[tuple[Path, str]]:
    """Path and text of each file that is generated as a whole."""
    yield DOCS / "schemas" / "diagnose.json", json.dumps(json_schema(), indent=2) + "\n"
    yield DOCS / "images" / "performance.svg", chart(read(DOCS / "bench.json").values())


def main(argv: list[str] | None = None) -> int:
    """Fill the pages, or with ``--check`` name those that would change."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    check = parser.parse_args(argv).check
    stale = False
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        filled = _filled(page)
        if filled == page:
            continue
        if check:
            stale = True
            sys.stderr.write(f"docs/{path.relative_to(DOCS)} is out of date. Run: make generate\n")
        else:
            path.write_text(filled, encoding="utf-8")
    for path, text in _files():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            stale = True
            sys.stderr.write(f"docs/{path.relative_to(DOCS)} is out of date. Run: make generate\n")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
