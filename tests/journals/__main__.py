"""Writes ``format_N.txt``: the fields of the state in a journal of the format of today.

Run it after a change of a class that is stored: ``python -m tests.journals``. The journals of a
release must stay readable, so after one, such a change needs another number of the format.
"""

from pathlib import Path

from otel_rl.bridge.journal.schema import FORMAT
from tests.journals.fields import fields_of_state


def main() -> None:
    """Write the fields beside this file."""
    Path(__file__).with_name(f"format_{FORMAT}.txt").write_text(fields_of_state())


if __name__ == "__main__":
    main()
