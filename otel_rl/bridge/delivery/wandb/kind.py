"""The W&B kind: its checks before a run, and the choice of the tracker that writes a run."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.tracker import (
    CheckResult,
    RunInfo,
    Tracker,
    TrackerKind,
    WriterTimeouts,
    check_server,
    check_writable,
    writer_file,
)
from otel_rl.bridge.delivery.wandb.account import (
    OWN_RUN,
    Account,
    WandbSettings,
    find_account,
    without_key,
    writer_environment,
)
from otel_rl.errors import ConfigError, MissingExtra, TrackerError
from otel_rl.extras import how_to_install
from otel_rl.records import Description

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_OFFLINE = "Set WANDB_MODE=offline to write files instead."


def _validate(attributes: Mapping[str, str]) -> None:
    find_account(WandbSettings.parse(attributes), os.environ)
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtra("tracker: wandb", "the package wandb", "wandb")


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    results = [_check_package(), check_writable("tracker directory", directory)]
    try:
        account = find_account(WandbSettings.parse(attributes), os.environ)
    except ConfigError as exc:
        return [*results, CheckResult("wandb account", exc.args[0], ok=False, hint=exc.hint)]
    if not account.online:
        asked = os.environ.get("WANDB_MODE") or attributes.get("mode", "auto") != "auto"
        reason = "The mode is offline" if asked else "There is no API key"
        return [
            *results,
            CheckResult(
                "wandb account",
                f"{reason}, so runs are written to files for `wandb sync`.",
            ),
        ]
    found = f"Found an API key for {account.base_url}, project {account.project}."
    if account.attached_run:
        own = account.attached_run == OWN_RUN
        path = "that the program makes by wandb.init" if own else account.attached_path
        found = f"Found an API key for {account.base_url}, to join the run {path}."
    results += [
        CheckResult("wandb account", found),
        check_server("wandb server", account.base_url, _OFFLINE),
    ]
    if account.attached_run and "{" not in account.attached_run and results[-1].ok:
        results.append(_check_joined_run(account))
    return results


def _create(run: RunInfo) -> Tracker:
    settings = WandbSettings.parse(dict(run.attributes))
    own_run = run.description.own_run or ""
    if settings.attach == OWN_RUN:
        # Once rows are in a run beside the program's, they go on there.
        beside = writer_file(run, "beside")
        if beside.exists():
            own_run = ""
        elif not own_run:
            beside.touch(mode=0o600)
    if find_account(settings, os.environ, run.key, own_run).attached_run:
        from otel_rl.bridge.delivery.wandb.shared import SharedWandbTracker

        return SharedWandbTracker()
    from otel_rl.bridge.delivery.wandb.tracker import WandbTracker

    return WandbTracker()


def _environment(environ: Mapping[str, str], attributes: Mapping[str, str]) -> dict[str, str]:
    environment = writer_environment(environ)
    settings = WandbSettings.parse(attributes)
    if settings.key_file:  # of a team, whose writers have no other key
        environment = without_key(environment)
    try:
        account = find_account(settings, environment)
    except ConfigError:
        return environment  # the writer reports the error
    if not account.online:
        return without_key(environment)
    return environment | ({"WANDB_API_KEY": account.api_key} if settings.key_file else {})


def _knows_run(attributes: Mapping[str, str], description: Description) -> bool:
    settings = WandbSettings.parse(attributes)
    if settings.attach != OWN_RUN or description.own_run is not None:
        return True
    return find_account(settings, os.environ).attached_run != OWN_RUN


def _patience(attributes: Mapping[str, str]) -> WriterTimeouts:
    settings = WandbSettings.parse(attributes)
    return WriterTimeouts(
        # `init` tries a last time after its timeout.
        open_s=2 * settings.init_timeout_s + settings.settle_s + 90,
        close_s=settings.finish_timeout_s + settings.stall_timeout_s + 60,
    )


def _check_package() -> CheckResult:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("wandb")
    except PackageNotFoundError:
        return CheckResult(
            "wandb package", "wandb is not installed.", ok=False, hint=how_to_install("wandb")
        )
    supported = _supported_wandb()
    if not supported.contains(found, prereleases=True):
        message = f"wandb {found} is installed; {supported} is supported."
        return CheckResult("wandb package", message, ok=False, hint=how_to_install("wandb"))
    return CheckResult("wandb package", f"wandb {found} is installed.")


def _supported_wandb() -> "SpecifierSet":
    """Return the versions of wandb that this package's own extra requires."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement  # comes with wandb
    from packaging.specifiers import SpecifierSet

    for text in requires("otel-rl") or ():
        requirement = Requirement(text)
        if requirement.name == "wandb":
            return requirement.specifier
    return SpecifierSet()  # not installed as a package: any


def _check_joined_run(account: Account) -> CheckResult:
    # Not at the top: every writer loads this module, and its HTTP client takes 2 MB.
    from otel_rl.bridge.delivery.wandb.shared import SHARE_IT, look_up

    path = account.attached_path
    try:
        run = look_up(account)
    except TrackerError as exc:
        return CheckResult("wandb run", exc.args[0], ok=False, hint=exc.hint)
    if run is None:
        return CheckResult("wandb run", f"{path} is not there yet. It is joined once it is.")
    if not run.is_shared:
        return CheckResult("wandb run", f"{path} is not in shared mode.", ok=False, hint=SHARE_IT)
    return CheckResult("wandb run", f"{path} is there, and in shared mode.")


WANDB: Final = TrackerKind(
    "wandb",
    _create,
    _validate,
    _check,
    _environment,
    _patience,
    home=lambda environ: Path(environ.get("WANDB_DIR") or "."),
    of_the_program=("project", "entity", "mode"),
    knows_run=_knows_run,
)
"""The kind, for the table of trackers."""
