"""Makes the instruments that workers record with.

Generated from ``registry/*.yaml`` by ``python -m tools.semconv.generate``. Do not edit.
"""

from opentelemetry.metrics import Counter, Histogram, Meter, UpDownCounter
from opentelemetry.metrics import _Gauge as Gauge  # the API's own __all__ has it under this name

from otel_rl.semconv import names


def create_gen_ai_server_request_duration(meter: Meter) -> Histogram:
    """Time of a generation request at the server, to its last token."""
    return meter.create_histogram(
        name=names.GEN_AI_SERVER_REQUEST_DURATION,
        unit="s",
        description="Time of a generation request at the server, to its last token.",
    )


def create_gen_ai_server_time_per_output_token(meter: Meter) -> Histogram:
    """Time per token after the first."""
    return meter.create_histogram(
        name=names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
        unit="s",
        description="Time per token after the first.",
    )


def create_gen_ai_server_time_to_first_token(meter: Meter) -> Histogram:
    """Time of a generation request at the server, to its first token."""
    return meter.create_histogram(
        name=names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN,
        unit="s",
        description="Time of a generation request at the server, to its first token.",
    )


def create_hw_energy(meter: Meter) -> Counter:
    """Electric energy used. Its rate is the mean power."""
    return meter.create_counter(
        name=names.HW_ENERGY,
        unit="J",
        description="Electric energy used. Its rate is the mean power.",
    )


def create_hw_errors(meter: Meter) -> Counter:
    """Hardware errors, for example of memory (ECC)."""
    return meter.create_counter(
        name=names.HW_ERRORS,
        unit="{error}",
        description="Hardware errors, for example of memory (ECC).",
    )


def create_hw_gpu_io(meter: Meter) -> Counter:
    """Bytes that the GPU received and sent."""
    return meter.create_counter(
        name=names.HW_GPU_IO,
        unit="By",
        description="Bytes that the GPU received and sent.",
    )


def create_hw_gpu_memory_limit(meter: Meter) -> UpDownCounter:
    """Size of the GPU memory."""
    return meter.create_up_down_counter(
        name=names.HW_GPU_MEMORY_LIMIT,
        unit="By",
        description="Size of the GPU memory.",
    )


def create_hw_gpu_memory_usage(meter: Meter) -> UpDownCounter:
    """GPU memory in use."""
    return meter.create_up_down_counter(
        name=names.HW_GPU_MEMORY_USAGE,
        unit="By",
        description="GPU memory in use.",
    )


def create_hw_gpu_memory_utilization(meter: Meter) -> Gauge:
    """Share of the GPU memory in use, between 0 and 1."""
    return meter.create_gauge(
        name=names.HW_GPU_MEMORY_UTILIZATION,
        unit="1",
        description="Share of the GPU memory in use, between 0 and 1.",
    )


def create_hw_gpu_utilization(meter: Meter) -> Gauge:
    """Share of time in which the GPU was busy, between 0 and 1."""
    return meter.create_gauge(
        name=names.HW_GPU_UTILIZATION,
        unit="1",
        description="Share of time in which the GPU was busy, between 0 and 1.",
    )


def create_hw_power(meter: Meter) -> Gauge:
    """Electric power drawn now."""
    return meter.create_gauge(
        name=names.HW_POWER,
        unit="W",
        description="Electric power drawn now.",
    )


def create_hw_temperature(meter: Meter) -> Gauge:
    """Temperature."""
    return meter.create_gauge(
        name=names.HW_TEMPERATURE,
        unit="Cel",
        description="Temperature.",
    )


def create_otel_rl_worker_heartbeat(meter: Meter) -> Gauge:
    """Sign of life of a worker, with the time up to which all its measurements are sent."""
    return meter.create_gauge(
        name=names.OTEL_RL_WORKER_HEARTBEAT,
        unit="1",
        description=(
            "Sign of life of a worker, with the time up to which all its measurements are sent."
        ),
    )


def create_otel_rl_worker_measurements_dropped(meter: Meter) -> Counter:
    """Measurements dropped by a worker."""
    return meter.create_counter(
        name=names.OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
        unit="{measurement}",
        description="Measurements dropped by a worker.",
    )


