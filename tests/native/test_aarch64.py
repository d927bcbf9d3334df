"""The libraries for Arm (Grace), cross-built by `make aarch64` and run in an emulator."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from nccl_inspector.model.process import ALGOS, FINALIZED, FUNCS
from tests.support import application_log, standin
from tests.support.native_programs import SOURCES, exported, needed_glibc, run_tap
from tests.support.plugin_runs import boxes, environment
from tests.support.repository import BUILD, REPO

pytestmark = pytest.mark.long  # a second compiler, and an emulator

ARM = BUILD / "aarch64"
PROFILER = ARM / "libnccl-profiler-inspector.so"
SPANK = ARM / "spank_nccl_inspector.so"
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]


@pytest.mark.parametrize("library", [PROFILER, SPANK], ids=lambda path: path.name)
def test_the_library_is_for_arm(library: Path) -> None:
    assert library.exists(), f"{library} is not built: run `make aarch64`"
    done = subprocess.run(["readelf", "-h", library], capture_output=True, text=True, check=True)
    assert re.search(r"Machine: +AArch64", done.stdout)


# Numbers as text have nothing of a machine in them, and an emulator takes long for so many.
ON_ARM = [path for path in SOURCES if path.stem != "test_printed_numbers"]


@pytest.mark.parametrize("source", ON_ARM, ids=lambda path: path.stem)
def test_c_on_arm(source: Path) -> None:
    program = ARM / "c" / source.stem
    assert program.exists(), f"{program} is not built: run `make aarch64`"
    command: list[str | Path] = [*EMULATOR, "-E", "NCCL_INSPECTOR_TEST_EMULATED=1", program]
    # QEMU 7.2 itself dies of SIGSEGV in about one of a hundred runs of a program with threads. What
    # crashes on Arm always does so twice; on this machine it runs under sanitizers.
    run_tap(command, again_after=-signal.SIGSEGV)


def test_the_profiler_exports_the_names_of_its_map_and_no_more() -> None:
    text = (REPO / "plugin" / "profiler.map").read_text()
    names = set(re.findall(r"^\s*(\w+);$", text, re.MULTILINE))
    assert names
    assert exported(PROFILER) == names
    assert exported(BUILD / PROFILER.name) == names


def test_both_machines_spank_plugins_export_the_same() -> None:
    assert exported(SPANK) == exported(BUILD / SPANK.name)


def test_the_profiler_needs_only_the_glibc_of_old_containers() -> None:
    needed = needed_glibc(PROFILER)
    assert needed
    # What is named here has got a new version: plugin/base/compat.h asks for the old one.
    assert {name: version for name, version in needed.items() if version > (2, 28)} == {}
    done = subprocess.run(["readelf", "-d", PROFILER], capture_output=True, text=True, check=True)
    libraries = set(re.findall(r"NEEDED.*\[(.+?)\]", done.stdout))
    # All of them glibc; the stack protector's guard is the loader's.
    loader = "ld-linux-aarch64.so.1"
    assert libraries <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", loader}
    assert "NODELETE" in done.stdout


def test_an_application_on_arm_is_measured_truly(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every count, byte and nanosecond as in the application's own log."""
    emulated = tmp_path / "nccl-standin"
    emulated.write_text(f'#!/bin/sh\nexec {" ".join(EMULATOR)} {ARM}/nccl-standin "$@"\n')
    emulated.chmod(0o755)
    monkeypatch.setattr(standin, "STANDIN", emulated)
    env = environment(
        raw,
        NCCL_PROFILER_PLUGIN=str(PROFILER),
        NCCL_STANDIN_CUDA=str(ARM / "fakecuda" / "libcuda.so.1"),
    )
    args = ("--steps", "2", "--sizes", "256K,512K", "--compute-ms", "0")
    run = standin.finished(tmp_path, *args, ranks=2, env=env)
    assert run.codes == [0] * 2, run.stderr
    for rank, box in boxes(raw, run).items():
        names = {comm.index: comm.name for comm in box.comms}
        keys = {
            (names[k.comm], FUNCS[k.func], k.size_class): k
            for k in box.keys
            if ALGOS[k.algo] != "GROUP"  # of Sends and Recvs, which the log has one by one
        }
        table = application_log.by_kind(run.log(rank))
        assert table
        assert keys.keys() == table.keys()
        for where, ops in table.items():
            key = keys[where]
            assert (key.ops, key.bytes) == (len(ops), sum(op["bytes"] for op in ops))
            assert key.busy_ns == application_log.busy_ns(ops)
        assert box.facts.state == FINALIZED
        assert box.dropped == (0,) * len(box.dropped)
        assert not box.flags
