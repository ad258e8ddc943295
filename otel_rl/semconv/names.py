"""Every name of the registry, and what it says about each.

Generated from ``registry/*.yaml`` by ``python -m tools.semconv.generate``. Do not edit.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from otel_rl.semconv.spec import (
    Instrument,
    MetricSpec,
    PhaseSpec,
    Reduction,
    Summary,
    Tier,
    by_name,
)

_QUANTILES: Final = ("p50", "p90", "p99", "min", "max")

SCHEMA_URL: Final = "https://otel-rl.invalid/schemas/0.1.0"
"""Schema URL of the registry that these are from."""

ERROR_TYPE: Final = "error.type"
"""Attribute, OpenTelemetry's own."""

EXCEPTION_MESSAGE: Final = "exception.message"
"""Attribute, OpenTelemetry's own."""

GEN_AI_SERVER_REQUEST_DURATION: Final = "gen_ai.server.request.duration"
"""Metric (histogram, s). Server time of a generation request to the last token."""

GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"  # noqa: S105  # a token of text
"""Metric (histogram, s). Time per token after the first."""

GEN_AI_SERVER_TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"  # noqa: S105  # a token of text
"""Metric (histogram, s). Server time to the first token."""

HW_ENERGY: Final = "hw.energy"
"""Metric (counter, J). Electric energy used. Its rate is the mean power."""

HW_ERRORS: Final = "hw.errors"
"""Metric (counter, {error}). Hardware errors, for example of memory (ECC)."""

HW_GPU_IO: Final = "hw.gpu.io"
"""Metric (counter, By). Bytes that the GPU received and sent."""

HW_GPU_MEMORY_LIMIT: Final = "hw.gpu.memory.limit"
"""Metric (updowncounter, By). Size of the GPU memory."""

HW_GPU_MEMORY_USAGE: Final = "hw.gpu.memory.usage"
"""Metric (updowncounter, By). GPU memory in use."""

HW_GPU_MEMORY_UTILIZATION: Final = "hw.gpu.memory.utilization"
"""Metric (gauge, 1). Share of the GPU memory in use, between 0 and 1."""

HW_GPU_UTILIZATION: Final = "hw.gpu.utilization"
"""Metric (gauge, 1). Share of time in which the GPU was busy, between 0 and 1."""

HW_POWER: Final = "hw.power"
"""Metric (gauge, W). Electric power drawn now."""

HW_TEMPERATURE: Final = "hw.temperature"
"""Metric (gauge, Cel). Temperature."""

LOG_IOSTREAM: Final = "log.iostream"
"""Attribute, OpenTelemetry's own."""

LOG_RECORD_UID: Final = "log.record.uid"
"""Attribute, OpenTelemetry's own."""

OS_DESCRIPTION: Final = "os.description"
"""Attribute, OpenTelemetry's own."""

OTEL_RL_BRIDGE_ARCHIVE_DROPPED: Final = "otel_rl.bridge.archive.dropped"
"""Metric (counter, {value}). Accepted values left out of the archive."""

OTEL_RL_BRIDGE_ARCHIVE_WRITTEN: Final = "otel_rl.bridge.archive.written"
"""Metric (counter, {value}). Values written to files of the archive."""

OTEL_RL_BRIDGE_BATCHES_SPOOLED: Final = "otel_rl.bridge.batches.spooled"
"""Metric (counter, {batch}). Batches stored and acknowledged."""

OTEL_RL_BRIDGE_COMMITS_REFUSED: Final = "otel_rl.bridge.commits.refused"
"""Metric (counter, {transaction}). Undone transactions with rows, to be retried."""

OTEL_RL_BRIDGE_EXCEPTIONS: Final = "otel_rl.bridge.exceptions"
"""Metric (counter, {exception}). Unexpected exceptions, by place."""

OTEL_RL_BRIDGE_EXEMPLARS_REFUSED: Final = "otel_rl.bridge.exemplars.refused"
"""Metric (counter, {measurement}). Single measurements refused from accepted points."""

OTEL_RL_BRIDGE_JOURNAL_SIZE: Final = "otel_rl.bridge.journal.size"
"""Metric (gauge, By). Size of the journal, bounded by journal.max_bytes."""

OTEL_RL_BRIDGE_LOGS_ACCEPTED: Final = "otel_rl.bridge.logs.accepted"
"""Metric (counter, {record}). Log events acknowledged to the sender."""

OTEL_RL_BRIDGE_LOGS_IGNORED: Final = "otel_rl.bridge.logs.ignored"
"""Metric (counter, {record}). Other log records, not kept."""

OTEL_RL_BRIDGE_LOGS_REFUSED: Final = "otel_rl.bridge.logs.refused"
"""Metric (counter, {record}). Log events refused by partial success."""

OTEL_RL_BRIDGE_POINTS_ACCEPTED: Final = "otel_rl.bridge.points.accepted"
"""Metric (counter, {point}). Data points acknowledged to the sender."""

OTEL_RL_BRIDGE_POINTS_REFUSED: Final = "otel_rl.bridge.points.refused"
"""Metric (counter, {point}). Data points refused by partial success."""

OTEL_RL_BRIDGE_RELOADS: Final = "otel_rl.bridge.reloads"
"""Metric (counter, {reading}). Readings of tokens and certificates on SIGHUP, by outcome."""

OTEL_RL_BRIDGE_REQUESTS: Final = "otel_rl.bridge.requests"
"""Metric (counter, {request}). Export requests answered, by outcome."""

OTEL_RL_BRIDGE_ROWS_CONFIRMED: Final = "otel_rl.bridge.rows.confirmed"
"""Metric (counter, {row}). Rows confirmed by the tracker."""

OTEL_RL_BRIDGE_ROWS_CREATED: Final = "otel_rl.bridge.rows.created"
"""Metric (counter, {row}). Rows numbered and stored for delivery."""

OTEL_RL_BRIDGE_ROWS_PENDING: Final = "otel_rl.bridge.rows.pending"
"""Metric (gauge, {row}). Rows not yet handed to the tracker, by experiment."""

OTEL_RL_BRIDGE_ROWS_WRITTEN: Final = "otel_rl.bridge.rows.written"
"""Metric (counter, {row}). Rows handed to the tracker, repeats included."""

OTEL_RL_BRIDGE_RUNS_REMOVED: Final = "otel_rl.bridge.runs.removed"
"""Metric (counter, {run}). Ended runs removed from the journal."""

OTEL_RL_BRIDGE_SAMPLES_DROPPED: Final = "otel_rl.bridge.samples.dropped"
"""Metric (counter, {sample}). Accepted samples that could not be put in a row."""

OTEL_RL_BRIDGE_SAMPLES_DUPLICATE: Final = "otel_rl.bridge.samples.duplicate"
"""Metric (counter, {sample}). Samples left out as repeated or older than a counter's total."""

OTEL_RL_BRIDGE_SAMPLES_LATE: Final = "otel_rl.bridge.samples.late"
"""Metric (counter, {sample}). Samples that came after their row."""

OTEL_RL_BRIDGE_SAMPLES_TAKEN: Final = "otel_rl.bridge.samples.taken"
"""Metric (counter, {sample}). Samples in rows, written or open."""

OTEL_RL_BRIDGE_SPANS_ACCEPTED: Final = "otel_rl.bridge.spans.accepted"
"""Metric (counter, {span}). Spans acknowledged to the sender."""

OTEL_RL_BRIDGE_SPANS_REFUSED: Final = "otel_rl.bridge.spans.refused"
"""Metric (counter, {span}). Spans refused by partial success."""

OTEL_RL_BRIDGE_SPANS_TOO_OLD: Final = "otel_rl.bridge.spans.too_old"
"""Metric (counter, {span}). Spans too late or without room for step analysis."""

OTEL_RL_BRIDGE_SPOOL_SIZE: Final = "otel_rl.bridge.spool.size"
"""Metric (gauge, By). Acknowledged batches not yet made into rows, by experiment."""

OTEL_RL_BRIDGE_STATES_LOST: Final = "otel_rl.bridge.states.lost"
"""Metric (counter, {state}). Unusable stored states, or parts of span logs."""

OTEL_RL_BRIDGE_TRACKER_RETRIES: Final = "otel_rl.bridge.tracker.retries"
"""Metric (counter, {retry}). Retried deliveries."""

OTEL_RL_BRIDGE_VALUES_FOLDED: Final = "otel_rl.bridge.values.folded"
"""Metric (counter, {value}). Values left out of the tracker as too many."""

OTEL_RL_COPY: Final = "otel_rl.copy"
"""Attribute.

Metrics of a worker that sends them itself, too, also as a resource attribute. A bridge leaves them
out.
"""

OTEL_RL_FRAMEWORK_METRIC: Final = "otel_rl.framework.metric"
"""Attribute. Name that the framework gives the metric. Not part of the key."""

OTEL_RL_FRAMEWORK_SCALE: Final = "otel_rl.framework.scale"
"""Attribute. Factor from the framework's value to this one; default 1."""

OTEL_RL_STEP_COUNT: Final = "otel_rl.step.count"
"""Attribute. Number of measurements of a histogram that an exemplar is the mean of."""

OTEL_RL_STEP_DURATION: Final = "otel_rl.step.duration"
"""Attribute. Time in ns that the step of a count has taken."""

OTEL_RL_STEP_SHARE: Final = "otel_rl.step.share"
"""Attribute. Marks the count of one step, with the time in ns since the series' previous one."""

OTEL_RL_WORKER_HEARTBEAT: Final = "otel_rl.worker.heartbeat"
"""Metric (gauge, 1). Sign of life, without a value; all measurements before its time are sent."""

OTEL_RL_WORKER_MEASUREMENTS_DROPPED: Final = "otel_rl.worker.measurements.dropped"
"""Metric (counter, {measurement}). Measurements dropped by a worker."""

OTEL_RL_WORKER_SPANS_DROPPED: Final = "otel_rl.worker.spans.dropped"
"""Metric (counter, {span}). Spans dropped by a worker."""

PROCESS_COMMAND_ARGS: Final = "process.command_args"
"""Attribute, OpenTelemetry's own."""

PROCESS_CPU_TIME: Final = "process.cpu.time"
"""Metric (counter, s). CPU time that the process used. Its rate is the number of busy cores."""

PROCESS_CPU_UTILIZATION: Final = "process.cpu.utilization"
"""Metric (gauge, 1). CPU time of the process, as a share of what is available to it."""

PROCESS_EXECUTABLE_PATH: Final = "process.executable.path"
"""Attribute, OpenTelemetry's own."""

PROCESS_MEMORY_USAGE: Final = "process.memory.usage"
"""Metric (updowncounter, By). Physical memory of the process."""

PROCESS_RUNTIME_VERSION: Final = "process.runtime.version"
"""Attribute, OpenTelemetry's own."""

PROCESS_THREAD_COUNT: Final = "process.thread.count"
"""Metric (updowncounter, {thread}). Threads of the process."""

