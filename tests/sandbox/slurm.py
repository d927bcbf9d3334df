"""What scontrol says about jobs and nodes, as values (pure parsing)."""

import re
from dataclasses import dataclass

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/]*)=")
_UNFINISHED = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING"})


@dataclass(frozen=True, slots=True)
class Job:
    """A job as scontrol shows it now. `exit_code` is code:signal, `nodes` an unexpanded list."""

    id: int
    state: str
    reason: str
    exit_code: str
    nodes: str
    restarts: int

    @property
    def finished(self) -> bool:
        """True once the epilog is done on every node."""
        return self.state not in _UNFINISHED


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as scontrol shows it, `flags` such as IDLE, ALLOCATED, DRAIN, DOWN."""

    flags: frozenset[str]
    reason: str

    @property
    def drained(self) -> bool:
        """True when Slurm gives the node no more jobs."""
        return bool(self.flags & {"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL"})

    @property
    def idle(self) -> bool:
        """True when it has no job and can take one."""
        return self.flags == {"IDLE"}


def parse_record(text: str) -> dict[str, str]:
    """The fields of one line of `scontrol --oneliner show`; values may contain blanks."""
    parts = _FIELD.split(text.strip())
    return {key: value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True)}


def parse_job(text: str) -> Job:
    """The first job of `scontrol --oneliner show job`."""
    fields = parse_record(text.partition("\n")[0])
    return Job(
        id=int(fields["JobId"]),
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        exit_code=fields.get("ExitCode", ""),
        nodes=fields.get("NodeList", ""),
        restarts=int(fields.get("Restarts", "0")),
    )


def parse_nodes(text: str) -> dict[str, NodeState]:
    """Every node of `scontrol --oneliner show node`."""
    records = [parse_record(line) for line in text.splitlines() if line.startswith("NodeName=")]
    return {
        fields["NodeName"]: NodeState(
            frozenset(fields["State"].strip("*").replace("*", "").split("+")),
            fields.get("Reason", ""),
        )
        for fields in records
    }
