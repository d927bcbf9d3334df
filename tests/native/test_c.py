"""Every C unit test as a case, plain and with sanitizers, and what the libraries export."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.native_programs import SOURCES, exported, needed_glibc, run_tap
from tests.support.repository import BUILD

BUILDS = {
    "plain": BUILD,
    "asan": BUILD / "san-address-undefined",
    "tsan": BUILD / "san-thread",
}


def test_there_are_c_tests() -> None:
    assert len(SOURCES) >= 9


# TSan finds nothing in a program of one thread: the Makefile builds these alone for it.
THREADED = re.compile(r"pthread_create|whole_plugin\.h|jsonwriter_")
# The last one counts a hundred thousand communicators, of which ASan does ten thousand.
SLOW = {("test_inspector", "plain")}
# TSan would sleep for a second at each exit of a process with threads.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "TSAN_OPTIONS": "halt_on_error=1 atexit_sleep_ms=0",
}
PROGRAMS = [
    pytest.param(
        source,
        build,
        id=f"{source.stem}-{build}",
        marks=[pytest.mark.long] if build == "tsan" or (source.stem, build) in SLOW else [],
    )
    for source in SOURCES
    for build in BUILDS
    if build != "tsan" or THREADED.search(source.read_text())
]


@pytest.mark.parametrize(("source", "build"), PROGRAMS)
def test_c(source: Path, build: str) -> None:
    program = BUILDS[build] / "c" / source.stem
    assert program.exists(), f"{program} is not built: run `make build san`"
    run_tap([program], variables=OPTIONS)


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
