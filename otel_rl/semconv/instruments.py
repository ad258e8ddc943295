"""Makes the instruments that workers record with.

Generated from ``registry/*.yaml`` by ``python -m tools.semconv.generate``. Do not edit.
"""

from opentelemetry.metrics import Counter, Histogram, Meter, UpDownCounter
from opentelemetry.metrics import _Gauge as Gauge  # the API's own __all__ has it under this name

from otel_rl.semconv import names


def _described(name: str) -> tuple[str, str, str]:
    """Return name, unit and description of a metric."""
    spec = names.METRICS[name]
    return name, spec.unit, spec.brief


def create_gen_ai_server_request_duration(meter: Meter) -> Histogram:
    """Server time of a generation request to the last token."""
    return meter.create_histogram(*_described(names.GEN_AI_SERVER_REQUEST_DURATION))


def create_gen_ai_server_time_per_output_token(meter: Meter) -> Histogram:
    """Time per token after the first."""
    return meter.create_histogram(*_described(names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN))


def create_gen_ai_server_time_to_first_token(meter: Meter) -> Histogram:
    """Server time to the first token."""
    return meter.create_histogram(*_described(names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN))


def create_hw_energy(meter: Meter) -> Counter:
    """Electric energy used. Its rate is the mean power."""
    return meter.create_counter(*_described(names.HW_ENERGY))


def create_hw_errors(meter: Meter) -> Counter:
    """Hardware errors, for example of memory (ECC)."""
    return meter.create_counter(*_described(names.HW_ERRORS))


def create_hw_gpu_io(meter: Meter) -> Counter:
    """Bytes that the GPU received and sent."""
    return meter.create_counter(*_described(names.HW_GPU_IO))


def create_hw_gpu_memory_limit(meter: Meter) -> UpDownCounter:
    """Size of the GPU memory."""
    return meter.create_up_down_counter(*_described(names.HW_GPU_MEMORY_LIMIT))


def create_hw_gpu_memory_usage(meter: Meter) -> UpDownCounter:
    """GPU memory in use."""
    return meter.create_up_down_counter(*_described(names.HW_GPU_MEMORY_USAGE))


def create_hw_gpu_memory_utilization(meter: Meter) -> Gauge:
    """Share of the GPU memory in use, between 0 and 1."""
    return meter.create_gauge(*_described(names.HW_GPU_MEMORY_UTILIZATION))


def create_hw_gpu_utilization(meter: Meter) -> Gauge:
    """Share of time in which the GPU was busy, between 0 and 1."""
    return meter.create_gauge(*_described(names.HW_GPU_UTILIZATION))


def create_hw_power(meter: Meter) -> Gauge:
    """Electric power drawn now."""
    return meter.create_gauge(*_described(names.HW_POWER))


def create_hw_temperature(meter: Meter) -> Gauge:
    """Temperature."""
    return meter.create_gauge(*_described(names.HW_TEMPERATURE))


def create_otel_rl_worker_heartbeat(meter: Meter) -> Gauge:
    """Sign of life, without a value; all measurements before its time are sent."""
    return meter.create_gauge(*_described(names.OTEL_RL_WORKER_HEARTBEAT))


def create_otel_rl_worker_measurements_dropped(meter: Meter) -> Counter:
    """Measurements dropped by a worker."""
    return meter.create_counter(*_described(names.OTEL_RL_WORKER_MEASUREMENTS_DROPPED))


def create_otel_rl_worker_spans_dropped(meter: Meter) -> Counter:
    """Spans dropped by a worker."""
    return meter.create_counter(*_described(names.OTEL_RL_WORKER_SPANS_DROPPED))


def create_process_cpu_time(meter: Meter) -> Counter:
    """CPU time that the process used. Its rate is the number of busy cores."""
    return meter.create_counter(*_described(names.PROCESS_CPU_TIME))


def create_process_cpu_utilization(meter: Meter) -> Gauge:
    """CPU time of the process, as a share of what is available to it."""
    return meter.create_gauge(*_described(names.PROCESS_CPU_UTILIZATION))