def create_otel_rl_worker_spans_dropped(meter: Meter) -> Counter:
    """Spans dropped by a worker."""
    return meter.create_counter(
        name=names.OTEL_RL_WORKER_SPANS_DROPPED,
        unit="{span}",
        description="Spans dropped by a worker.",
    )


def create_process_cpu_time(meter: Meter) -> Counter:
    """CPU time that the process used. Its rate is the number of busy cores."""
    return meter.create_counter(
        name=names.PROCESS_CPU_TIME,
        unit="s",
        description="CPU time that the process used. Its rate is the number of busy cores.",
    )


def create_process_cpu_utilization(meter: Meter) -> Gauge:
    """CPU time of the process, as a share of what is available to it."""
    return meter.create_gauge(
        name=names.PROCESS_CPU_UTILIZATION,
        unit="1",
        description="CPU time of the process, as a share of what is available to it.",
    )


def create_process_memory_usage(meter: Meter) -> UpDownCounter:
    """Physical memory of the process."""
    return meter.create_up_down_counter(
        name=names.PROCESS_MEMORY_USAGE,
        unit="By",
        description="Physical memory of the process.",
    )


def create_process_thread_count(meter: Meter) -> UpDownCounter:
    """Threads of the process."""
    return meter.create_up_down_counter(
        name=names.PROCESS_THREAD_COUNT,
        unit="{thread}",
        description="Threads of the process.",
    )


def create_rl_env_step_duration(meter: Meter) -> Histogram:
    """Time of one environment step."""
    return meter.create_histogram(
        name=names.RL_ENV_STEP_DURATION,
        unit="s",
        description="Time of one environment step.",
    )


def create_rl_episode_length(meter: Meter) -> Gauge:
    """Mean length of the batch's episodes, in actions taken.

    For a language model, tokens generated.
    """
    return meter.create_gauge(
        name=names.RL_EPISODE_LENGTH,
        unit="{step}",
        description=(
            "Mean length of the batch's episodes, in actions taken. For a language model, tokens "
            "generated."
        ),
    )


def create_rl_generator_kv_cache_hits(meter: Meter) -> Counter:
    """Tokens found in the KV cache."""
    return meter.create_counter(
        name=names.RL_GENERATOR_KV_CACHE_HITS,
        unit="{token}",
        description="Tokens found in the KV cache.",
    )


def create_rl_generator_kv_cache_limit(meter: Meter) -> UpDownCounter:
    """Tokens that fit into the KV cache."""
    return meter.create_up_down_counter(
        name=names.RL_GENERATOR_KV_CACHE_LIMIT,
        unit="{token}",
        description="Tokens that fit into the KV cache.",
    )


def create_rl_generator_kv_cache_queries(meter: Meter) -> Counter:
    """Tokens looked up in the KV cache."""
    return meter.create_counter(
        name=names.RL_GENERATOR_KV_CACHE_QUERIES,
        unit="{token}",
        description="Tokens looked up in the KV cache.",
    )


def create_rl_generator_kv_cache_usage(meter: Meter) -> UpDownCounter:
    """Tokens in the KV cache."""
    return meter.create_up_down_counter(
        name=names.RL_GENERATOR_KV_CACHE_USAGE,
        unit="{token}",
        description="Tokens in the KV cache.",
    )


def create_rl_generator_kv_cache_utilization(meter: Meter) -> Gauge:
    """Share of the KV cache in use, between 0 and 1."""
    return meter.create_gauge(
        name=names.RL_GENERATOR_KV_CACHE_UTILIZATION,
        unit="1",
        description="Share of the KV cache in use, between 0 and 1.",
    )


def create_rl_generator_preemptions(meter: Meter) -> Counter:
    """Requests evicted from the running batch for lack of cache, to be recomputed."""
    return meter.create_counter(
        name=names.RL_GENERATOR_PREEMPTIONS,
        unit="{request}",
        description="Requests evicted from the running batch for lack of cache, to be recomputed.",
    )


