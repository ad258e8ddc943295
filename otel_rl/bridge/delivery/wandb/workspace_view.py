"""Saves a dashboard as a workspace view of a W&B project.

The view has a name of its own, so that no other view is touched. The server does not record who
changed a view: a digest of the view as of the last call is kept in a note of the user, with the
view's keys, and a view that differs counts as a person's from then on. So does the absence of a
view that was written before. Runs share the note, whatever their directories: there is one for each
server, entity and project. Without a place for the note a view is only made where there is none.

A run makes the view with its first row if the project has none, and replaces the view once the run
has all the view's keys and more. ``otel-rl dashboard`` makes a view of all runs of a journal.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from otel_rl.bridge.delivery.wandb.account import Account, writer_environment
from otel_rl.bridge.delivery.wandb.growing_tables import ALL_STEPS
from otel_rl.bridge.delivery.wandb.rows import HOURS, PREFIX, STEP, prefixed, wandb_key
from otel_rl.bridge.delivery.wandb.server import dig, query
from otel_rl.bridge.private_files import open_private
from otel_rl.dashboard.arrange import Panel, Section, arrange
from otel_rl.errors import TrackerError, TrackerRejected
from otel_rl.inbox import make_private_directory
from otel_rl.records import CONSOLE, KeySpec

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

_log = logging.getLogger(__name__)

VIEW_TITLE: Final = "otel_rl"

_VIEW_NAME: Final = "nw-otelrl-v"  # as W&B names views; its middle is in the view's URL
_TIMEOUT_S: Final = 30.0
_LAST_TIMEOUT_S: Final = 10.0
_MORE: Final = 1.25  # keys, times those of the last look

_TABLES: Final = "Tables"
_RANKED: Final = "diagnosis/ranked"

_VIEWER = "query Viewer { viewer { id entity } }"

_VIEW = """
query SavedView($entity: String, $project: String, $name: String) {
  project(name: $project, entityName: $entity) {
    allViews(viewType: "project-view", viewName: $name) { edges { node { id spec } } }
  }
}
"""


@dataclass(frozen=True, slots=True)
class _SavedView:
    id: str
    digest: str


class _Note:
    """Record of the view that was written last, valid while its file is open.

    Args:
        file: Locked file; None without a place for it.

    Attributes:
        digest: Digest of the view; empty if none was written.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        digest, *keys = (file.read() if file is not None else "").splitlines() or [""]
        self.digest, self.keys = digest, set(keys)

    def write(self, digest: str, keys: Sequence[KeySpec]) -> None:
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            self._file.write("\n".join([digest, *(spec.key for spec in keys)]))


def save_view(account: Account, keys: Sequence[KeySpec], *, is_forced: bool = False) -> str:
    """Create or replace the view, and return its URL.

    Raises:
        TrackerRejected: A person has changed the view, or the server refuses the change.
        TrackerUnavailable: The server cannot be reached.
    """
    entity = account.entity or _default_entity(account)
    with _note(account, entity) as note:
        found = _saved(account, entity)
        if found is not None and not is_forced and found.digest != note.digest:
            raise TrackerRejected(
                f"The view {VIEW_TITLE!r} of {entity}/{account.project} was edited since otel_rl "
                "wrote it, and was not overwritten.",
                hint="Save your changes as another view, and replace this one with --force.",
            )
        return _write(account, entity, keys, note, found)


