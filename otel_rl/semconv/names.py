"""Names of the registry that code uses; METRICS and PHASES describe every one.

Generated from ``registry/*.yaml`` by ``python -m tools.semconv.generate``. Do not edit.
"""

from enum import StrEnum
from typing import Final

from otel_rl.semconv.spec import METRICS as METRICS
from otel_rl.semconv.spec import PHASES as PHASES

ERROR_TYPE: Final = "error.type"
EXCEPTION_MESSAGE: Final = "exception.message"
GEN_AI_SERVER_REQUEST_DURATION: Final = "gen_ai.server.request.duration"
GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"  # noqa: S105  # a token of text
GEN_AI_SERVER_TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"  # noqa: S105  # a token of text
HW_ENERGY: Final = "hw.energy"
HW_ERRORS: Final = "hw.errors"
HW_GPU_IO: Final = "hw.gpu.io"
HW_GPU_MEMORY_LIMIT: Final = "hw.gpu.memory.limit"
HW_GPU_MEMORY_USAGE: Final = "hw.gpu.memory.usage"
HW_GPU_MEMORY_UTILIZATION: Final = "hw.gpu.memory.utilization"
HW_GPU_UTILIZATION: Final = "hw.gpu.utilization"
HW_POWER: Final = "hw.power"
HW_TEMPERATURE: Final = "hw.temperature"
LOG_IOSTREAM: Final = "log.iostream"
LOG_RECORD_UID: Final = "log.record.uid"
OS_DESCRIPTION: Final = "os.description"
OTEL_RL_FRAMEWORK_METRIC: Final = "otel_rl.framework.metric"
OTEL_RL_FRAMEWORK_SCALE: Final = "otel_rl.framework.scale"
OTEL_RL_STEP_COUNT: Final = "otel_rl.step.count"
OTEL_RL_STEP_DURATION: Final = "otel_rl.step.duration"
OTEL_RL_STEP_SHARE: Final = "otel_rl.step.share"
OTEL_RL_TEAM: Final = "otel_rl.team"
OTEL_RL_WORKER_HEARTBEAT: Final = "otel_rl.worker.heartbeat"
OTEL_RL_WORKER_MEASUREMENTS_DROPPED: Final = "otel_rl.worker.measurements.dropped"
OTEL_RL_WORKER_SPANS_DROPPED: Final = "otel_rl.worker.spans.dropped"
PROCESS_COMMAND_ARGS: Final = "process.command_args"
PROCESS_CPU_UTILIZATION: Final = "process.cpu.utilization"
PROCESS_EXECUTABLE_PATH: Final = "process.executable.path"
PROCESS_MEMORY_USAGE: Final = "process.memory.usage"
PROCESS_RUNTIME_VERSION: Final = "process.runtime.version"
RL_CRITICAL_PATH_DURATION: Final = "rl.critical_path.duration"
RL_ENVIRONMENT_NAME: Final = "rl.environment.name"
RL_ENV_STEP_DURATION: Final = "rl.env.step.duration"
RL_EPISODE_LENGTH: Final = "rl.episode.length"
RL_EXPERIMENT_CONFIG: Final = "rl.experiment.config"
RL_EXPERIMENT_CONFIG_DEFAULTS: Final = "rl.experiment.config_defaults"
RL_EXPERIMENT_DISPLAY_NAME: Final = "rl.experiment.display_name"
RL_EXPERIMENT_END: Final = "rl.experiment.end"
RL_EXPERIMENT_ENTITY: Final = "rl.experiment.entity"
RL_EXPERIMENT_GROUP: Final = "rl.experiment.group"
RL_EXPERIMENT_JOB_TYPE: Final = "rl.experiment.job_type"
RL_EXPERIMENT_MODE: Final = "rl.experiment.mode"
RL_EXPERIMENT_NAME: Final = "rl.experiment.name"
RL_EXPERIMENT_NOTES: Final = "rl.experiment.notes"
RL_EXPERIMENT_PROJECT: Final = "rl.experiment.project"
RL_EXPERIMENT_START: Final = "rl.experiment.start"
RL_EXPERIMENT_STATUS: Final = "rl.experiment.status"
RL_EXPERIMENT_TAGS: Final = "rl.experiment.tags"
RL_GENERATOR_KV_CACHE_HITS: Final = "rl.generator.kv_cache.hits"
RL_GENERATOR_KV_CACHE_LIMIT: Final = "rl.generator.kv_cache.limit"
RL_GENERATOR_KV_CACHE_MISS_RATIO: Final = "rl.generator.kv_cache.miss.ratio"
RL_GENERATOR_KV_CACHE_QUERIES: Final = "rl.generator.kv_cache.queries"
RL_GENERATOR_KV_CACHE_USAGE: Final = "rl.generator.kv_cache.usage"
RL_GENERATOR_KV_CACHE_UTILIZATION: Final = "rl.generator.kv_cache.utilization"
RL_GENERATOR_PREEMPTIONS: Final = "rl.generator.preemptions"
RL_GENERATOR_PROMPT_TOKENS: Final = "rl.generator.prompt.tokens"
RL_GENERATOR_QUEUE_DEPTH: Final = "rl.generator.queue.depth"
RL_GENERATOR_QUEUE_DURATION: Final = "rl.generator.queue.duration"
RL_GENERATOR_REQUESTS: Final = "rl.generator.requests"
RL_GENERATOR_REQUESTS_RUNNING: Final = "rl.generator.requests.running"
RL_GENERATOR_RESPONSE_TOKENS: Final = "rl.generator.response.tokens"
RL_GENERATOR_SAMPLING_MAX_TOKENS: Final = "rl.generator.sampling.max_tokens"
RL_GENERATOR_SAMPLING_TEMPERATURE: Final = "rl.generator.sampling.temperature"
RL_GENERATOR_SAMPLING_TOP_P: Final = "rl.generator.sampling.top_p"
RL_GENERATOR_TOKENIZE_DURATION: Final = "rl.generator.tokenize.duration"
RL_GENERATOR_TOKENS: Final = "rl.generator.tokens"
RL_GOODPUT_PART: Final = "rl.goodput.part"
RL_GOODPUT_RATIO: Final = "rl.goodput.ratio"
RL_GOODPUT_TIME: Final = "rl.goodput.time"
RL_GPU_CLOCK_DOMAIN: Final = "rl.gpu.clock.domain"
RL_GPU_CLOCK_FREQUENCY: Final = "rl.gpu.clock.frequency"
RL_GPU_COUNT: Final = "rl.gpu.count"
RL_GPU_LINK: Final = "rl.gpu.link"
RL_GPU_OWNER: Final = "rl.gpu.owner"
RL_GPU_OWNER_BUSY_TIME: Final = "rl.gpu.owner.busy_time"
RL_GPU_OWNER_ENERGY: Final = "rl.gpu.owner.energy"
RL_GPU_OWNER_IDLE: Final = "rl.gpu.owner.idle"
RL_GPU_OWNER_MEMORY_USAGE: Final = "rl.gpu.owner.memory.usage"
RL_GPU_OWNER_OVERLAP: Final = "rl.gpu.owner.overlap"
RL_GPU_OWNER_TIME: Final = "rl.gpu.owner.time"
RL_GPU_POWER_LIMIT: Final = "rl.gpu.power.limit"
RL_GPU_PROCESS_MEMORY_USAGE: Final = "rl.gpu.process.memory.usage"
RL_GPU_THROTTLED: Final = "rl.gpu.throttled"
RL_GPU_THROTTLE_REASON: Final = "rl.gpu.throttle.reason"
RL_GROUP_ALL_RIGHT: Final = "rl.group.all_right"
RL_GROUP_ALL_WRONG: Final = "rl.group.all_wrong"
RL_GROUP_NO_SIGNAL: Final = "rl.group.no_signal"
RL_HEALTH_BOUND: Final = "rl.health.bound"
RL_HEALTH_BUBBLE: Final = "rl.health.bubble"
RL_HEALTH_BUSY: Final = "rl.health.busy"
RL_HEALTH_EFFICIENCY: Final = "rl.health.efficiency"
RL_HEALTH_IDEAL: Final = "rl.health.ideal"
RL_HEALTH_IDLE: Final = "rl.health.idle"
RL_HEALTH_OVERLAP: Final = "rl.health.overlap"
RL_HEALTH_SLACK: Final = "rl.health.slack"
RL_HEALTH_STRAGGLER_EXCESS: Final = "rl.health.straggler.excess"
RL_HOST_PRESSURE: Final = "rl.host.pressure"
RL_HOST_RESOURCE: Final = "rl.host.resource"
RL_ITERATION_DURATION: Final = "rl.iteration.duration"
RL_LOOP_ITERATION: Final = "rl.loop.iteration"
RL_OUTCOME: Final = "rl.outcome"
RL_PARAMETER_GROUP: Final = "rl.parameter.group"
RL_PHASE: Final = "rl.phase"
RL_PHASE_CLASS: Final = "rl.phase_class"
RL_PHASE_DURATION: Final = "rl.phase.duration"
RL_PIPELINE_DURATION: Final = "rl.pipeline.duration"
RL_POLICY_ADVANTAGE_MAX: Final = "rl.policy.advantage.max"
RL_POLICY_ADVANTAGE_MEAN: Final = "rl.policy.advantage.mean"
RL_POLICY_ADVANTAGE_MIN: Final = "rl.policy.advantage.min"
RL_POLICY_CLIP_FRACTION: Final = "rl.policy.clip_fraction"
RL_POLICY_ENTROPY: Final = "rl.policy.entropy"
RL_POLICY_IMPORTANCE_RATIO: Final = "rl.policy.importance_ratio"
RL_POLICY_KL_REFERENCE: Final = "rl.policy.kl.reference"
RL_POLICY_STALENESS: Final = "rl.policy.staleness"
RL_POLICY_UPDATES: Final = "rl.policy.updates"
RL_POLICY_VERSION: Final = "rl.policy.version"
RL_POLICY_WEIGHTS_CHECKED: Final = "rl.policy.weights.checked"
RL_PROCESS_MEMORY_LIMIT: Final = "rl.process.memory.limit"
RL_REASON: Final = "rl.reason"
RL_REDUCE: Final = "rl.reduce"
RL_REPLAY_BUFFER_EVICTIONS: Final = "rl.replay_buffer.evictions"
RL_REPLAY_BUFFER_LIMIT: Final = "rl.replay_buffer.limit"
RL_REPLAY_BUFFER_QUEUE_DEPTH: Final = "rl.replay_buffer.queue.depth"
RL_REPLAY_BUFFER_READS: Final = "rl.replay_buffer.reads"
RL_REPLAY_BUFFER_RETRIEVAL_DURATION: Final = "rl.replay_buffer.retrieval.duration"
RL_REPLAY_BUFFER_SIZE: Final = "rl.replay_buffer.size"
RL_REPLAY_BUFFER_WRITES: Final = "rl.replay_buffer.writes"
RL_REPLICA: Final = "rl.replica"
RL_REPLICA_FAILURES: Final = "rl.replica.failures"
RL_REPLICA_QUEUE_DEPTH: Final = "rl.replica.queue.depth"
RL_REPLICA_RECOVERY_DURATION: Final = "rl.replica.recovery.duration"
RL_REWARD_COMPONENT: Final = "rl.reward.component"
RL_REWARD_DURATION: Final = "rl.reward.duration"
RL_REWARD_MAX: Final = "rl.reward.max"
RL_REWARD_MEAN: Final = "rl.reward.mean"
RL_REWARD_MIN: Final = "rl.reward.min"
RL_REWARD_NAME: Final = "rl.reward.name"
RL_REWARD_STD: Final = "rl.reward.std"
RL_REWARD_SUM: Final = "rl.reward.sum"
RL_ROLLOUT_PROGRESS: Final = "rl.rollout.progress"
RL_ROLLOUT_SAMPLE: Final = "rl.rollout.sample"
RL_RUN_ID: Final = "rl.run.id"
RL_SAMPLE_AGE_DURATION: Final = "rl.sample.age.duration"
RL_SAMPLE_AGE_STEPS: Final = "rl.sample.age.steps"
RL_SAMPLE_AGE_VERSIONS: Final = "rl.sample.age.versions"
RL_SAMPLE_COUNT: Final = "rl.sample.count"
RL_SAMPLE_DROPPED: Final = "rl.sample.dropped"
RL_SAMPLE_EFFECTIVE_SIZE: Final = "rl.sample.effective_size"
RL_SAMPLE_EPISODES: Final = "rl.sample.episodes"
RL_SAMPLE_LAG: Final = "rl.sample.lag"
RL_SAMPLE_LENGTH: Final = "rl.sample.length"
RL_SAMPLE_NO_SIGNAL: Final = "rl.sample.no_signal"
RL_SAMPLE_ORIGINS: Final = "rl.sample.origins"
RL_SAMPLE_OUTCOME: Final = "rl.sample.outcome"
RL_SAMPLE_OUTCOMES: Final = "rl.sample.outcomes"
RL_SAMPLE_POISONED: Final = "rl.sample.poisoned"
RL_SAMPLE_REASON: Final = "rl.sample.reason"
RL_SAMPLE_REPETITION: Final = "rl.sample.repetition"
RL_SAMPLE_REWARD: Final = "rl.sample.reward"
RL_SAMPLE_REWARD_EFFECTIVE: Final = "rl.sample.reward.effective"
RL_SAMPLE_SAMPLES: Final = "rl.sample.samples"
RL_SAMPLE_TABLE: Final = "rl.sample.table"
RL_SAMPLE_TRUNCATED: Final = "rl.sample.truncated"
RL_SERVICE_ALIVE: Final = "rl.service.alive"
RL_SERVICE_EXPECTED: Final = "rl.service.expected"
RL_SERVICE_FAILURES: Final = "rl.service.failures"
RL_SERVICE_RECOVERY: Final = "rl.service.recovery"
RL_SERVICE_SILENT: Final = "rl.service.silent"
RL_SERVICE_STEP_EXPECTED: Final = "rl.service.step.expected"
RL_SERVICE_STEP_REPORTED: Final = "rl.service.step.reported"
RL_STAGE: Final = "rl.stage"
RL_STATISTIC: Final = "rl.statistic"
RL_TRACKER_WANDB_RUN_PATH: Final = "rl.tracker.wandb.run_path"
RL_TRAIN_GRAD_ABS_MAX: Final = "rl.train.grad.abs_max"
RL_TRAIN_GRAD_APPLIED_NORM: Final = "rl.train.grad.applied.norm"
RL_TRAIN_GRAD_MEAN_SQUARE: Final = "rl.train.grad.mean_square"
RL_TRAIN_GRAD_NONFINITE: Final = "rl.train.grad.nonfinite"
RL_TRAIN_GRAD_NORM: Final = "rl.train.grad.norm"
RL_TRAIN_LEARNING_RATE: Final = "rl.train.learning_rate"
RL_TRAIN_LOSS: Final = "rl.train.loss"
RL_TRAIN_MFU: Final = "rl.train.mfu"
RL_TRAIN_STEPS: Final = "rl.train.steps"
RL_TRAIN_TOKENS: Final = "rl.train.tokens"
RL_TRAIN_UPDATE_NORM: Final = "rl.train.update.norm"
RL_TRIAL_NAME: Final = "rl.trial.name"
RL_WEIGHTS_STATE: Final = "rl.weights.state"
RL_WORKER_CONSOLE: Final = "rl.worker.console"
RL_WORKER_COUNT: Final = "rl.worker.count"
RL_WORKER_DIFF: Final = "rl.worker.diff"
RL_WORKER_END: Final = "rl.worker.end"
RL_WORKER_ERROR: Final = "rl.worker.error"
RL_WORKER_GC_TIME: Final = "rl.worker.gc.time"
RL_WORKER_IDLE_TIME: Final = "rl.worker.idle.time"
RL_WORKER_INDEX: Final = "rl.worker.index"
RL_WORKER_PACKAGES: Final = "rl.worker.packages"
RL_WORKER_PHASE_AGE: Final = "rl.worker.phase.age"
RL_WORKER_ROLE: Final = "rl.worker.role"
RL_WORKER_STACK: Final = "rl.worker.stack"
RL_WORKER_START: Final = "rl.worker.start"
RL_WORKER_STATUS: Final = "rl.worker.status"
RL_WORKER_STEP_AGE: Final = "rl.worker.step.age"
RL_WORKER_STEP_NUMBER: Final = "rl.worker.step.number"
RL_WORKER_TAG: Final = "rl.worker.tag"
RPC_CLIENT_CALL_DURATION: Final = "rpc.client.call.duration"
RPC_SERVER_CALL_DURATION: Final = "rpc.server.call.duration"
SYSTEM_CPU_UTILIZATION: Final = "system.cpu.utilization"
SYSTEM_DISK_IO: Final = "system.disk.io"
SYSTEM_FILESYSTEM_USAGE: Final = "system.filesystem.usage"
SYSTEM_FILESYSTEM_UTILIZATION: Final = "system.filesystem.utilization"
SYSTEM_MEMORY_LIMIT: Final = "system.memory.limit"
SYSTEM_MEMORY_USAGE: Final = "system.memory.usage"
SYSTEM_MEMORY_UTILIZATION: Final = "system.memory.utilization"
SYSTEM_NETWORK_IO: Final = "system.network.io"
VCS_REF_HEAD_REVISION: Final = "vcs.ref.head.revision"
VCS_REPOSITORY_URL_FULL: Final = "vcs.repository.url.full"