def create_process_memory_usage(meter: Meter) -> UpDownCounter:
    """Physical memory of the process."""
    return meter.create_up_down_counter(*_described(names.PROCESS_MEMORY_USAGE))


def create_process_thread_count(meter: Meter) -> UpDownCounter:
    """Threads of the process."""
    return meter.create_up_down_counter(*_described(names.PROCESS_THREAD_COUNT))


def create_rl_env_step_duration(meter: Meter) -> Histogram:
    """Duration of an environment step."""
    return meter.create_histogram(*_described(names.RL_ENV_STEP_DURATION))


def create_rl_episode_length(meter: Meter) -> Gauge:
    """Mean episode length in actions or generated tokens."""
    return meter.create_gauge(*_described(names.RL_EPISODE_LENGTH))


def create_rl_generator_kv_cache_hits(meter: Meter) -> Counter:
    """Tokens found in the KV cache."""
    return meter.create_counter(*_described(names.RL_GENERATOR_KV_CACHE_HITS))


def create_rl_generator_kv_cache_limit(meter: Meter) -> UpDownCounter:
    """Capacity of the KV cache."""
    return meter.create_up_down_counter(*_described(names.RL_GENERATOR_KV_CACHE_LIMIT))


def create_rl_generator_kv_cache_queries(meter: Meter) -> Counter:
    """Tokens looked up in the KV cache."""
    return meter.create_counter(*_described(names.RL_GENERATOR_KV_CACHE_QUERIES))


def create_rl_generator_kv_cache_usage(meter: Meter) -> UpDownCounter:
    """Tokens in the KV cache."""
    return meter.create_up_down_counter(*_described(names.RL_GENERATOR_KV_CACHE_USAGE))


def create_rl_generator_kv_cache_utilization(meter: Meter) -> Gauge:
    """Used share of the KV cache, 0 to 1."""
    return meter.create_gauge(*_described(names.RL_GENERATOR_KV_CACHE_UTILIZATION))


def create_rl_generator_preemptions(meter: Meter) -> Counter:
    """Requests evicted for lack of cache."""
    return meter.create_counter(*_described(names.RL_GENERATOR_PREEMPTIONS))


def create_rl_generator_prompt_tokens(meter: Meter) -> Histogram:
    """Prompt length."""
    return meter.create_histogram(*_described(names.RL_GENERATOR_PROMPT_TOKENS))


def create_rl_generator_queue_depth(meter: Meter) -> UpDownCounter:
    """Waiting requests."""
    return meter.create_up_down_counter(*_described(names.RL_GENERATOR_QUEUE_DEPTH))


def create_rl_generator_queue_duration(meter: Meter) -> Histogram:
    """Waiting time of a request."""
    return meter.create_histogram(*_described(names.RL_GENERATOR_QUEUE_DURATION))


def create_rl_generator_requests(meter: Meter) -> Counter:
    """Requests finished."""
    return meter.create_counter(*_described(names.RL_GENERATOR_REQUESTS))


def create_rl_generator_requests_running(meter: Meter) -> UpDownCounter:
    """Running requests."""
    return meter.create_up_down_counter(*_described(names.RL_GENERATOR_REQUESTS_RUNNING))


def create_rl_generator_response_tokens(meter: Meter) -> Histogram:
    """Response length."""
    return meter.create_histogram(*_described(names.RL_GENERATOR_RESPONSE_TOKENS))


def create_rl_generator_sampling_max_tokens(meter: Meter) -> Histogram:
    """Largest allowed response."""
    return meter.create_histogram(*_described(names.RL_GENERATOR_SAMPLING_MAX_TOKENS))


def create_rl_generator_sampling_temperature(meter: Meter) -> Histogram:
    """Sampling temperature."""
    return meter.create_histogram(*_described(names.RL_GENERATOR_SAMPLING_TEMPERATURE))