def create_rl_generator_prompt_tokens(meter: Meter) -> Histogram:
    """Length of prompts."""
    return meter.create_histogram(
        name=names.RL_GENERATOR_PROMPT_TOKENS,
        unit="{token}",
        description="Length of prompts.",
    )


def create_rl_generator_queue_depth(meter: Meter) -> UpDownCounter:
    """Requests that wait to be generated."""
    return meter.create_up_down_counter(
        name=names.RL_GENERATOR_QUEUE_DEPTH,
        unit="{request}",
        description="Requests that wait to be generated.",
    )


def create_rl_generator_queue_duration(meter: Meter) -> Histogram:
    """Time that a request waited before it was generated."""
    return meter.create_histogram(
        name=names.RL_GENERATOR_QUEUE_DURATION,
        unit="s",
        description="Time that a request waited before it was generated.",
    )


def create_rl_generator_requests(meter: Meter) -> Counter:
    """Requests finished."""
    return meter.create_counter(
        name=names.RL_GENERATOR_REQUESTS,
        unit="{request}",
        description="Requests finished.",
    )


def create_rl_generator_requests_running(meter: Meter) -> UpDownCounter:
    """Requests being generated."""
    return meter.create_up_down_counter(
        name=names.RL_GENERATOR_REQUESTS_RUNNING,
        unit="{request}",
        description="Requests being generated.",
    )


def create_rl_generator_response_tokens(meter: Meter) -> Histogram:
    """Length of responses."""
    return meter.create_histogram(
        name=names.RL_GENERATOR_RESPONSE_TOKENS,
        unit="{token}",
        description="Length of responses.",
    )


def create_rl_generator_sampling_max_tokens(meter: Meter) -> Histogram:
    """Largest response that requests allow."""
    return meter.create_histogram(
        name=names.RL_GENERATOR_SAMPLING_MAX_TOKENS,
        unit="{token}",
        description="Largest response that requests allow.",
    )


def create_rl_generator_sampling_temperature(meter: Meter) -> Histogram:
    """Sampling temperature of requests."""
    return meter.create_histogram(
        name=names.RL_GENERATOR_SAMPLING_TEMPERATURE,
        unit="1",
        description="Sampling temperature of requests.",
    )


def create_rl_generator_sampling_top_p(meter: Meter) -> Histogram:
    """Nucleus-sampling probability of requests."""
    return meter.create_histogram(
        name=names.RL_GENERATOR_SAMPLING_TOP_P,
        unit="1",
        description="Nucleus-sampling probability of requests.",
    )


def create_rl_generator_tokenize_duration(meter: Meter) -> Histogram:
    """Time to tokenize and detokenize one request."""
    return meter.create_histogram(
        name=names.RL_GENERATOR_TOKENIZE_DURATION,
        unit="s",
        description="Time to tokenize and detokenize one request.",
    )


def create_rl_generator_tokens(meter: Meter) -> Counter:
    """Tokens generated."""
    return meter.create_counter(
        name=names.RL_GENERATOR_TOKENS,
        unit="{token}",
        description="Tokens generated.",
    )


def create_rl_gpu_clock_frequency(meter: Meter) -> Gauge:
    """Clock of the GPU now."""
    return meter.create_gauge(
        name=names.RL_GPU_CLOCK_FREQUENCY,
        unit="Hz",
        description="Clock of the GPU now.",
    )


def create_rl_gpu_owner_busy_time(meter: Meter) -> Counter:
    """Time for which the GPU was busy while a phase held it.

    Divided by the time, its utilization.
    """
    return meter.create_counter(
        name=names.RL_GPU_OWNER_BUSY_TIME,
        unit="s",
        description=(
            "Time for which the GPU was busy while a phase held it. Divided by the time, its "
            "utilization."
        ),
    )


def create_rl_gpu_owner_energy(meter: Meter) -> Counter:
    """Electric energy that the GPU used while a phase held it."""
    return meter.create_counter(
        name=names.RL_GPU_OWNER_ENERGY,
        unit="J",
        description="Electric energy that the GPU used while a phase held it.",
    )


def create_rl_gpu_owner_memory_usage(meter: Meter) -> Gauge:
    """GPU memory in use, by all, while a phase held the GPU."""
    return meter.create_gauge(
        name=names.RL_GPU_OWNER_MEMORY_USAGE,
        unit="By",
        description="GPU memory in use, by all, while a phase held the GPU.",
    )


