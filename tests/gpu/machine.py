"""A machine with GPUs that are not there: the real pynvml over ``nvml.c``.

machine = Machine(tmp_path, monkeypatch.setenv)
machine.set(gpu(0, utilization=50))
"""

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

NAME = "Stand-in H100"
SO_NAME = "libnvidia-ml.so.1"

_SOURCE = Path(__file__).with_name("nvml.c")

Answers = Mapping[str, object]


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc")


@cache
def library(*options: str) -> Path:
    """The directory of the compiled library. One of this process's own, built once.

    ``-DOLD_DRIVER`` leaves out the functions that drivers before 510 do not have.
    """
    directory = Path(tempfile.mkdtemp(prefix="nvml-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    made = directory / SO_NAME
    subprocess.run(
        [
            *(str(compiler()), "-shared", "-fPIC", "-O1", f"-Wl,-soname,{SO_NAME}", *options),
            *("-o", made, _SOURCE),
        ],
        check=True,
        timeout=60,
    )
    return directory


def uuid_of(number: int, host: str = "host") -> str:
    """As NVML would call it; no two machines have the same."""
    return f"GPU-{number:08x}-{host}"


def gpu(number: int, host: str = "host", **answers: object) -> Answers:
    """A GPU that answers everything, except where ``answers`` say otherwise."""
    sound: dict[str, object] = {
        "uuid": uuid_of(number, host),
        "name": NAME,
        "utilization": 10 * (number + 1),
        "memory_used": 20 << 30,
        "memory_total": 80 << 30,
        "power": 300_000,
        "power_limit": 700_000,
        "energy": 5_000_000_000,
        "temperature": 60,
        "sm_clock": 1980,
        "memory_clock": 2619,
        "throttle": 0x4,
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "field_138": 10,
        "field_139": 20,
        "memory_reserved": 1 << 29,
        "process_memory": 4 << 30,
        "process_pid": os.getpid(),
    }
    return {f"{number}.{word}": value for word, value in (sound | answers).items()}


class Machine:
    """What the driver says from now on, in this process and in those that it starts.

    Args:
        directory: For the script. Nobody else's.
        set_environment: Sets a variable of this process until the test is over.
        load: Whether this process is to have the library, and not only those that it starts.
    """

    def __init__(
        self,
        directory: Path,
        set_environment: Callable[[str, str], None],
        *,
        load: bool = True,
    ) -> None:
        self.script = directory / "nvml.script"
        self.set({"count": 0})
        set_environment("NVML_SCRIPT", str(self.script))
        set_environment("LD_LIBRARY_PATH", str(library()))
        if load:
            # The loader knows a library by its own name, so that pynvml gets this one.
            ctypes.CDLL(str(library() / SO_NAME))

    @property
    def hangs(self) -> Path:
        """A file that is there once a call of the library hangs."""
        return self.script.with_suffix(".script.hangs")

    def set(self, *answers: Answers) -> None:
        """Say this and nothing else."""
        merged = {key: value for part in answers for key, value in part.items()}
        if "count" not in merged:
            numbers = {key.split(".")[0].split("/")[0] for key in merged if "." in key}
            merged["count"] = len(numbers)
        text = "".join(f"{key} {value}\n" for key, value in merged.items())
        new = self.script.with_suffix(".new")
        new.write_text(text)
        new.replace(self.script)