RL_CRITICAL_PATH_DURATION: Final = "rl.critical_path.duration"
"""Metric (gauge, s). Critical-path time of a phase. The parts add up to the step."""

RL_ENV_STEP_DURATION: Final = "rl.env.step.duration"
"""Metric (histogram, s). Duration of an environment step."""

RL_EPISODE_LENGTH: Final = "rl.episode.length"
"""Metric (gauge, {step}). Mean episode length in actions or generated tokens."""

RL_EXPERIMENT_CONFIG: Final = "rl.experiment.config"
"""Attribute. Hyper-parameters, a nested map, merged by top-level key."""

RL_EXPERIMENT_CONFIG_DEFAULTS: Final = "rl.experiment.config_defaults"
"""Attribute.

Hyper-parameters that hold where no process gives the key in `rl.experiment.config`.
"""

RL_EXPERIMENT_DISPLAY_NAME: Final = "rl.experiment.display_name"
"""Attribute. Name under which the tracker shows the run."""

RL_EXPERIMENT_END: Final = "rl.experiment.end"
"""Event. End of the run, until a later start."""

RL_EXPERIMENT_ENTITY: Final = "rl.experiment.entity"
"""Attribute. Account or team of the tracker that the program names for its run."""

RL_EXPERIMENT_GROUP: Final = "rl.experiment.group"
"""Attribute. Group of runs."""

RL_EXPERIMENT_JOB_TYPE: Final = "rl.experiment.job_type"
"""Attribute. Kind of run within its group."""

RL_EXPERIMENT_MODE: Final = "rl.experiment.mode"
"""Attribute. How the program wants its tracker's run to be written."""

RL_EXPERIMENT_NAME: Final = "rl.experiment.name"
"""Attribute. Experiment. Data without it is refused."""

RL_EXPERIMENT_NOTES: Final = "rl.experiment.notes"
"""Attribute. Notes."""

RL_EXPERIMENT_PROJECT: Final = "rl.experiment.project"
"""Attribute. Project of the tracker that the program names for its run."""

RL_EXPERIMENT_START: Final = "rl.experiment.start"
"""Event. Start of the run or further metadata."""

RL_EXPERIMENT_STATUS: Final = "rl.experiment.status"
"""Attribute. End of the experiment."""

RL_EXPERIMENT_TAGS: Final = "rl.experiment.tags"
"""Attribute. Tags, united over workers."""

RL_GENERATOR_KV_CACHE_HITS: Final = "rl.generator.kv_cache.hits"
"""Metric (counter, {token}). Tokens found in the KV cache."""

RL_GENERATOR_KV_CACHE_LIMIT: Final = "rl.generator.kv_cache.limit"
"""Metric (updowncounter, {token}). Capacity of the KV cache."""

RL_GENERATOR_KV_CACHE_MISS_RATIO: Final = "rl.generator.kv_cache.miss.ratio"
"""Metric (gauge, 1). Share of queried tokens not in the KV cache, pooled over generators."""

RL_GENERATOR_KV_CACHE_QUERIES: Final = "rl.generator.kv_cache.queries"
"""Metric (counter, {token}). Tokens looked up in the KV cache."""

RL_GENERATOR_KV_CACHE_USAGE: Final = "rl.generator.kv_cache.usage"
"""Metric (updowncounter, {token}). Tokens in the KV cache."""

RL_GENERATOR_KV_CACHE_UTILIZATION: Final = "rl.generator.kv_cache.utilization"
"""Metric (gauge, 1). Used share of the KV cache, 0 to 1."""

RL_GENERATOR_PREEMPTIONS: Final = "rl.generator.preemptions"
"""Metric (counter, {request}). Requests evicted for lack of cache."""

RL_GENERATOR_PROMPT_TOKENS: Final = "rl.generator.prompt.tokens"
"""Metric (histogram, {token}). Prompt length."""

RL_GENERATOR_QUEUE_DEPTH: Final = "rl.generator.queue.depth"
"""Metric (updowncounter, {request}). Waiting requests."""

RL_GENERATOR_QUEUE_DURATION: Final = "rl.generator.queue.duration"
"""Metric (histogram, s). Waiting time of a request."""

RL_GENERATOR_REQUESTS: Final = "rl.generator.requests"
"""Metric (counter, {request}). Requests finished."""

RL_GENERATOR_REQUESTS_RUNNING: Final = "rl.generator.requests.running"
"""Metric (updowncounter, {request}). Running requests."""

RL_GENERATOR_RESPONSE_TOKENS: Final = "rl.generator.response.tokens"
"""Metric (histogram, {token}). Response length."""

RL_GENERATOR_SAMPLING_MAX_TOKENS: Final = "rl.generator.sampling.max_tokens"
"""Metric (histogram, {token}). Largest allowed response."""

RL_GENERATOR_SAMPLING_TEMPERATURE: Final = "rl.generator.sampling.temperature"
"""Metric (histogram, 1). Sampling temperature."""

RL_GENERATOR_SAMPLING_TOP_P: Final = "rl.generator.sampling.top_p"
"""Metric (histogram, 1). Nucleus-sampling probability."""

RL_GENERATOR_TOKENIZE_DURATION: Final = "rl.generator.tokenize.duration"
"""Metric (histogram, s). Time to tokenize and detokenize a request."""

RL_GENERATOR_TOKENS: Final = "rl.generator.tokens"
"""Metric (counter, {token}). Tokens generated."""

RL_GOODPUT_PART: Final = "rl.goodput.part"
"""Attribute. Part of the allocation's time."""

RL_GOODPUT_RATIO: Final = "rl.goodput.ratio"
"""Metric (gauge, 1). Productive time over all time of the allocation so far."""

RL_GOODPUT_TIME: Final = "rl.goodput.time"
"""Metric (gauge, s). Worker seconds of the allocation so far. The parts add up to all of it."""

RL_GPU_ACTIVITY: Final = "rl.gpu.activity"
"""Metric (gauge, 1). Use of a unit of the GPU, between 0 and 1 (Hopper and later)."""

RL_GPU_CLOCK_DOMAIN: Final = "rl.gpu.clock.domain"
"""Attribute. Clock of a GPU."""

RL_GPU_CLOCK_FREQUENCY: Final = "rl.gpu.clock.frequency"
"""Metric (gauge, Hz). GPU clock."""

RL_GPU_COUNT: Final = "rl.gpu.count"
"""Metric (gauge, {device}). Devices that were reported, each counted once."""

RL_GPU_LINK: Final = "rl.gpu.link"
"""Attribute. Link of a GPU transfer."""

RL_GPU_OWNER: Final = "rl.gpu.owner"
"""Attribute. Use of GPUs shared in turns. Open list."""

RL_GPU_OWNER_BUSY_TIME: Final = "rl.gpu.owner.busy_time"
"""Metric (counter, s). Busy time of the GPU while a phase held it."""

RL_GPU_OWNER_ENERGY: Final = "rl.gpu.owner.energy"
"""Metric (counter, J). Energy used while a phase held the GPU."""

RL_GPU_OWNER_IDLE: Final = "rl.gpu.owner.idle"
"""Metric (gauge, 1). Share of time without a holder, of a window without sharing."""

RL_GPU_OWNER_MEMORY_USAGE: Final = "rl.gpu.owner.memory.usage"
"""Metric (gauge, By). GPU memory in use while a phase held it."""

RL_GPU_OWNER_OVERLAP: Final = "rl.gpu.owner.overlap"
"""Metric (gauge, 1). Time held beyond the whole, because several phases held the GPU at once."""

RL_GPU_OWNER_TIME: Final = "rl.gpu.owner.time"
"""Metric (counter, s). Time that a phase held the GPU; its rate is the share."""

RL_GPU_POWER_LIMIT: Final = "rl.gpu.power.limit"
"""Metric (gauge, W). Power limit of the GPU."""

RL_GPU_PROCESS_MEMORY_USAGE: Final = "rl.gpu.process.memory.usage"
"""Metric (updowncounter, By). GPU memory of the worker's process."""

RL_GPU_THROTTLED: Final = "rl.gpu.throttled"
"""Metric (gauge, 1). Clock lowered, 0 or 1; its mean is a share of time."""

RL_GPU_THROTTLE_REASON: Final = "rl.gpu.throttle.reason"
"""Attribute. Reason for a lowered clock, except idleness and set clocks."""

RL_GPU_UNIT: Final = "rl.gpu.unit"
"""Attribute. Unit of a GPU."""

RL_HEALTH_BOUND: Final = "rl.health.bound"
"""Metric (gauge, 1). Share of a stage in the critical path. The shares add up to 1."""

RL_HEALTH_BUBBLE: Final = "rl.health.bubble"
"""Metric (gauge, s). Time of a step in which a worker of the role waits, mean over workers."""

RL_HEALTH_BUSY: Final = "rl.health.busy"
"""Metric (gauge, s). Time of a step in which a worker of the role works, mean over workers."""

RL_HEALTH_EFFICIENCY: Final = "rl.health.efficiency"
"""Metric (gauge, 1). rl.health.ideal over the length of the step."""

RL_HEALTH_IDEAL: Final = "rl.health.ideal"
"""Metric (gauge, s). Length of the step if all roles worked in parallel without waiting."""

RL_HEALTH_IDLE: Final = "rl.health.idle"
"""Metric (gauge, s).

Time of a step in which a worker of the role is in no phase, mean over workers.
"""

RL_HEALTH_OVERLAP: Final = "rl.health.overlap"
"""Metric (gauge, s). Time of a step with generation and training at once."""

RL_HEALTH_SLACK: Final = "rl.health.slack"
"""Metric (gauge, s). Delay of the role that would not lengthen the step."""

RL_HEALTH_STRAGGLER_EXCESS: Final = "rl.health.straggler.excess"
"""Metric (gauge, s). Time by which the slowest worker of a role exceeds its peers."""

RL_HOST_PRESSURE: Final = "rl.host.pressure"
"""Metric (gauge, 1). Share of time in which some work of the host waits for a resource (Linux)."""

RL_HOST_RESOURCE: Final = "rl.host.resource"
"""Attribute. Resource that work on a host waits for."""

RL_ITERATION_DURATION: Final = "rl.iteration.duration"
"""Metric (gauge, s). Wall time of one iteration."""

RL_LOOP_ITERATION: Final = "rl.loop.iteration"
"""Attribute. Training step. Not part of the series."""

RL_LOSS_TYPE: Final = "rl.loss.type"
"""Attribute. Part of the loss. Absent on the total."""

RL_OUTCOME: Final = "rl.outcome"
"""Attribute. Outcome."""

RL_PHASE: Final = "rl.phase"
"""Attribute. Phase. Open list."""

RL_PHASE_CLASS: Final = "rl.phase_class"
"""Attribute. Kind of time of a phase that is not registered."""

