"""``otel-rl dashboard`` saves a W&B workspace, by W&B's own library against the stand-in server."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.journal.state import encode_keys
from otel_rl.records import ExperimentKey, KeySpec, Row
from otel_rl.semconv import names
from tests.process.commands import Finished, clean_environment, otel_rl
from tests.support.wandb_server import WandbServer

pytestmark = pytest.mark.process

REWARD = KeySpec("trainer/reward/mean", names.RL_REWARD_MEAN, "trainer", unit="1", axis="step")
PHASES = [
    KeySpec(
        f"phase/trainer/{phase}",
        names.RL_PHASE_DURATION,
        "trainer",
        ((names.RL_PHASE, phase),),
        unit="s",
        axis="step",
    )
    for phase in ("train", "unaccounted")
]
ALIVE = KeySpec("service/trainer/alive", names.RL_SERVICE_ALIVE, "trainer", unit="{worker}")
KEYS = [REWARD, *PHASES, ALIVE]


@dataclass
class Place:
    """A journal, and a W&B server."""

    directory: Path
    server: WandbServer

    def save(self, *arguments: str) -> Finished:
        env = clean_environment(self.directory, **self.server.environment())
        return otel_rl(
            "dashboard", "--data", self.directory, *arguments, cwd=self.directory, env=env
        )

    def spec(self) -> dict[str, object]:
        (view,) = self.server.views.values()
        found = json.loads(view["spec"])
        assert isinstance(found, dict)
        return found

    def panels(self) -> dict[str, list[dict[str, object]]]:
        bank = self.spec()["section"]["panelBankConfig"]  # type: ignore[index]  # JSON of W&B's
        return {
            section["name"]: [
                panel["config"]
                for panel in section["panels"]
                if panel["viewType"] != "Markdown Panel"
            ]
            for section in bank["sections"]
        }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    journal = SqliteJournal(tmp_path)
    row = Row(0, 0, 1, {spec.key: 1.0 for spec in KEYS})
    commit = Commit(ExperimentKey("grpo"), [row], 1, b"", added={Log.KEYS: (0, encode_keys(KEYS))})
    RunStore(journal).commit([commit])
    journal.close()
    with WandbServer() as server:
        yield Place(tmp_path, server)


@pytest.mark.slow
def test_the_view_is_saved_once_replaced_by_us_and_never_if_a_person_changed_it(
    place: Place,
) -> None:
    done = place.save()
    assert done.status == 0, done.err
    assert "Saved 3 panels in 3 sections: " in done.out
    panels = place.panels()
    assert list(panels) == ["Learning", "Step time", "Workers"]
    ((reward,), (phases,), (alive,)) = panels.values()
    assert (reward["chartTitle"], reward["xAxis"], reward["metrics"]) == (
        "Reward mean, trainer",
        "step",
        [REWARD.key],
    )
    assert phases["plotType"] == "stacked-area"
    assert phases["metrics"] == [spec.key for spec in PHASES]
    assert (alive["chartTitle"], alive["xAxis"]) == ("Workers alive (worker)", "hours")

    assert place.save("--names", "otel_rl").status == 0  # as it was written: it is replaced
    (view,) = place.server.views.values()
    assert view["displayName"] == "otel_rl"
    view["spec"] = view["spec"].replace("Reward mean", "My reward")
    refused = place.save()
    assert refused.status == 2
    assert "was edited since otel_rl wrote it" in refused.err
    assert "My reward" in view["spec"]
    assert place.save("--force").status == 0
    assert place.panels() == panels
