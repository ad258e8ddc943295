"""Limits of the container, from the files of its cgroups."""

from pathlib import Path

import pytest

from otel_rl.worker.system.host import Container

GIB = 1 << 30


def container(directory: Path, membership: str, files: dict[str, str]) -> Container:
    (directory / "membership").write_text(membership)
    for path, text in files.items():
        file = directory / "root" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return Container(directory / "root", directory / "membership")


def test_the_limits_of_a_container(tmp_path: Path) -> None:
    files = {
        "cpu.max": "250000 100000",
        "cpu.stat": "usage_usec 3000000\nuser_usec 1",
        "memory.max": str(8 * GIB),
        "memory.current": str(5 * GIB),
        "memory.stat": f"anon 1\ninactive_file {GIB}",
    }
    found = container(tmp_path, "0::/", files)
    assert found.cpu() == (3.0, 2.5)
    assert found.memory() == (4 * GIB, 8 * GIB)


def test_a_limit_above_the_process_s_own_group_counts_with_the_use_there(tmp_path: Path) -> None:
    files = {
        "pod/app/memory.max": "max",
        "pod/app/memory.current": str(GIB),
        "pod/memory.max": str(4 * GIB),
        "pod/memory.current": str(2 * GIB),
        "memory.max": str(6 * GIB),
        "memory.current": str(3 * GIB),
    }
    found = container(tmp_path, "0::/pod/app", files)
    assert found.memory() == (2 * GIB, 4 * GIB)


def test_the_limits_of_a_container_whose_path_is_the_machine_s(tmp_path: Path) -> None:
    files = {"memory.max": str(2 * GIB), "memory.current": str(GIB)}
    found = container(tmp_path, "0::/docker/abc", files)
    assert found.memory() == (GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("", {}),
        ("0::/", {}),
        ("0::/", {"cpu.max": "max 100000", "cpu.stat": "usage_usec 1", "memory.max": "max"}),
        ("0::/", {"cpu.max": "100000 0", "memory.max": "8", "memory.current": "nonsense"}),
        ("0::/../..", {}),
        ("nonsense", {}),
    ],
)
def test_what_has_no_limit_or_cannot_be_read_is_none(
    tmp_path: Path, membership: str, files: dict[str, str]
) -> None:
    found = container(tmp_path, membership, files)
    assert found.cpu() is None
    assert found.memory() is None


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    found = Container(tmp_path / "none", tmp_path / "nothing")
    assert found.cpu() is None
    assert found.memory() is None
