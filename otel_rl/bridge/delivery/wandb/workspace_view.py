"""Saves a dashboard as a workspace view of a W&B project.

The view has a name of its own, so that no other view is touched, and is written again with each
call. The server keeps no word of who changed it: a digest of the view as it was after the last call
is kept in a file, and a view that differs is a person's from then on.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.wandb.account import Account, writer_environment
from otel_rl.bridge.delivery.wandb.rows import HOURS, STEP, wandb_key
from otel_rl.bridge.delivery.wandb.server import query
from otel_rl.dashboard.arrange import Panel, Section
from otel_rl.errors import TrackerRejected

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

__all__ = ["VIEW_TITLE", "save_view"]

VIEW_TITLE: Final = "otel_rl"

_VIEW_NAME: Final = "nw-otelrl-v"  # as W&B names views; its middle is in the view's URL
_TIMEOUT_S: Final = 30.0

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
    """View at the server.

    Attributes:
        id: W&B's.
        digest: Of its content.
    """

    id: str
    digest: str


def save_view(
    account: Account, sections: Sequence[Section], directory: Path, *, is_forced: bool = False
) -> str:
    """Create or replace the view, and return its URL.

    Args:
        account: Online.
        sections: Of the dashboard.
        directory: Keeps what was written last.
        is_forced: Replace the view also if a person has changed it.

    Raises:
        TrackerRejected: A person has changed the view, or the server refuses.
        TrackerUnavailable: The server cannot be reached.
    """
    # The library reads these, and nothing else.
    os.environ.update(writer_environment(os.environ))
    os.environ |= {"WANDB_BASE_URL": account.base_url, "WANDB_API_KEY": account.api_key}
    entity = account.entity or _default_entity(account)
    note = directory / "dashboards" / f"{entity}.{account.project}"
    found = _saved(account, entity)
    if found is not None and not is_forced and found.digest != _read(note):
        raise TrackerRejected(
            f"The view {VIEW_TITLE!r} of {entity}/{account.project} was edited since otel_rl "
            "wrote it, and was not overwritten.",
            hint="Save your changes as another view, and replace this one with --force.",
        )
    workspace = _workspace(account, entity, sections)
    workspace._internal_name = _VIEW_NAME  # noqa: SLF001  # see pyproject.toml
    workspace._internal_id = found.id if found is not None else ""  # noqa: SLF001
    workspace.save()  # type: ignore[no-untyped-call]  # no hints
    written = _saved(account, entity)
    if written is not None:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(written.digest)
    return str(workspace.url)


def _workspace(account: Account, entity: str, sections: Sequence[Section]) -> "Workspace":
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.reports.v2.interface import LinePlot

    prefix = "otel_rl/" if account.attached_run else ""

    def plot(panel: Panel) -> LinePlot:
        return LinePlot(
            title=panel.title,
            x=prefix + (STEP if panel.axis == "step" else HOURS),
            y=[_own(wandb_key(key), prefix) for key in panel.keys],
            plot_type="stacked-area" if panel.is_stacked else "line",
        )

    return ws.Workspace(
        entity=entity,
        project=account.project,
        name=VIEW_TITLE,
        auto_generate_panels=False,
        sections=[
            ws.Section(
                name=section.title,
                panels=[plot(panel) for panel in section.panels],
                is_open=place == 0,
                layout_settings=ws.SectionLayoutSettings(columns=3, rows=2),
            )
            for place, section in enumerate(sections)
        ],
    )


def _own(key: str, prefix: str) -> str:
    return key if key.startswith(prefix) else prefix + key


def _default_entity(account: Account) -> str:
    found = query(account, "Viewer", _VIEWER, {}, timeout_s=_TIMEOUT_S)
    viewer = found.get("viewer") if isinstance(found, dict) else None
    entity = viewer.get("entity") if isinstance(viewer, dict) else None
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


def _read(note: Path) -> str:
    try:
        return note.read_text().strip()
    except OSError:
        return ""
