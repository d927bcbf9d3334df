# SPDX-License-Identifier: Apache-2.0
"""AMD's library calls the plugin: its times are of another clock, so nothing is measured."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_inspector.analysis.coverage import find_coverage
from nccl_inspector.model.process import MEASURING, RCCL, Process
from tests.support.boxes import read_dead_box
from tests.support.repository import BUILD
from tests.support.scripted_nccl import OURS

PLAYED = BUILD / "player" / "libnccl.so.2"
PLAYER = BUILD / "tests" / "native" / "player"
# A program with one rank and some AllReduces.
PROGRAM = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]
lib.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
one, comm = Id(), ctypes.c_void_p()
lib.ncclGetUniqueId(ctypes.byref(one))
assert lib.ncclCommInitRank(ctypes.byref(comm), 1, one, 0) == 0
data = (ctypes.c_float * 1024)()
for _ in range(8):
    assert lib.ncclAllReduce(data, data, ctypes.c_size_t(1024), 7, 0, comm, None) == 0
assert lib.ncclCommDestroy(comm) == 0
"""


def run(library: Path, folder: Path) -> Process:
    """Return the process as its box has it."""
    place = folder / "raw"
    place.mkdir()
    env = os.environ | {
        "NCCL_PROFILER_PLUGIN": str(OURS),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(place),
        "NCCL_INSPECTOR_PROM_DUMP": "1",
    }
    subprocess.run(
        [sys.executable, "-c", PROGRAM, library],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    (path,) = place.glob("*.box")
    return read_dead_box(path)


def linked_with_hip(folder: Path) -> Path:
    """Return the same library under a name that tells nothing, linked with AMD's runtime."""
    hip, library = folder / "libamdhip64.so", folder / "libcollectives.so"
    source = "int hipGetDevice(int *device) { return *device = 0; }"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-"]
    subprocess.run([*command, "-o", hip], input=source, text=True, check=True)
    objects = map(str, [PLAYER / "lib" / "libnccl.o", *PLAYER.glob("*.o")])
    command = ["gcc", "-shared", *objects, "-Wl,--no-as-needed", str(hip), "-ldl"]
    subprocess.run([*command, "-o", library], check=True)
    return library


def named_rccl(folder: Path) -> Path:
    """Return the library under AMD's name."""
    return Path(shutil.copy(PLAYED, folder / "librccl.so.1"))


@pytest.mark.parametrize("library", [named_rccl, linked_with_hip])
def test_rccl_is_told_and_not_measured(tmp_path: Path, library: Callable[[Path], Path]) -> None:
    process = run(library(tmp_path), tmp_path)
    assert process.facts.silent == RCCL
    assert process.facts.nccl == "RCCL 2.32.3"
    assert not process.keys
    assert find_coverage([process], ["rank 0"]).rccl == {"RCCL 2.32.3": ("rank 0",)}


def test_nccl_is_measured(tmp_path: Path) -> None:
    process = run(PLAYED, tmp_path)
    assert process.facts.silent == MEASURING
    assert sum(key.ops for key in process.keys) == 8
