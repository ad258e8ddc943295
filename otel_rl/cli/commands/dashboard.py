"""``otel-rl dashboard``: arranges the charts of runs by topic."""

import argparse
import json
from collections.abc import Sequence

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.selection import KeySelection
from otel_rl.bridge.delivery.wandb.workspace_view import VIEW_TITLE, save_view
from otel_rl.bridge.journal.reader import read_keys
from otel_rl.cli.find_run import Runs, add_run, take_directory
from otel_rl.cli.options import add_bridge_options, settings_of
from otel_rl.cli.own_run import wandb_account
from otel_rl.dashboard.arrange import Section, arrange, as_json, in_words
from otel_rl.errors import ConfigError, MissingExtra
from otel_rl.plurals import many
from otel_rl.records import KeySpec
from otel_rl.redaction import printable, shown

__all__ = ["DESCRIPTION", "EPILOG", "add_options", "command"]

DESCRIPTION = f"""\
Arrange the charts of runs in sections by topic. With W&B online it is saved as the view
{VIEW_TITLE!r} of the project, otherwise printed. A view that was edited
by hand is not overwritten.
"""

EPILOG = """\
examples:
  otel-rl dashboard                    for the metrics of all runs of the journals here
  otel-rl dashboard grpo-7b            for those of one experiment
  otel-rl dashboard --json             as JSON, without any account
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "all runs in the journals here")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument(
        "--force", action="store_true", help="overwrite a view that was edited by hand"
    )
    add_bridge_options(parser)


def command(arguments: argparse.Namespace) -> int:
    take_directory(arguments)
    settings = settings_of(arguments)
    with Runs(settings) as runs:
        keys = _sent(settings, runs, arguments.run)
    sections = arrange(keys)
    status = 1 if runs.faults else 0
    if arguments.json:
        print(json.dumps({"sections": as_json(sections)}, indent=1))
        return status
    account = wandb_account(settings)
    if account is None or not account.online:
        _print(sections)
        return status
    try:
        url = save_view(account, keys, is_forced=arguments.force)
    except ModuleNotFoundError as exc:
        library = (exc.name or "").partition(".")[0]
        raise MissingExtra("Saving a W&B workspace", library, "dashboard") from exc
    panels = sum(len(section.panels) for section in sections)
    print(shown(f"Saved {many(panels, 'panel')} in {many(len(sections), 'section')}: {url}"))
    return status


def _print(sections: Sequence[Section]) -> None:
    for line in in_words(sections):
        print(printable(line))


def _sent(settings: BridgeSettings, runs: Runs, wanted: str | None) -> Sequence[KeySpec]:
    """Return the keys that the tracker gets of the runs, each once.

    Raises:
        ConfigError: There is no such run, or it has no keys.
    """
    found: dict[str, KeySpec] = {}
    for run in reversed(runs.named(wanted)):
        with run.open() as connection:
            catalogue = read_keys(connection, run.id)
        for spec in _selected(settings, catalogue):
            found.setdefault(spec.key, spec)
    if not found:
        raise ConfigError(
            f"There are no keys of {'any run' if wanted is None else f'a run {wanted!r}'} "
            f"{settings.journal_place.words}.",
            hint="They come with the first values that a run reports.",
        )
    return [*found.values()]


def _selected(settings: BridgeSettings, catalogue: Sequence[KeySpec]) -> Sequence[KeySpec]:
    selection = KeySelection(
        settings.tracker.detail,
        settings.tracker.names,
        per_worker=settings.rows.per_worker,
        keys=lambda: catalogue,
    )
    return selection.keys()
