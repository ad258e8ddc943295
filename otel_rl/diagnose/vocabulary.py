"""What a phase, a role or a tracker key is about, in the words of the registry and of the field.

Users have names of their own. So words are looked for, not names: ``rollout_worker/decode`` is
generation, and ``actor/entropy_loss_mean`` about entropy, wherever it stands.
"""

import re
from collections.abc import Iterator
from enum import StrEnum

from otel_rl.diagnose.history import History, PhaseKey, Track

__all__ = ["Subject", "Work", "tracks_about", "work_of"]


class Work(StrEnum):
    """What a phase is part of."""

    SYNC = "sync"
    REWARD = "reward"
    GENERATION = "generation"
    TRAINING = "training"
    OTHER = "other"


_WORK = (
    (
        Work.SYNC,
        r"(^|\.)sync$|weight|broadcast|checkpoint_engine|update_params|reload|policy_push|policy_pull",
    ),
    (Work.REWARD, r"reward|env(_|$|\.)|environment|scor(e|ing)|judge|verif|grad(er|ing$)|tool"),
    (
        Work.GENERATION,
        r"generat|rollout|decod|prefill|sampl|action_select|inferen|tokeniz|vllm|sglang|explor",
    ),
    (
        Work.TRAINING,
        r"train|forward|backward|optim|update|learn|log_?prob|reference|advantage|critic|batch|h2d",
    ),
)


def work_of(place: PhaseKey) -> Work:
    """What a phase is part of: by its own name, else by that of the role."""
    for text in (place.phase, place.role):
        for work, words in _WORK:
            if re.search(words, text.lower()):
                return work
    return Work.OTHER


class Subject(StrEnum):
    """What a tracker key is about, as a pattern of it."""

    REWARD_MEAN = (
        r"(^|/)((rollout|episode|critic|env)/)?(rewards?|scores?|return)(/|_)?(mean|avg)?$"
    )
    REWARD_STD = r"(rewards?|scores?|return)(/|_)std$"
    ENTROPY = r"entropy(_loss)?(/mean|_mean)?$"
    KL = r"(^|/|_)kl((/|_)(reference|ref|div(ergence)?|mean|loss|penalty))*$"
    RESPONSE_LENGTH = r"(response|completion)(/|_)(length|tokens|len)((/|_)mean)?$|episode/length$"
    STALENESS = r"staleness(/mean)?$|age/versions/mean$|off_?policy(ness)?(/|_)?(steps|mean)?$"
    POLICY_VERSION = r"policy/version$|weight_version$"
    PREEMPTIONS = r"preempt(ed|ions?)(/|_|$)|recomput"
    CACHE_MISSES = r"cache/miss/ratio$|cache_miss"
    EVICTIONS = r"evict(ed|ions?)?(/|_|$)|(^|/)sample/dropped(/|$)"
    INTAKE = r"(^|/)(writes|added|inserted|enqueued|puts)(/count)?$"
    GC_TIME = r"(^|/)gc(/|_)(time|duration|pause)"
    THROTTLING = r"throttl"
    PHASE_AGE = r"worker/phase/age/"
    IDLE_TIME = r"idle/time$|idle_time$|idle/ratio$"
    QUEUE_DEPTH = r"queue/(depth|size|length)$|queue_(depth|size|length)$|num_requests_waiting$"
    CLIENT_CALLS = r"(rpc|http)/client/(call/|request/)?duration"
    SERVER_CALLS = r"(rpc|http)/server/(call/|request/)?duration"
    NONFINITE = r"non_?finite|(^|/|_)nans?(/|_|$)|inf_count"


_STATISTIC = re.compile(r"/(max|min|p\d+|count|rate)$")


def tracks_about(history: History, subject: Subject) -> Iterator[tuple[str, str | None, Track]]:
    """(tracker key, worker or None, its series) of all that is about ``subject``.

    By worker where that is known, else as it stands in the rows.
    """
    pattern = re.compile(subject.value)
    for key, of in history.workers.items():
        if pattern.search(key):
            for worker, track in of.items():
                yield key, worker, track
    for key, track in history.rows.items():
        if key in history.workers or key.startswith("otel_rl/") or not pattern.search(key):
            continue
        value = _STATISTIC.sub("", key)
        if value == key or (value not in history.workers and value not in history.rows):
            yield key, None, track
