# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs without an epilog need: a scontrol that says what it is told."""

from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.orphans import Sweeper
from nccl_inspector.settings.config import Config, parse_config
from tests.sandbox.lifetime import wait_until
from tests.support.boxes import make_run_dir, names

UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
CLUSTER = "c1"  # of the manifests of tests.support.boxes
DOWN = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"


@dataclass
class Scontrol:
    """A program that answers as it is told and notes what it was asked, but for its cluster."""

    folder: Path
    cluster: str = f"echo 'ClusterName             = {CLUSTER}'"

    @property
    def path(self) -> Path:
        return self.folder / "scontrol"

    def says(self, script: str) -> None:
        asked = self.folder / "asked"
        part = self.folder / "part"
        config = f'if [ "$*" = "show config" ]; then {self.cluster}; exit; fi'
        part.write_text(
            f'#!/bin/sh\n{config}\necho "$*" >>{asked}\nenv >{self.folder}/env\n{script}\n'
        )
        part.chmod(0o755)
        part.replace(self.path)

    def shows(self, state: str, nodes: str = "n[1-4]", restarts: int = 0) -> None:
        (self.folder / "answer").write_text(record(state, nodes, restarts))
        self.says(f"cat {self.folder}/answer")

    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


def configured(tmp_path: Path, slurm: Scontrol) -> Config:
    """A run directory, an empty report directory, and sweep_after of ten minutes."""
    run_dir = make_run_dir(tmp_path / "run")
    (tmp_path / "reports").mkdir()
    return parse_config(
        f"run_dir = {run_dir}\nreport_dir = {tmp_path}/reports\nscontrol = {slurm.path}\n"
        "sweep_after = 10m\n",
        "test",
    )


def jobs(config: Config) -> list[str]:
    return names(config.run_dir / "jobs")


def ended(config: Config) -> list[str]:
    return [name.split(".")[0] for name in names(config.run_dir / "ended")]


def answers(sweeper: Sweeper, tally: Tally, count: int) -> None:
    """Pass until Slurm has answered so often."""

    def answered() -> bool:
        sweeper.run_pass()
        return sum(tally.answers.values()) >= count

    wait_until(answered, 10, f"{count} answers", 0.01)


def record(state: str, nodes: str = "n[1-4]", restarts: int = 1, job: str = "42") -> str:
    return (
        f"JobId={job} JobName=sbatch UserId=amy(1001) GroupId=amy(1001) MCS_label=N/A QOS=(null) "
        f"JobState={state} Reason=None Dependency=(null) Requeue=1 Restarts={restarts} "
        f"BatchFlag=1 ExitCode=0:0 ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} "
        "BatchHost=n1 NumNodes=4 Command=(null) WorkDir=/home/amy Comment=a b Power= \n"
    )
