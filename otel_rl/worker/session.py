"""The session of this process: init, flush, shutdown, forks and the end of the process.

``init`` reports all configuration errors before any thread runs; afterwards nothing here raises
into training code. A session begins in one of two ways: ``init`` names the worker, or the zero-code
plug-ins guess it from the environment; a later ``init`` then corrects the guess.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_rl.errors import ConfigError
from otel_rl.redaction import redacted
from otel_rl.run_id import run_id
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.starts import RunMetadata, validated_metadata
from otel_rl.worker.forks import (
    after_threads_of_child,
    after_threads_of_fork,
    at_end_of_multiprocessing_child,
    watch_multiprocessing,
)
from otel_rl.worker.guard import GUARD
from otel_rl.worker.identity import Identity, identify, invalid_place, names_an_experiment, run_word
from otel_rl.worker.launch import (
    ON_SEVERAL_HOSTS,
    hand_down,
    launch_of,
    on_several_hosts,
    parent_pid,
    process_name,
    take_back,
)
from otel_rl.worker.lifetime import Providers, Session, resource_of
from otel_rl.worker.phases.flows import count_open
from otel_rl.worker.settings import (
    DATA,
    GpuOptions,
    MfuOptions,
    Settings,
    exporters_beside_otlp,
    is_disabled,
    read_settings,
)

__all__ = [
    "GUARD",
    "Session",
    "before_end",
    "change_trial",
    "finished",
    "flush",
    "implicit_session",
    "init",
    "running",
    "shutdown",
    "start_from_environment",
    "started_or_dropped",
]

_CHANGE_TIMEOUT_S: Final = 1.0
"""Maximum time that ``init`` spends delivering records of a guess to another endpoint."""

# _lock guards the three below. Re-entrant: asking the API for the global provider may load the
# plug-in, which asks for the session.
_lock = threading.RLock()
_session: Session | None = None
_has_ended = False  # after shutdown only init starts another worker
_providers: Providers | None = None

finished: Final[set[tuple[str, str]]] = set()
"""Experiment and trial of the runs that this process is done with."""

before_end: Final[list[Callable[[], None]]] = []
"""Called at the end of the process, and of a forked child, by what still holds measurements."""

_exit_wait_s: float | None = None
"""Time that the end of the process waits for the bridges of its inboxes; None without one."""

_before: dict[str, str | None] = {}
"""What the environment had before the names of the run, for children."""


def init(
    *,
    experiment: str | None = None,
    role: str | None = None,
    trial: str | None = None,
    index: int | None = None,
    count: int | None = None,
    tag: str | None = None,
    endpoint: str | None = None,
    export_interval_s: float | None = None,
    resource_attributes: Mapping[str, AttributeValue] | None = None,
    config: Mapping[str, object] | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
    project: str | None = None,
    entity: str | None = None,
    name: str | None = None,
    mode: str | None = None,
    gpu: bool | GpuOptions | None = None,
    mfu: MfuOptions | None = None,
) -> None:
    """Start reporting as a worker of an experiment. After it returns, nothing raises.

    Sets the global OpenTelemetry providers unless the program has set its own. A second call with
    the same arguments does nothing; a call after ``finish`` begins another run, unless it names the
    trial of an earlier one.

    Args:
        experiment: Name that groups all workers of a run; default ``OTEL_RL_EXPERIMENT``.
        role: trainer, generator, replay_buffer, env, reward, or any word; default ``OTEL_RL_ROLE``,
            else the name of a child process or Ray actor, else ``trainer``.
        trial: Name of one run of the experiment; default ``OTEL_RL_TRIAL``, else the launch.
        index: Index among the workers of the role, from 0; default from the launcher.
        count: Number of workers of the role; default from the launcher.
        tag: ``training`` or ``evaluation``, or any word.
        endpoint: Base URL of the bridge or collector; default ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        export_interval_s: Seconds between two exports; default ``OTEL_METRIC_EXPORT_INTERVAL``,
            else 1.
        resource_attributes: Further attributes of the process.
        config: Hyper-parameters of the run. See ``log_config``.
        notes: Free text about the run.
        tags: Tags of the run, merged with those of the other workers.
        group: Name that several runs share.
        job_type: Kind of the run within its group.
        project: Project of the run in the tracker; default the bridge's.
        entity: Account or team of the run in the tracker; default the bridge's.
        name: Name under which the tracker shows the run.
        mode: ``online``, ``offline`` or ``shared``; default the bridge's.
        gpu: True samples the process's GPUs; options select how, e.g. ``{"roles": ["trainer"]}``;
            default ``OTEL_RL_GPU``, else no sampling.
        mfu: ``{"model_flops_per_token": ..., "peak_flops_per_s": ...}`` reports ``rl.train.mfu`` of
            each step; defaults ``OTEL_RL_MODEL_FLOPS_PER_TOKEN`` and ``OTEL_RL_PEAK_FLOPS_PER_S``,
            else none.

    Raises:
        ConfigError: An argument or variable is wrong, or the process already reports as another
            worker. The message names it, its value and the remedy.
    """
    identity = identify(
        os.environ,
        launch=_launch,
        experiment=experiment,
        trial=trial,
        role=role,
        index=index,
        count=count,
        tag=tag,
        resource_attributes=resource_attributes,
        process_name=process_name(),
        finished=finished,
    )
    settings = read_settings(
        os.environ, endpoint=endpoint, export_interval_s=export_interval_s, gpu=gpu, mfu=mfu
    )
    metadata = validated_metadata(
        GUARD,
        config=config,
        notes=notes,
        tags=tags,
        group=group,
        job_type=job_type,
        project=run_word(os.environ, "project", project),
        entity=entity,
        name=run_word(os.environ, "name", name),
        mode=mode,
    )
    _begin(identity, settings, metadata)


def _begin(identity: Identity, settings: Settings, metadata: RunMetadata) -> None:
    """Start the session of the process, or check that the present one has these names."""
    with _lock:
        if _session is None:
            _start(identity, settings, is_guess=False, metadata=metadata)
        elif _session.is_guess:
            _replace_guess(_session, identity, settings, metadata)
        elif not _is_same(_session.identity, identity) or _session.settings != settings:
            raise ConfigError(
                f"init: this process already reports as {_describe(_session.identity)} to "
                f"{redacted(_session.settings.metrics.url)} (got {_describe(identity)} to "
                f"{redacted(settings.metrics.url)}).",
                hint="Call otel_rl.finish() first, or call init() once.",
            )
        elif metadata:
            _session.report_start(metadata)
        if not settings.disabled and _providers is not None:
            with GUARD:
                _providers.install()


def flush(*, timeout_s: float | None = None) -> bool:
    """Send everything recorded before the call. Never raises.

    Args:
        timeout_s: Maximum blocking time in seconds; None is ``OTEL_RL_EXIT_TIMEOUT``, 5 by default.

    Returns:
        True if the endpoint accepted everything; False on timeout or before ``init``.
    """
    session = _session
    if session is None:
        return False
    return session.flush(session.settings.exit_timeout_s if timeout_s is None else timeout_s)


def shutdown(*, timeout_s: float | None = None) -> bool:
    """Send everything and stop reporting. Runs automatically at exit. Idempotent, never raises.

    Args:
        timeout_s: Maximum blocking time in seconds; None waits for each answer, as at the end of a
            process.

    Returns:
        True if everything was delivered. Losses are counted and logged.
    """
    session = _ended_session()
    return True if session is None else session.shutdown(timeout_s)


def change_trial(
    trial: str | None, config: Mapping[str, object], failure: Exception | None = None
) -> None:
    """Deliver what was recorded so far, and go on as the same worker in another trial.

    Never raises. Without a trial, reporting stops until something is recorded again. What other
    threads record between the last export of the one trial and the first of the other is lost, as
    at the end of a process: values of gauges are counted, increments of counters are not.
    """
    global _session  # one session per process
    with GUARD:
        session = _session
        if session is None or trial == session.identity.trial:
            return
        session.exit_report.note(failure)
        session.shutdown(session.settings.exit_timeout_s, is_followed=True)
    with GUARD, _lock:
        if session is None or _session is not session:
            return  # the program has ended it
        _session = None
        if trial is None:
            _keep_from_children()
            return
        identity = session.identity
        identity = replace(identity, trial=trial, run_id=run_id(identity.experiment, trial))
        settings = replace(session.settings, config=config)
        started = _start(identity, settings, is_guess=session.is_guess)
        if started is not None:
            started.is_of_adapter = session.is_of_adapter


def _is_same(begun: Identity, identity: Identity) -> bool:
    """Return whether ``init`` names the worker that has begun. Adapters leave out the count."""
    return begun == identity or (begun.count is None and begun == replace(identity, count=None))


def _shutdown_at_exit() -> None:
    for call in tuple(before_end):
        with GUARD:
            call()
    session = _ended_session()
    try:
        if session is not None:
            count_open(GUARD)
            session.shutdown_at_exit()
        if _exit_wait_s is not None:
            from otel_rl.worker.export.inbox import end  # loaded, as there is one
            from otel_rl.worker.export.inbox_bridge import wait_for_bridges

            end()
            is_child = parent_pid() is not None
            wait_for_bridges(_exit_wait_s, is_exit=True, is_child=is_child)
        if _providers is not None:
            _providers.spans.is_over = True
            _end_tracer(_providers)
    except KeyboardInterrupt:  # a second Ctrl-C: nobody waits any more for what is left
        if session is not None:
            with suppress(KeyboardInterrupt):
                session.shutdown(0.0)  # counts what is lost, unless that was done


def _end_tracer(providers: Providers) -> None:
    """Let the program's span processors get their last spans; leave behind one that hangs."""

    def end() -> None:
        with GUARD:
            providers.tracer.shutdown()

    thread = threading.Thread(target=end, name="otel-rl-last-spans", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # from Python 3.12 on no thread begins at the end of a process
        end()
    else:
        thread.join(providers.exit_timeout_s)


def _ended_session() -> Session | None:
    global _session, _has_ended  # one session per process
    with _lock:
        session, _session = _session, None
        if session is not None:
            _has_ended = True
            finished.add((session.identity.experiment, session.identity.trial))
            _keep_from_children()
    return session


def running() -> Session | None:
    """Return the session, or None before ``init`` and after ``shutdown``."""
    return _session


def implicit_session() -> Session | None:
    """Return the session, starting it from the environment alone if there is none.

    Return None if ``OTEL_SDK_DISABLED`` is set, or after ``shutdown``.

    Raises:
        ConfigError: The environment lacks the experiment, or has a wrong value.
    """
    with _lock:
        if _session is not None or _has_ended:
            return _session
        settings = read_settings(os.environ)
        identity = identify(os.environ, launch=_launch, process_name=process_name())
        return _start(identity, settings, is_guess=True)


def start_from_environment() -> Session | None:
    """Return ``implicit_session`` without raising; None also without a named experiment."""
    if is_disabled(os.environ) or not names_an_experiment(os.environ):
        return None
    try:
        return implicit_session()
    except Exception as error:  # noqa: BLE001  # nothing may raise into training code
        GUARD.warn("bad_environment", f"otel_rl cannot start: {error}")
        return None


def started_or_dropped(call: str, lost: int = 1) -> Session | None:
    """Return the session, started from the environment if necessary. Never raises.

    Without a session the ``call`` of the program is counted and logged as lost.
    """
    started = _session or start_from_environment()
    if started is None and not is_disabled(os.environ):
        GUARD.drop(
            DropReason.NOT_STARTED,
            f"{call} was called before otel_rl.init() or after otel_rl.finish(); the call "
            'is dropped. Call otel_rl.init(experiment="...", role="...") first, or set '
            "OTEL_RL_EXPERIMENT.",
            lost,
        )
    return started


def _replace_guess(
    guess: Session, identity: Identity, settings: Settings, metadata: RunMetadata
) -> None:
    """Continue as the worker that ``init`` names. The caller holds the lock."""
    if guess.settings == settings:
        guess.correct(identity)
        guess.report_start(metadata)
        _hand_down(identity, guess.settings)
    else:
        ended = _ended_session()
        if ended is not None:
            ended.shutdown(_CHANGE_TIMEOUT_S, announces_end=False)
        started = _start(identity, settings, is_guess=False, metadata=metadata)
        if started is not None and guess.own_run is not None:
            started.report_own_run(guess.own_run)


def _start(
    identity: Identity, settings: Settings, *, is_guess: bool, metadata: RunMetadata | None = None
) -> Session | None:
    global _session, _providers, _has_ended  # one session per process
    if settings.disabled:
        return None
    settings = _with_inbox(settings, identity)
    for line in exporters_beside_otlp(os.environ):
        GUARD.warn(line, f"{line}.")
    if identity.index is None and (place := invalid_place(os.environ)) is not None:
        GUARD.warn(
            "place",
            f"{place} is not a valid index and count, so this worker has no index and the "
            "bridge assigns one. Set OTEL_RL_INDEX and OTEL_RL_COUNT, or correct them.",
        )
    if _providers is None:
        _providers = Providers(resource_of(identity), settings)
        # After the providers: the SDK registers its own fork handlers, and ours must run later.
        os.register_at_fork(after_in_child=_after_fork_in_child)
        atexit.register(_shutdown_at_exit)
    else:
        _providers.restart(resource_of(identity), keep_buffer=True)
    _session = Session(identity, settings, _providers, is_guess=is_guess, metadata=metadata)
    _has_ended = False
    _hand_down(identity, settings)
    at_end_of_multiprocessing_child(_shutdown_of_child)
    watch_multiprocessing(_begin_in_multiprocessing_child)
    return _session


def _with_inbox(settings: Settings, identity: Identity) -> Settings:
    if not settings.embed or settings.are_named:
        return settings
    from otel_rl.worker.export.inbox import with_inbox  # others have an endpoint

    run = run_id(identity.experiment, identity.trial)
    several = on_several_hosts(os.environ)
    return with_inbox(settings, run, os.environ, on_several_hosts=several)


def _launch() -> str:
    """Return the launch for the trial; log if the ranks find no common launch."""
    launch = launch_of(os.environ)
    if launch.is_of_host:
        GUARD.warn("launch", ON_SEVERAL_HOSTS)
    return launch.id


def _hand_down(identity: Identity, settings: Settings) -> None:
    """Give run and inbox to children that name none. The caller holds the lock."""
    global _exit_wait_s  # once a process has an inbox
    _keep_from_children()
    _before.update(hand_down(os.environ, identity.experiment, identity.trial))
    if settings.inbox is not None:
        _exit_wait_s = settings.exit_timeout_s
        _before[DATA] = os.environ.get(DATA)
        # Also to those in other working directories.
        os.environ[DATA] = os.fspath(settings.inbox.run.parent)


def _keep_from_children() -> None:
    """Undo ``_hand_down``. The caller holds the lock."""
    take_back(os.environ, _before)
    _before.clear()


def _after_fork_in_child() -> None:
    global _lock  # a thread of the parent may hold its lock
    _lock = threading.RLock()
    if _exit_wait_s is not None:
        from otel_rl.worker.export.inbox import forget  # loaded, as there is one

        forget()
    if _session is not None and _providers is not None:
        with GUARD:
            _session.restart_after_fork()
            after_threads_of_fork(_shutdown_at_exit)
    watch_multiprocessing(_begin_in_multiprocessing_child)


def _begin_in_multiprocessing_child() -> None:
    """Give a forked child the role in its name, as the program named its parent's role only."""
    if _session is None:
        return
    with GUARD:
        if _session.is_guess:
            _session.rename(_session.identity.of_child(os.environ, process_name()))
    at_end_of_multiprocessing_child(_shutdown_of_child)


def _shutdown_of_child() -> None:
    if _session is not None:  # finalizers may run while the exception of the target passes
        _session.exit_report.note(sys.exception())
    after_threads_of_child(_shutdown_at_exit)


def _describe(identity: Identity) -> str:
    place = "" if identity.index is None else f" {identity.index}"
    return f"{identity.role}{place} of {identity.experiment}/{identity.trial}"
