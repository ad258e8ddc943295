"""Public interface for adapters, those of this package included: what they need of otel_rl.

An adapter starts a worker with the names that its framework knows, and records the framework's
metrics, by a table of rules under names that all frameworks share. Nothing here raises into a
training or waits, but ``start`` with wrong settings.
"""

from otel_rl.integrations.adapter.recorder import (
    Recorder,
    automatically,
    is_instrumented,
    logging_errors,
    meter_of,
    start,
)
from otel_rl.semconv.aliases import Dialect, Rule
from otel_rl.semconv.spec import Reduction
from otel_rl.worker.api.trials import begin_trial, end_trial, log_trial_config, trial
from otel_rl.worker.identity.names import WorkerNames
from otel_rl.worker.plugins.import_hook import when_imported
from otel_rl.worker.session import GUARD as guard  # noqa: N811  # one object, not a constant
from otel_rl.worker.step_context import current_step

__all__ = [
    "Dialect",
    "Recorder",
    "Reduction",
    "Rule",
    "WorkerNames",
    "automatically",
    "begin_trial",
    "current_step",
    "end_trial",
    "guard",
    "is_instrumented",
    "log_trial_config",
    "logging_errors",
    "meter_of",
    "start",
    "trial",
    "when_imported",
]