def create_rl_generator_sampling_top_p(meter: Meter) -> Histogram:
    """Nucleus-sampling probability."""
    return meter.create_histogram(*_described(names.RL_GENERATOR_SAMPLING_TOP_P))


def create_rl_generator_tokenize_duration(meter: Meter) -> Histogram:
    """Time to tokenize and detokenize a request."""
    return meter.create_histogram(*_described(names.RL_GENERATOR_TOKENIZE_DURATION))


def create_rl_generator_tokens(meter: Meter) -> Counter:
    """Tokens generated."""
    return meter.create_counter(*_described(names.RL_GENERATOR_TOKENS))


def create_rl_gpu_activity(meter: Meter) -> Gauge:
    """Use of a unit of the GPU, between 0 and 1 (Hopper and later)."""
    return meter.create_gauge(*_described(names.RL_GPU_ACTIVITY))


def create_rl_gpu_clock_frequency(meter: Meter) -> Gauge:
    """GPU clock."""
    return meter.create_gauge(*_described(names.RL_GPU_CLOCK_FREQUENCY))


def create_rl_gpu_owner_busy_time(meter: Meter) -> Counter:
    """Busy time of the GPU while a phase held it."""
    return meter.create_counter(*_described(names.RL_GPU_OWNER_BUSY_TIME))


def create_rl_gpu_owner_energy(meter: Meter) -> Counter:
    """Energy used while a phase held the GPU."""
    return meter.create_counter(*_described(names.RL_GPU_OWNER_ENERGY))


def create_rl_gpu_owner_memory_usage(meter: Meter) -> Gauge:
    """GPU memory in use while a phase held it."""
    return meter.create_gauge(*_described(names.RL_GPU_OWNER_MEMORY_USAGE))


def create_rl_gpu_owner_time(meter: Meter) -> Counter:
    """Time that a phase held the GPU; its rate is the share."""
    return meter.create_counter(*_described(names.RL_GPU_OWNER_TIME))


def create_rl_gpu_power_limit(meter: Meter) -> Gauge:
    """Power limit of the GPU."""
    return meter.create_gauge(*_described(names.RL_GPU_POWER_LIMIT))


def create_rl_gpu_process_memory_usage(meter: Meter) -> UpDownCounter:
    """GPU memory of the worker's process."""
    return meter.create_up_down_counter(*_described(names.RL_GPU_PROCESS_MEMORY_USAGE))


def create_rl_gpu_throttled(meter: Meter) -> Gauge:
    """Clock lowered, 0 or 1; its mean is a share of time."""
    return meter.create_gauge(*_described(names.RL_GPU_THROTTLED))


def create_rl_host_pressure(meter: Meter) -> Gauge:
    """Share of time in which some work of the host waits for a resource (Linux)."""
    return meter.create_gauge(*_described(names.RL_HOST_PRESSURE))


def create_rl_iteration_duration(meter: Meter) -> Gauge:
    """Wall time of one iteration."""
    return meter.create_gauge(*_described(names.RL_ITERATION_DURATION))


def create_rl_phase_duration(meter: Meter) -> Gauge:
    """Exclusive time of a phase in an iteration, or outside of one."""
    return meter.create_gauge(*_described(names.RL_PHASE_DURATION))


def create_rl_policy_advantage_max(meter: Meter) -> Gauge:
    """Largest advantage in the batch."""
    return meter.create_gauge(*_described(names.RL_POLICY_ADVANTAGE_MAX))


def create_rl_policy_advantage_mean(meter: Meter) -> Gauge:
    """Mean advantage of the batch."""
    return meter.create_gauge(*_described(names.RL_POLICY_ADVANTAGE_MEAN))


def create_rl_policy_advantage_min(meter: Meter) -> Gauge:
    """Smallest advantage in the batch."""
    return meter.create_gauge(*_described(names.RL_POLICY_ADVANTAGE_MIN))


def create_rl_policy_clip_fraction(meter: Meter) -> Gauge:
    """Share of tokens or actions with a clipped importance ratio."""
    return meter.create_gauge(*_described(names.RL_POLICY_CLIP_FRACTION))