def create_rl_gpu_owner_time(meter: Meter) -> Counter:
    """Time for which a phase held the GPU. Its rate is the share of time."""
    return meter.create_counter(
        name=names.RL_GPU_OWNER_TIME,
        unit="s",
        description="Time for which a phase held the GPU. Its rate is the share of time.",
    )


def create_rl_gpu_power_limit(meter: Meter) -> Gauge:
    """Electric power that the GPU may draw now."""
    return meter.create_gauge(
        name=names.RL_GPU_POWER_LIMIT,
        unit="W",
        description="Electric power that the GPU may draw now.",
    )


def create_rl_gpu_process_memory_usage(meter: Meter) -> UpDownCounter:
    """GPU memory that the worker's own process holds."""
    return meter.create_up_down_counter(
        name=names.RL_GPU_PROCESS_MEMORY_USAGE,
        unit="By",
        description="GPU memory that the worker's own process holds.",
    )


def create_rl_gpu_throttled(meter: Meter) -> Gauge:
    """Clock lowered for a reason, 0 or 1. Its mean is a share of time."""
    return meter.create_gauge(
        name=names.RL_GPU_THROTTLED,
        unit="1",
        description="Clock lowered for a reason, 0 or 1. Its mean is a share of time.",
    )


def create_rl_iteration_duration(meter: Meter) -> Gauge:
    """Wall time of one iteration."""
    return meter.create_gauge(
        name=names.RL_ITERATION_DURATION,
        unit="s",
        description="Wall time of one iteration.",
    )


def create_rl_phase_duration(meter: Meter) -> Gauge:
    """Exclusive time of a phase in one iteration of a worker."""
    return meter.create_gauge(
        name=names.RL_PHASE_DURATION,
        unit="s",
        description="Exclusive time of a phase in one iteration of a worker.",
    )


def create_rl_policy_advantage_max(meter: Meter) -> Gauge:
    """Largest advantage in the batch."""
    return meter.create_gauge(
        name=names.RL_POLICY_ADVANTAGE_MAX,
        unit="1",
        description="Largest advantage in the batch.",
    )


def create_rl_policy_advantage_mean(meter: Meter) -> Gauge:
    """Mean advantage of the batch."""
    return meter.create_gauge(
        name=names.RL_POLICY_ADVANTAGE_MEAN,
        unit="1",
        description="Mean advantage of the batch.",
    )


def create_rl_policy_advantage_min(meter: Meter) -> Gauge:
    """Smallest advantage in the batch."""
    return meter.create_gauge(
        name=names.RL_POLICY_ADVANTAGE_MIN,
        unit="1",
        description="Smallest advantage in the batch.",
    )


def create_rl_policy_clip_fraction(meter: Meter) -> Gauge:
    """Share of tokens or actions whose importance ratio was clipped."""
    return meter.create_gauge(
        name=names.RL_POLICY_CLIP_FRACTION,
        unit="1",
        description="Share of tokens or actions whose importance ratio was clipped.",
    )


def create_rl_policy_entropy(meter: Meter) -> Gauge:
    """Entropy of the policy, in nats per token or action."""
    return meter.create_gauge(
        name=names.RL_POLICY_ENTROPY,
        unit="1",
        description="Entropy of the policy, in nats per token or action.",
    )


def create_rl_policy_importance_ratio(meter: Meter) -> Gauge:
    """Mean importance ratio of the batch, new policy over the policy that sampled it."""
    return meter.create_gauge(
        name=names.RL_POLICY_IMPORTANCE_RATIO,
        unit="1",
        description=(
            "Mean importance ratio of the batch, new policy over the policy that sampled it."
        ),
    )


def create_rl_policy_kl_reference(meter: Meter) -> Gauge:
    """KL(policy || reference), in nats per token or action."""
    return meter.create_gauge(
        name=names.RL_POLICY_KL_REFERENCE,
        unit="1",
        description="KL(policy || reference), in nats per token or action.",
    )


