"""``otel-rl dashboard``: arranges the charts of runs by topic."""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.selection import KeySelection
from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.delivery.wandb.workspace_view import VIEW_TITLE, save_view
from otel_rl.bridge.journal.reader import read_keys
from otel_rl.cli.find_run import Runs, add_run, take_directory
from otel_rl.cli.options import add_bridge_options, settings_of
from otel_rl.cli.own_run import wandb_account
from otel_rl.cli.standard_streams import say
from otel_rl.dashboard.arrange import Section, arrange, as_json, in_words
from otel_rl.errors import ConfigError, MissingExtra, NoTeam
from otel_rl.plurals import many
from otel_rl.records import ExperimentKey, KeySpec
from otel_rl.redaction import printable, shown

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
    add_run(parser, "all runs in the journals here", takes_logs=False)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument(
        "--force", action="store_true", help="overwrite a view that was edited by hand"
    )
    add_bridge_options(parser)


def command(arguments: argparse.Namespace) -> int:
    take_directory(arguments, takes_logs=False)
    settings = settings_of(arguments)
    with Runs(settings) as runs:
        of_runs = _sent(settings, runs, arguments.run)
    sections = arrange(_each_once(keys for _, keys in of_runs))
    status = 1 if runs.faults else 0
    if arguments.json:
        print(json.dumps({"sections": as_json(sections)}, indent=1))
        return status
    of_accounts: dict[Account, list[Sequence[KeySpec]]] = {}
    for key, keys in of_runs:
        try:
            account = wandb_account(settings.tracker_of(key), key)
        except NoTeam as exc:
            say(str(exc))
            status = 1
            continue
        if account is not None and account.online:
            of_accounts.setdefault(replace(account, attached_run=""), []).append(keys)
    for account, of_account in of_accounts.items():
        _save(account, _each_once(of_account), is_forced=arguments.force)
    if not of_accounts:
        _print(sections)
    return status


def _save(account: Account, keys: Sequence[KeySpec], *, is_forced: bool) -> None:
    sections = arrange(keys)
    try:
        url = save_view(account, keys, is_forced=is_forced)
    except ModuleNotFoundError as exc:
        library = (exc.name or "").partition(".")[0]
        raise MissingExtra("Saving a W&B workspace", library, "dashboard") from exc
    panels = sum(len(section.panels) for section in sections)
    print(shown(f"Saved {many(panels, 'panel')} in {many(len(sections), 'section')}: {url}"))


def _each_once(of_runs: Iterable[Sequence[KeySpec]]) -> Sequence[KeySpec]:
    found: dict[str, KeySpec] = {}
    for keys in of_runs:
        for spec in keys:
            found.setdefault(spec.key, spec)
    return [*found.values()]


def _print(sections: Sequence[Section]) -> None:
    for line in in_words(sections):
        print(printable(line))


def _sent(
    settings: BridgeSettings, runs: Runs, wanted: str | None
) -> Sequence[tuple[ExperimentKey, Sequence[KeySpec]]]:
    """Return the keys that the tracker gets of each run that has any.

    Raises:
        ConfigError: There is no such run, or it has no keys.
    """
    found: list[tuple[ExperimentKey, Sequence[KeySpec]]] = []
    for run in reversed(runs.named(wanted)):
        with run.open() as connection:
            catalogue = read_keys(connection, run.id)
        if keys := _selected(settings, catalogue):
            found.append((run.key, keys))
    if not found:
        raise ConfigError(
            f"There are no keys of {'any run' if wanted is None else f'a run {wanted!r}'} "
            f"{settings.journal_place.words}.",
            hint="They come with the first values that a run reports.",
        )
    return found


def _selected(settings: BridgeSettings, catalogue: Sequence[KeySpec]) -> Sequence[KeySpec]:
    selection = KeySelection(
        settings.tracker.detail,
        settings.tracker.names,
        per_worker=settings.rows.per_worker,
        keys=lambda: catalogue,
    )
    return selection.keys()
