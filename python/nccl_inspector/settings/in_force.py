# SPDX-License-Identifier: Apache-2.0
"""What a service says of itself: the settings that it runs with, and what it cannot do.

The agent and the controller service keep the settings that they have read, so a changed file says
nothing about them. Each writes a note where only root (the controller: its account) can write, and
`setup` and `doctor` compare the note with what is configured. A note names its process by the boot,
the time of its start and its namespaces, so one that a killed service has left is recognized.
"""

import json
import os
import re
import socket
import stat
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config, Setting, load_settings
from nccl_inspector.system.atomic import replace_path
from nccl_inspector.system.clock import boot_id
from nccl_inspector.system.printable import printable
from nccl_inspector.system.safe_files import NO_LINK

AGENT, CONTROLLER = "agent", "controller"  # in the column `reader` of settings.tsv
_NOTE_BYTES_MAX = 1 << 16
_TEXT_CHARS_MAX = 1000
# A password has no place in these settings; if somebody writes one there, nobody else sees it.
_PASSWORD = re.compile(r"(://[^/@:]*:)[^/@]*(?=@)|(password=)[^&\s]*")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this boot; `space`: the namespaces in which its numbers count."""

    pid: int
    start: str  # clock ticks since the boot
    boot: str
    space: str

    def is_there(self) -> bool:
        """Tell whether it runs; only where its numbers are those of the calling process."""
        return bool(self.start) and self.start == _start_of(self.pid)


def _start_of(pid: int) -> str:
    """Return when a process started, in clock ticks; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _space() -> str:
    names = []
    for kind in ("pid", "time"):
        try:
            names.append(str(Path(f"/proc/self/ns/{kind}").readlink()))
        except OSError:  # a kernel without this kind
            names.append("")
    return " ".join(names)


def this_process() -> Process:
    """Return what the calling process is."""
    return Process(os.getpid(), _start_of(os.getpid()), boot_id(), _space())


@dataclass(frozen=True, slots=True)
class Note:
    """What a service says; `settings` as text, by name.

    `refused`: why it did not take the settings that it was told to read. `trouble`: what it cannot
    do at present. `readings`: how many times it has read them.
    """

    process: Process
    settings: Mapping[str, str]
    refused: str = ""
    trouble: str = ""
    readings: int = 1

    def is_alive(self) -> bool | None:
        """Tell whether its service runs; None: it cannot be seen from here.

        The boot is not compared where the process can be seen: systemd-nspawn and LXC mount another
        boot id, which a service that systemd protects from /proc/sys does not see.
        """
        if self.process.space == _space():
            return self.process.is_there()
        return None if self.process.boot == boot_id() else False


def note_below(run_dir: Path) -> Path:
    """Return where a node's agent writes its note: what users fill cannot keep it out."""
    return run_dir / "control" / "agent.json"


def agent_note(config: Config) -> Path:
    """Return the same for the configured run directory."""
    return note_below(config.run_dir)


def controller_note(config: Config) -> Path:
    """Return where this host's controller service writes its note; other hosts may share it."""
    host = re.sub(r"[^A-Za-z0-9-]", "_", socket.gethostname().partition(".")[0])
    return config.controller_dir / "state" / f"running.{host}.json"


def _text(setting: Setting, value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.10g}{'s' if setting.type == 'duration' else ''}"
    return printable(_PASSWORD.sub(r"\1\2***", str(value)))


def texts(config: Config, reader: str, overridden: Collection[str] = ()) -> dict[str, str]:
    """Return the settings that a service reads, without passwords, by name.

    `overridden`: left out, because its command line says them.
    """
    return {
        name: _text(setting, getattr(config, setting.field))
        for name, setting in load_settings().items()
        if reader in setting.readers and name not in overridden
    }


def write_note(path: Path, note: Note, mode: int) -> None:
    """Replace a note.

    Raises:
        OSError: it cannot be written.
    """
    replace_path(path, f"{json.dumps(asdict(note))}\n".encode("ascii"), mode)


def read_note(path: Path) -> Note | None:
    """Return a note; None: there is none.

    Raises:
        InspectorError: it cannot be read, or is none.
    """
    try:
        fd = os.open(path, NO_LINK)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise InspectorError(f"{path}: {err.strerror}") from err
    with os.fdopen(fd, "rb") as file:
        data = file.read(_NOTE_BYTES_MAX) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    try:
        found = json.loads(data)
        process = found["process"]
        start, boot, space = (str(process[key]) for key in ("start", "boot", "space"))
        refused, trouble = (str(found[key])[:_TEXT_CHARS_MAX] for key in ("refused", "trouble"))
        return Note(
            Process(int(process["pid"]), start, boot, space),
            {str(name): printable(str(text)) for name, text in found["settings"].items()},
            printable(refused),
            printable(trouble),
            int(found["readings"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise InspectorError(f"{path}: not what the service writes") from err


def read_running_note(path: Path) -> Note | None:
    """Return a note if its service runs, as far as that can be seen; None: nobody says anything.

    Raises:
        InspectorError: as of read_note().
    """
    note = read_note(path)
    return None if note is None or note.is_alive() is False else note


def running_note(path: Path) -> Note | None:
    """Return the same, None also for a note that cannot be read."""
    try:
        return read_running_note(path)
    except InspectorError:
        return None


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting with the value that a service runs with, and the one that is configured."""

    name: str
    runs: str
    configured: str

    def __str__(self) -> str:
        runs, configured = (one or "(empty)" for one in (self.runs, self.configured))
        return f"{self.name}: it runs with {runs}, configured is {configured}"


def differences(note: Note, config: Config, reader: str) -> tuple[Difference, ...]:
    """Return what a service runs with and what is configured, where they are not the same.

    What another release does not know, or the service's command line says, is not compared.
    """
    return tuple(
        Difference(name, note.settings[name], text)
        for name, text in texts(config, reader).items()
        if name in note.settings and note.settings[name] != text
    )
