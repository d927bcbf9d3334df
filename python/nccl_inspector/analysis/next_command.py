# SPDX-License-Identifier: Apache-2.0
"""Suggest one command to run next, from names that the site itself gave.

Text that a user's process chose never goes into a command: only node names, numbers, and addresses
of devices that were read from the driver.
"""

import re
from dataclasses import replace
from shlex import quote

from nccl_inspector.model import rules
from nccl_inspector.model.card import INFO, Entity, Finding
from nccl_inspector.model.wording import clock

_MARGIN_S = 60
# Findings for which the ports of a node, or of a pair of nodes, are worth a look.
_SLOW_PATHS = frozenset(
    one.id
    for one in (
        rules.SLOW_NETWORK, rules.SLOW_LINKS, rules.SLOW_OUTSIDE, rules.SLOW_NVLINK,
        rules.SLOW_STRAGGLER, rules.SLOW_UNKNOWN, rules.SLOW_WORKLOAD,
    )
)  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


def on_node(node: str, command: str, job_id: int | None = None) -> str:
    """Return a command for a node: inside the running job (`job_id`), or over ssh if None."""
    where = quote(node)
    if job_id is None:
        return f"ssh {where} {command}"
    return f"srun --jobid={job_id} --overlap -N1 -n1 -w {where} {command}"


def show_stack(node: str, pid: int, job_id: int) -> str:
    """Return the command that shows where a process of a running job is in its program."""
    return on_node(node, f"py-spy dump --pid {pid}", job_id)


def show_journal(node: str, from_s: float, to_s: float) -> str:
    """Return the command for a node's own log of that time: kills, GPU errors, lost mounts."""
    since, until = clock(from_s - _MARGIN_S), clock(to_s + _MARGIN_S)
    words = f"journalctl --utc --no-pager --since '{since} UTC' --until '{until} UTC'"
    return f'ssh {quote(node)} "{words}"'


def show_node(node: str) -> str:
    """Return the command that shows what Slurm knows of a node: its state, and why."""
    return f"scontrol show node {quote(node)}"


def show_gpu(node: str, address: str) -> str:
    """Return the command that shows a GPU's state; `address`: its PCI address or index."""
    which = f" -i {address}" if _PLAIN.fullmatch(address) else ""
    return on_node(node, f"nvidia-smi -q{which}")


def show_nvlinks(node: str, address: str) -> str:
    """Return the command that shows the errors of a GPU's NVLinks."""
    which = f" -i {address}" if _PLAIN.fullmatch(address) else ""
    return on_node(node, f"nvidia-smi nvlink -e{which}")


def show_port(node: str, port: str) -> str:
    """Return the command that shows the counters of a network port such as `mlx5_0/1`."""
    which = f" link {port}" if _PLAIN.fullmatch(port) else ""
    return on_node(node, f"rdma statistic show{which}")


def show_clocks(node: str, address: str) -> str:
    """Return the command that shows what holds down a GPU's clocks."""
    which = f" -i {address}" if _PLAIN.fullmatch(address) else ""
    return on_node(node, f"nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE{which}")


def _for_rank(one: Entity, finding: Finding, running_job: int | None) -> str:
    if running_job is not None and one.pid is not None:
        return show_stack(one.node, one.pid, running_job)
    if one.pci_bus_id:
        return show_clocks(one.node, one.pci_bus_id)
    if finding.period:
        return show_journal(one.node, finding.period.start_s, finding.period.end_s)
    return ""


def suggest(finding: Finding, running_job: int | None) -> Finding:
    """Return the finding with a command to run next, unless its rule has given it one.

    `running_job`: the job's id while it runs, None after its end. The finding's entities must be
    located already (`Places.locate`).
    """
    if finding.next or finding.severity == INFO:
        return finding
    for one in finding.entities:
        command = ""
        if one.kind == "rank" and one.node:
            command = _for_rank(one, finding, running_job)
        elif one.kind == "node" and finding.rule == rules.NOT_MEASURED.id:
            of_job = f" --job {running_job}" if running_job else ""
            command = on_node(one.name, f"nccl-inspector doctor{of_job}")
        elif one.kind == "node" and finding.rule == rules.SLOW_NVLINK.id:
            command = show_nvlinks(one.name, "")
        elif one.kind in ("node", "pair") and finding.rule in _SLOW_PATHS:
            command = show_port(one.name.split(" - ")[0], "")
        if command:
            return replace(finding, next=command)
    return finding
