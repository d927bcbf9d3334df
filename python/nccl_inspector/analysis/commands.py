# SPDX-License-Identifier: Apache-2.0
"""The one command to run next: made for the reader to copy, of names that the site itself gave.

No text that a user's process chose goes into a command: only node names, numbers, and addresses of
devices that were read from the driver.
"""

import re
from datetime import UTC, datetime
from shlex import quote

_MARGIN_S = 60
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


def on_node(node: str, command: str, job_id: int | None = None) -> str:
    """Return a command on a node: within the job while that runs (`job_id`), else over ssh."""
    where = quote(node)
    if job_id is None:
        return f"ssh {where} {command}"
    return f"srun --jobid={job_id} --overlap -N1 -n1 -w {where} {command}"


def show_stack(node: str, pid: int, job_id: int) -> str:
    """Return what shows where a process of a running job is in its program."""
    return on_node(node, f"py-spy dump --pid {pid}", job_id)


def show_journal(node: str, from_s: float, to_s: float) -> str:
    """Return what shows a node's own log of that time: kills, errors of GPUs, lost mounts."""

    def moment(unix_s: float) -> str:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC"

    since, until = moment(from_s - _MARGIN_S), moment(to_s + _MARGIN_S)
    words = f"journalctl --utc --no-pager --since '{since}' --until '{until}'"
    return f'ssh {quote(node)} "{words}"'


def show_gpu(node: str, address: str) -> str:
    """Return what shows a GPU's state; `address`: its PCI address or index."""
    which = f" -i {address}" if _PLAIN.fullmatch(address) else ""
    return on_node(node, f"nvidia-smi -q{which}")


def show_nvlinks(node: str, address: str) -> str:
    """Return what shows the errors of a GPU's NVLinks."""
    which = f" -i {address}" if _PLAIN.fullmatch(address) else ""
    return on_node(node, f"nvidia-smi nvlink -e{which}")


def show_port(node: str, port: str) -> str:
    """Return what shows the counters of a network port, `mlx5_0/1`."""
    which = f" link {port}" if _PLAIN.fullmatch(port) else ""
    return on_node(node, f"rdma statistic show{which}")
