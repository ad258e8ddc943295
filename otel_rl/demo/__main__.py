"""Runs the demo without a bridge: ``python -m otel_rl.demo``."""

import argparse
import sys

from otel_rl.demo import DemoSettings, run


def main() -> int:
    """Run with the settings of the command line; 0 if the run reached its end."""
    defaults = DemoSettings()
    parser = argparse.ArgumentParser(
        prog="python -m otel_rl.demo", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--steps", type=int, default=defaults.steps, help="policy updates")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--no-kill", action="store_true", help="do not kill a generator half-way")
    options = parser.parse_args()
    settings = DemoSettings(
        steps=options.steps,
        seed=options.seed,
        kill_share=None if options.no_kill else defaults.kill_share,
    )
    result = run(settings)
    print(result)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
