"""Meaning of phases, roles and tracker keys: the one place that classifies names.

Names of the registry come first. Users have names of their own, so words are searched for in them:
``rollout_worker/decode`` is generation, and ``actor/entropy_loss_mean`` is about entropy.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from statistics import median
from typing import Final

from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.timings import is_whole_step, timed_part
from otel_rl.diagnose.stats.pooled import usual_time
from otel_rl.diagnose.thresholds import (
    CLEARLY,
    GOOD_PART,
    SIDE,
)
from otel_rl.semconv.names import (
    PHASES,
    RlGoodputPartValues,
    RlPhaseClassValues,
    RlPhaseValues,
    RlStageValues,
    RlWorkerRoleValues,
)
from otel_rl.semconv.spec import TOOL_SPAN


class Work(StrEnum):
    """Kind of work of a phase."""

    SYNC = "sync"
    REWARD = "reward"
    DATA = "data"
    ENVIRONMENT = "environment"
    GENERATION = "generation"
    TRAINING = "training"
    OTHER = "other"


_OF_PHASE: Final[Mapping[str, str]] = {
    RlPhaseValues.ACTION_SELECT: RlStageValues.GENERATOR,
    RlPhaseValues.BATCH_CREATE: RlStageValues.TRAINER,
    # The producer is unknown, or the critical path would continue in its span.
    RlPhaseValues.COLLECTOR_WAIT: RlStageValues.GENERATOR,
    RlPhaseValues.GENERATE: RlStageValues.GENERATOR,
    RlPhaseValues.H2D_COPY: RlStageValues.TRAINER,
    RlPhaseValues.IDLE: RlStageValues.IDLE,
    RlPhaseValues.PARAM_SYNC: RlStageValues.TRAINER,
    RlPhaseValues.RANK_BARRIER: RlStageValues.TRAINER,
    RlPhaseValues.REPLAY: RlStageValues.BUFFER,
    RlPhaseValues.REPLAY_BATCH_WAIT: RlStageValues.BUFFER,
    RlPhaseValues.REWARD: RlStageValues.REWARD,
    RlPhaseValues.SYNC_COORDINATION: RlStageValues.SYNC,
    RlPhaseValues.TRAIN: RlStageValues.TRAINER,
    RlPhaseValues.WEIGHT_PULL: RlStageValues.SYNC,
    RlPhaseValues.WEIGHT_PUSH: RlStageValues.SYNC,
    RlPhaseValues.WEIGHT_SYNC: RlStageValues.SYNC,
}

_OF_ROLE: Final[Mapping[str, str]] = {
    RlWorkerRoleValues.CRITIC: RlStageValues.TRAINER,
    RlWorkerRoleValues.ENV: RlStageValues.GENERATOR,
    RlWorkerRoleValues.GENERATOR: RlStageValues.GENERATOR,
    RlWorkerRoleValues.ORCHESTRATOR: RlStageValues.SYNC,
    RlWorkerRoleValues.REFERENCE: RlStageValues.TRAINER,
    RlWorkerRoleValues.REPLAY_BUFFER: RlStageValues.BUFFER,
    RlWorkerRoleValues.REWARD: RlStageValues.REWARD,
    RlWorkerRoleValues.TRAINER: RlStageValues.TRAINER,
}

_NAMES: Final = 1 << 10  # whose meaning is kept: a live run is looked at again and again

_WORK = (
    (
        Work.SYNC,
        r"(^|\.)sync$|(^|[._])sync_(params?|policy|model|actor|rollouts?)$|weight|broadcast|checkpoint_engine|update_params|reload|policy_push|policy_pull",
    ),
    (
        Work.DATA,
        r"data_?(set|load|read|fetch|prep)|(load|fetch|read)(ing)?_(data|prompts?)|load_batch|next_(\w+_)?batch|^load$",
    ),
    (Work.REWARD, r"reward|scor(e|ing)|judge|verif|grad(er|ing$)"),
    (Work.ENVIRONMENT, r"env(_|$|\.)|environment|tool|sandbox"),
    (
        Work.GENERATION,
        r"generat|(^|_)gen(_|$)|rollout|decod|prefill|sampl|action_select|inferen|tokeniz|vllm|sglang|explor|experience|(?<!gc_)(^|_)collect(ing|ion)?(_|$)",
    ),
    (
        Work.TRAINING,
        r"train|forward|backward|optim|update|learn|log_?prob|reference|advantage|critic|batch|h2d",
    ),
)

_WORK_OF_STAGE: Final[Mapping[str, Work]] = {
    RlStageValues.GENERATOR: Work.GENERATION,
    RlStageValues.REWARD: Work.REWARD,
    RlStageValues.SYNC: Work.SYNC,
    RlStageValues.TRAINER: Work.TRAINING,
}

_WAITS: Final = frozenset(
    {
        RlPhaseValues.COLLECTOR_WAIT,
        RlPhaseValues.RANK_BARRIER,
        RlPhaseValues.SYNC_COORDINATION,  # a generator without requests is in it: no weights move
    }
)
"""Phases whose stage is the one waited for, and not the stage of the waiting work."""


def stage_of(role: str, phase: str, stepping_role: str) -> str:
    """Return the stage of the pipeline that a phase belongs to, a value of ``rl.stage``.

    A phase that occurs in a single stage decides: a trainer that generates, because the same
    devices do both, counts as a generator. A user's name for a wait is the stage that it waits for,
    or idle. Otherwise the role decides. A role outside the registry is a trainer if its steps are
    the run's, and a generator if not.

    Args:
        stepping_role: The role whose steps are the run's.
    """
    found = _OF_PHASE.get(phase) or _stage_of_wait(PhaseKey(role, phase)) or _OF_ROLE.get(role)
    if found is not None:
        return str(found)
    return str(RlStageValues.TRAINER if role == stepping_role else RlStageValues.GENERATOR)


def _stage_of_wait(place: PhaseKey) -> RlStageValues | None:
    """Return the stage that a user's phase waits for; None if its name is not that of a wait.

    At a barrier ranks wait for each other, so their role decides.
    """
    is_wait = _part_by_words(place.phase) is RlGoodputPartValues.IDLE
    if place.phase in PHASES or not is_wait or "barrier" in place.phase.lower():
        return None
    return RlStageValues.GENERATOR if waits_for_samples(place) else RlStageValues.IDLE


def work_of(place: PhaseKey) -> Work:
    """Return the kind of a phase's work: by its registered name, else by words in its names."""
    if place.phase.startswith(TOOL_SPAN):
        return Work.ENVIRONMENT  # whatever its name is about
    if place.phase not in _WAITS:
        work = _WORK_OF_STAGE.get(_OF_PHASE.get(place.phase, ""))
        if work is not None:
            return work
    found = _work_by_words(place.phase)
    if found is Work.ENVIRONMENT and _work_by_words(place.role) is Work.REWARD:
        return Work.REWARD  # answers are scored by running them
    if found is None and not _is_overhead(place.phase):  # a trainer's checkpoint is no training
        found = _work_by_words(place.role)
    return found or Work.OTHER