RL_PHASE_DURATION: Final = "rl.phase.duration"
"""Metric (gauge, s). Exclusive time of a phase in an iteration, or outside of one."""

RL_PIPELINE_DURATION: Final = "rl.pipeline.duration"
"""Metric (gauge, s).

Time of the learner's pipeline: h2d_copy + train + param_sync + weight_sync.
"""

RL_POLICY_ADVANTAGE_MAX: Final = "rl.policy.advantage.max"
"""Metric (gauge, 1). Largest advantage in the batch."""

RL_POLICY_ADVANTAGE_MEAN: Final = "rl.policy.advantage.mean"
"""Metric (gauge, 1). Mean advantage of the batch."""

RL_POLICY_ADVANTAGE_MIN: Final = "rl.policy.advantage.min"
"""Metric (gauge, 1). Smallest advantage in the batch."""

RL_POLICY_CLIP_FRACTION: Final = "rl.policy.clip_fraction"
"""Metric (gauge, 1). Share of tokens or actions with a clipped importance ratio."""

RL_POLICY_ENTROPY: Final = "rl.policy.entropy"
"""Metric (gauge, 1). Entropy, in nats per token or action."""

RL_POLICY_IMPORTANCE_RATIO: Final = "rl.policy.importance_ratio"
"""Metric (gauge, 1). Mean importance ratio of the batch, new over sampling policy."""

RL_POLICY_KL_REFERENCE: Final = "rl.policy.kl.reference"
"""Metric (gauge, 1). KL(policy || reference), in nats per token or action."""

RL_POLICY_KL_ROLLOUT: Final = "rl.policy.kl.rollout"
"""Metric (gauge, 1). KL(generator's policy || trainer's) at equal weights."""

RL_POLICY_KL_UPDATE: Final = "rl.policy.kl.update"
"""Metric (gauge, 1). KL(policy before the update || after it)."""

RL_POLICY_STALENESS: Final = "rl.policy.staleness"
"""Metric (histogram, {version}). Age of a sample at training, in policy versions."""

RL_POLICY_UPDATES: Final = "rl.policy.updates"
"""Metric (counter, {update}). Policy versions made by a trainer or loaded by a generator."""

RL_POLICY_VERSION: Final = "rl.policy.version"
"""Attribute.

Version of the policy weights, not the training step. Metric (gauge, {version}). Newest policy
version of the worker.
"""

RL_REASON: Final = "rl.reason"
"""Attribute. Reason, from a closed set."""

RL_REDUCE: Final = "rl.reduce"
"""Attribute. Reduction over workers. Overrides the registry."""

RL_REPLAY_BUFFER_EVICTIONS: Final = "rl.replay_buffer.evictions"
"""Metric (counter, {sample}). Samples removed unread."""

RL_REPLAY_BUFFER_LIMIT: Final = "rl.replay_buffer.limit"
"""Metric (updowncounter, {sample}). Capacity in samples."""

RL_REPLAY_BUFFER_QUEUE_DEPTH: Final = "rl.replay_buffer.queue.depth"
"""Metric (updowncounter, {request}). Waiting reads and writes."""

RL_REPLAY_BUFFER_READS: Final = "rl.replay_buffer.reads"
"""Metric (counter, {sample}). Samples read."""

RL_REPLAY_BUFFER_RETRIEVAL_DURATION: Final = "rl.replay_buffer.retrieval.duration"
"""Metric (histogram, s). Reader's time to get an available batch."""

RL_REPLAY_BUFFER_SIZE: Final = "rl.replay_buffer.size"
"""Metric (updowncounter, {sample}). Samples in the buffer."""

RL_REPLAY_BUFFER_WRITES: Final = "rl.replay_buffer.writes"
"""Metric (counter, {sample}). Samples written."""

RL_REPLICA: Final = "rl.replica"
"""Attribute. Measured replica, also if another process reports it."""

RL_REPLICA_FAILURES: Final = "rl.replica.failures"
"""Metric (counter, {failure}). Detected failures of the replica."""

RL_REPLICA_QUEUE_DEPTH: Final = "rl.replica.queue.depth"
"""Metric (updowncounter, {request}). Unfinished requests of the replica, by its router."""

RL_REPLICA_RECOVERY_DURATION: Final = "rl.replica.recovery.duration"
"""Metric (histogram, s). Time from a detected failure until it serves again."""

RL_REWARD_DURATION: Final = "rl.reward.duration"
"""Metric (histogram, s). Time to score a request."""

RL_REWARD_MAX: Final = "rl.reward.max"
"""Metric (gauge, 1). Largest reward in the batch."""

RL_REWARD_MEAN: Final = "rl.reward.mean"
"""Metric (gauge, 1). Mean reward of the samples trained on or scored."""

RL_REWARD_MIN: Final = "rl.reward.min"
"""Metric (gauge, 1). Smallest reward in the batch."""

RL_REWARD_STD: Final = "rl.reward.std"
"""Metric (gauge, 1). Standard deviation of the batch's rewards."""

RL_REWARD_SUM: Final = "rl.reward.sum"
"""Metric (gauge, 1). Sum of the batch's rewards."""

RL_ROLLOUT_SAMPLE: Final = "rl.rollout.sample"
"""Event. Text sample; its body maps fields to values."""

RL_RUN_ID: Final = "rl.run.id"
"""Attribute. Run id; default a digest of experiment and trial."""

RL_SAMPLE_AGE_DURATION: Final = "rl.sample.age.duration"
"""Metric (gauge, s). Age of samples at use, by `lineage.link`."""

RL_SAMPLE_AGE_STEPS: Final = "rl.sample.age.steps"
"""Metric (gauge, {step}). Age of samples at use, in training steps, if known."""

RL_SAMPLE_AGE_VERSIONS: Final = "rl.sample.age.versions"
"""Metric (gauge, {version}). Age of samples at use, in policy versions."""

RL_SAMPLE_COUNT: Final = "rl.sample.count"
"""Attribute. Samples used."""

RL_SAMPLE_DROPPED: Final = "rl.sample.dropped"
"""Metric (counter, {sample}). Samples not trained on."""

RL_SAMPLE_DURATION: Final = "rl.sample.duration"
"""Metric (histogram, s). Time from asking for a sample to having it."""

RL_SAMPLE_EPISODES: Final = "rl.sample.episodes"
"""Metric (counter, {episode}). Episodes finished."""

RL_SAMPLE_LENGTH: Final = "rl.sample.length"
"""Metric (histogram, {token}). Length of every produced sample, by `lineage.score`."""

RL_SAMPLE_ORIGINS: Final = "rl.sample.origins"
"""Attribute. Distinct spans that made them; not all have links."""

RL_SAMPLE_REWARD: Final = "rl.sample.reward"
"""Metric (gauge, 1). Reward of every produced sample, by `lineage.score`."""

RL_SAMPLE_SAMPLES: Final = "rl.sample.samples"
"""Metric (counter, {sample}). Samples produced."""

RL_SAMPLE_TABLE: Final = "rl.sample.table"
"""Attribute. Table of the sample."""

RL_SERVICE_ALIVE: Final = "rl.service.alive"
"""Metric (gauge, {worker}). Workers of the role within their timeout."""

RL_SERVICE_EXPECTED: Final = "rl.service.expected"
"""Metric (gauge, {worker}). Workers of the role that should exist."""

RL_SERVICE_FAILURES: Final = "rl.service.failures"
"""Metric (gauge, {failure}). Workers of the role that timed out or ended with an error, in all."""

RL_SERVICE_RECOVERY: Final = "rl.service.recovery"
"""Metric (gauge, s). Time without the last replaced worker."""

RL_SERVICE_SILENT: Final = "rl.service.silent"
"""Metric (gauge, {worker}).

Workers of the role that ended without an exit report in a run that ended well.
"""

RL_SERVICE_STEP_EXPECTED: Final = "rl.service.step.expected"
"""Metric (gauge, {worker}). Workers that an incomplete row should have."""

RL_SERVICE_STEP_REPORTED: Final = "rl.service.step.reported"
"""Metric (gauge, {worker}). Workers in the row of a step. Absent from complete rows."""

RL_STAGE: Final = "rl.stage"
"""Attribute. Part of the pipeline."""

RL_STALENESS_PART: Final = "rl.staleness.part"
"""Attribute. Part of the staleness. Absent on the total."""

RL_STATISTIC: Final = "rl.statistic"
"""Attribute. Statistic over one worker's samples or tokens in a step."""

RL_TRACKER_WANDB_RUN_PATH: Final = "rl.tracker.wandb.run_path"
"""Attribute. W&B run that the program makes itself and shares, for a bridge that joins it."""

RL_TRAIN_GRAD_ABS_MAX: Final = "rl.train.grad.abs_max"
"""Metric (gauge, 1). Largest absolute gradient element."""

RL_TRAIN_GRAD_MEAN_SQUARE: Final = "rl.train.grad.mean_square"
"""Metric (gauge, 1). Mean squared gradient element."""

RL_TRAIN_GRAD_NONFINITE: Final = "rl.train.grad.nonfinite"
"""Metric (gauge, {element}). NaN or infinite elements of the worker's own gradient."""

RL_TRAIN_GRAD_NORM: Final = "rl.train.grad.norm"
"""Metric (gauge, 1). Gradient norm before clipping."""

RL_TRAIN_LEARNING_RATE: Final = "rl.train.learning_rate"
"""Metric (gauge, 1). Learning rate of the update."""

RL_TRAIN_LOSS: Final = "rl.train.loss"
"""Metric (gauge, 1). Training loss."""

RL_TRAIN_MFU: Final = "rl.train.mfu"
"""Metric (gauge, 1). Model FLOPs utilisation, 0 to 1."""

RL_TRAIN_STEPS: Final = "rl.train.steps"
"""Metric (counter, {step}). Optimizer steps, counted by every rank."""

RL_TRAIN_TOKENS: Final = "rl.train.tokens"
"""Metric (counter, {token}). Tokens trained on."""

RL_TRAIN_UPDATE_NORM: Final = "rl.train.update.norm"
"""Metric (gauge, 1). Norm of the update's change of the parameters."""

RL_TRIAL_NAME: Final = "rl.trial.name"
"""Attribute. One run of the experiment; both name one tracker run."""

RL_WORKER_CONSOLE: Final = "rl.worker.console"
"""Event. Console lines, as the body; time of the last line."""

RL_WORKER_COUNT: Final = "rl.worker.count"
"""Attribute. Workers of the role."""

RL_WORKER_DIFF: Final = "rl.worker.diff"
"""Attribute. Uncommitted changes, secrets masked, cut if long."""

RL_WORKER_END: Final = "rl.worker.end"
"""Event. Clean end of a worker, with the step that its error ended."""

RL_WORKER_ERROR: Final = "rl.worker.error"
"""Event. Exception that left a step; the worker may go on."""

RL_WORKER_GC_TIME: Final = "rl.worker.gc.time"
"""Metric (counter, s). Time in CPython's cyclic garbage collector (`OTEL_RL_GC`)."""

