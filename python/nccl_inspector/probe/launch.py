# SPDX-License-Identifier: Apache-2.0
"""Start the ranks: one srun inside an allocation, or processes on this host."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Self

from nccl_inspector.probe.errors import ProbeError
from nccl_inspector.probe.rank import KEY_VARIABLE, count_of
from nccl_inspector.system.own_code import words_to_run
from nccl_inspector.system.printable import printable

_SAID_BYTES_MAX = 1 << 16
_LINES_SHOWN = 3
_END_S, _FAILED_END_S = 10.0, 1.0
# What Slurm took from the job's options, and srun would apply to a step that has others.
_JOB_OPTIONS = frozenset(
    f"SLURM_{name}"
    for name in (
        "CPUS_PER_GPU", "CPUS_PER_TASK", "DISTRIBUTION", "EXCLUSIVE", "GPUS_PER_SOCKET",
        "GPUS_PER_TASK", "GPU_BIND", "HINT", "MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE",
        "NTASKS_PER_CORE", "NTASKS_PER_GPU", "NTASKS_PER_SOCKET", "THREADS_PER_CORE",
        "TRES_PER_TASK",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """What to start: so many ranks on each of so many nodes. `limit_s`: of a rank's waits.

    `is_chosen`: the user has chosen the backend.
    """

    nodes: int
    per_node: int
    backend: str
    python: str
    interface: str
    limit_s: float
    is_chosen: bool = True

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.per_node


def gpus_per_node(environ: Mapping[str, str], nodes: int) -> int:
    """Return how many GPUs of each node the allocation has, by Slurm's variables; 0: none.

    The first node stands for all of them.
    """
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if found := count_of(environ.get(name, "")):
            return found
    in_all = count_of(environ.get("SLURM_GPUS", ""))
    if not in_all:
        tasks = count_of(environ.get("SLURM_NTASKS", ""))
        in_all = tasks * count_of(environ.get("SLURM_GPUS_PER_TASK", ""))
    return ceil(in_all / max(1, nodes))


def _python_words(step: Step, host: str, port: int) -> list[str]:
    return words_to_run(
        step.python,
        "nccl_inspector.probe.rank",
        [host, str(port), step.backend, step.interface, str(step.limit_s)],
    )


def srun_words(step: Step, port: int) -> list[str]:
    """Return the command line of the step.

    It takes part of what the job has, beside other steps, whatever options the job was given: every
    rank sees all GPUs of its node and takes the one with its own number.
    """
    return [
        "srun", f"--nodes={step.nodes}", f"--ntasks={step.ranks}",
        f"--ntasks-per-node={step.per_node}", "--cpus-per-task=1", "--overlap", "--overcommit",
        "--cpu-bind=none", "--mem=0", "--export=ALL", "--input=none", "--kill-on-bad-exit=0",
        "--job-name=nccl-inspector-probe", *_python_words(step, "", port),
    ]  # fmt: skip


class Ranks:
    """The running ranks; what they print is kept, and shown if they fail."""

    def __init__(self, key: bytes) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _JOB_OPTIONS}
        self._environ = {**kept, KEY_VARIABLE: key.hex()}
        self._processes: list[subprocess.Popen[bytes]] = []
        # A file in memory instead of a pipe, so that nobody must read while they write.
        self._said_fd = os.memfd_create("nccl-inspector-probe")
        self._name = ""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Wait a moment for their end, and end those that go on."""
        until_s = time.monotonic() + (_FAILED_END_S if kind else _END_S)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))
        for process in self._processes:
            if process.poll() is None:
                process.terminate()  # srun ends its tasks then
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
        os.close(self._said_fd)

    def start(self, step: Step, port: int) -> None:
        """Start a step with srun.

        Raises:
            ProbeError: there is no srun.
        """
        if shutil.which("srun") is None:
            raise ProbeError("there is no srun here")
        self._name = "srun"
        self._start(srun_words(step, port), {})

    def start_here(self, step: Step, port: int) -> None:
        """Start all ranks on this host, as if Slurm had.

        Raises:
            ProbeError: no process could be started.
        """
        self._name = "a process"
        for rank in range(step.ranks):
            place = {"PROCID": rank, "NTASKS": step.ranks, "LOCALID": rank % step.per_node}
            more = {f"SLURM_{name}": str(value) for name, value in place.items()}
            self._start(_python_words(step, "127.0.0.1", port), more)

    def _start(self, words: Sequence[str], more: Mapping[str, str]) -> None:
        try:
            self._processes.append(
                subprocess.Popen(
                    words,
                    env={**self._environ, **more},
                    stdin=subprocess.DEVNULL,
                    stdout=self._said_fd,
                    stderr=self._said_fd,
                )
            )
        except OSError as err:
            raise ProbeError(f"{words[0]}: {err.strerror}") from err

    def ended(self) -> str:
        """Return why the ranks cannot come any more; empty: they still can."""
        for process in self._processes:
            status = process.poll()
            if status is not None:
                said = self.said()
                return f"{self._name} ended (exit status {status}){': ' if said else ''}{said}"
        return ""

    def said(self) -> str:
        """Return the first lines of what they printed, as one."""
        # Not seek and read: the ranks share the place in the file.
        data = os.pread(self._said_fd, _SAID_BYTES_MAX, 0)
        # Of a traceback only the error itself.
        lines = [
            line.strip()
            for line in data.decode("utf-8", "replace").splitlines()
            if line and not line.startswith((" ", "Traceback"))
        ]
        return printable("; ".join(lines[:_LINES_SHOWN])[:600])


def default_python(backend: str) -> str:
    """Return the Python for the ranks: for NCCL the user's own, which has PyTorch."""
    return sys.executable if backend != "nccl" else shutil.which("python3") or sys.executable