@lru_cache(maxsize=_NAMES)
def _work_by_words(text: str) -> Work | None:
    return next((work for work, words in _WORK if re.search(words, text.lower())), None)


def _is_overhead(phase: str) -> bool:
    spec = PHASES.get(phase)
    if spec is not None:
        return _PART_OF_CLASS.get(spec.phase_class) is RlGoodputPartValues.OVERHEAD
    return _part_by_words(phase) is RlGoodputPartValues.OVERHEAD


_PART_OF_CLASS: Final[Mapping[str, RlGoodputPartValues]] = {
    RlPhaseClassValues.COMPUTE: RlGoodputPartValues.PRODUCTIVE,
    RlPhaseClassValues.WAIT: RlGoodputPartValues.IDLE,
    RlPhaseClassValues.SYNC: RlGoodputPartValues.OVERHEAD,
    RlPhaseClassValues.TRANSFER: RlGoodputPartValues.OVERHEAD,
    RlPhaseClassValues.IO: RlGoodputPartValues.OVERHEAD,
}

_PART_OF_PHASE: Final[Mapping[str, RlGoodputPartValues]] = {
    # A handshake without data is waiting for the other side.
    RlPhaseValues.SYNC_COORDINATION: RlGoodputPartValues.IDLE,
    RlPhaseValues.UNACCOUNTED: RlGoodputPartValues.IDLE,
}