RL_WORKER_IDLE_TIME: Final = "rl.worker.idle.time"
"""Metric (counter, s). Time without work; its rate is the idle share."""

RL_WORKER_INDEX: Final = "rl.worker.index"
"""Attribute. Index among the workers of the role, from 0."""

RL_WORKER_PACKAGES: Final = "rl.worker.packages"
"""Attribute. Installed packages with versions."""

RL_WORKER_PHASE_AGE: Final = "rl.worker.phase.age"
"""Metric (gauge, s). Age of the open phase at the export."""

RL_WORKER_ROLE: Final = "rl.worker.role"
"""Attribute. Role of the process. Open list."""

RL_WORKER_STACK: Final = "rl.worker.stack"
"""Event.

Stack of a thread or task whose phase takes too long. The body has `phase`, `age_s`, `host`, `pid`,
`stack` (lines, the innermost call first) and `collective`.
"""

RL_WORKER_START: Final = "rl.worker.start"
"""Event. Program, code and machine of a worker."""

RL_WORKER_STATUS: Final = "rl.worker.status"
"""Attribute. End of the worker."""

RL_WORKER_STEP_AGE: Final = "rl.worker.step.age"
"""Metric (gauge, s). Age of the open step at the export."""

RL_WORKER_STEP_NUMBER: Final = "rl.worker.step.number"
"""Metric (gauge, {step}). Open step at the export."""

RL_WORKER_TAG: Final = "rl.worker.tag"
"""Attribute. Purpose of the worker."""

RPC_CLIENT_CALL_DURATION: Final = "rpc.client.call.duration"
"""Metric (histogram, s). Time of a call to another process, as its caller sees it."""

RPC_SERVER_CALL_DURATION: Final = "rpc.server.call.duration"
"""Metric (histogram, s). Time of a call of another process, as the one that answers sees it."""

SYSTEM_CPU_UTILIZATION: Final = "system.cpu.utilization"
"""Metric (gauge, 1).

Share of the host's CPU time in use, between 0 and 1; with a mode, in that mode.
"""

SYSTEM_DISK_IO: Final = "system.disk.io"
"""Metric (counter, By). Bytes read from and written to the host's disks."""

SYSTEM_FILESYSTEM_USAGE: Final = "system.filesystem.usage"
"""Metric (updowncounter, By). Space of the host's file system, by state."""

SYSTEM_FILESYSTEM_UTILIZATION: Final = "system.filesystem.utilization"
"""Metric (gauge, 1). Share of the space of the host's file system, by state, between 0 and 1."""

SYSTEM_MEMORY_LIMIT: Final = "system.memory.limit"
"""Metric (updowncounter, By). Size of the host's memory."""

SYSTEM_MEMORY_USAGE: Final = "system.memory.usage"
"""Metric (updowncounter, By). Memory of the host, by state."""

SYSTEM_MEMORY_UTILIZATION: Final = "system.memory.utilization"
"""Metric (gauge, 1). Share of the host's memory, by state, between 0 and 1."""

SYSTEM_NETWORK_IO: Final = "system.network.io"
"""Metric (counter, By). Bytes that the host received and sent."""

VCS_REF_HEAD_REVISION: Final = "vcs.ref.head.revision"
"""Attribute, OpenTelemetry's own."""

VCS_REPOSITORY_URL_FULL: Final = "vcs.repository.url.full"
"""Attribute, OpenTelemetry's own."""


class RlExperimentModeValues(StrEnum):
    """Known values of ``rl.experiment.mode``; others are allowed."""

    ONLINE = "online"
    """Sent while it runs."""

    OFFLINE = "offline"
    """Written to disk, for a later upload."""

    SHARED = "shared"
    """Joins a run that the program's own client owns."""


class RlExperimentStatusValues(StrEnum):
    """Known values of ``rl.experiment.status``; others are allowed."""

    COMPLETE = "complete"
    """Came to its intended end."""

    ABORTED = "aborted"
    """Was given up by a person or a program."""

    CRASHED = "crashed"
    """Failed."""


class RlGoodputPartValues(StrEnum):
    """Known values of ``rl.goodput.part``; others are allowed."""

    PRODUCTIVE = "productive"
    """Work whose result was kept."""

    OVERHEAD = "overhead"
    """Weights, gradients, copies, checkpoints, loading, evaluation, start-up."""

    IDLE = "idle"
    """Waiting, down, or nothing reported."""

    WASTED = "wasted"
    """Work whose result was thrown away."""


class RlGpuClockDomainValues(StrEnum):
    """Known values of ``rl.gpu.clock.domain``; others are allowed."""

    SM = "sm"
    """Of the multiprocessors."""

    MEMORY = "memory"
    """Of the memory."""


class RlGpuLinkValues(StrEnum):
    """Known values of ``rl.gpu.link``; others are allowed."""

    PCIE = "pcie"
    """To the host."""

    NVLINK = "nvlink"
    """To other GPUs."""


class RlGpuOwnerValues(StrEnum):
    """Known values of ``rl.gpu.owner``; others are allowed."""

    TRAIN = "train"
    """The trainer computes."""

    GENERATE = "generate"
    """The generator computes."""

    OFFLOAD = "offload"
    """Weights or caches leave the GPU, so that another process can have it."""

    ONLOAD = "onload"
    """They come back."""


class RlGpuThrottleReasonValues(StrEnum):
    """Known values of ``rl.gpu.throttle.reason``; others are allowed."""

    POWER_CAP = "power_cap"
    """The power limit is reached."""

    THERMAL = "thermal"
    """Too hot: software or hardware slows the clock."""

    HW_SLOWDOWN = "hw_slowdown"
    """The hardware slows the clock: heat, the power brake or the supply."""

    POWER_BRAKE = "power_brake"
    """The power supply asks for less."""

    SYNC_BOOST = "sync_boost"
    """A GPU of the same group is slower."""


class RlGpuUnitValues(StrEnum):
    """Known values of ``rl.gpu.unit``; others are allowed."""

    SM = "sm"
    """Multiprocessors: share of them and of time with work."""

    WARPS = "warps"
    """Warps resident on the multiprocessors: occupancy."""

    TENSOR = "tensor"
    """Tensor cores."""

    MEMORY = "memory"
    """Bandwidth of the GPU memory."""


class RlHostResourceValues(StrEnum):
    """Known values of ``rl.host.resource``; others are allowed."""

    CPU = "cpu"
    """CPU time."""

    MEMORY = "memory"
    """Memory: pages are reclaimed or read again."""

    IO = "io"
    """Disks and file systems."""


class RlLossTypeValues(StrEnum):
    """Known values of ``rl.loss.type``; others are allowed."""

    POLICY = "policy"
    """Policy-gradient part."""

    VALUE = "value"
    """Value-function part."""

    KL_DIVERGENCE = "kl_divergence"
    """KL penalty part."""

    ENTROPY = "entropy"
    """Entropy bonus part."""


class RlOutcomeValues(StrEnum):
    """Known values of ``rl.outcome``; others are allowed."""

    SUCCESS = "success"
    """Finished as asked."""

    ERROR = "error"
    """Failed."""

    CANCELLED = "cancelled"
    """Cancelled by the caller, for example as stale."""

    TIMEOUT = "timeout"
    """Took longer than allowed."""


class RlPhaseValues(StrEnum):
    """Known values of ``rl.phase``; others are allowed."""

    COLLECTOR_WAIT = "collector_wait"
    """Waiting until the collectors have delivered enough data."""

    REPLAY_BATCH_WAIT = "replay_batch_wait"
    """Waiting with data until the batch is ready on the device."""

    RANK_BARRIER = "rank_barrier"
    """Waiting for other ranks at explicit barriers."""

    SYNC_COORDINATION = "sync_coordination"
    """Handshake between learner and collectors, without data or weights."""

    H2D_COPY = "h2d_copy"
    """Copying training data from host to device, as far as the learner waits."""

    TRAIN = "train"
    """Computing the update: forward, backward, optimizer step."""

    PARAM_SYNC = "param_sync"
    """Averaging gradients or parameters over ranks."""

    WEIGHT_SYNC = "weight_sync"
    """Getting new weights from the learner to the collectors."""

    WEIGHT_PUSH = "weight_push"
    """Transfer of weights by the learner."""

    BATCH_CREATE = "batch_create"
    """Making a training batch: advantages, padding, packing."""

    CHECKPOINT = "checkpoint"
    """Writing a checkpoint, as far as the worker is blocked."""

    WEIGHT_PULL = "weight_pull"
    """Transfer of weights by the generator."""

    ACTION_SELECT = "action_select"
    """Choosing an action with the policy."""

    ENV_STEP = "env_step"
    """Stepping the environment, action to observation."""

    REPLAY = "replay"
    """Writing to the replay buffer, waiting for room included."""

    ENV_STEP_TOTAL = "env_step_total"
    """Whole environment step of an asynchronous collector (APPO)."""

    MLP_INFER = "mlp_infer"
    """Forward pass of the policy in an asynchronous collector (APPO)."""

    TOKENIZE = "tokenize"
    """Tokenizing and detokenizing."""

    MODEL_LOAD = "model_load"
    """Loading the model when a worker starts, until it can serve."""

    GENERATE = "generate"
    """Generating samples with the policy, queueing excluded."""

    REWARD = "reward"
    """Scoring samples."""

    REFERENCE = "reference"
    """Computing log-probabilities under the reference policy."""

    IDLE = "idle"
    """Nothing to do, for no reason of another phase."""

    UNACCOUNTED = "unaccounted"
    """Time of the iteration outside of all phases."""


class RlPhaseClassValues(StrEnum):
    """Known values of ``rl.phase_class``; others are allowed."""

    COMPUTE = "compute"
    """Useful work of the worker itself."""

    WAIT = "wait"
    """Blocked on another worker."""

    TRANSFER = "transfer"
    """Moving data."""

    SYNC = "sync"
    """Synchronising weights or order with other workers."""

    IO = "io"
    """Reading or writing storage."""

    OTHER = "other"
    """Unclassified."""


class RlReduceValues(StrEnum):
    """Known values of ``rl.reduce``; others are allowed."""

    MEAN = "mean"
    """Mean of all values, not a mean of per-worker means."""

    SUM = "sum"
    """Sum over workers."""

    MIN = "min"
    """Smallest value."""

    MAX = "max"
    """Largest value."""

    STD = "std"
    """Population standard deviation of all values."""

    LAST = "last"
    """The value with the latest event time."""


class RlStageValues(StrEnum):
    """Known values of ``rl.stage``; others are allowed."""

    TRAINER = "trainer"
    """Learning from samples, waits between ranks included."""

    GENERATOR = "generator"
    """Making samples: generating, acting, stepping environments."""

    REWARD = "reward"
    """Scoring samples."""

    SYNC = "sync"
    """Distributing weights and coordinating."""

    BUFFER = "buffer"
    """Writing, keeping and reading samples in the replay buffer."""

    IDLE = "idle"
    """No span."""


