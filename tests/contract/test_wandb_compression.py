"""Rows go to W&B compressed where the server takes that: the real SDK and the stand-in server."""

from pathlib import Path

import pytest
import wandb

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.records import ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.support.slow import slow_after
from tests.support.wandb_server import WandbServer

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("no_login"),
    pytest.mark.skipif(
        "x_file_stream_no_gzip" not in wandb.Settings.model_fields, reason="W&B is older than that"
    ),
]


@pytest.mark.parametrize(
    ("features", "encodings"), slow_after(1, [(["FILESTREAM_GZIP"], {"gzip"}), ([], {None})])
)
def test_rows_are_compressed_if_the_server_takes_that(
    features: list[str],
    encodings: set[str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = ExperimentKey("grpo")
    run = run_id(key.experiment, key.trial)
    with WandbServer(features) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with WriterProcess("wandb") as writer:
            writer.open(RunInfo(key, run, tmp_path, ()))
            writer.write([Row(0, 3, 1_700_000_000_000_000_000, {"trainer/loss": 0.5})])
            writer.close(exit_code=0)
        assert [row["trainer/loss"] for row in server.history(run)] == [0.5]
        requests = zip(server.paths(), server.headers(), strict=True)
        streams = [sent for path, sent in requests if path.endswith("file_stream")]
    assert {sent.get("content-encoding") for sent in streams} == encodings