def create_rl_policy_entropy(meter: Meter) -> Gauge:
    """Entropy, in nats per token or action."""
    return meter.create_gauge(*_described(names.RL_POLICY_ENTROPY))


def create_rl_policy_importance_ratio(meter: Meter) -> Gauge:
    """Mean importance ratio of the batch, new over sampling policy."""
    return meter.create_gauge(*_described(names.RL_POLICY_IMPORTANCE_RATIO))


def create_rl_policy_kl_reference(meter: Meter) -> Gauge:
    """KL(policy || reference), in nats per token or action."""
    return meter.create_gauge(*_described(names.RL_POLICY_KL_REFERENCE))


def create_rl_policy_kl_rollout(meter: Meter) -> Gauge:
    """KL(generator's policy || trainer's) at equal weights."""
    return meter.create_gauge(*_described(names.RL_POLICY_KL_ROLLOUT))


def create_rl_policy_kl_update(meter: Meter) -> Gauge:
    """KL(policy before the update || after it)."""
    return meter.create_gauge(*_described(names.RL_POLICY_KL_UPDATE))


def create_rl_policy_staleness(meter: Meter) -> Histogram:
    """Age of a sample at training, in policy versions."""
    return meter.create_histogram(*_described(names.RL_POLICY_STALENESS))


def create_rl_policy_updates(meter: Meter) -> Counter:
    """Policy versions made by a trainer or loaded by a generator."""
    return meter.create_counter(*_described(names.RL_POLICY_UPDATES))


def create_rl_policy_version(meter: Meter) -> Gauge:
    """Newest policy version of the worker."""
    return meter.create_gauge(*_described(names.RL_POLICY_VERSION))


def create_rl_replay_buffer_evictions(meter: Meter) -> Counter:
    """Samples removed unread."""
    return meter.create_counter(*_described(names.RL_REPLAY_BUFFER_EVICTIONS))


def create_rl_replay_buffer_limit(meter: Meter) -> UpDownCounter:
    """Capacity in samples."""
    return meter.create_up_down_counter(*_described(names.RL_REPLAY_BUFFER_LIMIT))


def create_rl_replay_buffer_queue_depth(meter: Meter) -> UpDownCounter:
    """Waiting reads and writes."""
    return meter.create_up_down_counter(*_described(names.RL_REPLAY_BUFFER_QUEUE_DEPTH))


def create_rl_replay_buffer_reads(meter: Meter) -> Counter:
    """Samples read."""
    return meter.create_counter(*_described(names.RL_REPLAY_BUFFER_READS))


def create_rl_replay_buffer_retrieval_duration(meter: Meter) -> Histogram:
    """Reader's time to get an available batch."""
    return meter.create_histogram(*_described(names.RL_REPLAY_BUFFER_RETRIEVAL_DURATION))


def create_rl_replay_buffer_size(meter: Meter) -> UpDownCounter:
    """Samples in the buffer."""
    return meter.create_up_down_counter(*_described(names.RL_REPLAY_BUFFER_SIZE))


def create_rl_replay_buffer_writes(meter: Meter) -> Counter:
    """Samples written."""
    return meter.create_counter(*_described(names.RL_REPLAY_BUFFER_WRITES))


def create_rl_replica_failures(meter: Meter) -> Counter:
    """Detected failures of the replica."""
    return meter.create_counter(*_described(names.RL_REPLICA_FAILURES))


def create_rl_replica_queue_depth(meter: Meter) -> UpDownCounter:
    """Unfinished requests of the replica, by its router."""
    return meter.create_up_down_counter(*_described(names.RL_REPLICA_QUEUE_DEPTH))


def create_rl_replica_recovery_duration(meter: Meter) -> Histogram:
    """Time from a detected failure until it serves again."""
    return meter.create_histogram(*_described(names.RL_REPLICA_RECOVERY_DURATION))


def create_rl_reward_duration(meter: Meter) -> Histogram:
    """Time to score a request."""
    return meter.create_histogram(*_described(names.RL_REWARD_DURATION))


