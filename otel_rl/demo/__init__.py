"""A real asynchronous GRPO run on CPU, in a dozen processes, small enough to watch.

    result = otel_rl.demo.run(DemoSettings(steps=120))
"""

from otel_rl.demo.launch import run
from otel_rl.demo.result import DemoResult
from otel_rl.demo.settings import DemoSettings

__all__ = ["DemoResult", "DemoSettings", "run"]