_PART_OF_WORD: Final = (
    (RlGoodputPartValues.IDLE, r"(^|_)(a?wait|idle|sleep|queue|barrier|block(ed)?)"),
    (
        RlGoodputPartValues.OVERHEAD,
        r"(^|_)(eval|valid|test|checkpoint|ckpt|save|load|compil|warm_?up|init|set_?up|log(s|ging)?(_|$))",
    ),
)


def goodput_part_of(place: PhaseKey, phase_class: str = "") -> RlGoodputPartValues | None:
    """Return the worth of time in a phase: productive, overhead or idle (ADR 23).

    The registry decides, else the class that the phase's sender gave, else words. A name without
    any such word counts as work.

    Returns:
        None for a part of another phase, whose time it repeats.
    """
    spec = PHASES.get(place.phase)
    if spec is not None and spec.part_of is not None:
        return None
    found = _PART_OF_PHASE.get(place.phase)
    found = found or _PART_OF_CLASS.get(phase_class if spec is None else spec.phase_class)
    if found is not None:
        return found
    if (by_words := _part_by_words(place.phase)) is not None:
        return by_words
    if work_of(PhaseKey("", place.phase)) is Work.SYNC:
        return RlGoodputPartValues.OVERHEAD
    return RlGoodputPartValues.PRODUCTIVE


@lru_cache(maxsize=_NAMES)
def _part_by_words(phase: str) -> RlGoodputPartValues | None:
    found = (part for part, words in _PART_OF_WORD if re.search(words, phase.lower()))
    return next(found, None)


def only_waits(history: RunHistory, place: PhaseKey) -> bool:
    """Return whether a phase is not work: by its class, else by words, as in ``allreduce_wait``.

    The time that a span around the parts of a step has beside them is not work either, nor is a
    collective, in which all workers but the last wait.
    """
    is_wait = place in history.waits or _part_by_words(place.phase) is RlGoodputPartValues.IDLE
    is_whole = is_whole_step(place.phase)
    return is_wait or is_collective(place) or (is_whole and _is_rest(history, place))


def is_collective(place: PhaseKey) -> bool:
    """Return whether all workers of a role end a phase together."""
    return _COLLECTIVE.search(place.phase.lower()) is not None


_COLLECTIVE: Final = re.compile(r"all[_-]?(reduce|gather|to[_-]?all)|reduce[_-]?scatter")


def _is_rest(history: RunHistory, place: PhaseKey) -> bool:
    """Return whether the span is around the whole step, whose parts are its only work."""
    own = history.spans.get(place, {})
    has_others = any(other.role != place.role for other in history.spans)
    if has_others and len(own) == 1 and _work_by_words(place.role) is None:
        return True  # a controller's step has the parts of others
    own_s = max([usual_time(history, place), *map(_newest, own.values())])
    parts = [other for other in history.spans if other.role == place.role and other != place]
    parts_s = sum(usual_time(history, other) for other in parts)
    if own_s < GOOD_PART * parts_s:
        return True
    return own_s < 2 * parts_s and _is_beyond_a_step(history, own_s + parts_s)


def _is_beyond_a_step(history: RunHistory, seconds: float) -> bool:
    """Return whether parts that take so long together must overlap, as a step is shorter."""
    rhythm = Rhythm.of(history)
    return rhythm is not None and seconds > CLEARLY * rhythm.usual_s