def create_rl_policy_kl_rollout(meter: Meter) -> Gauge:
    """KL(generator's policy || trainer's policy) at equal weights, in nats per token or action."""
    return meter.create_gauge(
        name=names.RL_POLICY_KL_ROLLOUT,
        unit="1",
        description=(
            "KL(generator's policy || trainer's policy) at equal weights, in nats per token or "
            "action."
        ),
    )


def create_rl_policy_kl_update(meter: Meter) -> Gauge:
    """KL(policy before the update || policy after it), in nats per token or action."""
    return meter.create_gauge(
        name=names.RL_POLICY_KL_UPDATE,
        unit="1",
        description="KL(policy before the update || policy after it), in nats per token or action.",
    )


def create_rl_policy_staleness(meter: Meter) -> Histogram:
    """Age of a sample when it is trained on, in versions made since the one that produced it."""
    return meter.create_histogram(
        name=names.RL_POLICY_STALENESS,
        unit="{version}",
        description=(
            "Age of a sample when it is trained on, in versions made since the one that produced "
            "it."
        ),
    )


def create_rl_policy_updates(meter: Meter) -> Counter:
    """Policy versions made by a trainer or loaded by a generator.

    Its rate is the update frequency.
    """
    return meter.create_counter(
        name=names.RL_POLICY_UPDATES,
        unit="{update}",
        description=(
            "Policy versions made by a trainer or loaded by a generator. Its rate is the update "
            "frequency."
        ),
    )


def create_rl_policy_version(meter: Meter) -> Gauge:
    """Newest policy version that the worker has. It becomes the run's policy_version axis."""
    return meter.create_gauge(
        name=names.RL_POLICY_VERSION,
        unit="{version}",
        description=(
            "Newest policy version that the worker has. It becomes the run's policy_version axis."
        ),
    )


def create_rl_replay_buffer_evictions(meter: Meter) -> Counter:
    """Samples removed without a read."""
    return meter.create_counter(
        name=names.RL_REPLAY_BUFFER_EVICTIONS,
        unit="{sample}",
        description="Samples removed without a read.",
    )


def create_rl_replay_buffer_limit(meter: Meter) -> UpDownCounter:
    """Samples that the buffer can hold."""
    return meter.create_up_down_counter(
        name=names.RL_REPLAY_BUFFER_LIMIT,
        unit="{sample}",
        description="Samples that the buffer can hold.",
    )


def create_rl_replay_buffer_queue_depth(meter: Meter) -> UpDownCounter:
    """Reads and writes that wait for the buffer."""
    return meter.create_up_down_counter(
        name=names.RL_REPLAY_BUFFER_QUEUE_DEPTH,
        unit="{request}",
        description="Reads and writes that wait for the buffer.",
    )


def create_rl_replay_buffer_reads(meter: Meter) -> Counter:
    """Samples read."""
    return meter.create_counter(
        name=names.RL_REPLAY_BUFFER_READS,
        unit="{sample}",
        description="Samples read.",
    )


def create_rl_replay_buffer_retrieval_duration(meter: Meter) -> Histogram:
    """Time to read one batch that is available, as the reader sees it."""
    return meter.create_histogram(
        name=names.RL_REPLAY_BUFFER_RETRIEVAL_DURATION,
        unit="s",
        description="Time to read one batch that is available, as the reader sees it.",
    )


def create_rl_replay_buffer_size(meter: Meter) -> UpDownCounter:
    """Samples in the buffer."""
    return meter.create_up_down_counter(
        name=names.RL_REPLAY_BUFFER_SIZE,
        unit="{sample}",
        description="Samples in the buffer.",
    )


def create_rl_replay_buffer_writes(meter: Meter) -> Counter:
    """Samples written."""
    return meter.create_counter(
        name=names.RL_REPLAY_BUFFER_WRITES,
        unit="{sample}",
        description="Samples written.",
    )


def create_rl_replica_failures(meter: Meter) -> Counter:
    """Detected failures of the replica."""
    return meter.create_counter(
        name=names.RL_REPLICA_FAILURES,
        unit="{failure}",
        description="Detected failures of the replica.",
    )


