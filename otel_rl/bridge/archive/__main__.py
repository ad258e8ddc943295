"""The process that writes files of the archive: ``python -m otel_rl.bridge.archive FD``."""

import sys

# Arrow loads pandas and numpy where they are installed, and needs neither for Parquet files. pandas
# would take as much CPU as all else that a process does for a small file, numpy a quarter.
sys.modules |= {"numpy": None, "pandas": None}  # type: ignore[dict-item]  # as Python has it

from otel_rl.bridge.archive.file_writer import main  # noqa: E402

main(int(sys.argv[1]))