class ProjectView:
    """View of the project of one online run, from its first row on. One thread uses it.

    A thread of its own queries and writes: rows do not wait for it, and no failure reaches them.

    Args:
        account: Account of an online run.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._keys: list[KeySpec] = []
        self._looked = 0  # number of keys at the last look
        self._thread: threading.Thread | None = None

    def learn(self, keys: Sequence[KeySpec]) -> None:
        """Learn new keys, and look at the view if there are many more than at the last look."""
        self._keys += keys
        if len(self._keys) > _MORE * self._looked:
            self._look()

    def finish(self) -> None:
        """Look at the view once more if there are new keys, for a bounded time."""
        self._join()
        if len(self._keys) > self._looked:
            self._look()
            self._join()

    def _look(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._looked = len(self._keys)
            self._thread = threading.Thread(
                target=self._save, args=([*self._keys],), name="otel-rl-wandb-view", daemon=True
            )
            self._thread.start()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join(_LAST_TIMEOUT_S)

    def _save(self, keys: Sequence[KeySpec]) -> None:
        try:
            entity = self._account.entity or _default_entity(self._account)
            with _note(self._account, entity) as note:
                found = _saved(self._account, entity)
                is_ours = note.digest == ("" if found is None else found.digest)
                if is_ours and note.keys < {spec.key for spec in keys}:
                    _write(self._account, entity, keys, note, found)
        except ModuleNotFoundError as exc:
            _log.info("No view of the W&B project is saved, as %s is not installed.", exc.name)
        except (TrackerError, OSError) as exc:
            _log.info("The view of the W&B project was not saved: %s", exc)
        except Exception:  # noqa: BLE001  # of W&B's library; the run goes on, and the log has it
            _log.warning("The view of the W&B project was not saved.", exc_info=True)


@contextmanager
def _note(account: Account, entity: str) -> Iterator[_Note]:
    """Read the note of a project, and keep others from reading it until the end of the block."""
    with contextlib.ExitStack() as stack:
        file = None
        try:
            path = _note_path(account, entity)
            make_private_directory(path.parent)
            file = stack.enter_context(
                open(path, "a+", encoding="utf-8", errors="backslashreplace", opener=open_private)
            )
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
        except (OSError, RuntimeError) as exc:  # of pathlib, without a home
            _log.info("There is no place for a note on the view of the W&B project: %s", exc)
            file = None
        yield _Note(file)


def _note_path(account: Account, entity: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    # A digest: names may hold anything, and be too long for a file.
    names = f"{account.base_url}\n{entity}\n{account.project}"
    digest = hashlib.sha256(names.encode(errors="replace")).hexdigest()
    return Path(state) / "otel_rl" / "dashboards" / digest[:32]


def _write(
    account: Account,
    entity: str,
    keys: Sequence[KeySpec],
    note: _Note,
    found: _SavedView | None,
) -> str:
    # The library reads these, and nothing else.
    os.environ.update(writer_environment(os.environ))
    os.environ |= {"WANDB_BASE_URL": account.base_url, "WANDB_API_KEY": account.api_key}
    workspace = _workspace(account, entity, arrange(keys), _tables(keys))
    workspace._internal_name = _VIEW_NAME  # noqa: SLF001  # see pyproject.toml
    workspace._internal_id = found.id if found is not None else ""  # noqa: SLF001
    workspace.save()  # type: ignore[no-untyped-call]  # no hints
    written = _saved(account, entity)
    if written is not None:
        note.write(written.digest, keys)
    return str(workspace.url)


def _tables(keys: Sequence[KeySpec]) -> Sequence[str]:
    """Return the tables in the summaries of runs: causes first, then samples."""
    tables = [spec.key for spec in keys if spec.statistic == "table" and spec.key != CONSOLE]
    ranked = [key for key in tables if key == _RANKED]
    return [*ranked, *(f"{key}{ALL_STEPS}" for key in tables if key != _RANKED)]


def _workspace(
    account: Account, entity: str, sections: Sequence[Section], tables: Sequence[str]
) -> "Workspace":
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.reports.v2.interface import (
        LinePlot,
        MarkdownPanel,
        WeavePanelSummaryTable,
    )

    prefix = PREFIX if account.attached_run else ""

    def plot(panel: Panel) -> LinePlot:
        return LinePlot(
            title=panel.title,
            x=prefix + (STEP if panel.axis == "step" else HOURS),
            y=[prefixed(wandb_key(key), prefix) for key in panel.keys],
            plot_type="stacked-area" if panel.is_stacked else "line",
        )

    def notes(section: Section) -> list[MarkdownPanel]:
        """Return panels that say what is healthy, as a W&B chart has no place for words."""
        told = dict.fromkeys(
            f"- **{panel.title}**: {panel.healthy}" for panel in section.panels if panel.healthy
        )
        return (
            [MarkdownPanel(markdown="\n".join(["Healthy looks like", "", *told]))] if told else []
        )

    of_tables = [
        ws.Section(
            name=_TABLES,
            panels=[
                WeavePanelSummaryTable(table_name=prefixed(wandb_key(key), prefix))
                for key in tables
            ],
            is_open=True,
            layout_settings=ws.SectionLayoutSettings(columns=2, rows=1),
        )
    ]
    return ws.Workspace(
        entity=entity,
        project=account.project,
        name=VIEW_TITLE,
        auto_generate_panels=False,
        sections=[
            *(of_tables if tables else ()),
            *(
                ws.Section(
                    name=section.title,
                    panels=[*notes(section), *(plot(panel) for panel in section.panels)],
                    is_open=place == 0,
                    layout_settings=ws.SectionLayoutSettings(columns=3, rows=2),
                )
                for place, section in enumerate(sections)
            ),
        ],
    )


def _default_entity(account: Account) -> str:
    found = query(account, "Viewer", _VIEWER, {}, timeout_s=_TIMEOUT_S)
    entity = dig(found, "viewer", "entity")
    if not isinstance(entity, str) or not entity:
        raise TrackerRejected(
            "The API key has no default entity.", hint="Set WANDB_ENTITY to your team or user."
        )
    return entity


def _saved(account: Account, entity: str) -> _SavedView | None:
    variables: Mapping[str, object] = {
        "entity": entity,
        "project": account.project,
        "name": _VIEW_NAME,
    }
    found = query(account, "SavedView", _VIEW, variables, timeout_s=_TIMEOUT_S)
    try:
        edges = found["project"]["allViews"]["edges"]  # type: ignore[index]  # checked by `except`
        node = edges[0]["node"]
        spec = json.dumps(json.loads(node["spec"]), sort_keys=True)
    except (LookupError, TypeError):
        return None  # no such project or view yet
    except ValueError:
        spec = str(node["spec"])
    return _SavedView(str(node["id"]), hashlib.sha256(spec.encode()).hexdigest())