def create_rl_reward_max(meter: Meter) -> Gauge:
    """Largest reward in the batch."""
    return meter.create_gauge(*_described(names.RL_REWARD_MAX))


def create_rl_reward_mean(meter: Meter) -> Gauge:
    """Mean reward of the samples trained on or scored."""
    return meter.create_gauge(*_described(names.RL_REWARD_MEAN))


def create_rl_reward_min(meter: Meter) -> Gauge:
    """Smallest reward in the batch."""
    return meter.create_gauge(*_described(names.RL_REWARD_MIN))


def create_rl_reward_std(meter: Meter) -> Gauge:
    """Standard deviation of the batch's rewards."""
    return meter.create_gauge(*_described(names.RL_REWARD_STD))


def create_rl_reward_sum(meter: Meter) -> Gauge:
    """Sum of the batch's rewards."""
    return meter.create_gauge(*_described(names.RL_REWARD_SUM))


def create_rl_sample_age_duration(meter: Meter) -> Gauge:
    """Age of samples at use, by `lineage.link`."""
    return meter.create_gauge(*_described(names.RL_SAMPLE_AGE_DURATION))


def create_rl_sample_age_steps(meter: Meter) -> Gauge:
    """Age of samples at use, in training steps, if known."""
    return meter.create_gauge(*_described(names.RL_SAMPLE_AGE_STEPS))


def create_rl_sample_age_versions(meter: Meter) -> Gauge:
    """Age of samples at use, in policy versions."""
    return meter.create_gauge(*_described(names.RL_SAMPLE_AGE_VERSIONS))


def create_rl_sample_dropped(meter: Meter) -> Counter:
    """Samples not trained on."""
    return meter.create_counter(*_described(names.RL_SAMPLE_DROPPED))


def create_rl_sample_duration(meter: Meter) -> Histogram:
    """Time from asking for a sample to having it."""
    return meter.create_histogram(*_described(names.RL_SAMPLE_DURATION))


def create_rl_sample_episodes(meter: Meter) -> Counter:
    """Episodes finished."""
    return meter.create_counter(*_described(names.RL_SAMPLE_EPISODES))


def create_rl_sample_length(meter: Meter) -> Histogram:
    """Length of every produced sample, by `lineage.score`."""
    return meter.create_histogram(*_described(names.RL_SAMPLE_LENGTH))


def create_rl_sample_reward(meter: Meter) -> Gauge:
    """Reward of every produced sample, by `lineage.score`."""
    return meter.create_gauge(*_described(names.RL_SAMPLE_REWARD))


def create_rl_sample_samples(meter: Meter) -> Counter:
    """Samples produced."""
    return meter.create_counter(*_described(names.RL_SAMPLE_SAMPLES))


def create_rl_train_grad_abs_max(meter: Meter) -> Gauge:
    """Largest absolute gradient element."""
    return meter.create_gauge(*_described(names.RL_TRAIN_GRAD_ABS_MAX))


def create_rl_train_grad_mean_square(meter: Meter) -> Gauge:
    """Mean squared gradient element."""
    return meter.create_gauge(*_described(names.RL_TRAIN_GRAD_MEAN_SQUARE))


def create_rl_train_grad_nonfinite(meter: Meter) -> Gauge:
    """NaN or infinite elements of the worker's own gradient."""
    return meter.create_gauge(*_described(names.RL_TRAIN_GRAD_NONFINITE))


def create_rl_train_grad_norm(meter: Meter) -> Gauge:
    """Gradient norm before clipping."""
    return meter.create_gauge(*_described(names.RL_TRAIN_GRAD_NORM))


def create_rl_train_learning_rate(meter: Meter) -> Gauge:
    """Learning rate of the update."""
    return meter.create_gauge(*_described(names.RL_TRAIN_LEARNING_RATE))


def create_rl_train_loss(meter: Meter) -> Gauge:
    """Training loss."""
    return meter.create_gauge(*_described(names.RL_TRAIN_LOSS))


