"""Answers of scontrol, sacct and pyslurm, as a record and in the report."""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import parse_config
from nccl_inspector.slurm import accounting, pyslurmprobe, topology
from nccl_inspector.slurm import slurmctld as controller
from nccl_inspector.slurm.command import Said
from nccl_inspector.slurm.find_record import find_record
from nccl_inspector.slurm.topology import ask_places
from tests.fuzzers import mutation, seeds
from tests.fuzzers.summary import Report
from tests.fuzzers.target import Read, Run, Target
from tests.simulator.play import JOB_ID
from tests.support.recorded_slurm import DELIMITER, load

# First line of an input: whose answer it is. The others say what was recorded of the same job.
_WHO = ("json", "text", "sacct", "pyslurm", "topology")
_TOPOLOGY = (
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=leaf2 Level=0 LinkSpeed=1 "
    "Nodes=n[3-4]\nSwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]\n"
)
_PYSLURM = {
    "id": JOB_ID, "user_id": 1, "user_name": "amy", "state": "COMPLETED", "exit_code": 0,
    "exit_code_signal": None, "num_nodes": 2, "ntasks": 4, "requeue_count": 0, "name": "train",
    "account": "phys", "partition": "gpu", "cluster": "sim", "allocated_nodes": "n[1-2]",
    "start_time": seeds.START_S, "end_time": seeds.START_S + 30, "submit_time": seeds.START_S,
    "working_directory": "/home/amy", "standard_output": "/home/amy/%x-%4j-%N.out",
    "time_limit": 30, "required_switches": 1, "max_wait_time_switches": 120,
}  # fmt: skip


@cache
def _recorded() -> dict[str, tuple[str, list[str]]]:
    """Return what was said of a job of each kind, with our job's number, and sacct's columns."""
    found = {}
    for release in ("22.05", "24.11", "26.05"):
        said = load(release)
        for kind, number in said.ids.items():
            words = re.compile(rf"\b{number}\b")
            for who, program in (
                ("text" if release == "22.05" else "json", "scontrol"),
                ("sacct",) * 2,
            ):
                output = words.sub(str(JOB_ID), said.output(kind, program))
                found[f"{who} {release} {kind}"] = output, said.columns(kind)
    return found


def _seeds() -> list[bytes]:
    found = [f"{name}\n{output}".encode() for name, (output, _) in _recorded().items()]
    found += [f"pyslurm\n{json.dumps(_PYSLURM)}".encode(), f"topology\n{_TOPOLOGY}".encode()]
    return found


@contextmanager
def _answering(who: str, name: str, output: str) -> Iterator[None]:
    """Let Slurm's commands answer with this."""
    known = _recorded()
    sacct, columns = known.get(name.replace(who, "sacct", 1)) or known["sacct 24.11 finished"]

    def ask(program: Path, *words: str, **_: object) -> Said:
        if "--helpformat" in words:
            return Said(0, " ".join(columns), "")
        if "--version" in words:
            return Said(0, "slurm-wlm 22.05.8" if who == "text" else "slurm-wlm 24.11.5", "")
        if "topology" in words:
            return Said(0, output if who == "topology" else _TOPOLOGY, "")
        if program.name == "sacct":
            own = output if who == "sacct" else sacct
            return Said(0, own, "")
        if who == "pyslurm" and "scontrol" not in program.name:
            return Said(0, output, "")
        return Said(0, output, "") if who in ("json", "text") else Said(1, "", "Invalid job id")

    with (
        patch.object(accounting, "ask", ask), patch.object(controller, "ask", ask),
        patch.object(pyslurmprobe, "ask", ask), patch.object(topology, "ask", ask),
        patch.object(pyslurmprobe, "installed", lambda: (24, 11) if who == "pyslurm" else None),
        patch.object(secrets, "token_hex", lambda _: DELIMITER),
        patch.object(accounting, "known_columns", lambda _: columns),
    ):  # fmt: skip
        yield


def prepare(place: Path) -> Run:
    """Return what finds the record of the job, and makes its report."""
    report, config = Report(place, lean=True), parse_config("", "fuzz")

    def run(data: bytes) -> str | Read:
        name, _, output = data.decode("utf-8", "replace").partition("\n")
        who = name.partition(" ")[0]
        with _answering(who, name, output):
            try:
                record, why = find_record(JOB_ID, config, None)
            except InspectorError as err:
                return str(err)
            places, no_places = ask_places(config.scontrol)
        if record is None:
            return f"{name} {why} {no_places}"
        given = replace(
            report.given, record=record, switches_used=tuple(sorted({*places.values()}))
        )
        known = " ".join(
            str(bool(getattr(record, one))) for one in ("state", "nodelist", "stdout_path")
        )
        return Read(f"{name} {record.sources} {known}", lambda: report.said(given))

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return another answer of the same one."""
    name, _, output = data.partition(b"\n")
    others = [one.partition(b"\n")[2] for one in corpus[:40]]
    who = name.partition(b" ")[0]
    if who in (b"json", b"pyslurm") and chance.random() < 0.8:
        found = mutation.change_json(chance, output, others)
    else:
        found = mutation.several(chance, output, others, mutation.TEXT)
    return name + b"\n" + found


TARGET = Target("slurm", _seeds, mutate, prepare, rest_of=32)
