"""Ray's own hook for tracing carries the caller's span, without a wrapped call."""

from tests.frameworks.conftest import Runner

CODE = """
    import otel_rl
    import ray
    from opentelemetry import trace

    otel_rl.init(experiment="e", role="trainer")
    hook = "otel_rl.integrations.ray_tracing:carry_context"
    ray.init("local", _tracing_startup_hook=hook, num_cpus=1, log_to_driver=False)


    @ray.remote
    class Rollouts:
        def generate(self):
            return trace.get_current_span().get_span_context().trace_id


    rollouts = Rollouts.remote()
    with trace.get_tracer("m").start_as_current_span("job") as span:
        print(ray.get(rollouts.generate.remote()) == span.get_span_context().trace_id)
"""


def test_an_actor_works_in_the_trace_of_its_caller(frameworks: Runner) -> None:
    done = frameworks.start(frameworks.python, frameworks.script(CODE))
    assert done.status == 0, done.err
    assert done.out.split()[-1] == "True"
