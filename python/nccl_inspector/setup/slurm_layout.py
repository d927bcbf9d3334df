# SPDX-License-Identifier: Apache-2.0
"""Where Slurm has its configuration on a host, and what is in it."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.setup.host import Host
from nccl_inspector.slurm.plugstack import StackEntry, drop_in_file, stack_entries

# Debian's and the RPMs' place, Debian's old one, and that of a build from source.
CONF_DIRS = (Path("/etc/slurm"), Path("/etc/slurm-llnl"), Path("/usr/local/etc"))
DROP_IN = "nccl-inspector"  # the name of our file in a directory that plugstack.conf includes
# What slurmd got from slurmctld on a configless node.
CONFIGLESS_DIRS = (Path("/run/slurm/conf"), Path("/var/spool/slurmd/conf-cache"))


@dataclass(frozen=True, slots=True)
class SlurmLayout:
    """The directory of slurm.conf; None: there is none on this host."""

    conf_dir: Path | None
    is_configless: bool = False  # slurmd gets its files from slurmctld


def _conf_dirs(host: Host) -> list[Path]:
    own = os.environ.get("SLURM_CONF", "") if host.is_live else ""
    return [*([Path(own).parent] if own.startswith("/") else []), *CONF_DIRS]


def find_layout(host: Host, said: Path | None) -> SlurmLayout:
    """Return where Slurm's files are: where the site file says so, or where they are found."""
    if said is not None:
        return SlurmLayout(said)
    for place in _conf_dirs(host):
        if host.is_file(place / "slurm.conf"):
            return SlurmLayout(place)
    for place in CONFIGLESS_DIRS:
        if host.is_file(place / "slurm.conf"):
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


def plugstack_files(host: Host, said: Path | None) -> list[Path]:
    """Return the files that may have the line: each plugstack.conf, what it includes, and our own
    file beside that."""
    found: list[Path] = []
    for folder in (*([said] if said else []), *_conf_dirs(host), *CONFIGLESS_DIRS):
        path = folder / "plugstack.conf"
        seen: list[Path] = []
        with suppress(InspectorError):  # what cannot be read is not written either
            list(stack_entries(path, host.read_text, host.root, seen))
            drop_in = drop_in_file(path, host.read_text(path), DROP_IN)
            seen += [drop_in] if drop_in else []
        found += [path, *seen]
    return found