def create_rl_replica_queue_depth(meter: Meter) -> UpDownCounter:
    """Unfinished requests that a router gave to the replica."""
    return meter.create_up_down_counter(
        name=names.RL_REPLICA_QUEUE_DEPTH,
        unit="{request}",
        description="Unfinished requests that a router gave to the replica.",
    )


def create_rl_replica_recovery_duration(meter: Meter) -> Histogram:
    """Time from the detected failure of a replica until it serves again."""
    return meter.create_histogram(
        name=names.RL_REPLICA_RECOVERY_DURATION,
        unit="s",
        description="Time from the detected failure of a replica until it serves again.",
    )


def create_rl_reward_duration(meter: Meter) -> Histogram:
    """Time to score one request."""
    return meter.create_histogram(
        name=names.RL_REWARD_DURATION,
        unit="s",
        description="Time to score one request.",
    )


def create_rl_reward_max(meter: Meter) -> Gauge:
    """Largest reward of a sample in the batch."""
    return meter.create_gauge(
        name=names.RL_REWARD_MAX,
        unit="1",
        description="Largest reward of a sample in the batch.",
    )


def create_rl_reward_mean(meter: Meter) -> Gauge:
    """Mean reward per sample of the batch."""
    return meter.create_gauge(
        name=names.RL_REWARD_MEAN,
        unit="1",
        description="Mean reward per sample of the batch.",
    )


def create_rl_reward_min(meter: Meter) -> Gauge:
    """Smallest reward of a sample in the batch."""
    return meter.create_gauge(
        name=names.RL_REWARD_MIN,
        unit="1",
        description="Smallest reward of a sample in the batch.",
    )


def create_rl_reward_std(meter: Meter) -> Gauge:
    """Standard deviation of the rewards of the batch. Over workers, the mean of theirs."""
    return meter.create_gauge(
        name=names.RL_REWARD_STD,
        unit="1",
        description=(
            "Standard deviation of the rewards of the batch. Over workers, the mean of theirs."
        ),
    )


def create_rl_reward_sum(meter: Meter) -> Gauge:
    """Sum of the rewards of the batch."""
    return meter.create_gauge(
        name=names.RL_REWARD_SUM,
        unit="1",
        description="Sum of the rewards of the batch.",
    )


def create_rl_sample_age_duration(meter: Meter) -> Gauge:
    """Time between making and use of a sample."""
    return meter.create_gauge(
        name=names.RL_SAMPLE_AGE_DURATION,
        unit="s",
        description="Time between making and use of a sample.",
    )


def create_rl_sample_age_steps(meter: Meter) -> Gauge:
    """Training steps between making and use of a sample, where its maker knew the step."""
    return meter.create_gauge(
        name=names.RL_SAMPLE_AGE_STEPS,
        unit="{step}",
        description=(
            "Training steps between making and use of a sample, where its maker knew the step."
        ),
    )


def create_rl_sample_age_versions(meter: Meter) -> Gauge:
    """Policy versions between making and use of a sample, its staleness."""
    return meter.create_gauge(
        name=names.RL_SAMPLE_AGE_VERSIONS,
        unit="{version}",
        description="Policy versions between making and use of a sample, its staleness.",
    )


def create_rl_sample_dropped(meter: Meter) -> Counter:
    """Samples produced and then not trained on."""
    return meter.create_counter(
        name=names.RL_SAMPLE_DROPPED,
        unit="{sample}",
        description="Samples produced and then not trained on.",
    )


def create_rl_sample_duration(meter: Meter) -> Histogram:
    """Time to produce one sample, from asking for it to having it whole."""
    return meter.create_histogram(
        name=names.RL_SAMPLE_DURATION,
        unit="s",
        description="Time to produce one sample, from asking for it to having it whole.",
    )


def create_rl_sample_episodes(meter: Meter) -> Counter:
    """Episodes finished."""
    return meter.create_counter(
        name=names.RL_SAMPLE_EPISODES,
        unit="{episode}",
        description="Episodes finished.",
    )


def create_rl_sample_length(meter: Meter) -> Histogram:
    """Length of each sample produced, whether or not it is trained on."""
    return meter.create_histogram(
        name=names.RL_SAMPLE_LENGTH,
        unit="{token}",
        description="Length of each sample produced, whether or not it is trained on.",
    )


