# SPDX-License-Identifier: Apache-2.0
"""Play a simulated job through the real profiler plugin in virtual time, then the real collection.

    reports = play(job, folder)         # folder/reports/<JOB_ID>/<node>.0.nodesummary
    card = card_of(job, folder)         # as `nccl-inspector report` would make it
    play(job, folder, json=True)        # JSON lines too, in folder/lines
    card = analyzed(folder)             # as `nccl-inspector analyze` would make it

The plugin and the collection are the real ones; play/virtual.h says whose clocks the plugin has.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from math import isfinite
from pathlib import Path
from typing import Final

from nccl_inspector.agent.collect import Collector
from nccl_inspector.agent.counters.job_counters import FILE as COUNTERS_FILE
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.analysis.slow_times.throughput import Reading, Readings
from nccl_inspector.capture.analyze import analyze_directory
from nccl_inspector.counters import node_counters as counters_model
from nccl_inspector.counters.counter_record import FORMAT as COUNTERS_FORMAT
from nccl_inspector.model.card import Card, Input
from nccl_inspector.model.hostlist import compress
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.settings.config import parse_config
from nccl_inspector.slurm.job_record import ACCOUNTING, JobRecord
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.system.checked_json import dump
from tests.simulator.job import Clock, Job, Rank
from tests.simulator.script import World, pid_of, write_script
from tests.support.boxes import manifest_text

JOB_ID: Final = 4711
CLUSTER: Final = "sim"
BUILD: Final = Path(__file__).parents[2] / "build"
PLAYER: Final = BUILD / "simulator" / "play"
PLUGIN: Final = BUILD / "libnccl-profiler-inspector.so"
FAKECUDA: Final = BUILD / "fakecuda" / "libcuda.so.1"

# Boxes and scripts are in memory: those of so many ranks at a time, but whole nodes.
_RANKS_AT_ONCE = 16
_MEMORY = Path("/dev/shm")
_COLLECT_S = 60
_EXIT_CODES = {"COMPLETED": 0, "FAILED": 1, "TIMEOUT": 0}


class CannotPlayError(Exception):
    """A rank was not played to its end; the message is what the player said."""


def node_unix_ns(job: Job, node: str, true_ns: int) -> int:
    """Return what the clock of a node shows at a time of the job."""
    clock = job.clocks.get(node, Clock())
    drift_ns = int(true_ns * clock.drift_ppm * 1e-6)
    return job.start_unix_s * 10**9 + clock.offset_ns + true_ns + drift_ns


def _environment(job: Job, rank: Rank, run: Path, lines: Path | None) -> dict[str, str]:
    """Return what Slurm and our SPANK plugin give a task."""
    words = {
        "SLURM_JOB_ID": JOB_ID, "SLURM_JOBID": JOB_ID, "SLURM_STEP_ID": 0,
        "SLURM_PROCID": rank.procid, "SLURM_LOCALID": rank.local, "SLURM_NTASKS": len(job.ranks),
        "SLURMD_NODENAME": rank.node, "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_JOB_NODELIST": compress(job.nodes),
        "CUDA_VISIBLE_DEVICES": rank.local,
        "NCCL_INSPECTOR_ENABLE": 1,
        "NCCL_INSPECTOR_RUN_DIR": run / "jobs" / str(JOB_ID) / "raw",
        "NCCL_INSPECTOR_CONTROL_DIR": run / "control",
        "NCCL_INSPECTOR_PROM_DUMP": 1,
        "NCCL_INSPECTOR_JSON": int(lines is not None),
        "NCCL_INSPECTOR_DUMP_DIR": lines or "",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": 30_000_000,
        "NCCL_INSPECTOR_ENABLE_P2P": 1,
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": 8192,
        "NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES": 0,
        "NCCL_INSPECTOR_BUDGET_PERCENT": "1.000",
    }  # fmt: skip
    return {name: str(value) for name, value in words.items()}


def _counters_bytes(job: Job, node: str) -> bytes:
    """Return the agent's file of a node (counters/counter_record.py), after the last sample."""
    return dump(
        {
            "format": COUNTERS_FORMAT,
            "counters": counters_model.to_json(job.counters[node]),
            "last": [],
            "last_s": {},
            "first_boot_s": {},
            "kernel_log_next": 0,
        }
    )


