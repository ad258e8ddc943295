"""Starts the orchestrator and waits for the result of the run."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from otel_rl.demo.result import RESULT_FILE, DemoResult
from otel_rl.demo.rpc import KEY_VARIABLE
from otel_rl.demo.settings import DemoSettings

ORCHESTRATOR = "otel_rl.demo.processes.orchestrator"

# One thread per process: with a dozen processes on a few cores, BLAS threads only compete.
_ONE_THREAD = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

LOOK_EVERY_S = 0.5
TEARDOWN_S = 30.0  # the orchestrator ends its children within this, or is killed itself


def run(settings: DemoSettings, env: Mapping[str, str] | None = None) -> DemoResult:
    """Run the whole demo in processes of its own, with progress on stdout. Blocks until the end.

    Ctrl-C ends the run early; the result reports it. No process outlives this call.

    Args:
        settings: Of the run.
        env: Environment of all processes; None takes this one's. Its ``OTEL_*`` variables set the
            target of telemetry; without an endpoint the demo runs without it.
    """
    if settings.work_dir is None:
        work_dir = Path(tempfile.mkdtemp(prefix="otel-rl-demo-"))
    else:
        work_dir = settings.work_dir.absolute()
        work_dir.mkdir(parents=True, exist_ok=True)
    (work_dir / "settings.json").write_text(settings.model_dump_json(indent=2))
    (work_dir / RESULT_FILE).unlink(missing_ok=True)
    environment = _environment(os.environ if env is None else env)
    _configure_telemetry(environment, settings)
    log = work_dir / "orchestrator.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(  # noqa: S603  # our own module, no shell
            [sys.executable, "-m", ORCHESTRATOR, str(work_dir)],
            stdin=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
        )
    _wait(process)
    try:
        return DemoResult.model_validate_json((work_dir / RESULT_FILE).read_text())
    except FileNotFoundError:
        reason = f"the orchestrator ended with {process.returncode} [{log}]"
        return DemoResult(reason=reason, logs=work_dir / "logs")


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for all processes of one run, with a new secret."""
    return {
        "OTEL_RL_GC": "1",  # the generator has no phases, but GC pauses
        "OTEL_RL_HOST_INTERVAL": "1000",  # the run is short
        # Nothing in it writes to W&B.
        **{name: value for name, value in environment.items() if name != "WANDB_API_KEY"},
        **dict.fromkeys(_ONE_THREAD, "1"),
        "PYTHONUNBUFFERED": "1",
        KEY_VARIABLE: secrets.token_hex(16),
    }


def _configure_telemetry(environment: dict[str, str], settings: DemoSettings) -> None:
    """Fill in missing variables. Without an endpoint nothing is recorded."""
    named = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if "rl.experiment.name=" not in named:
        environment.setdefault("OTEL_RL_EXPERIMENT", settings.experiment)
    if "rl.trial.name=" not in named:
        environment.setdefault("OTEL_RL_TRIAL", settings.trial)
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    if not any(environment.get(endpoint) for endpoint in endpoints):
        environment["OTEL_SDK_DISABLED"] = "true"


def _wait(orchestrator: "subprocess.Popen[bytes]") -> None:
    try:
        # A signal delivered to another thread is handled when this one wakes up.
        while orchestrator.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                orchestrator.wait(LOOK_EVERY_S)
    except KeyboardInterrupt:
        # A terminal sends the signal to both, `kill` only to this process.
        orchestrator.send_signal(signal.SIGTERM)
        try:
            orchestrator.wait(TEARDOWN_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            # Its children detect the closed control connection, and end.
            orchestrator.kill()
            orchestrator.wait()
