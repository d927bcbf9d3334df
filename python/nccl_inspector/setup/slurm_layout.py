# SPDX-License-Identifier: Apache-2.0
"""Where Slurm has its configuration on a host, and what is in it."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.setup.host import Host

# Debian's and the RPMs' place, Debian's old one, and that of a build from source.
CONF_DIRS = (Path("/etc/slurm"), Path("/etc/slurm-llnl"), Path("/usr/local/etc"))
# What slurmd got from slurmctld on a configless node.
CONFIGLESS_DIRS = (Path("/run/slurm/conf"), Path("/var/spool/slurmd/conf-cache"))
PLUGIN_FILE = "spank_nccl_inspector.so"
_INCLUDES_MAX = 100


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


@dataclass(frozen=True, slots=True)
class PlugstackLine:
    """A line that names our SPANK plugin."""

    path: Path
    number: int
    words: tuple[str, ...]


def _lines(host: Host, path: Path, seen: set[Path]) -> Iterator[PlugstackLine]:
    if path in seen or len(seen) >= _INCLUDES_MAX:
        return
    seen.add(path)
    for number, line in enumerate(host.read_text(path).splitlines(), 1):
        words = tuple(line.split("#", 1)[0].split())
        if len(words) >= 2 and words[0] == "include":
            pattern = Path(words[1]) if words[1].startswith("/") else path.parent / words[1]
            for one in sorted(host.at(pattern.parent).glob(pattern.name)):
                yield from _lines(host, pattern.parent / one.name, seen)
        elif len(words) >= 2 and Path(words[1]).name == PLUGIN_FILE:
            yield PlugstackLine(path, number, words)


def plugstack_lines(host: Host, conf_dir: Path) -> list[PlugstackLine]:
    """Return the lines of plugstack.conf, and of what it includes, that name our plugin.

    Raises:
        InspectorError: a file cannot be read.
    """
    return list(_lines(host, conf_dir / "plugstack.conf", set()))