class RlStalenessPartValues(StrEnum):
    """Known values of ``rl.staleness.part``; others are allowed."""

    IN_FLIGHT = "in_flight"
    """Versions that passed while the sample was generated."""

    IN_QUEUE = "in_queue"
    """Versions that passed while the sample waited to be used."""


class RlWorkerRoleValues(StrEnum):
    """Known values of ``rl.worker.role``; others are allowed."""

    TRAINER = "trainer"
    """Computes gradients and owns the newest weights."""

    GENERATOR = "generator"
    """Produces samples: a rollout or inference worker."""

    REPLAY_BUFFER = "replay_buffer"
    """Keeps samples until they are used."""

    ENV = "env"
    """Steps environments."""

    REWARD = "reward"
    """Scores samples: a reward model or a verifier."""

    REFERENCE = "reference"
    """Computes log-probabilities of the reference policy."""

    CRITIC = "critic"
    """Estimates values."""

    ORCHESTRATOR = "orchestrator"
    """Directs the others: a controller or driver."""


class RlWorkerStatusValues(StrEnum):
    """Known values of ``rl.worker.status``; others are allowed."""

    COMPLETE = "complete"
    """The process came to its end."""

    FAILED = "failed"
    """An uncaught exception ended the process."""


class RlWorkerTagValues(StrEnum):
    """Known values of ``rl.worker.tag``; others are allowed."""

    TRAINING = "training"
    """Works for training."""

    EVALUATION = "evaluation"
    """Works for evaluation."""


