"""Programs that use a framework's own source file as a training does.

``{install}`` switches the adapter on by hand; ``{wrap}`` is what it puts around an object.
"""

STEPS = 4

# slime logs each group of metrics by itself, at a step of its own.

SLIME = f"""
    from argparse import Namespace

    {{install}}
    import slime.observability.logging_utils as logging_utils
    from slime.observability.logging_utils import finish_tracking, init_tracking

    args = Namespace(
        use_wandb=True, use_tensorboard=False, wandb_project="p", wandb_group="g", rank=0,
        wandb_mode="offline", wandb_key=None, wandb_team=None, wandb_dir=None,
        wandb_random_suffix=False, wandb_run_id=None, save=None,
    )
    init_tracking(args)
    for step in range({STEPS}):
        log = {{{{"rollout/custom": 7, "rollout/step": step}}}}
        logging_utils.log(args, log, step_key="rollout/step")
        log = {{{{"train/pg_loss": 0.5 * step, "train/step": step}}}}
        logging_utils.log(args, log, step_key="train/step")
    logging_utils.log(args, {{{{"eval/math": 0.25, "eval/step": 3}}}}, step_key="eval/step")
    finish_tracking(args)
"""

OPENRLHF = f"""
    from argparse import Namespace

    {{install}}
    from openrlhf.utils.logging_utils import TensorboardLogger

    wandb = Namespace(key=None, project="p", run_name="r")
    logger = TensorboardLogger(Namespace(logger=Namespace(tensorboard_dir="tb", wandb=wandb)))
    for step in range(1, {STEPS} + 1):
        status = {{{{"policy_loss": 0.5 * step, "custom": 7, "generated_samples": ["text", 1.0]}}}}
        logger.log_train(step, status)
    logger.log_eval({STEPS}, {{{{"eval_math_pass1": 0.25}}}})
    logger.close()
"""

ROLL = f"""
    {{install}}
    from roll.utils.tracking import create_tracker

    tracker = create_tracker("wandb", {{{{"seed": 1}}}}, project="p", name="r", mode="offline")
    for step in range({STEPS}):
        log = {{{{"actor/pg_loss@sum": 0.5 * step, "custom@mean": 7, "n": {{{{"a@max": 2}}}}}}}}
        tracker.log(values=log, step=step)
    tracker.finish()
"""

# AReaL's package installs with GPUs only, as do those below; what their file imports stands in.

AREAL = f"""
    import dataclasses
    from types import SimpleNamespace as Of

    from stand_ins import stand_in

    stand_in("areal", "swanlab", "trackio", "wandb.sdk.none")
    from areal.utils import stats_logger

    stats_logger.tabulate_stats = str
    {{install}}
    @dataclasses.dataclass
    class Config:
        stats_logger: object
        lr: float = 0.1

    where = Of(wandb_base_url="", wandb_api_key="", mode="disabled", id_suffix="", entity=None,
               project=None, name=None, job_type=None, group=None, notes=None, tags=None)
    names = Of(experiment_name="e", trial_name="t", fileroot="out", wandb=where,
               swanlab=Of(mode="disabled", project=None, name=None, api_key=None),
               trackio=Of(mode="disabled"), tensorboard=Of(path="tb"))
    plan = Of(total_train_epochs=1, steps_per_epoch={STEPS}, total_train_steps={STEPS})
    trainer = Of(stats_logger=stats_logger.StatsLogger(Config(names), plan))
    {{wrap}}
    for step in range({STEPS}):
        log = {{{{"ppo_actor/update/grad_norm": 0.5 * step, "custom": 7, "custom__count": 3}}}}
        trainer.stats_logger.commit(0, step, step, log)
    trainer.stats_logger.start_time = 0
    trainer.stats_logger.close()
"""

NEMO_RL = f"""
    from stand_ins import stand_in

    stand_in("matplotlib", "mlflow", "nemo_rl", "prometheus_client", "rich", "swanlab")
    from nemo_rl.utils.logger import Logger

    {{install}}
    trackers = ("wandb", "swanlab", "tensorboard", "mlflow")
    on = {{{{f"{{{{name}}}}_enabled": name == "tensorboard" for name in trackers}}}}
    logger = Logger(on | {{{{"log_dir": "logs", "monitor_gpus": False, "tensorboard": {{{{}}}}}}}})
    logger.log_hyperparams({{{{"lr": 0.1}}}})
    for step in range({STEPS}):
        logger.log_metrics({{{{"grad_norm": 0.5 * step, "custom": 7}}}}, step, prefix="train")
    logger.log_metrics({{{{"accuracy": 0.25}}}}, 3, "validation")
    logger.log_metrics({{{{"node.0.gpu.1.util": 50.0}}}}, 400, "ray")
    logger.finish()
"""

PRIME_RL = f"""
    import asyncio
    from pathlib import Path
    from types import SimpleNamespace as Of

    from stand_ins import stand_in

    stand_in("prime_rl", "verifiers")
    {{install}}
    from prime_rl import monitors

    async def train():
        wandb = Of(project="p", name="n", entity=None, group=None, tags=None, offline=True)
        await monitors.setup(wandb=wandb, output_dir=Path("."))
        for step in range({STEPS}):
            await monitors.log({{{{"optim/grad_norm": 0.5 * step, "custom": 7}}}}, step=step)
        await monitors.log([], step=3, kind="eval", subset="all")
        await monitors.finalize()

    asyncio.run(train())
"""

