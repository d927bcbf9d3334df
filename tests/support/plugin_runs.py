# SPDX-License-Identifier: Apache-2.0
"""The stand-in with the built plugin: its environment, and the boxes that it leaves."""

from pathlib import Path

from nccl_inspector.model.process import Process
from tests.support.boxes import read_dead_box
from tests.support.repository import BUILD
from tests.support.standin import Run

INTERVAL_S = 3


def environment(raw: Path, **more: str) -> dict[str, str]:
    return {
        "NCCL_PROFILER_PLUGIN": str(BUILD / "libnccl-profiler-inspector.so"),
        "NCCL_STANDIN_CUDA": str(BUILD / "fakecuda" / "libcuda.so.1"),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(raw),
        "NCCL_INSPECTOR_PROM_DUMP": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": str(INTERVAL_S * 1_000_000),
        "NCCL_DEBUG": "INFO",
    } | more


def boxes(raw: Path, run: Run) -> dict[int, Process]:
    """By rank: every process is dead by now."""
    found = {}
    for rank, process in enumerate(run.processes):
        path = raw / f"nccl_inspector_0_{process.pid}.box"
        found[rank] = read_dead_box(path)
    return found