METRICS: Final[Mapping[str, MetricSpec]] = by_name(
    MetricSpec(GEN_AI_SERVER_REQUEST_DURATION, Instrument.HISTOGRAM, "s",
        "Server time of a generation request to the last token.", statistics=_QUANTILES,
        group="machine", tier=Tier.BASIC),
    MetricSpec(GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN, Instrument.HISTOGRAM, "s",
        "Time per token after the first.", statistics=_QUANTILES, group="machine", tier=Tier.BASIC),
    MetricSpec(GEN_AI_SERVER_TIME_TO_FIRST_TOKEN, Instrument.HISTOGRAM, "s",
        "Server time to the first token.", statistics=_QUANTILES, group="machine", tier=Tier.BASIC),
    MetricSpec(HW_ENERGY, Instrument.COUNTER, "J",
        "Electric energy used. Its rate is the mean power.", reduction=Reduction.SUM,
        attributes=("hw.id", "hw.name", "hw.model", "hw.vendor", "hw.parent", "hw.type"),
        group="machine"),
    MetricSpec(HW_ERRORS, Instrument.COUNTER, "{error}",
        "Hardware errors, for example of memory (ECC).", reduction=Reduction.SUM,
        attributes=("hw.id", "hw.name", "hw.model", "hw.vendor", "hw.parent", "hw.type",
        "error.type"), group="machine"),
    MetricSpec(HW_GPU_IO, Instrument.COUNTER, "By", "Bytes that the GPU received and sent.",
        reduction=Reduction.SUM, attributes=("hw.id", "hw.name", "hw.model", "hw.vendor",
        "hw.parent", "network.io.direction", RL_GPU_LINK), group="machine"),
    MetricSpec(HW_GPU_MEMORY_LIMIT, Instrument.UP_DOWN_COUNTER, "By", "Size of the GPU memory.",
        reduction=Reduction.SUM, attributes=("hw.id", "hw.name", "hw.model", "hw.vendor",
        "hw.parent"), group="machine"),
    MetricSpec(HW_GPU_MEMORY_USAGE, Instrument.UP_DOWN_COUNTER, "By", "GPU memory in use.",
        reduction=Reduction.SUM, attributes=("hw.id", "hw.name", "hw.model", "hw.vendor",
        "hw.parent"), group="machine"),
    MetricSpec(HW_GPU_MEMORY_UTILIZATION, Instrument.GAUGE, "1",
        "Share of the GPU memory in use, between 0 and 1.", statistics=("max",), per_worker=True,
        attributes=("hw.id", "hw.name", "hw.model", "hw.vendor", "hw.parent"), group="machine",
        tier=Tier.BASIC, summary=Summary.MAX),
    MetricSpec(HW_GPU_UTILIZATION, Instrument.GAUGE, "1",
        "Share of time in which the GPU was busy, between 0 and 1.", statistics=("min", "max"),
        per_worker=True, attributes=("hw.id", "hw.name", "hw.model", "hw.vendor", "hw.parent",
        "hw.gpu.task"), group="machine", tier=Tier.BASIC, summary=Summary.MEAN),
    MetricSpec(HW_POWER, Instrument.GAUGE, "W", "Electric power drawn now.", statistics=("max",),
        attributes=("hw.id", "hw.name", "hw.model", "hw.vendor", "hw.parent", "hw.type"),
        group="machine"),
    MetricSpec(HW_TEMPERATURE, Instrument.GAUGE, "Cel", "Temperature.", statistics=("max",),
        attributes=("hw.id", "hw.name", "hw.model", "hw.vendor", "hw.parent", "hw.type"),
        group="machine"),
    MetricSpec(OTEL_RL_BRIDGE_ARCHIVE_DROPPED, Instrument.COUNTER, "{value}",
        "Accepted values left out of the archive.", reduction=Reduction.SUM,
        attributes=(RL_REASON,), group="otel_rl", derived=True, tiers=(("total", Tier.BASIC),)),
    MetricSpec(OTEL_RL_BRIDGE_ARCHIVE_WRITTEN, Instrument.COUNTER, "{value}",
        "Values written to files of the archive.", reduction=Reduction.SUM, group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_BATCHES_SPOOLED, Instrument.COUNTER, "{batch}",
        "Batches stored and acknowledged.", reduction=Reduction.SUM, group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_COMMITS_REFUSED, Instrument.COUNTER, "{transaction}",
        "Undone transactions with rows, to be retried.", reduction=Reduction.SUM,
        attributes=(RL_REASON,), group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_EXCEPTIONS, Instrument.COUNTER, "{exception}",
        "Unexpected exceptions, by place.", reduction=Reduction.SUM, attributes=(RL_REASON,),
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_EXEMPLARS_REFUSED, Instrument.COUNTER, "{measurement}",
        "Single measurements refused from accepted points.", reduction=Reduction.SUM,
        attributes=(RL_REASON,), group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_JOURNAL_SIZE, Instrument.GAUGE, "By",
        "Size of the journal, bounded by journal.max_bytes.", reduction=Reduction.MAX,
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_LOGS_ACCEPTED, Instrument.COUNTER, "{record}",
        "Log events acknowledged to the sender.", reduction=Reduction.SUM, group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_LOGS_IGNORED, Instrument.COUNTER, "{record}",
        "Other log records, not kept.", reduction=Reduction.SUM, group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_LOGS_REFUSED, Instrument.COUNTER, "{record}",
        "Log events refused by partial success.", reduction=Reduction.SUM, attributes=(RL_REASON,),
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_POINTS_ACCEPTED, Instrument.COUNTER, "{point}",
        "Data points acknowledged to the sender.", reduction=Reduction.SUM, group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_POINTS_REFUSED, Instrument.COUNTER, "{point}",
        "Data points refused by partial success.", reduction=Reduction.SUM,
        attributes=(RL_REASON,), group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_RELOADS, Instrument.COUNTER, "{reading}",
        "Readings of tokens and certificates on SIGHUP, by outcome.", reduction=Reduction.SUM,
        attributes=(RL_REASON,), group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_REQUESTS, Instrument.COUNTER, "{request}",
        "Export requests answered, by outcome.", reduction=Reduction.SUM, attributes=(RL_REASON,),
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_ROWS_CONFIRMED, Instrument.COUNTER, "{row}",
        "Rows confirmed by the tracker.", reduction=Reduction.SUM, group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_ROWS_CREATED, Instrument.COUNTER, "{row}",
        "Rows numbered and stored for delivery.", reduction=Reduction.SUM, group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_ROWS_PENDING, Instrument.GAUGE, "{row}",
        "Rows not yet handed to the tracker, by experiment.", reduction=Reduction.MAX,
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_ROWS_WRITTEN, Instrument.COUNTER, "{row}",
        "Rows handed to the tracker, repeats included.", reduction=Reduction.SUM, group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_RUNS_REMOVED, Instrument.COUNTER, "{run}",
        "Ended runs removed from the journal.", reduction=Reduction.SUM, attributes=(RL_REASON,),
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_SAMPLES_DROPPED, Instrument.COUNTER, "{sample}",
        "Accepted samples that could not be put in a row.", reduction=Reduction.SUM,
        attributes=(RL_REASON,), group="otel_rl", derived=True, tiers=(("total", Tier.BASIC),)),
    MetricSpec(OTEL_RL_BRIDGE_SAMPLES_DUPLICATE, Instrument.COUNTER, "{sample}",
        "Samples left out as repeated or older than a counter's total.", reduction=Reduction.SUM,
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_SAMPLES_LATE, Instrument.COUNTER, "{sample}",
        "Samples that came after their row.", reduction=Reduction.SUM, group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_SAMPLES_TAKEN, Instrument.COUNTER, "{sample}",
        "Samples in rows, written or open.", reduction=Reduction.SUM, group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_SPANS_ACCEPTED, Instrument.COUNTER, "{span}",
        "Spans acknowledged to the sender.", reduction=Reduction.SUM, group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_SPANS_REFUSED, Instrument.COUNTER, "{span}",
        "Spans refused by partial success.", reduction=Reduction.SUM, attributes=(RL_REASON,),
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_SPANS_TOO_OLD, Instrument.COUNTER, "{span}",
        "Spans too late or without room for step analysis.", reduction=Reduction.SUM,
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_SPOOL_SIZE, Instrument.GAUGE, "By",
        "Acknowledged batches not yet made into rows, by experiment.", reduction=Reduction.MAX,
        group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_STATES_LOST, Instrument.COUNTER, "{state}",
        "Unusable stored states, or parts of span logs.", reduction=Reduction.SUM,
        attributes=(RL_REASON,), group="otel_rl", derived=True),
    MetricSpec(OTEL_RL_BRIDGE_TRACKER_RETRIES, Instrument.COUNTER, "{retry}",
        "Retried deliveries.", reduction=Reduction.SUM, attributes=(RL_REASON,), group="otel_rl",
        derived=True),
    MetricSpec(OTEL_RL_BRIDGE_VALUES_FOLDED, Instrument.COUNTER, "{value}",
        "Values left out of the tracker as too many.", reduction=Reduction.SUM,
        attributes=(RL_REASON,), group="otel_rl", derived=True, tiers=(("total", Tier.BASIC),)),
    MetricSpec(OTEL_RL_WORKER_HEARTBEAT, Instrument.GAUGE, "1",
        "Sign of life, without a value; all measurements before its time are sent.",
        reduction=Reduction.LAST, group="otel_rl"),
    MetricSpec(OTEL_RL_WORKER_MEASUREMENTS_DROPPED, Instrument.COUNTER, "{measurement}",
        "Measurements dropped by a worker.", reduction=Reduction.SUM, attributes=(RL_REASON,),
        group="otel_rl", tiers=(("total", Tier.BASIC),)),
    MetricSpec(OTEL_RL_WORKER_SPANS_DROPPED, Instrument.COUNTER, "{span}",
        "Spans dropped by a worker.", reduction=Reduction.SUM, attributes=(RL_REASON,),
        group="otel_rl"),
    MetricSpec(PROCESS_CPU_TIME, Instrument.COUNTER, "s",
        "CPU time that the process used. Its rate is the number of busy cores.",
        reduction=Reduction.SUM, attributes=("cpu.mode",), group="machine"),
    MetricSpec(PROCESS_CPU_UTILIZATION, Instrument.GAUGE, "1",
        "CPU time of the process, as a share of what is available to it.", statistics=("max",),
        group="machine"),
    MetricSpec(PROCESS_MEMORY_USAGE, Instrument.UP_DOWN_COUNTER, "By",
        "Physical memory of the process.", reduction=Reduction.SUM, group="machine"),
    MetricSpec(PROCESS_THREAD_COUNT, Instrument.UP_DOWN_COUNTER, "{thread}",
        "Threads of the process.", reduction=Reduction.SUM, group="machine"),
    MetricSpec(RL_CRITICAL_PATH_DURATION, Instrument.GAUGE, "s",
        "Critical-path time of a phase. The parts add up to the step.", reduction=Reduction.LAST,
        attributes=(RL_PHASE,), group="wait", derived=True),
    MetricSpec(RL_ENV_STEP_DURATION, Instrument.HISTOGRAM, "s", "Duration of an environment step.",
        statistics=_QUANTILES, group="environment", tier=Tier.BASIC),
    MetricSpec(RL_EPISODE_LENGTH, Instrument.GAUGE, "{step}",
        "Mean episode length in actions or generated tokens.", statistics=("max",),
        group="environment", tier=Tier.BASIC),
    MetricSpec(RL_GENERATOR_KV_CACHE_HITS, Instrument.COUNTER, "{token}",
        "Tokens found in the KV cache.", reduction=Reduction.SUM, group="generator"),
    MetricSpec(RL_GENERATOR_KV_CACHE_LIMIT, Instrument.UP_DOWN_COUNTER, "{token}",
        "Capacity of the KV cache.", reduction=Reduction.SUM, group="generator"),
    MetricSpec(RL_GENERATOR_KV_CACHE_MISS_RATIO, Instrument.GAUGE, "1",
        "Share of queried tokens not in the KV cache, pooled over generators.", group="generator",
        derived=True, tier=Tier.BASIC),
    MetricSpec(RL_GENERATOR_KV_CACHE_QUERIES, Instrument.COUNTER, "{token}",
        "Tokens looked up in the KV cache.", reduction=Reduction.SUM, group="generator"),
    MetricSpec(RL_GENERATOR_KV_CACHE_USAGE, Instrument.UP_DOWN_COUNTER, "{token}",
        "Tokens in the KV cache.", reduction=Reduction.SUM, group="generator"),
    MetricSpec(RL_GENERATOR_KV_CACHE_UTILIZATION, Instrument.GAUGE, "1",
        "Used share of the KV cache, 0 to 1.", statistics=("min", "max"), group="generator",
        tier=Tier.BASIC, summary=Summary.MEAN),
    MetricSpec(RL_GENERATOR_PREEMPTIONS, Instrument.COUNTER, "{request}",
        "Requests evicted for lack of cache.", reduction=Reduction.SUM, group="generator",
        tier=Tier.BASIC),
    MetricSpec(RL_GENERATOR_PROMPT_TOKENS, Instrument.HISTOGRAM, "{token}", "Prompt length.",
        statistics=_QUANTILES, group="generator", tier=Tier.BASIC, tiers=(("p50", Tier.FULL),
        ("p99", Tier.FULL))),
    MetricSpec(RL_GENERATOR_QUEUE_DEPTH, Instrument.UP_DOWN_COUNTER, "{request}",
        "Waiting requests.", reduction=Reduction.SUM, per_worker=True, group="generator",
        tier=Tier.BASIC),
    MetricSpec(RL_GENERATOR_QUEUE_DURATION, Instrument.HISTOGRAM, "s",
        "Waiting time of a request.", statistics=_QUANTILES, group="generator", tier=Tier.BASIC),
    MetricSpec(RL_GENERATOR_REQUESTS, Instrument.COUNTER, "{request}", "Requests finished.",
        reduction=Reduction.SUM, per_worker=True, attributes=(RL_OUTCOME,), group="generator",
        tier=Tier.BASIC),
    MetricSpec(RL_GENERATOR_REQUESTS_RUNNING, Instrument.UP_DOWN_COUNTER, "{request}",
        "Running requests.", reduction=Reduction.SUM, group="generator", tier=Tier.BASIC),
    MetricSpec(RL_GENERATOR_RESPONSE_TOKENS, Instrument.HISTOGRAM, "{token}", "Response length.",
        statistics=_QUANTILES, group="generator", tier=Tier.BASIC),
    MetricSpec(RL_GENERATOR_SAMPLING_MAX_TOKENS, Instrument.HISTOGRAM, "{token}",
        "Largest allowed response.", statistics=_QUANTILES, group="generator"),
    MetricSpec(RL_GENERATOR_SAMPLING_TEMPERATURE, Instrument.HISTOGRAM, "1",
        "Sampling temperature.", statistics=_QUANTILES, group="generator"),
    MetricSpec(RL_GENERATOR_SAMPLING_TOP_P, Instrument.HISTOGRAM, "1",
        "Nucleus-sampling probability.", statistics=_QUANTILES, group="generator"),
    MetricSpec(RL_GENERATOR_TOKENIZE_DURATION, Instrument.HISTOGRAM, "s",
        "Time to tokenize and detokenize a request.", statistics=_QUANTILES, group="generator"),
    MetricSpec(RL_GENERATOR_TOKENS, Instrument.COUNTER, "{token}", "Tokens generated.",
        reduction=Reduction.SUM, group="generator", tier=Tier.BASIC),
    MetricSpec(RL_GOODPUT_RATIO, Instrument.GAUGE, "1",
        "Productive time over all time of the allocation so far.", reduction=Reduction.LAST,
        group="wait", derived=True, tier=Tier.BASIC),
    MetricSpec(RL_GOODPUT_TIME, Instrument.GAUGE, "s",
        "Worker seconds of the allocation so far. The parts add up to all of it.",
        reduction=Reduction.LAST, attributes=(RL_GOODPUT_PART,), group="wait", derived=True,
        tier=Tier.BASIC),
    MetricSpec(RL_GPU_ACTIVITY, Instrument.GAUGE, "1",
        "Use of a unit of the GPU, between 0 and 1 (Hopper and later).", statistics=("min",),
        attributes=(RL_GPU_UNIT,), group="machine"),
    MetricSpec(RL_GPU_CLOCK_FREQUENCY, Instrument.GAUGE, "Hz", "GPU clock.", statistics=("min",),
        attributes=(RL_GPU_CLOCK_DOMAIN,), group="machine"),
    MetricSpec(RL_GPU_COUNT, Instrument.GAUGE, "{device}",
        "Devices that were reported, each counted once.", reduction=Reduction.SUM, group="machine",
        derived=True),
    MetricSpec(RL_GPU_OWNER_BUSY_TIME, Instrument.COUNTER, "s",
        "Busy time of the GPU while a phase held it.", reduction=Reduction.SUM,
        attributes=(RL_GPU_OWNER,), group="machine"),
    MetricSpec(RL_GPU_OWNER_ENERGY, Instrument.COUNTER, "J",
        "Energy used while a phase held the GPU.", reduction=Reduction.SUM,
        attributes=(RL_GPU_OWNER,), group="machine"),
    MetricSpec(RL_GPU_OWNER_IDLE, Instrument.GAUGE, "1",
        "Share of time without a holder, of a window without sharing.", group="machine",
        derived=True),
    MetricSpec(RL_GPU_OWNER_MEMORY_USAGE, Instrument.GAUGE, "By",
        "GPU memory in use while a phase held it.", statistics=("max",),
        attributes=(RL_GPU_OWNER,), group="machine"),
    MetricSpec(RL_GPU_OWNER_OVERLAP, Instrument.GAUGE, "1",
        "Time held beyond the whole, because several phases held the GPU at once.",
        group="machine", derived=True),
    MetricSpec(RL_GPU_OWNER_TIME, Instrument.COUNTER, "s",
        "Time that a phase held the GPU; its rate is the share.", reduction=Reduction.SUM,
        attributes=(RL_GPU_OWNER,), group="machine"),
    MetricSpec(RL_GPU_POWER_LIMIT, Instrument.GAUGE, "W", "Power limit of the GPU.",
        group="machine"),
    MetricSpec(RL_GPU_PROCESS_MEMORY_USAGE, Instrument.UP_DOWN_COUNTER, "By",
        "GPU memory of the worker's process.", reduction=Reduction.SUM, statistics=("max",),
        group="machine"),
    MetricSpec(RL_GPU_THROTTLED, Instrument.GAUGE, "1",
        "Clock lowered, 0 or 1; its mean is a share of time.",
        attributes=(RL_GPU_THROTTLE_REASON,), group="machine"),
    MetricSpec(RL_HEALTH_BOUND, Instrument.GAUGE, "1",
        "Share of a stage in the critical path. The shares add up to 1.", reduction=Reduction.LAST,
        attributes=(RL_STAGE,), group="wait", derived=True, tier=Tier.BASIC, summary=Summary.MEAN),
    MetricSpec(RL_HEALTH_BUBBLE, Instrument.GAUGE, "s",
        "Time of a step in which a worker of the role waits, mean over workers.",
        reduction=Reduction.LAST, group="wait", derived=True),
    MetricSpec(RL_HEALTH_BUSY, Instrument.GAUGE, "s",
        "Time of a step in which a worker of the role works, mean over workers.",
        reduction=Reduction.LAST, group="wait", derived=True),
    MetricSpec(RL_HEALTH_EFFICIENCY, Instrument.GAUGE, "1",
        "rl.health.ideal over the length of the step.", reduction=Reduction.LAST, group="wait",
        derived=True, tier=Tier.BASIC, summary=Summary.MEAN),
    MetricSpec(RL_HEALTH_IDEAL, Instrument.GAUGE, "s",
        "Length of the step if all roles worked in parallel without waiting.",
        reduction=Reduction.LAST, group="wait", derived=True),
    MetricSpec(RL_HEALTH_IDLE, Instrument.GAUGE, "s",
        "Time of a step in which a worker of the role is in no phase, mean over workers.",
        reduction=Reduction.LAST, group="wait", derived=True),
    MetricSpec(RL_HEALTH_OVERLAP, Instrument.GAUGE, "s",
        "Time of a step with generation and training at once.", reduction=Reduction.LAST,
        group="wait", derived=True),
    MetricSpec(RL_HEALTH_SLACK, Instrument.GAUGE, "s",
        "Delay of the role that would not lengthen the step.", reduction=Reduction.LAST,
        group="wait", derived=True),
    MetricSpec(RL_HEALTH_STRAGGLER_EXCESS, Instrument.GAUGE, "s",
        "Time by which the slowest worker of a role exceeds its peers.", reduction=Reduction.LAST,
        group="wait", derived=True),
    MetricSpec(RL_HOST_PRESSURE, Instrument.GAUGE, "1",
        "Share of time in which some work of the host waits for a resource (Linux).",
        statistics=("max",), attributes=(RL_HOST_RESOURCE,), group="machine"),
    MetricSpec(RL_ITERATION_DURATION, Instrument.GAUGE, "s", "Wall time of one iteration.",
        statistics=("max",), group="wait", tier=Tier.BASIC, summary=Summary.MEAN),
    MetricSpec(RL_PHASE_DURATION, Instrument.GAUGE, "s",
        "Exclusive time of a phase in an iteration, or outside of one.", statistics=("max",),
        attributes=(RL_PHASE, RL_PHASE_CLASS), group="wait", tier=Tier.BASIC, summary=Summary.MEAN),
    MetricSpec(RL_PIPELINE_DURATION, Instrument.GAUGE, "s",
        "Time of the learner's pipeline: h2d_copy + train + param_sync + weight_sync.",
        group="wait", derived=True),
    MetricSpec(RL_POLICY_ADVANTAGE_MAX, Instrument.GAUGE, "1", "Largest advantage in the batch.",
        reduction=Reduction.MAX, group="policy"),
    MetricSpec(RL_POLICY_ADVANTAGE_MEAN, Instrument.GAUGE, "1", "Mean advantage of the batch.",
        group="policy", tier=Tier.BASIC),
    MetricSpec(RL_POLICY_ADVANTAGE_MIN, Instrument.GAUGE, "1", "Smallest advantage in the batch.",
        reduction=Reduction.MIN, group="policy"),
    MetricSpec(RL_POLICY_CLIP_FRACTION, Instrument.GAUGE, "1",
        "Share of tokens or actions with a clipped importance ratio.", group="policy",
        tier=Tier.BASIC),
    MetricSpec(RL_POLICY_ENTROPY, Instrument.GAUGE, "1", "Entropy, in nats per token or action.",
        statistics=("min",), group="policy", tier=Tier.BASIC),
    MetricSpec(RL_POLICY_IMPORTANCE_RATIO, Instrument.GAUGE, "1",
        "Mean importance ratio of the batch, new over sampling policy.", statistics=("max",),
        group="policy", tier=Tier.BASIC),
    MetricSpec(RL_POLICY_KL_REFERENCE, Instrument.GAUGE, "1",
        "KL(policy || reference), in nats per token or action.", statistics=("max",),
        group="policy", tier=Tier.BASIC),
    MetricSpec(RL_POLICY_KL_ROLLOUT, Instrument.GAUGE, "1",
        "KL(generator's policy || trainer's) at equal weights.", statistics=("max",),
        group="policy", tier=Tier.BASIC),
    MetricSpec(RL_POLICY_KL_UPDATE, Instrument.GAUGE, "1",
        "KL(policy before the update || after it).", statistics=("max",), group="policy",
        tier=Tier.BASIC),
    MetricSpec(RL_POLICY_STALENESS, Instrument.HISTOGRAM, "{version}",
        "Age of a sample at training, in policy versions.", statistics=_QUANTILES,
        attributes=(RL_STALENESS_PART,), group="policy", tier=Tier.BASIC),
    MetricSpec(RL_POLICY_UPDATES, Instrument.COUNTER, "{update}",
        "Policy versions made by a trainer or loaded by a generator.", group="policy"),
    MetricSpec(RL_POLICY_VERSION, Instrument.GAUGE, "{version}",
        "Newest policy version of the worker.", reduction=Reduction.LAST, statistics=("min",),
        group="policy"),
    MetricSpec(RL_REPLAY_BUFFER_EVICTIONS, Instrument.COUNTER, "{sample}",
        "Samples removed unread.", reduction=Reduction.SUM, attributes=(RL_REASON,),
        group="replay_buffer"),
    MetricSpec(RL_REPLAY_BUFFER_LIMIT, Instrument.UP_DOWN_COUNTER, "{sample}",
        "Capacity in samples.", reduction=Reduction.SUM, group="replay_buffer"),
    MetricSpec(RL_REPLAY_BUFFER_QUEUE_DEPTH, Instrument.UP_DOWN_COUNTER, "{request}",
        "Waiting reads and writes.", reduction=Reduction.SUM, group="replay_buffer"),
    MetricSpec(RL_REPLAY_BUFFER_READS, Instrument.COUNTER, "{sample}", "Samples read.",
        reduction=Reduction.SUM, group="replay_buffer", tier=Tier.BASIC),
    MetricSpec(RL_REPLAY_BUFFER_RETRIEVAL_DURATION, Instrument.HISTOGRAM, "s",
        "Reader's time to get an available batch.", statistics=_QUANTILES, group="replay_buffer"),
    MetricSpec(RL_REPLAY_BUFFER_SIZE, Instrument.UP_DOWN_COUNTER, "{sample}",
        "Samples in the buffer.", reduction=Reduction.SUM, group="replay_buffer", tier=Tier.BASIC),
    MetricSpec(RL_REPLAY_BUFFER_WRITES, Instrument.COUNTER, "{sample}", "Samples written.",
        reduction=Reduction.SUM, group="replay_buffer", tier=Tier.BASIC),
    MetricSpec(RL_REPLICA_FAILURES, Instrument.COUNTER, "{failure}",
        "Detected failures of the replica.", reduction=Reduction.SUM, attributes=(RL_REPLICA,
        RL_REASON), group="service"),
    MetricSpec(RL_REPLICA_QUEUE_DEPTH, Instrument.UP_DOWN_COUNTER, "{request}",
        "Unfinished requests of the replica, by its router.", reduction=Reduction.SUM,
        attributes=(RL_REPLICA,), group="service"),
    MetricSpec(RL_REPLICA_RECOVERY_DURATION, Instrument.HISTOGRAM, "s",
        "Time from a detected failure until it serves again.", statistics=_QUANTILES,
        attributes=(RL_REPLICA,), group="service"),
    MetricSpec(RL_REWARD_DURATION, Instrument.HISTOGRAM, "s", "Time to score a request.",
        statistics=_QUANTILES, group="reward", tier=Tier.BASIC),
    MetricSpec(RL_REWARD_MAX, Instrument.GAUGE, "1", "Largest reward in the batch.",
        reduction=Reduction.MAX, group="reward", tier=Tier.BASIC, summary=Summary.MAX),
    MetricSpec(RL_REWARD_MEAN, Instrument.GAUGE, "1",
        "Mean reward of the samples trained on or scored.", statistics=("min", "max"),
        per_worker=True, group="reward", tier=Tier.BASIC, summary=Summary.MAX),
    MetricSpec(RL_REWARD_MIN, Instrument.GAUGE, "1", "Smallest reward in the batch.",
        reduction=Reduction.MIN, group="reward", tier=Tier.BASIC),
    MetricSpec(RL_REWARD_STD, Instrument.GAUGE, "1", "Standard deviation of the batch's rewards.",
        group="reward", tier=Tier.BASIC),
    MetricSpec(RL_REWARD_SUM, Instrument.GAUGE, "1", "Sum of the batch's rewards.",
        reduction=Reduction.SUM, group="reward", summary=Summary.MAX),
    MetricSpec(RL_SAMPLE_AGE_DURATION, Instrument.GAUGE, "s",
        "Age of samples at use, by `lineage.link`.", attributes=(RL_STATISTIC,), group="generator",
        tier=Tier.BASIC),
    MetricSpec(RL_SAMPLE_AGE_STEPS, Instrument.GAUGE, "{step}",
        "Age of samples at use, in training steps, if known.", attributes=(RL_STATISTIC,),
        group="generator"),
    MetricSpec(RL_SAMPLE_AGE_VERSIONS, Instrument.GAUGE, "{version}",
        "Age of samples at use, in policy versions.", attributes=(RL_STATISTIC,),
        group="generator"),
    MetricSpec(RL_SAMPLE_DROPPED, Instrument.COUNTER, "{sample}", "Samples not trained on.",
        reduction=Reduction.SUM, attributes=(RL_REASON,), group="generator", tier=Tier.BASIC),
    MetricSpec(RL_SAMPLE_DURATION, Instrument.HISTOGRAM, "s",
        "Time from asking for a sample to having it.", statistics=_QUANTILES, group="generator",
        tier=Tier.BASIC),
    MetricSpec(RL_SAMPLE_EPISODES, Instrument.COUNTER, "{episode}", "Episodes finished.",
        reduction=Reduction.SUM, attributes=(RL_OUTCOME,), group="environment"),
    MetricSpec(RL_SAMPLE_LENGTH, Instrument.HISTOGRAM, "{token}",
        "Length of every produced sample, by `lineage.score`.", statistics=_QUANTILES,
        group="reward"),
    MetricSpec(RL_SAMPLE_REWARD, Instrument.GAUGE, "1",
        "Reward of every produced sample, by `lineage.score`.", statistics=("min", "max"),
        group="reward", tier=Tier.BASIC),
    MetricSpec(RL_SAMPLE_SAMPLES, Instrument.COUNTER, "{sample}", "Samples produced.",
        reduction=Reduction.SUM, group="generator", tier=Tier.BASIC),
    MetricSpec(RL_SERVICE_ALIVE, Instrument.GAUGE, "{worker}",
        "Workers of the role within their timeout.", reduction=Reduction.LAST, group="service",
        derived=True, tier=Tier.BASIC, summary=Summary.PEAK),
    MetricSpec(RL_SERVICE_EXPECTED, Instrument.GAUGE, "{worker}",
        "Workers of the role that should exist.", reduction=Reduction.LAST, group="service",
        derived=True, summary=Summary.PEAK),
    MetricSpec(RL_SERVICE_FAILURES, Instrument.GAUGE, "{failure}",
        "Workers of the role that timed out or ended with an error, in all.",
        reduction=Reduction.LAST, group="service", derived=True, tier=Tier.BASIC),
    MetricSpec(RL_SERVICE_RECOVERY, Instrument.GAUGE, "s",
        "Time without the last replaced worker.", reduction=Reduction.LAST, group="service",
        derived=True),
    MetricSpec(RL_SERVICE_SILENT, Instrument.GAUGE, "{worker}",
        "Workers of the role that ended without an exit report in a run that ended well.",
        reduction=Reduction.LAST, group="service", derived=True),
    MetricSpec(RL_SERVICE_STEP_EXPECTED, Instrument.GAUGE, "{worker}",
        "Workers that an incomplete row should have.", reduction=Reduction.LAST, group="service",
        derived=True),
    MetricSpec(RL_SERVICE_STEP_REPORTED, Instrument.GAUGE, "{worker}",
        "Workers in the row of a step. Absent from complete rows.", reduction=Reduction.LAST,
        group="service", derived=True),
    MetricSpec(RL_TRAIN_GRAD_ABS_MAX, Instrument.GAUGE, "1", "Largest absolute gradient element.",
        reduction=Reduction.MAX, group="trainer"),
    MetricSpec(RL_TRAIN_GRAD_MEAN_SQUARE, Instrument.GAUGE, "1", "Mean squared gradient element.",
        statistics=("max",), group="trainer"),
    MetricSpec(RL_TRAIN_GRAD_NONFINITE, Instrument.GAUGE, "{element}",
        "NaN or infinite elements of the worker's own gradient.", reduction=Reduction.SUM,
        statistics=("max",), per_worker=True, group="trainer"),
    MetricSpec(RL_TRAIN_GRAD_NORM, Instrument.GAUGE, "1", "Gradient norm before clipping.",
        statistics=("max",), group="trainer", tier=Tier.BASIC),
    MetricSpec(RL_TRAIN_LEARNING_RATE, Instrument.GAUGE, "1", "Learning rate of the update.",
        group="trainer", tier=Tier.BASIC),
    MetricSpec(RL_TRAIN_LOSS, Instrument.GAUGE, "1", "Training loss.", statistics=("min", "max"),
        attributes=(RL_LOSS_TYPE,), group="trainer", tier=Tier.BASIC),
    MetricSpec(RL_TRAIN_MFU, Instrument.GAUGE, "1", "Model FLOPs utilisation, 0 to 1.",
        statistics=("min",), group="trainer", tier=Tier.BASIC, summary=Summary.MEAN),
    MetricSpec(RL_TRAIN_STEPS, Instrument.COUNTER, "{step}",
        "Optimizer steps, counted by every rank.", group="trainer"),
    MetricSpec(RL_TRAIN_TOKENS, Instrument.COUNTER, "{token}", "Tokens trained on.",
        reduction=Reduction.SUM, group="trainer", tier=Tier.BASIC),
    MetricSpec(RL_TRAIN_UPDATE_NORM, Instrument.GAUGE, "1",
        "Norm of the update's change of the parameters.", statistics=("max",), group="trainer",
        tier=Tier.BASIC),
    MetricSpec(RL_WORKER_GC_TIME, Instrument.COUNTER, "s",
        "Time in CPython's cyclic garbage collector (`OTEL_RL_GC`).", statistics=("max",),
        group="wait"),
    MetricSpec(RL_WORKER_IDLE_TIME, Instrument.COUNTER, "s",
        "Time without work; its rate is the idle share.", statistics=("max",), group="wait",
        tier=Tier.BASIC),
    MetricSpec(RL_WORKER_PHASE_AGE, Instrument.GAUGE, "s", "Age of the open phase at the export.",
        reduction=Reduction.MAX, attributes=(RL_PHASE,), group="wait"),
    MetricSpec(RL_WORKER_STEP_AGE, Instrument.GAUGE, "s", "Age of the open step at the export.",
        reduction=Reduction.MAX, per_worker=True, group="wait"),
    MetricSpec(RL_WORKER_STEP_NUMBER, Instrument.GAUGE, "{step}", "Open step at the export.",
        reduction=Reduction.MIN, statistics=("max",), per_worker=True, group="wait"),
    MetricSpec(RPC_CLIENT_CALL_DURATION, Instrument.HISTOGRAM, "s",
        "Time of a call to another process, as its caller sees it.", statistics=_QUANTILES,
        attributes=("rpc.method",), group="service"),
    MetricSpec(RPC_SERVER_CALL_DURATION, Instrument.HISTOGRAM, "s",
        "Time of a call of another process, as the one that answers sees it.",
        statistics=_QUANTILES, attributes=("rpc.method",), group="service"),
    MetricSpec(SYSTEM_CPU_UTILIZATION, Instrument.GAUGE, "1",
        "Share of the host's CPU time in use, between 0 and 1; with a mode, in that mode.",
        statistics=("max",), attributes=("cpu.mode", "host.name"), group="machine"),
    MetricSpec(SYSTEM_DISK_IO, Instrument.COUNTER, "By",
        "Bytes read from and written to the host's disks.", attributes=("disk.io.direction",
        "host.name"), group="machine"),
    MetricSpec(SYSTEM_FILESYSTEM_USAGE, Instrument.UP_DOWN_COUNTER, "By",
        "Space of the host's file system, by state.", attributes=("system.filesystem.state",
        "host.name"), group="machine"),
    MetricSpec(SYSTEM_FILESYSTEM_UTILIZATION, Instrument.GAUGE, "1",
        "Share of the space of the host's file system, by state, between 0 and 1.",
        statistics=("max",), attributes=("system.filesystem.state", "host.name"), group="machine"),
    MetricSpec(SYSTEM_MEMORY_LIMIT, Instrument.UP_DOWN_COUNTER, "By", "Size of the host's memory.",
        attributes=("host.name",), group="machine"),
    MetricSpec(SYSTEM_MEMORY_USAGE, Instrument.UP_DOWN_COUNTER, "By",
        "Memory of the host, by state.", attributes=("system.memory.state", "host.name"),
        group="machine"),
    MetricSpec(SYSTEM_MEMORY_UTILIZATION, Instrument.GAUGE, "1",
        "Share of the host's memory, by state, between 0 and 1.", statistics=("max",),
        attributes=("system.memory.state", "host.name"), group="machine"),
    MetricSpec(SYSTEM_NETWORK_IO, Instrument.COUNTER, "By",
        "Bytes that the host received and sent.", attributes=("network.io.direction", "host.name"),
        group="machine"),
)  # fmt: skip
"""Every metric by name."""

