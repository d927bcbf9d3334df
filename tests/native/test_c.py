"""Every C unit test as a case, plain and with sanitizers, and what the libraries export."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import BUILD, REPO

SOURCES = sorted((REPO / "tests" / "native" / "unit").glob("test_*.c"))
BUILDS = {
    "plain": BUILD,
    "asan": BUILD / "san-address-undefined",
    "tsan": BUILD / "san-thread",
}


def run_tap(command: list[str | Path], again_after: int | None = None, **variables: str) -> None:
    """Run a test program and see that it went through its whole plan without a failure.

    `again_after`: a return code that may come once.
    """
    env = os.environ | variables
    for _ in range(2):
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=60, check=False
        )
        if done.returncode != again_after:
            break
    failed = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
    plan = re.search(r"^1\.\.(\d+)$", done.stdout, re.MULTILINE)
    assert plan, f"{command} did not finish:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert int(plan[1]) > 0
    assert not failed
    assert done.returncode == 0, done.stderr


def exported(library: Path) -> set[str]:
    """The names that a library gives to others."""
    done = subprocess.run(
        ["nm", "-D", "--defined-only", "--format=posix", library],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.split()[0] for line in done.stdout.splitlines()}


def needed_glibc(library: Path) -> dict[str, tuple[int, ...]]:
    """Version of each of glibc's functions that a library was linked with, of any machine."""
    done = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True
    )
    return {
        name: tuple(map(int, version.split(".")))
        for name, version in re.findall(r" (\w+)@+GLIBC_([0-9.]+)", done.stdout)
    }


def test_there_are_c_tests() -> None:
    assert len(SOURCES) >= 9


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_c(source: Path, build: str) -> None:
    program = BUILDS[build] / "c" / source.stem
    assert program.exists(), f"{program} is not built: run `make build san`"
    run_tap([program], ASAN_OPTIONS="detect_leaks=0", TSAN_OPTIONS="halt_on_error=1")


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("libnccl-profiler-inspector.so", r"ncclProfiler_v[1-7]"),
        ("spank_nccl_inspector.so", r"slurm_spank_\w+|plugin_\w+|spank_plugin_\w+"),
    ],
)
def test_a_library_exports_its_contract_and_no_more(library: str, allowed: str) -> None:
    names = exported(BUILD / library)
    assert names
    assert [name for name in names if not re.fullmatch(allowed, name)] == []


def test_the_profiler_needs_only_glibc() -> None:
    library = BUILD / "libnccl-profiler-inspector.so"
    done = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED.*\[(.+?)\]", done.stdout))
    assert needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2"}  # all of them glibc
    assert "NODELETE" in done.stdout


def test_the_profiler_loads_with_the_glibc_of_old_containers() -> None:
    needed = needed_glibc(BUILD / "libnccl-profiler-inspector.so")
    assert needed
    assert {name: version for name, version in needed.items() if version > (2, 28)} == {}
