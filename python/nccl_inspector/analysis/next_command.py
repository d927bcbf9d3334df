# SPDX-License-Identifier: Apache-2.0
"""Suggest one command to run next.

An admin may copy it, as root. Text that a user's process chose never goes into a command: only
names that are those of hosts (hostlist.is_host), numbers, and names of devices. No function gives a
command about another node.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from nccl_inspector.model import rules
from nccl_inspector.model.card import INFO, Entity, Finding
from nccl_inspector.model.hostlist import is_host
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
    if not is_host(node):
        return ""
    if job_id is None:
        return f"ssh {node} {command}"
    return f"srun --jobid={job_id} --overlap -N1 -n1 -w {node} {command}"


def show_stack(node: str, pid: int, job_id: int) -> str:
    """Return the command that shows where a process of a running job is in its program."""
    return on_node(node, f"py-spy dump --pid {pid}", job_id)


def show_journal(node: str, from_s: float, to_s: float) -> str:
    """Return the command for a node's own log of that time: kills, GPU errors, lost mounts."""
    since, until = clock(from_s - _MARGIN_S), clock(to_s + _MARGIN_S)
    words = f"journalctl --utc --no-pager --since '{since} UTC' --until '{until} UTC'"
    return on_node(node, f'"{words}"')


def show_node(node: str) -> str:
    """Return the command that shows what Slurm knows of a node: its state, and why."""
    return f"scontrol show node {node}" if is_host(node) else ""


def _only(option: str, device: str) -> str:
    """Return the option for one device; empty, and so for all devices, if that is no name."""
    return f" {option} {device}" if _PLAIN.fullmatch(device) else ""


def show_gpu(node: str, address: str) -> str:
    """Return the command that shows a GPU's state; `address`: its PCI address or index."""
    return on_node(node, f"nvidia-smi -q{_only('-i', address)}")


def show_nvlinks(node: str, address: str) -> str:
    """Return the command that shows the errors of a GPU's NVLinks."""
    return on_node(node, f"nvidia-smi nvlink -e{_only('-i', address)}")


def show_port(node: str, port: str) -> str:
    """Return the command that shows the counters of a network port such as `mlx5_0/1`."""
    return on_node(node, f"rdma statistic show{_only('link', port)}")


def show_clocks(node: str, address: str) -> str:
    """Return the command that shows what holds down a GPU's clocks."""
    what = f"nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE{_only('-i', address)}"
    return on_node(node, what)


def show_late(node: str, uuid: str, *, host: bool, gpu: bool) -> str:
    """Return the command that shows why a rank is late: its node's processes, its GPU, or both."""
    cpus = "uptime; ps -eo pid,psr,pcpu,comm --sort=-pcpu | head -20"
    smi = f"nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,ECC{_only('-i', uuid)}"
    if not host:
        return on_node(node, smi)
    return on_node(node, f"'{cpus}; {smi}'" if gpu else f"'{cpus}'")


def show_adapters(nodes: Sequence[str]) -> str:
    """Return the command that shows the states of the network adapters of one or several nodes."""
    if len(nodes) == 1:
        return on_node(nodes[0], "ibstat")
    if not nodes or not all(map(is_host, nodes)):
        return ""
    return f"srun -w {','.join(nodes)} --ntasks-per-node=1 ibstat"


def show_link_states(node: str) -> str:
    """Return the command that shows the states of a node's NVLinks."""
    return on_node(node, "nvidia-smi nvlink -s")


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