def create_rl_sample_reward(meter: Meter) -> Gauge:
    """Reward of each sample produced, whether or not it is trained on."""
    return meter.create_gauge(
        name=names.RL_SAMPLE_REWARD,
        unit="1",
        description="Reward of each sample produced, whether or not it is trained on.",
    )


def create_rl_sample_samples(meter: Meter) -> Counter:
    """Samples produced."""
    return meter.create_counter(
        name=names.RL_SAMPLE_SAMPLES,
        unit="{sample}",
        description="Samples produced.",
    )


def create_rl_train_grad_abs_max(meter: Meter) -> Gauge:
    """Largest absolute value of any element of the gradient."""
    return meter.create_gauge(
        name=names.RL_TRAIN_GRAD_ABS_MAX,
        unit="1",
        description="Largest absolute value of any element of the gradient.",
    )


def create_rl_train_grad_mean_square(meter: Meter) -> Gauge:
    """Mean of the squared elements of the gradient."""
    return meter.create_gauge(
        name=names.RL_TRAIN_GRAD_MEAN_SQUARE,
        unit="1",
        description="Mean of the squared elements of the gradient.",
    )


def create_rl_train_grad_nonfinite(meter: Meter) -> Gauge:
    """NaN or infinite elements of the worker's own gradient, before averaging."""
    return meter.create_gauge(
        name=names.RL_TRAIN_GRAD_NONFINITE,
        unit="{element}",
        description="NaN or infinite elements of the worker's own gradient, before averaging.",
    )


def create_rl_train_grad_norm(meter: Meter) -> Gauge:
    """Euclidean norm of the gradient before clipping."""
    return meter.create_gauge(
        name=names.RL_TRAIN_GRAD_NORM,
        unit="1",
        description="Euclidean norm of the gradient before clipping.",
    )


def create_rl_train_learning_rate(meter: Meter) -> Gauge:
    """Learning rate that the update was made with."""
    return meter.create_gauge(
        name=names.RL_TRAIN_LEARNING_RATE,
        unit="1",
        description="Learning rate that the update was made with.",
    )


def create_rl_train_loss(meter: Meter) -> Gauge:
    """Training loss."""
    return meter.create_gauge(
        name=names.RL_TRAIN_LOSS,
        unit="1",
        description="Training loss.",
    )


def create_rl_train_mfu(meter: Meter) -> Gauge:
    """Model FLOPs utilisation, a share of the hardware's peak between 0 and 1."""
    return meter.create_gauge(
        name=names.RL_TRAIN_MFU,
        unit="1",
        description="Model FLOPs utilisation, a share of the hardware's peak between 0 and 1.",
    )


def create_rl_train_steps(meter: Meter) -> Counter:
    """Optimizer steps. Every rank counts its own; the mean over ranks is the number of steps."""
    return meter.create_counter(
        name=names.RL_TRAIN_STEPS,
        unit="{step}",
        description=(
            "Optimizer steps. Every rank counts its own; the mean over ranks is the number of "
            "steps."
        ),
    )


def create_rl_train_tokens(meter: Meter) -> Counter:
    """Tokens trained on."""
    return meter.create_counter(
        name=names.RL_TRAIN_TOKENS,
        unit="{token}",
        description="Tokens trained on.",
    )


def create_rl_train_update_norm(meter: Meter) -> Gauge:
    """Euclidean norm of the change that one update made to the parameters."""
    return meter.create_gauge(
        name=names.RL_TRAIN_UPDATE_NORM,
        unit="1",
        description="Euclidean norm of the change that one update made to the parameters.",
    )


def create_rl_worker_gc_time(meter: Meter) -> Counter:
    """Time in CPython's cyclic garbage collector, which stops all threads.

    Its rate is the lost share.
    """
    return meter.create_counter(
        name=names.RL_WORKER_GC_TIME,
        unit="s",
        description=(
            "Time in CPython's cyclic garbage collector, which stops all threads. Its rate is the "
            "lost share."
        ),
    )