def create_rl_train_mfu(meter: Meter) -> Gauge:
    """Model FLOPs utilisation, 0 to 1."""
    return meter.create_gauge(*_described(names.RL_TRAIN_MFU))


def create_rl_train_steps(meter: Meter) -> Counter:
    """Optimizer steps, counted by every rank."""
    return meter.create_counter(*_described(names.RL_TRAIN_STEPS))


def create_rl_train_tokens(meter: Meter) -> Counter:
    """Tokens trained on."""
    return meter.create_counter(*_described(names.RL_TRAIN_TOKENS))


def create_rl_train_update_norm(meter: Meter) -> Gauge:
    """Norm of the update's change of the parameters."""
    return meter.create_gauge(*_described(names.RL_TRAIN_UPDATE_NORM))


def create_rl_worker_gc_time(meter: Meter) -> Counter:
    """Time in CPython's cyclic garbage collector (`OTEL_RL_GC`)."""
    return meter.create_counter(*_described(names.RL_WORKER_GC_TIME))


def create_rl_worker_idle_time(meter: Meter) -> Counter:
    """Time without work; its rate is the idle share."""
    return meter.create_counter(*_described(names.RL_WORKER_IDLE_TIME))


def create_rl_worker_phase_age(meter: Meter) -> Gauge:
    """Age of the open phase at the export."""
    return meter.create_gauge(*_described(names.RL_WORKER_PHASE_AGE))


def create_rl_worker_step_age(meter: Meter) -> Gauge:
    """Age of the open step at the export."""
    return meter.create_gauge(*_described(names.RL_WORKER_STEP_AGE))


def create_rl_worker_step_number(meter: Meter) -> Gauge:
    """Open step at the export."""
    return meter.create_gauge(*_described(names.RL_WORKER_STEP_NUMBER))


def create_rpc_client_call_duration(meter: Meter) -> Histogram:
    """Time of a call to another process, as its caller sees it."""
    return meter.create_histogram(*_described(names.RPC_CLIENT_CALL_DURATION))


def create_rpc_server_call_duration(meter: Meter) -> Histogram:
    """Time of a call of another process, as the one that answers sees it."""
    return meter.create_histogram(*_described(names.RPC_SERVER_CALL_DURATION))


def create_system_cpu_utilization(meter: Meter) -> Gauge:
    """Share of the host's CPU time in use, between 0 and 1; with a mode, in that mode."""
    return meter.create_gauge(*_described(names.SYSTEM_CPU_UTILIZATION))


def create_system_disk_io(meter: Meter) -> Counter:
    """Bytes read from and written to the host's disks."""
    return meter.create_counter(*_described(names.SYSTEM_DISK_IO))


def create_system_filesystem_usage(meter: Meter) -> UpDownCounter:
    """Space of the host's file system, by state."""
    return meter.create_up_down_counter(*_described(names.SYSTEM_FILESYSTEM_USAGE))


def create_system_filesystem_utilization(meter: Meter) -> Gauge:
    """Share of the space of the host's file system, by state, between 0 and 1."""
    return meter.create_gauge(*_described(names.SYSTEM_FILESYSTEM_UTILIZATION))


def create_system_memory_limit(meter: Meter) -> UpDownCounter:
    """Size of the host's memory."""
    return meter.create_up_down_counter(*_described(names.SYSTEM_MEMORY_LIMIT))


def create_system_memory_usage(meter: Meter) -> UpDownCounter:
    """Memory of the host, by state."""
    return meter.create_up_down_counter(*_described(names.SYSTEM_MEMORY_USAGE))


def create_system_memory_utilization(meter: Meter) -> Gauge:
    """Share of the host's memory, by state, between 0 and 1."""
    return meter.create_gauge(*_described(names.SYSTEM_MEMORY_UTILIZATION))


def create_system_network_io(meter: Meter) -> Counter:
    """Bytes that the host received and sent."""
    return meter.create_counter(*_described(names.SYSTEM_NETWORK_IO))
