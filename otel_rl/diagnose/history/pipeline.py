"""Stages of a pipeline: workers that hold successive parts of a model.

Programs name stages by roles, as in ``trainer_stage2``, or each worker reports its stage by a
metric.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from statistics import median
from typing import Final

from otel_rl.diagnose.history.run_history import RunHistory

_WORDS: Final = r"(pp|stage|(pp|pipeline)(_?model)?(_?parallel)?[_./-]?(rank|stage))"
_ROLE: Final = re.compile(rf"((?P<of>.+?)[_.-])?{_WORDS}[_-]?(?P<number>\d+)")
_KEY: Final = re.compile(rf"^(?P<of>[^/]+)/(.+/)?{_WORDS}$")

Stages = Mapping[int, AbstractSet[str]]
"""Workers by the number of their stage."""


def stages_of(history: RunHistory) -> Mapping[str, Stages]:
    """Return the stages of each pipeline, by its name; a pipeline has at least two.

    The pipeline's name is a role, or what the roles of its stages have in common.
    """
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for place, tracks in history.spans.items():
        if (told := _ROLE.fullmatch(place.role)) is not None:
            found[told["of"] or "pipeline"][int(told["number"])] |= tracks.keys()
    for key, of in history.workers.items():
        if (told := _KEY.match(key)) is not None:
            for worker, track in of.items():
                if numbers := track.finite().values:
                    found[told["of"]][int(median(numbers))].add(worker)
    return {name: stages for name, stages in found.items() if len(stages) > 1}
