# SPDX-License-Identifier: Apache-2.0
"""What Slurm says: its configuration, its releases, the state of this node, the controller's clock.

Everything comes from Slurm's commands. Each has a deadline.
"""

import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from nccl_inspector.doctor.facts import CannotTellError, Slurm, release_of
from nccl_inspector.doctor.processes import Running, nearest
from nccl_inspector.model.hostlist import is_host
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm.command import ask
from nccl_inspector.system.printable import printable

COMMAND_S = 4.0
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
_LINE = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?:\[[0-9]+\])? *= (.*)")
_SDIAG = re.compile(r"sdiag output at .*\(([0-9]{9,11})\)")
_NOTHING = ("(null)", "N/A", "(none)")


def parse_config(text: str) -> dict[str, str]:
    """Return what `scontrol show config` prints; values of `Prolog[0]` and so on are joined."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.rstrip())
        if match and match[2].strip() not in _NOTHING:
            value = printable(match[2].strip())
            found[match[1]] = f"{found[match[1]]},{value}" if match[1] in found else value
    return found


def _said(program: Path | str, *words: str) -> str:
    """Return what a command of Slurm prints.

    Raises:
        CannotTellError: it failed, or did not answer in time.
    """
    said = ask(Path(program), *words, seconds=COMMAND_S)
    if said.status:
        raise CannotTellError(f"{' '.join((Path(program).name, *words))}: {said.words}")
    return said.output


def _slurmds(daemons: tuple[Running, ...]) -> tuple[Running, ...]:
    """Return the slurmds that root or the caller runs: their program is run, too, for its release.

    Another account, such as a web server's, may call a program of its own so.
    """
    own = tuple(one for one in daemons if one.uid in (0, os.geteuid()))
    return nearest(own, "slurmd")


def _slurmd(daemons: tuple[Running, ...]) -> str | None:
    running = _slurmds(daemons)
    program = running[0].argv[0] if running else ""
    return shutil.which(program if program.startswith("/") else "slurmd", path=_PATH)


def node_name(config: Config, daemons: tuple[Running, ...]) -> str:
    """Return the NodeName of this host: that of `slurmd -N`, or the host name."""
    for one in _slurmds(daemons):
        for word, value in zip(one.argv, one.argv[1:], strict=False):
            if word == "-N":
                return value
    return config.node_name or socket.gethostname().split(".")[0]


def _node(config: Config, name: str) -> tuple[str, str]:
    """Return state and reason of a node; both empty if Slurm does not know it."""
    if not is_host(name):
        return "", ""
    said = ask(config.scontrol, "--oneliner", "show", "node", name, seconds=COMMAND_S)
    state = re.search(r"\bState=(\S+)", said.output)
    reason = re.search(r"\bReason=(.*?)(?: \[|$)", said.output)
    return (state[1] if state else ""), printable(reason[1].strip() if reason else "")


def read_slurm(config: Config, daemons: tuple[Running, ...]) -> Slurm:
    """Return what Slurm says.

    Raises:
        CannotTellError: there is no Slurm here, or slurmctld does not answer.
    """
    release = release_of(_said(config.scontrol, "--version"))
    slurmd = _slurmd(daemons)
    slurmd_release = release_of(_said(slurmd, "-V")) if slurmd else None
    values = parse_config(_said(config.scontrol, "show", "config"))
    name = node_name(config, daemons)
    return Slurm(values, release, slurmd_release, name, *_node(config, name))


def read_clock(config: Config) -> float:
    """Return by how many seconds this host's clock is ahead of the controller's.

    `sdiag` prints slurmctld's time in whole seconds. If the clocks may agree, the result is 0.

    Raises:
        CannotTellError: slurmctld does not answer, or does not tell its time.
    """
    before = time.time()
    said = _said(config.scontrol.with_name("sdiag"))
    after = time.time()
    match = _SDIAG.search(said)
    if match is None:
        raise CannotTellError("sdiag does not tell the controller's time")
    return clock_ahead(before, after, int(match[1]))


def clock_ahead(before_s: float, after_s: float, controller_s: int) -> float:
    """Return how far our clock is ahead, if the controller's showed that second in between."""
    if before_s > controller_s + 1:
        return before_s - (controller_s + 1)
    return min(0.0, after_s - controller_s)


def daemon_uid(config: Mapping[str, str], key: str) -> int | None:
    """Return the uid in a value such as `slurm(64030)`."""
    match = re.fullmatch(r".*\(([0-9]{1,10})\)", config.get(key, ""))
    return int(match[1]) if match else None
