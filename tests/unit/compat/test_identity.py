import pytest

from otel_rl.compat.wandb._identity import Names, Place, place_of
from otel_rl.errors import ConfigError

RUN = {"OTEL_RL_EXPERIMENT": "exp", "OTEL_RL_TRIAL": "7"}


@pytest.mark.parametrize(
    ("names", "environ", "place"),
    [
        (Names("p", "n", "i", "trainer"), RUN, Place(None, None, "trainer")),
        (
            Names(),
            {"OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=e"},
            Place(None, None, "worker"),
        ),
        (Names("p", "n"), {**RUN, "OTEL_RL_ROLE": "env"}, Place(None, None, None)),
        (Names("p", "n"), {}, Place("p", "n", "worker")),
        (Names("p", "n", "i"), {}, Place("p", "i", "worker")),
        (Names(name="n"), {}, Place("uncategorized", "n", "worker")),
        (Names(name="n"), {"WANDB_PROJECT": "p"}, Place("p", "n", "worker")),
        (
            Names(),
            {"WANDB_PROJECT": "p", "WANDB_RUN_ID": "i", "WANDB_JOB_TYPE": "env"},
            Place("p", "i", "env"),
        ),
        (
            Names("p", "n"),
            {"OTEL_RESOURCE_ATTRIBUTES": "rl.worker.role=env"},
            Place("p", "n", None),
        ),
    ],
)
def test_a_process_is_placed(names: Names, environ: dict[str, str], place: Place) -> None:
    assert place_of(names, environ) == place


def test_processes_that_nothing_joins_are_an_error() -> None:
    with pytest.raises(ConfigError, match="one run"):
        place_of(Names("p"), {})