class _Node:
    """A node's run directory: what prolog, epilog and agent do there."""

    def __init__(self, job: Job, name: str, place: Path, reports: Path) -> None:
        self.name = name
        self._job = job
        self.ranks = [rank for rank in job.ranks if rank.node == name]
        self.run = place / name
        self._reports = reports

    @property
    def raw(self) -> Path:
        """Where the processes' files are while the job runs."""
        return self.run / "jobs" / str(JOB_ID) / "raw"

    def prolog(self, json: bool) -> None:
        for name in ("jobs", "ended", "prom", "control"):
            (self.run / name).mkdir(parents=True)
        job, place = self._job, self.run / "jobs" / str(JOB_ID)
        (place / "raw").mkdir(parents=True, mode=0o700)
        text = manifest_text(
            JOB_ID, uid=os.getuid(), gid=os.getgid(), node=self.name, cluster=CLUSTER,
            nodelist=compress(job.nodes), num_nodes=len(job.nodes),
            gpus=",".join(str(rank.local) for rank in self.ranks),
            mode="prom+json" if json else "prom",
            start=node_unix_ns(job, self.name, 0) // 10**9, job_start=job.start_unix_s,
        )  # fmt: skip
        (place / "manifest").write_text(text)

    def write_scripts(self, lines: Path | None, more: Mapping[str, str]) -> list[Path]:
        job, paths = self._job, []
        for rank in self.ranks:
            path = self.run / f"{rank.procid}.script"
            environment = {**_environment(job, rank, self.run, lines), **more}
            clock = job.clocks.get(self.name, Clock())
            write_script(path, rank, World(job.start_unix_s, clock, job.nccl_api, environment))
            paths.append(path)
        return paths

    def epilog(self) -> None:
        """End the job here; the agent has sampled the counters for the last time."""
        job, place = self._job, self.run / "jobs" / str(JOB_ID)
        if self.name in job.counters:
            (place / COUNTERS_FILE).write_bytes(_counters_bytes(job, self.name))
        (place / "task_ends").write_text(self._task_ends())  # as spank/task_end.h says
        end_ns = node_unix_ns(job, self.name, job.wall_ns)
        place.rename(self.run / "ended" / f"{JOB_ID}.{end_ns}")

    def _task_ends(self) -> str:
        """Return what the SPANK plugin wrote of the tasks that slurmstepd saw fail, in order."""
        failed = sorted((one for one in self.ranks if one.status), key=lambda one: one.end_ns)
        lines = (
            f"0 {one.procid} {pid_of(one)} {one.status} "
            f"{node_unix_ns(self._job, self.name, one.end_ns)}\n"
            for one in failed
        )
        return "".join(lines)

    def collect(self) -> None:
        """Do what the agent does with an ended job."""
        user = pwd.getpwuid(os.getuid()).pw_name
        text = f"run_dir = {self.run}\nreport_dir = {self._reports}\nreport_user = {user}\n"
        run_fd = os.open(self.run, os.O_RDONLY | os.O_DIRECTORY)
        try:
            config, tally = parse_config(text, "simulator"), Tally()
            with closing(Collector(run_fd, config, tally, AtWork(run_fd))) as collector:
                while collector.run_pass(_COLLECT_S):
                    left = collector.left()
                    if left.failed or left.waiting:
                        raise CannotPlayError(f"{self.name}: its summary was not handed over")
                collector.run_pass(0)  # it takes note of the end of its last child
        finally:
            os.close(run_fd)


