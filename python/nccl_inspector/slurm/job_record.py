# SPDX-License-Identifier: Apache-2.0
"""What Slurm says about one job, from whichever of its commands.

Texts are as users chose them, but cut in length and with `?` for unprintable characters.
"""

from dataclasses import dataclass, fields

from nccl_inspector.model.jobid import task_name

ACCOUNTING, CONTROLLER, PYSLURM, SUMMARY = "sacct", "scontrol", "pyslurm", "summary"

# States of a job that is over. While an epilog of the job is still due, Slurm says COMPLETING and
# none of these.
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
    }
)  # fmt: skip
# And those of an attempt: accounting's. slurmctld says them of a job that may live on.
OVER = ENDED | {"REQUEUED", "REVOKED"}

# The fields of one attempt, which all come from the same source.
OF_ATTEMPT = (
    "state", "exit_code", "signal", "start_s", "end_s", "restart", "nodelist", "num_nodes",
    "reason", "failed_node",
)  # fmt: skip
# In these, None may mean that the job has no such thing.
_AT_TIMES = frozenset(
    {
        "array_job_id", "array_task_id", "het_job_id", "het_offset", "gpus", "switches_wait_s",
        "failed_node",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt; times are Unix seconds, None: not yet, or not known."""

    restart: int
    state: str
    exit_code: int | None = None
    signal: int | None = None
    start_s: int | None = None
    end_s: int | None = None
    nodelist: str = ""
    num_nodes: int | None = None
    reason: str = ""
    failed_node: str = ""  # that ended it, with NODE_FAIL; 22.05 does not say which


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of an attempt; times are Unix seconds, None: not known.

    `name`: what Slurm writes behind the job's number, such as 0, batch, extern, interactive.
    """

    name: str
    state: str
    exit_code: int | None = None
    signal: int | None = None
    start_s: int | None = None
    end_s: int | None = None
    nodelist: str = ""
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job. In a field, None means that no source told it, and an empty text that there is none.

    The fields in OF_ATTEMPT are of one attempt, `restart`, and from one source. `runs` are all
    attempts that accounting has, in order.
    """

    job_id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_tasks: str = ""  # those without a job id of their own yet, `1-4%2`
    het_job_id: int | None = None
    het_offset: int | None = None
    het_components: tuple[int, ...] = ()  # job ids
    name: str | None = None
    user: str | None = None
    uid: int | None = None
    account: str | None = None
    partition: str | None = None
    cluster: str | None = None
    state: str | None = None  # Slurm's word, such as COMPLETED
    exit_code: int | None = None
    signal: int | None = None
    submit_s: int | None = None
    eligible_s: int | None = None
    start_s: int | None = None
    end_s: int | None = None
    restart: int | None = None
    nodelist: str | None = None
    num_nodes: int | None = None
    reason: str | None = None
    failed_node: str | None = None  # as in a Run
    tasks: int | None = None
    tres: str | None = None  # allocated, else asked for: `cpu=4,gres/gpu=8,...`
    gpus: int | None = None  # of tres
    submit_line: str | None = None
    work_dir: str | None = None
    # Of the batch script; absolute, patterns filled in. Without --error both are the same file.
    stdout_path: str | None = None
    stderr_path: str | None = None
    time_limit_s: int | None = None
    comment: str | None = None
    admin_comment: str | None = None
    switches: int | None = None  # number of --switches; 0: not given
    switches_wait_s: int | None = None  # the time that the controller granted
    segment: int | None = None  # number of --segment; 0: not given
    runs: tuple[Run, ...] = ()
    sources: tuple[str, ...] = ()  # that told something; first the source of the attempt

    @property
    def by_slurm(self) -> bool:
        """Whether Slurm itself told something, and not only a node summary."""
        return bool(set(self.sources) - {SUMMARY})

    @property
    def array_task(self) -> str:
        """The task as `810_3`; empty if the job is not a task of an array."""
        return task_name(self.array_job_id, self.array_task_id)

    @property
    def switches_asked(self) -> str:
        """The option --switches as it is written, `1@5:00`; empty if it was not given."""
        if not self.switches:
            return ""
        if not self.switches_wait_s:
            return str(self.switches)
        minutes, seconds = divmod(self.switches_wait_s, 60)
        return f"{self.switches}@{minutes}:{seconds:02}"

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields that a record of such a job should have and this one does not have."""
        excused = _AT_TIMES
        if self.state not in OVER:
            excused |= {"end_s", "exit_code", "signal", "start_s", "nodelist"}
        return tuple(
            one.name
            for one in fields(self)
            if getattr(self, one.name) is None and one.name not in excused
        )