PHASES: Final[Mapping[str, PhaseSpec]] = by_name(
    PhaseSpec(RlPhaseValues.COLLECTOR_WAIT, RlPhaseClassValues.WAIT,
        "Waiting until the collectors have delivered enough data."),
    PhaseSpec(RlPhaseValues.REPLAY_BATCH_WAIT, RlPhaseClassValues.WAIT,
        "Waiting with data until the batch is ready on the device."),
    PhaseSpec(RlPhaseValues.RANK_BARRIER, RlPhaseClassValues.WAIT,
        "Waiting for other ranks at explicit barriers."),
    PhaseSpec(RlPhaseValues.SYNC_COORDINATION, RlPhaseClassValues.SYNC,
        "Handshake between learner and collectors, without data or weights."),
    PhaseSpec(RlPhaseValues.H2D_COPY, RlPhaseClassValues.TRANSFER,
        "Copying training data from host to device, as far as the learner waits.", pipeline=True),
    PhaseSpec(RlPhaseValues.TRAIN, RlPhaseClassValues.COMPUTE,
        "Computing the update: forward, backward, optimizer step.", pipeline=True, span="rl.train"),
    PhaseSpec(RlPhaseValues.PARAM_SYNC, RlPhaseClassValues.SYNC,
        "Averaging gradients or parameters over ranks.", pipeline=True),
    PhaseSpec(RlPhaseValues.WEIGHT_SYNC, RlPhaseClassValues.SYNC,
        "Getting new weights from the learner to the collectors.", pipeline=True, span="rl.sync"),
    PhaseSpec(RlPhaseValues.WEIGHT_PUSH, RlPhaseClassValues.TRANSFER,
        "Transfer of weights by the learner.", part_of=RlPhaseValues.WEIGHT_SYNC),
    PhaseSpec(RlPhaseValues.BATCH_CREATE, RlPhaseClassValues.COMPUTE,
        "Making a training batch: advantages, padding, packing."),
    PhaseSpec(RlPhaseValues.CHECKPOINT, RlPhaseClassValues.IO,
        "Writing a checkpoint, as far as the worker is blocked."),
    PhaseSpec(RlPhaseValues.WEIGHT_PULL, RlPhaseClassValues.TRANSFER,
        "Transfer of weights by the generator.", part_of=RlPhaseValues.WEIGHT_SYNC),
    PhaseSpec(RlPhaseValues.ACTION_SELECT, RlPhaseClassValues.COMPUTE,
        "Choosing an action with the policy."),
    PhaseSpec(RlPhaseValues.ENV_STEP, RlPhaseClassValues.COMPUTE,
        "Stepping the environment, action to observation."),
    PhaseSpec(RlPhaseValues.REPLAY, RlPhaseClassValues.TRANSFER,
        "Writing to the replay buffer, waiting for room included."),
    PhaseSpec(RlPhaseValues.ENV_STEP_TOTAL, RlPhaseClassValues.COMPUTE,
        "Whole environment step of an asynchronous collector (APPO)."),
    PhaseSpec(RlPhaseValues.MLP_INFER, RlPhaseClassValues.COMPUTE,
        "Forward pass of the policy in an asynchronous collector (APPO)."),
    PhaseSpec(RlPhaseValues.TOKENIZE, RlPhaseClassValues.COMPUTE, "Tokenizing and detokenizing."),
    PhaseSpec(RlPhaseValues.MODEL_LOAD, RlPhaseClassValues.IO,
        "Loading the model when a worker starts, until it can serve."),
    PhaseSpec(RlPhaseValues.GENERATE, RlPhaseClassValues.COMPUTE,
        "Generating samples with the policy, queueing excluded.", span="rl.sample"),
    PhaseSpec(RlPhaseValues.REWARD, RlPhaseClassValues.COMPUTE, "Scoring samples.",
        span="rl.reward"),
    PhaseSpec(RlPhaseValues.REFERENCE, RlPhaseClassValues.COMPUTE,
        "Computing log-probabilities under the reference policy."),
    PhaseSpec(RlPhaseValues.IDLE, RlPhaseClassValues.WAIT,
        "Nothing to do, for no reason of another phase."),
    PhaseSpec(RlPhaseValues.UNACCOUNTED, RlPhaseClassValues.OTHER,
        "Time of the iteration outside of all phases."),
)  # fmt: skip
"""Every phase of the registry by its value, in the order of the registry."""

EVENTS: Final[frozenset[str]] = frozenset(
    {
        RL_EXPERIMENT_END,
        RL_EXPERIMENT_START,
        RL_ROLLOUT_SAMPLE,
        RL_WORKER_CONSOLE,
        RL_WORKER_END,
        RL_WORKER_ERROR,
        RL_WORKER_STACK,
        RL_WORKER_START,
    }
)
"""The name of every event of the registry."""