def create_rl_worker_idle_time(meter: Meter) -> Counter:
    """Time without work. Its rate is the idle share."""
    return meter.create_counter(
        name=names.RL_WORKER_IDLE_TIME,
        unit="s",
        description="Time without work. Its rate is the idle share.",
    )


def create_rl_worker_phase_age(meter: Meter) -> Gauge:
    """Age of the open phase at the export, the oldest of several. Grows during a hang."""
    return meter.create_gauge(
        name=names.RL_WORKER_PHASE_AGE,
        unit="s",
        description=(
            "Age of the open phase at the export, the oldest of several. Grows during a hang."
        ),
    )


def create_rl_worker_step_age(meter: Meter) -> Gauge:
    """Age of the open step at the export, the oldest of several. Grows during a hang."""
    return meter.create_gauge(
        name=names.RL_WORKER_STEP_AGE,
        unit="s",
        description=(
            "Age of the open step at the export, the oldest of several. Grows during a hang."
        ),
    )


def create_rl_worker_step_number(meter: Meter) -> Gauge:
    """Open step at the export, the oldest of several."""
    return meter.create_gauge(
        name=names.RL_WORKER_STEP_NUMBER,
        unit="{step}",
        description="Open step at the export, the oldest of several.",
    )


def create_rpc_client_call_duration(meter: Meter) -> Histogram:
    """Time of a call to another process, as its caller sees it."""
    return meter.create_histogram(
        name=names.RPC_CLIENT_CALL_DURATION,
        unit="s",
        description="Time of a call to another process, as its caller sees it.",
    )


def create_rpc_server_call_duration(meter: Meter) -> Histogram:
    """Time of a call of another process, as the one that answers sees it."""
    return meter.create_histogram(
        name=names.RPC_SERVER_CALL_DURATION,
        unit="s",
        description="Time of a call of another process, as the one that answers sees it.",
    )


def create_system_cpu_utilization(meter: Meter) -> Gauge:
    """Share of the host's CPU time in use, between 0 and 1."""
    return meter.create_gauge(
        name=names.SYSTEM_CPU_UTILIZATION,
        unit="1",
        description="Share of the host's CPU time in use, between 0 and 1.",
    )


def create_system_disk_io(meter: Meter) -> Counter:
    """Bytes read from and written to the host's disks."""
    return meter.create_counter(
        name=names.SYSTEM_DISK_IO,
        unit="By",
        description="Bytes read from and written to the host's disks.",
    )


def create_system_filesystem_usage(meter: Meter) -> UpDownCounter:
    """Space of the host's file system, by state."""
    return meter.create_up_down_counter(
        name=names.SYSTEM_FILESYSTEM_USAGE,
        unit="By",
        description="Space of the host's file system, by state.",
    )


def create_system_filesystem_utilization(meter: Meter) -> Gauge:
    """Share of the space of the host's file system, by state, between 0 and 1."""
    return meter.create_gauge(
        name=names.SYSTEM_FILESYSTEM_UTILIZATION,
        unit="1",
        description="Share of the space of the host's file system, by state, between 0 and 1.",
    )


def create_system_memory_limit(meter: Meter) -> UpDownCounter:
    """Size of the host's memory."""
    return meter.create_up_down_counter(
        name=names.SYSTEM_MEMORY_LIMIT,
        unit="By",
        description="Size of the host's memory.",
    )


def create_system_memory_usage(meter: Meter) -> UpDownCounter:
    """Memory of the host, by state."""
    return meter.create_up_down_counter(
        name=names.SYSTEM_MEMORY_USAGE,
        unit="By",
        description="Memory of the host, by state.",
    )


def create_system_memory_utilization(meter: Meter) -> Gauge:
    """Share of the host's memory, by state, between 0 and 1."""
    return meter.create_gauge(
        name=names.SYSTEM_MEMORY_UTILIZATION,
        unit="1",
        description="Share of the host's memory, by state, between 0 and 1.",
    )


def create_system_network_io(meter: Meter) -> Counter:
    """Bytes that the host received and sent."""
    return meter.create_counter(
        name=names.SYSTEM_NETWORK_IO,
        unit="By",
        description="Bytes that the host received and sent.",
    )