def _newest(track: Track) -> float:
    """Return the level at which a series ends, because work without a phase may have been added."""
    return median(track.values[-max(SIDE, len(track.values) // 4) :]) if track.values else 0.0


def waits_for_samples(place: PhaseKey) -> bool:
    """Return whether a wait of this phase is a trainer's wait for samples."""
    learner = not any(word in place.role for word in _PRODUCERS)
    names_source = any(word in place.phase for word in _SAMPLE_SOURCES)
    return learner and (names_source or bool(_OWN_WAIT.match(place.phase)))


_PRODUCERS: Final = ("generator", "reward", "env", "rollout")
_OWN_WAIT: Final = re.compile(r"(train(er|ing)?_)?(wait|idle)$")  # tells who waits, not for whom
_SAMPLE_SOURCES: Final = (
    "collector",
    "replay",
    "batch",
    "sample",
    "data",
    "rollout",
    "queue",
    "fetch",
)


class Subject(StrEnum):
    """Subject of a tracker key, as a pattern that its keys match."""

    REWARD_MEAN = (
        r"(^|/)((rollout|episode|critic|env)/)?((mean|avg|raw|train|ep|episode|episodic)_)*"
        r"(rew|rewards?|scores?|return)(/|_)?(mean|avg|iter)?$"
    )
    REWARD_STD = r"(rewards?|scores?|return)(/|_)std$"
    ENTROPY = r"entropy(_loss)?(/mean|_mean)?$"
    KL = r"(^|/|_)kl((/|_)(reference|ref|div(ergence)?|mean|loss|penalty))*$"
    RESPONSE_LENGTH = r"(response|completion)(/|_)(length|tokens|len)((/|_)mean)?$|episode/length$"
    EPISODE_LENGTH = r"(^|/|_)(ep|episode|episodic)_len(gth)?(/mean|_mean)?$"
    STALENESS = (
        r"staleness(/mean)?$|(^|/|_)age(/|_)(in_)?versions(/mean)?$"
        r"|off_?policy(ness)?(/|_)?(steps|mean)?$"
    )
    POLICY_VERSION = r"(policy|weights?|model)(/|_)version$"
    PREEMPTIONS = r"preempt(ed|ions?)(/|_|$)|recomput"
    CACHE_MISSES = r"cache/miss/ratio$|cache_miss"
    EVICTIONS = r"evict(ed|ions?)?(/|_|$)|(^|/)sample/dropped(/|$)"
    INTAKE = r"(^|/)(writes|added|inserted|enqueued|puts)(/count)?$"
    GC_TIME = r"(^|/)gc(/|_)(time|duration|pause)"
    THROTTLING = r"throttl(?!ed/power_cap)"  # a GPU that works hard is at its power limit
    POWER_LIMIT = r"power(/|_)limit$"
    PHASE_AGE = r"worker/phase/age/"
    IDLE_TIME = r"idle/time$|idle_time$|idle/ratio$"
    QUEUE_DEPTH = r"queue/(depth|size|length)$|queue_(depth|size|length)$|num_requests_waiting$"
    CLIENT_CALLS = r"(rpc|http)/client/(call/|request/)?duration"
    SERVER_CALLS = r"(rpc|http)/server/(call/|request/)?duration"
    NONFINITE = r"non_?finite|(^|/|_)nans?(/|_|$)|inf_count"
    LEARNING_RATE = r"learning_rate$|(^|/)(\w+_)?lr(-\w+)?$"
    # Between inference and training, of the same tokens.
    LOGPROB_GAP = (
        r"(sampl|rollout|infer|vllm|sglang|mismatch|behav)(.*[/_])?"
        r"log_?p(rob)?s?_(abs_)?diff(erence)?((/|_)mean)?$"
    )
    PROBABILITY_GAP = r"rollout_probs?_diff((/|_)mean)?$"
    MISMATCH_KL = (
        r"kl/rollout$|rollout_corr/(k3_)?kl$|train_rollout_(k3_)?kl$|gen_kl_error$"
        r"|(^|/|_)mismatch_(k3_)?kl(/all)?((/|_)mean)?$"
    )
    POISONED = r"(^|/)sample/poisoned$"
    DEAD_GROUPS = (
        r"(^|/)group/no_signal$|frac_reward_zero_std$"
        r"|(^|[/_])(zero|no)_(advantage|variance|std|signal)_(groups?|frac(tion)?|ratio)$"
    )
    # As a share of samples or calls.
    FAILED_SHARE = (
        r"tools?/failure_frequency$|(^|[/_])aborted_ratio$|(^|/)has_error(/mean)?$"
        r"|(^|[/_])(errors?|failures?|failed)_(rate|ratio|share|frac(tion)?)$"
    )
    TRUNCATED = (
        r"(^|/)(sample/|is_)?truncated(/mean)?$|completions?/clipped_ratio$"
        r"|response(_length)?/clip_ratio$|truncat(ed|ion)(/|_)(ratio|rate|share|frac(tion)?)$"
    )
    RUNNING = r"requests/running$|requests_running$|running_req(uest)?s$"
    SLOTS = r"(^|[/_])(slots|max_num_seqs|max_running_requests|max_concurrent_requests)$"
    MFU = r"(^|[/_])mfu(/(mean|actor))?$"
    REPETITION = r"repet(ition|itive)|repeat(ed|s)?(_|/|$)|duplicated?_n_?gram"


# Times and counts, whatever they are the time of.
_NO_VALUES: Final = ("otel_rl/", "critical_path/", "phase/", "goodput/", "service/")
_NO_VALUE: Final = re.compile(r"/(worker/|(phase/)?age(/|$)|duration|latency)")


def rows_about(history: RunHistory, subject: Subject) -> Iterator[tuple[str, Track]]:
    """Yield (tracker key, series) about a subject, reduced over workers, one value a step.

    A key with the time of a reward is not about rewards.
    """
    for key in _keys_about(subject, tuple(history.rows)):
        if not _is_time_or_count(key):
            yield key, history.rows[key].finite()


def _is_time_or_count(key: str) -> bool:
    return bool(key.startswith(_NO_VALUES) or _NO_VALUE.search(key) or timed_part(key))


_STATISTIC = re.compile(r"/((rank_)?(max|min|std)|p\d+|count|rate|per_step)$")


def tracks_about(history: RunHistory, subject: Subject) -> Iterator[tuple[str, str | None, Track]]:
    """Yield (tracker key, worker or None, its series) of all keys about ``subject``.

    Series are of workers where those are known, else of the rows.
    """
    for key in _keys_about(subject, tuple(history.workers)):
        for worker, track in history.workers[key].items():
            yield key, worker, track
    for key in _keys_about(subject, tuple(history.rows)):
        if key in history.workers or key.startswith("otel_rl/"):
            continue
        value = _STATISTIC.sub("", key)
        if value == key or (value not in history.workers and value not in history.rows):
            yield key, None, history.rows[key]


@lru_cache(maxsize=1 << 9)
def _keys_about(subject: Subject, keys: tuple[str, ...]) -> Sequence[str]:
    """Return the keys about a subject, cached, as a live run is looked at again and again."""
    return [*filter(re.compile(subject.value).search, keys)]


def with_gaps(history: RunHistory, counts: Track) -> Track:
    """Return a counter's increase in each step, 0 in those without a report of it.

    Counters whose increase is sent are only reported when they count an event.
    """
    by_step = dict(counts.pairs())
    begun_s = history.begun_s
    steps = sorted(begun_s)
    if steps and steps[-1] == history.last and history.last not in by_step:
        steps.pop()  # in progress: what it has to count may come
    filled = Track.of(
        steps, map(begun_s.__getitem__, steps), [by_step.get(step, 0.0) for step in steps]
    )
    for step in [step for step in by_step if step not in begun_s]:
        filled.add(step, history.ends_s, by_step[step])
    return filled


def summed_by_step(counts: Track) -> Track:
    """Return a counter's increase in each step; one snapshot may have all of it, or nothing."""
    if len(set(counts.steps)) == len(counts.steps):
        return counts
    summed = Track()
    for step, at_s, value in zip(counts.steps, counts.times_s, counts.values, strict=True):
        if summed.steps and summed.steps[-1] == step:
            summed.values[-1] += value
        else:
            summed.add(step, at_s, value)
    return summed
