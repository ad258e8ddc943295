"""Process that writes files of the archive, ``python -m otel_rl.bridge.archive.file_process``."""

import sys


class _Hidden:
    """Hides what Arrow loads if it is installed, and does not need for Parquet files.

    pandas would take as much CPU as all else that a process does for a small file, numpy a quarter.
    """

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in {"numpy", "pandas"}:
            raise ModuleNotFoundError(f"{fullname} is not needed", name=fullname)


if __name__ == "__main__":
    sys.meta_path.insert(0, _Hidden())
    from otel_rl.bridge.archive.file_writer import main

    sys.exit(main())
