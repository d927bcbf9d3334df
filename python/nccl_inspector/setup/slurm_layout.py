# SPDX-License-Identifier: Apache-2.0
"""Where Slurm has its configuration on a host, and what is in it."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.setup.host import Host
from nccl_inspector.slurm.plugstack import StackEntry, stack_entries

# Debian's and the RPMs' place, Debian's old one, and that of a build from source.
CONF_DIRS = (Path("/etc/slurm"), Path("/etc/slurm-llnl"), Path("/usr/local/etc"))
# What slurmd got from slurmctld on a configless node.
CONFIGLESS_DIRS = (Path("/run/slurm/conf"), Path("/var/spool/slurmd/conf-cache"))


@dataclass(frozen=True, slots=True)
class SlurmLayout:
    """The directory of slurm.conf; None: there is none on this host."""

    conf_dir: Path | None
    is_configless: bool = False  # slurmd gets its files from slurmctld


def find_layout(host: Host, said: Path | None) -> SlurmLayout:
    """Return where Slurm's files are: where the site file says so, or where they are found."""
    if said is not None:
        return SlurmLayout(said)
    own = os.environ.get("SLURM_CONF", "") if host.is_live else ""
    places = ([Path(own).parent] if own.startswith("/") else []) + list(CONF_DIRS)
    for place in places:
        if host.at(place / "slurm.conf").is_file():
            return SlurmLayout(place)
    for place in CONFIGLESS_DIRS:
        if host.at(place / "slurm.conf").is_file():
            return SlurmLayout(place, is_configless=True)
    return SlurmLayout(None)


def slurm_value(text: str, key: str) -> str:
    """Return the value of a key in slurm.conf's text; empty if it is not set there."""
    found = ""
    for line in text.splitlines():
        match = re.match(rf"\s*{key}\s*=\s*([^#\s]+)", line, re.IGNORECASE)
        if match:
            found = match[1]
    return found


def our_entries(host: Host, conf_dir: Path, read_text: Callable[[Path], str]) -> list[StackEntry]:
    """Return the entries of plugstack.conf, and of what it includes, that name our plugin.

    `read_text`: the host's, or one that keeps what it has read.

    Raises:
        InspectorError: a file cannot be read.
    """
    found = stack_entries(conf_dir / "plugstack.conf", read_text, host.root)
    return [one for one in found if one.is_ours]
