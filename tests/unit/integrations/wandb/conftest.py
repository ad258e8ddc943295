import os
from collections.abc import Iterator

import pytest

import otel_rl
import otel_rl.integrations.wandb as wandb
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Sink, serve

_FOREIGN = ("OTEL_", "SLURM_", "OMPI_", "WANDB_", "RANK", "WORLD_SIZE")


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """A receiving end that the environment names, as it does under ``otel-rl run``."""
    for variable in [name for name in os.environ if name.startswith(_FOREIGN)]:
        if not variable.startswith("OTEL_RL_TEST_"):
            monkeypatch.delenv(variable)
    with serve(Sink()) as serving:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", serving.url)
        monkeypatch.setenv("OTEL_RL_EXPERIMENT", "exp")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60000")
        monkeypatch.setenv("OTEL_RL_PROVENANCE", "off")
        monkeypatch.setenv("OTEL_RL_CONSOLE", "off")
        GUARD.forget()
        monkeypatch.setattr(GUARD, "_next_log_s", {})  # what is said here is news elsewhere
        yield serving
        wandb.finish()
        otel_rl.finish(timeout_s=60)
        GUARD.forget()