def _batches(nodes: Sequence[_Node]) -> Iterator[list[_Node]]:
    batch: list[_Node] = []
    for node in nodes:
        batch.append(node)
        if sum(len(one.ranks) for one in batch) >= _RANKS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _played(scripts: Sequence[Path], at_once: int, log: Path) -> None:
    if not scripts:
        return
    with log.open("ab") as said:
        begin = log.stat().st_size
        done = subprocess.run(
            [PLAYER, str(at_once), PLUGIN, FAKECUDA, *scripts],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={},
            check=False,
        )
    if done.returncode:
        raise CannotPlayError(log.read_bytes()[begin:][-2000:].decode("utf-8", "replace"))


def play(
    job: Job,
    folder: Path,
    *,
    json: bool = False,
    environment: Mapping[str, str] | None = None,
    at_once: int = 2,
    raw: Path | None = None,
) -> Path:
    """Play all ranks and collect what they left; return the directory of the node summaries.

    `json`: the mode is prom+json, and the lines are in folder/lines. `environment`: variables of
    the tasks in addition, such as NCCL_INSPECTOR_NET. `at_once`: how many ranks are played at the
    same time. `raw`: where the files of each node's processes are copied to before the collection.
    What the plugin logged is in folder/log. The lines of a silent node arrive.

    Raises:
        CannotPlayError: this machine cannot do it, or a script was not played to its end.
        ValueError: an operation of a rank is not possible.
    """
    reports, lines = folder / "reports", folder / "lines" if json else None
    reports.mkdir(parents=True)
    reports.chmod(0o711)
    if lines:
        lines.mkdir()
    memory = _MEMORY if _MEMORY.is_dir() else folder
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-sim-", dir=memory) as place:
        nodes = [_Node(job, name, Path(place), reports) for name in job.nodes]
        for batch in _batches([one for one in nodes if json or one.name not in job.silent_nodes]):
            for node in batch:
                node.prolog(json)
            scripts = [
                path for node in batch for path in node.write_scripts(lines, environment or {})
            ]
            _played(scripts, at_once, folder / "log")
            for path in scripts:
                path.unlink()
            for node in batch:
                if raw:
                    shutil.copytree(node.raw, raw / node.name)
                if node.name not in job.silent_nodes:
                    node.epilog()
                    node.collect()
    return reports


def given_of(job: Job) -> JobContext:
    """Return what `report` would learn of Slurm and of the job's output."""
    record = JobRecord(
        JOB_ID, name="simulated", user="amy", account="phys", partition="gpu", cluster=CLUSTER,
        state=job.state, exit_code=_EXIT_CODES.get(job.state), signal=0,
        start_s=job.start_unix_s, restart=0,
        end_s=job.start_unix_s + round((job.slurm_end_ns or job.wall_ns) / 1e9),
        nodelist=compress(job.nodes), num_nodes=len(job.nodes), tasks=len(job.ranks),
        sources=(ACCOUNTING,),
    )  # fmt: skip
    inputs = [Input("slurm", "present")]
    if not job.throughput:
        return JobContext(record, inputs=(*inputs, Input("throughput", "absent")))
    # The first rank prints it, with the time of its node.
    node = job.ranks[0].node
    found = tuple(
        Reading(node_unix_ns(job, node, round(time_s * 1e9)) / 1e9, value)
        for time_s, value in job.throughput
        if isfinite(time_s)  # a step that the time limit cut short has no end
    )
    inputs.append(Input("throughput", "present", f"{len(found)} readings of the job's output"))
    return JobContext(record, readings=Readings("samples/s", found, {}), inputs=tuple(inputs))


def card_of(job: Job, folder: Path) -> Card:
    """Return the card of a job that was played into a folder, as `report` would make it."""
    return report_of(given_of(job), folder)


def report_of(given: JobContext, folder: Path) -> Card:
    """Return the card of a job that was played into a folder, with what Slurm knows of it."""
    return build_card(load_summaries(JOB_ID, folder / "reports", None), given)


def analyzed(folder: Path) -> Card:
    """Return the card of the lines that a job left in a folder, as `analyze` would make it."""
    return analyze_directory(folder / "lines", None)