class RlExperimentModeValues(StrEnum):
    """Known values of ``rl.experiment.mode``; others are allowed."""

    ONLINE = "online"
    OFFLINE = "offline"
    SHARED = "shared"


class RlExperimentStatusValues(StrEnum):
    """Known values of ``rl.experiment.status``; others are allowed."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    CRASHED = "crashed"


class RlGoodputPartValues(StrEnum):
    """Known values of ``rl.goodput.part``; others are allowed."""

    PRODUCTIVE = "productive"
    OVERHEAD = "overhead"
    IDLE = "idle"
    WASTED = "wasted"


class RlGpuClockDomainValues(StrEnum):
    """Known values of ``rl.gpu.clock.domain``; others are allowed."""

    SM = "sm"
    MEMORY = "memory"


class RlGpuLinkValues(StrEnum):
    """Known values of ``rl.gpu.link``; others are allowed."""

    NVLINK = "nvlink"


class RlGpuThrottleReasonValues(StrEnum):
    """Known values of ``rl.gpu.throttle.reason``; others are allowed."""

    POWER_CAP = "power_cap"
    THERMAL = "thermal"
    HW_SLOWDOWN = "hw_slowdown"
    POWER_BRAKE = "power_brake"
    SYNC_BOOST = "sync_boost"


class RlOutcomeValues(StrEnum):
    """Known values of ``rl.outcome``; others are allowed."""

    SUCCESS = "success"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class RlPhaseValues(StrEnum):
    """Known values of ``rl.phase``; others are allowed."""

    COLLECTOR_WAIT = "collector_wait"
    REPLAY_BATCH_WAIT = "replay_batch_wait"
    RANK_BARRIER = "rank_barrier"
    SYNC_COORDINATION = "sync_coordination"
    H2D_COPY = "h2d_copy"
    TRAIN = "train"
    PARAM_SYNC = "param_sync"
    WEIGHT_SYNC = "weight_sync"
    WEIGHT_PUSH = "weight_push"
    BATCH_CREATE = "batch_create"
    CHECKPOINT = "checkpoint"
    WEIGHT_PULL = "weight_pull"
    ACTION_SELECT = "action_select"
    ENV_STEP = "env_step"
    REPLAY = "replay"
    ENV_STEP_TOTAL = "env_step_total"
    MLP_INFER = "mlp_infer"
    TOKENIZE = "tokenize"
    MODEL_LOAD = "model_load"
    GENERATE = "generate"
    REWARD = "reward"
    REFERENCE = "reference"
    IDLE = "idle"
    UNACCOUNTED = "unaccounted"


class RlPhaseClassValues(StrEnum):
    """Known values of ``rl.phase_class``; others are allowed."""

    COMPUTE = "compute"
    WAIT = "wait"
    TRANSFER = "transfer"
    SYNC = "sync"
    IO = "io"
    OTHER = "other"


class RlSampleOutcomeValues(StrEnum):
    """Known values of ``rl.sample.outcome``; others are allowed."""

    TRAINED = "trained"
    MASKED = "masked"
    TRUNCATED = "truncated"
    FILTERED = "filtered"
    DROPPED = "dropped"
    TIMEOUT = "timeout"
    GRADER_FAILED = "grader_failed"
    ENVIRONMENT_FAILED = "environment_failed"
    CANCELLED = "cancelled"


class RlStageValues(StrEnum):
    """Known values of ``rl.stage``; others are allowed."""

    TRAINER = "trainer"
    GENERATOR = "generator"
    REWARD = "reward"
    SYNC = "sync"
    BUFFER = "buffer"
    IDLE = "idle"


class RlWeightsStateValues(StrEnum):
    """Known values of ``rl.weights.state``; others are allowed."""

    EQUAL = "equal"
    STALE = "stale"
    DIFFERENT = "different"
    UNSIGNED = "unsigned"


class RlWorkerRoleValues(StrEnum):
    """Known values of ``rl.worker.role``; others are allowed."""

    TRAINER = "trainer"
    GENERATOR = "generator"
    REPLAY_BUFFER = "replay_buffer"
    ENV = "env"
    REWARD = "reward"
    REFERENCE = "reference"
    CRITIC = "critic"
    ORCHESTRATOR = "orchestrator"


class RlWorkerStatusValues(StrEnum):
    """Known values of ``rl.worker.status``; others are allowed."""

    COMPLETE = "complete"
    FAILED = "failed"


EVENTS: Final = frozenset(
    {
        RL_EXPERIMENT_END,
        RL_EXPERIMENT_START,
        RL_ROLLOUT_PROGRESS,
        RL_ROLLOUT_SAMPLE,
        RL_WORKER_CONSOLE,
        RL_WORKER_END,
        RL_WORKER_ERROR,
        RL_WORKER_STACK,
        RL_WORKER_START,
    }
)
