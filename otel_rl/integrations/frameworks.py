"""Frameworks that log to W&B or TensorBoard, and have no adapter: what ``hook`` knows of them.

What their metrics mean is in ``otel_rl/semconv/dialects``, a table for each.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_rl.semconv.aliases import Dialect, dialect

__all__ = ["Framework", "present"]


@dataclass(frozen=True)
class Framework:
    """A framework, by the package that a process of it has imported.

    Attributes:
        package: Its name.
        names: Name of the table of its metrics; none if it has no such table.
        step_keys: Metrics that hold the step of what is logged with them; what is logged without
            any of them has no step then.
        by_time: Pattern of metrics that belong to their time: an evaluation takes longer than the
            row of its step waits, and samples of a GPU have no step.
        roles: Role of a process by a word in the name of its program; of others ``trainer``.
    """

    package: str = ""
    names: str = ""
    step_keys: tuple[str, ...] = ()
    by_time: str = "(?!)"
    roles: Mapping[str, str] = field(default_factory=dict)

    @property
    def dialect(self) -> Dialect:
        """The table of its metrics."""
        return dialect(self.names) if self.names else Dialect(())

    def has_step(self, metrics: Mapping[str, object]) -> bool:
        """Return whether metrics that are logged together belong to a step."""
        return not any(re.fullmatch(self.by_time, name) for name in metrics)

    def role(self) -> str | None:
        """Return the role of this process, if its program names one."""
        words = (word for word in sys.orig_argv[1:] if not word.startswith("-"))
        program = Path(next(words, "")).name  # sys.argv may be that of a launcher by now
        return next((role for word, role in self.roles.items() if word in program), None)


_FRAMEWORKS: Final = (
    Framework("nemo_rl", "nemo_rl", by_time="ray/.*"),
    Framework("openrlhf", "openrlhf", ("train/global_step", "eval/global_step"), by_time="eval/.*"),
    Framework(
        "prime_rl",
        "prime_rl",
        ("step",),
        by_time="inference/.*",
        roles={"evals": "evaluation", "orchestrator": "orchestrator"},
    ),
    Framework("roll", "roll"),
    Framework("skyrl", "skyrl"),
    Framework("skyrl_train", "skyrl"),
    Framework("slime", "slime", ("train/step", "rollout/step", "eval/step"), by_time="eval/.*"),
    Framework("tunix", "tunix", by_time="(.*/)?eval/.*"),
)

_OTHER: Final = Framework()


def present() -> Framework:
    """Return the framework that this process has imported, or one that is not known."""
    return next((one for one in _FRAMEWORKS if one.package in sys.modules), _OTHER)