SKYRL = f"""
    from types import SimpleNamespace as Of

    from stand_ins import stand_in

    stand_in("loguru", "omegaconf", "skyrl")
    import skyrl.train.config
    import skyrl.train.entrypoints.main_base as main_base

    {{install}}
    experiment = main_base.BasePPOExp.__new__(main_base.BasePPOExp)
    experiment.cfg = Of(trainer=Of(project_name="p", run_name="r", logger="tensorboard", tags=[]))
    tracker = experiment.get_tracker()
    for step in range({STEPS}):
        tracker.log({{{{"policy/grad_norm": 0.5 * step, "custom": 7}}}}, step=step, commit=True)
    tracker.finish()
"""

FORGE = f"""
    import asyncio

    from stand_ins import stand_in

    stand_in("forge", "monarch", "pytz")
    import datetime
    from types import SimpleNamespace as Of

    import monarch.actor
    import pytz

    pytz.UTC = datetime.timezone.utc

    actor = Of(actor_instance=Of(actor_id=Of(actor_name="RLTrainer_1abc2def")))
    monarch.actor.context, monarch.actor.current_rank = lambda: actor, lambda: Of(rank=0)
    from forge.observability import metrics

    {{install}}
    async def train():
        collector = metrics.MetricCollector()
        mode = {{{{"logging_mode": metrics.LoggingMode.PER_RANK_NO_REDUCE}}}}
        await collector.init_backends(None, {{{{name: mode for name in {{wrap}}}}}}, 0)
        for step in range({STEPS}):
            metrics.record_metric("rl_trainer/grad_norm", 0.5 * step)
            metrics.record_metric("custom", 7)
            await collector.flush(step)
        await collector.shutdown()

    asyncio.run(train())
"""

VLLM = """
    from importlib.metadata import entry_points
    from types import SimpleNamespace as Of

    from stand_ins import stand_in

    stand_in("vllm")
    import vllm.v1.metrics.loggers as loggers
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

    def load_plugins_by_group(group):  # as vLLM's
        return dict((entry.name, entry.load()) for entry in entry_points(group=group))

    loggers.STAT_LOGGER_PLUGINS_GROUP = "vllm.stat_logger_plugins"
    loggers.load_plugins_by_group = load_plugins_by_group
    loggers.PrometheusStatLogger = loggers.LoggingStatLogger = Of  # those need a whole engine
    found = loggers.load_stat_logger_plugin_factories()
    manager = object.__new__(loggers.StatLoggerManager)
    manager.stat_loggers = [
        loggers.PerEngineStatLoggerAdapter(Of(), [0], factory) for factory in found
    ]
    for _ in range(3):  # of the same depth: an export may fall between any two
        scheduled = SchedulerStats(num_running_reqs=4, num_waiting_reqs=2, kv_cache_usage=0.5)
        scheduled.prefix_cache_stats.record(10, 4, preempted=False)
        iterated = IterationStats()
        iterated.num_generation_tokens = 64
        request = FinishedRequestStats("stop", e2e_latency=2.0, num_prompt_tokens=7,
                                       num_generation_tokens=21, queued_time=0.25)
        iterated.finished_requests.append(request)
        manager.record(scheduled, iterated)
    manager.log_engine_initialized()
"""

TINKER = f"""
    from stand_ins import stand_in

    stand_in("chz", "neptune_scale", "rich", "tinker_cookbook")
    {{install}}
    from tinker_cookbook.utils.ml_log import WandbLogger

    logger = WandbLogger(project="p", log_dir=".", wandb_name="r")
    {{wrap}}
    for step in range({STEPS}):
        logger.log_metrics({{{{"optim/lr": 0.5 * step, "custom": 7}}}}, step=step)
    logger.log_metrics_event({{{{"test/reward": 0.25}}}}, step, "eval/step")
    logger.close()
"""

RLLM = f"""
    from stand_ins import stand_in

    stand_in("rllm")
    {{install}}
    from rllm.utils.tracking import Tracking

    tracking = Tracking("p", "r", ["console", "wandb"], config={{{{"lr": 0.1}}}})
    for step in range({STEPS}):
        tracking.log({{{{"optim/lr": 0.5 * step, "custom": 7}}}}, step=step)
    tracking.log({{{{"test/reward": 0.25}}}}, step=step)
    tracking.finish()
"""


TRINITY = f"""
    from argparse import Namespace
    from stand_ins import stand_in

    stand_in("trinity", "swanlab", "mlflow")
    {{install}}
    from trinity.utils.monitor import WandbMonitor

    config = Namespace(monitor=Namespace(monitor_args=None))
    monitor = WandbMonitor("p", "g", "n", "explorer", config)
    for step in range({STEPS}):
        monitor.log({{{{"optim/lr": 0.5 * step}}}}, step=step)
        monitor.log({{{{"custom": 7}}}}, step=step)
    monitor.log({{{{"test/reward": 0.25}}}}, step=step)
    monitor.close()
"""
