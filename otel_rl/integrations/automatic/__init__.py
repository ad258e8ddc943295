"""Switches adapters on automatically, in processes below ``otel-rl run``.

Frameworks start processes of their own, from scripts of their own. So each Python below ``otel-rl
run`` waits for the import of a framework's module (``start_up/sitecustomize.py``) and adds the
adapter to it. The program takes precedence: where it starts its worker, uses the W&B drop-in or
switches the adapter on, the automatic adapter records nothing. Nothing here raises.
"""

import os
from pathlib import Path
from typing import Final

from otel_rl.integrations.automatic.wandb_sweep import PARAMETERS, parameters
from otel_rl.worker.identity.names import names_an_experiment
from otel_rl.worker.identity.sweep_trial import is_within, sweep_environment

__all__ = ["DIRECTORY", "begin", "join_sweep", "wait"]

DIRECTORY: Final = Path(__file__).parents[1] / "start_up"
"""Must be on ``PYTHONPATH``, with ``OTEL_RL_ADAPTERS=auto`` in the environment."""


def begin() -> None:
    """Wait for frameworks, if the environment enables it. For ``opentelemetry-instrument``."""
    if os.environ.get("OTEL_RL_ADAPTERS") == "auto" and names_an_experiment(os.environ):
        join_sweep()
        wait()


def join_sweep() -> None:
    """Make a trial of this process and its children if an agent of W&B has started it."""
    run = os.environ.get("WANDB_RUN_ID")
    if run and os.environ.get("WANDB_SWEEP_ID") and not is_within(os.environ, run):
        if os.environ.get(PARAMETERS):
            from otel_rl.integrations.adapter import begin_trial  # loads the worker

            begin_trial(run, parameters(os.environ))
        else:
            os.environ.update(sweep_environment(os.environ, run))


def wait() -> None:
    """Add the adapters once their frameworks are imported. Imports none of them."""
    from otel_rl.integrations.automatic.frameworks import add_when_imported  # on first use

    add_when_imported()
