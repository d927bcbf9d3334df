# SPDX-License-Identifier: Apache-2.0
"""Start the ranks of a plan on this machine, as if each were a node, and read what they left."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.model.process import Process
from tests.gpu.plan import Plan
from tests.gpu.rank import Record
from tests.support.application_log import read_log

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "build" / "libnccl-profiler-inspector.so"
STDERR_CHARS = 2000
SAMPLES_OF_RANKS = 8  # among so many the room for samples is shared
WARNINGS_KEPT = 6

# NCCL refuses two ranks of one host on one GPU. With a host id of its own each is another host's,
# and they talk over sockets; the rest keeps NCCL from looking for better ways, which there are not.
_AS_NODES = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_TUNER_PLUGIN": "none",
    "NCCL_RAS_ENABLE": "0",  # they would share its port
}


@dataclass
class Ran:
    """What the ranks of one run left."""

    plan: Plan
    codes: list[int]
    stderr: list[str]
    logs: dict[int, list[Record]] = field(default_factory=dict)
    said: dict[int, Record] = field(default_factory=dict)
    boxes: dict[int, Process] = field(default_factory=dict)
    proms: dict[int, str] = field(default_factory=dict)
    nccl_logs: dict[int, str] = field(default_factory=dict)

    @property
    def failed(self) -> str:
        """Why the run is worth nothing; empty when all ranks came to their end."""
        bad = [rank for rank, code in enumerate(self.codes) if code]
        if not bad:
            return ""
        return f"ranks {bad} ended with {self.codes}; rank {bad[0]}: {self.stderr[bad[0]]}"


def profiler_env(raw: Path, lines: Path | None) -> dict[str, str]:
    """Return what Slurm's side would set: the plugin, its directory, and JSON lines if asked."""
    words = {
        "NCCL_PROFILER_PLUGIN": str(PLUGIN),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(raw),
        "NCCL_INSPECTOR_PROM_DUMP": "1",
        "NCCL_INSPECTOR_JSON": "0",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000",
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "0",
    }
    if lines:
        words |= {"NCCL_INSPECTOR_JSON": "1", "NCCL_INSPECTOR_DUMP_DIR": str(lines)}
    return words


def rank_env(rank: int, nranks: int, more: dict[str, str]) -> dict[str, str]:
    """Return a rank's environment: ours without Slurm's and NCCL's, then what makes it a node."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "NCCL"))
    }
    paths = [str(ROOT), str(ROOT / "python"), inherited.get("PYTHONPATH", "")]
    return inherited | _AS_NODES | {
        "PYTHONPATH": ":".join(path for path in paths if path),
        "NCCL_HOSTID": f"gputest-{rank}",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV",
        "NCCL_DEBUG_FILE": f"nccl.{rank}",  # in the run's directory
        "NCCL_PROFILER_PLUGIN": "none",
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": f"n{rank + 1}",
        "SLURM_JOB_NODELIST": f"n[1-{nranks}]",
    } | more  # fmt: skip


def _wait(processes: list[subprocess.Popen[bytes]], limit_s: float) -> list[int]:
    """Return the codes; when one fails or time is over the others are ended: they would wait."""
    end = time.monotonic() + limit_s
    while any(process.poll() is None for process in processes):
        broken = any(process.returncode for process in processes)
        if broken or time.monotonic() > end:
            time.sleep(2.0 if broken else 0.0)  # the others may have to say why, too
            for process in processes:
                process.kill()
        time.sleep(0.02)
    return [process.returncode for process in processes]


def run(directory: Path, plan: Plan, more: dict[str, str], limit_s: float) -> Ran:
    """Do a plan in a new directory; `more`: environment of all ranks."""
    directory.mkdir(parents=True)
    plan.write(directory)
    outputs = [directory / f"stderr.{rank}" for rank in range(plan.nranks)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, path in enumerate(outputs):
            with path.open("wb") as file:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.gpu.rank", str(directory), str(rank)],
                        cwd=directory,
                        env=rank_env(rank, plan.nranks, more),
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )
        codes = _wait(processes, limit_s)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    ran = Ran(plan, codes, [_last_words(directory, path) for path in outputs])
    if not ran.failed:
        _read(ran, directory, more)
    return ran


def _last_words(directory: Path, stderr: Path) -> str:
    """Return what a rank said at last, and NCCL's warnings in it."""
    log = directory / f"nccl{stderr.suffix}"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    warnings = [line for line in lines if " WARN " in line][-WARNINGS_KEPT:]
    return "\n".join([stderr.read_text(errors="replace")[-STDERR_CHARS:], *warnings])


def box_of(path: Path) -> Process:
    """Return the box of a process that is gone.

    Raises:
        OSError, RefusedError: there is none, or it is none.
    """
    fd, size = os.open(path, os.O_RDONLY), path.stat().st_size
    try:
        return add_samples(fd, size, read_box(fd, size, path.stem, alive=False), SAMPLES_OF_RANKS)
    finally:
        os.close(fd)


def _read(ran: Ran, directory: Path, more: dict[str, str]) -> None:
    raw = more.get("NCCL_INSPECTOR_RUN_DIR")
    for rank in range(ran.plan.nranks):
        ran.said[rank] = json.loads((directory / f"{rank}.json").read_text())
        ran.logs[rank] = read_log(directory / "log", rank)
        nccl_log = directory / f"nccl.{rank}"
        if nccl_log.exists():
            ran.nccl_logs[rank] = nccl_log.read_text(errors="replace")
        if raw:
            path = Path(raw) / f"nccl_inspector_0_{ran.said[rank]['pid']}.box"
            if path.exists():
                ran.boxes[rank] = box_of(path)
        prom = directory / f"{rank}.prom"
        if prom.exists():
            ran.proms[rank] = prom.read_text()
