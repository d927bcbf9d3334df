# SPDX-License-Identifier: Apache-2.0
"""What `setup` can do: each step looks at the host first, and changes only what it understands."""

import stat
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Protocol

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.setup import offline
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.journal import Change, Journal, Key, fingerprint
from nccl_inspector.setup.slurm_layout import DROP_IN, our_entries
from nccl_inspector.slurm.plugstack import StackEntry, drop_in_file, stack_entries

_RUN_DIR = Path("/run/nccl-inspector")  # of the mount unit
_JOBS_SHOWN_MAX = 10
_ENABLED, _ACTIVE = "enabled", "active"  # how a unit was before, in the journal


class State(StrEnum):
    """How a step stands, as it is printed."""

    DONE = "done"
    TO_DO = "to do"
    BY_HAND = "by hand"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Look:
    """What a step found: its state, what that means, and the lines that it would add.

    `afterwards`: in place of the text, once it was done.
    """

    state: State
    text: str
    lines: tuple[str, ...] = ()
    afterwards: str = ""


@dataclass(frozen=True, slots=True)
class Stay:
    """What undoing leaves, and why; not `is_final`: undoing again may remove it."""

    text: str
    is_final: bool = True


class Step(Protocol):
    """One thing that a host needs."""

    def makes(self, host: Host) -> tuple[Key, ...]:
        """Return what it makes, as the journal names it: another role may have made it already."""

    def look(self, host: Host, journal: Journal) -> Look:
        """Return how it stands; nothing is changed."""

    def apply(self, host: Host, journal: Journal) -> None:
        """Do it, and note it first; called only if it is to do.

        Raises:
            InspectorError: it failed.
        """


def _always_differs(_data: bytes) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A file that is ours as a whole."""

    path: Path
    data: bytes
    shown: tuple[str, ...] = ()
    # Whether a file that somebody else wrote says the same.
    says_the_same: Callable[[bytes], bool] = _always_differs

    def makes(self, host: Host) -> tuple[Key, ...]:
        """Return the key of its entry in the journal."""
        del host
        return (("file", str(self.path)),)

    def look(self, host: Host, journal: Journal) -> Look:
        """Refuse a file that somebody else wrote, or changed."""
        found = host.read(self.path)
        if found is None:
            return Look(State.TO_DO, f"{self.path}: write", self.shown)
        if found == self.data or self.says_the_same(found):
            return Look(State.DONE, str(self.path))
        ours = journal.wrote(self.path)
        if ours == fingerprint(found):
            return Look(State.TO_DO, f"{self.path}: write anew", self.shown)
        why = "was changed by hand" if ours else "is there, and setup did not write it"
        return Look(
            State.REFUSED,
            f"{self.path} {why}: put its lines into the site file, then move it away",
            self.shown,
        )

    def apply(self, host: Host, journal: Journal) -> None:
        """Write it."""
        found = host.read(self.path)
        before = None if found is None else found.decode("utf-8", "surrogateescape")
        journal.note_parents(self.path)
        journal.note(Change("file", str(self.path), fingerprint(self.data), before))
        host.write(self.path, self.data)


@dataclass(frozen=True, slots=True)
class PlugstackLineStep:
    """The line of plugstack.conf that gives users the option; the rest is the site's.

    If plugstack.conf includes all files of a directory, as pyxis tells sites to do, the line is in
    a file of its own there: whoever writes plugstack.conf anew does not lose it.
    """

    conf_dir: Path
    plugin: str
    words: tuple[str, ...]
    is_sent: bool = False  # slurmctld sends the file to the nodes, but no directory beside it

    def makes(self, host: Host) -> tuple[Key, ...]:
        """Return the key of its entry in the journal."""
        return (("file", str(self.path(host))),)

    @property
    def _line(self) -> tuple[str, ...]:
        return ("optional", self.plugin, *self.words)

    def look(self, host: Host, journal: Journal) -> Look:
        """Refuse if another line already names the plugin, or if the library is not there."""
        found, path, text = self._read(host)
        if any(one.words == self._line for one in found) and len(found) == 1:
            return Look(State.DONE, f"{found[0].file}: the line is there")
        ours = (" ".join(self._line),)
        is_ours = len(found) == 1 and self._appended(path, text, journal)
        if found and not is_ours:
            where = ", ".join(f"{one.file}:{one.number}" for one in found)
            says = " ".join(found[0].words)
            return Look(State.REFUSED, f"{where} already says: {says}. Take it out, or make the "
                        "site file say the same", ours)  # fmt: skip
        if self.plugin.startswith("/") and not host.is_file(Path(self.plugin)):
            return Look(State.REFUSED, f"{self.plugin} is not there: install the package first")
        return Look(State.TO_DO, f"{path}: {'change' if found else 'add'} the line", ours)

    def path(self, host: Host) -> Path:
        """Return the file that has the line, or where it belongs if none has."""
        return self._read(host)[1]

    def _read(self, host: Host) -> tuple[list[StackEntry], Path, str]:
        """Return the entries that name the plugin, and the file of the line with its text.

        Each file is read once, so that all of it is of one moment.
        """
        read_text = cache(host.read_text)
        path = self.conf_dir / "plugstack.conf"
        entries = our_entries(host, self.conf_dir, read_text)
        if entries:
            path = entries[0].file
        else:
            found = drop_in_file(path, read_text(path), DROP_IN)
            if found is not None and not (self.is_sent and self.conf_dir in found.parents):
                path = found
        return entries, path, read_text(path)

    @staticmethod
    def _appended(path: Path, text: str, journal: Journal) -> str:
        """Return what setup added to a file earlier and is still in its text; empty: nothing."""
        for one in journal.changes:
            if (one.kind, one.what) == ("file", str(path)) and one.appended:
                return one.appended if text.count(one.appended) == 1 else ""
        return ""

    def apply(self, host: Host, journal: Journal) -> None:
        """Add it at the end of the file."""
        _, path, text = self._read(host)
        earlier = self._appended(path, text, journal)
        rest = text.replace(earlier, "") if earlier else text
        if rest and not rest.endswith("\n"):
            rest += "\n"
        added = " ".join(self._line) + "\n"
        data = (rest + added).encode("utf-8", "surrogateescape")
        before = None if host.read(path) is None else ""
        journal.note_parents(path)
        journal.note(Change("file", str(path), fingerprint(data), before, added, earlier))
        host.write(path, data)


@dataclass(frozen=True, slots=True)
class AccountStep:
    """The service account."""

    name: str
    uid: int | None

    def makes(self, host: Host) -> tuple[Key, ...]:
        """Return the key of its entry in the journal."""
        del host
        return (("account", self.name),)

    def look(self, host: Host, journal: Journal) -> Look:
        """Refuse a uid that is another account's, and an account with another uid."""
        del journal
        found = host.id_of(self.name)
        if found is not None:
            if self.uid is not None and found != self.uid:
                return Look(State.REFUSED, f"account {self.name} has the uid {found}, and the "
                            f"site file says {self.uid}: usermod --uid {self.uid} {self.name}, "
                            "or change the site file")  # fmt: skip
            if found == 0:
                return Look(State.REFUSED, f"account {self.name} is root")
            return Look(State.DONE, f"account {self.name} (uid {found})")
        if self.uid is not None and (other := host.name_of(self.uid)):
            return Look(State.REFUSED, f"uid {self.uid} is the account {other}: choose another "
                        "one in the site file")  # fmt: skip
        return Look(State.TO_DO, f"account {self.name}: make", (" ".join(self._command()),))

    def _command(self) -> list[str]:
        uid = [] if self.uid is None else ["--uid", str(self.uid)]
        return [
            "useradd", "--system", *uid, "--user-group", "--no-create-home",
            "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", self.name,
        ]  # fmt: skip

    def apply(self, host: Host, journal: Journal) -> None:
        """Make it; in an image without useradd, which would follow the image's links."""
        journal.note(Change("account", self.name))
        if host.is_live:
            host.call(self._command())
        else:
            offline.add_account(host, self.name, self.uid)


@dataclass(frozen=True, slots=True)
class DirectoryStep:
    """A directory of an account."""

    path: Path
    owner: str
    mode: int

    def makes(self, host: Host) -> tuple[Key, ...]:
        """Return the key of its entry in the journal."""
        del host
        return (("directory", str(self.path)),)

    def look(self, host: Host, journal: Journal) -> Look:
        """Refuse one that is somebody else's or has another mode: what is in it may matter."""
        del journal
        mend = f"chown {self.owner}: {self.path} && chmod {self.mode:04o} {self.path}"
        try:
            with host.tree() as tree:
                found = tree.link_status(self.path)
        except FileNotFoundError:
            return Look(State.TO_DO, f"{self.path}: make, {self.mode:04o}, of {self.owner}")
        except OSError as err:
            return Look(State.REFUSED, f"{self.path}: {err.strerror}")
        if not stat.S_ISDIR(found.st_mode):
            return Look(State.REFUSED, f"{self.path} is not a directory")
        if found.st_uid != host.id_of(self.owner):
            return Look(State.REFUSED, f"{self.path} is not {self.owner}'s: {mend}")
        if (mode := stat.S_IMODE(found.st_mode)) != self.mode:
            return Look(State.REFUSED, f"{self.path} has the mode {mode:04o}: {mend}")
        return Look(State.DONE, str(self.path))

    def apply(self, host: Host, journal: Journal) -> None:
        """Make it, and the directories above it that are missing, which are root's and 0755.

        A step before this one may have made it: systemd-tmpfiles makes the default ones.
        """
        if self.look(host, journal).state is State.DONE:
            return
        uid, gid = host.id_of(self.owner), host.id_of(self.owner, "group")
        if uid is None:
            raise InspectorError(f"{self.path}: no account {self.owner}")
        journal.note_parents(self.path)
        journal.note(Change("directory", str(self.path)))
        try:
            host.make_parents(self.path)
            with host.tree() as tree:
                tree.make_directory(self.path, self.mode, (uid, gid if gid is not None else -1))
        except OSError as err:
            raise InspectorError(f"{self.path}: cannot be made: {err.strerror}") from err


@dataclass(frozen=True, slots=True)
class TmpfilesStep:
    """A file for systemd-tmpfiles, and the directories that it names."""

    file: OwnFile
    directories: tuple[Path, ...]

    def makes(self, host: Host) -> tuple[Key, ...]:
        """Return the key of its entry in the journal."""
        return self.file.makes(host)

    def look(self, host: Host, journal: Journal) -> Look:
        """Also to do if only the directories are missing."""
        found = self.file.look(host, journal)
        if found.state is State.DONE and not all(map(host.is_directory, self.directories)):
            return Look(State.TO_DO, f"{self.file.path}: make the directories that it names")
        return found

    def apply(self, host: Host, journal: Journal) -> None:
        """Write it, then let systemd-tmpfiles make the directories; in an image the boot does."""
        self.file.apply(host, journal)
        if host.is_live:
            host.call(["systemd-tmpfiles", "--create", str(self.file.path)])


@dataclass(frozen=True, slots=True)
class UnitStep:
    """A unit of systemd that is enabled, and on this machine started."""

    name: str

    def makes(self, host: Host) -> tuple[Key, ...]:
        """Return the key of its entry in the journal."""
        del host
        return (("unit", self.name),)

    def look(self, host: Host, journal: Journal) -> Look:
        """Without systemd it is a thing to do by hand; where none runs, the next boot starts it."""
        del journal
        if not host.has_systemd:
            return Look(State.BY_HAND, f"{self.name}: systemd is not installed here; start it as "
                        "the page Install says")  # fmt: skip
        if not offline.unit_file(host, self.name):
            return Look(State.REFUSED, f"{self.name} is not there: install the package first")
        was = self._state(host)
        if _ENABLED in was and (_ACTIVE in was or not host.is_booted):
            return Look(State.DONE, self.name)
        return Look(State.TO_DO, f"{self.name}: enable{' and start' if host.is_booted else ''}")

    def _state(self, host: Host) -> list[str]:
        if not host.is_booted:
            return [_ENABLED] if offline.is_enabled(host, self.name) else []
        enabled = self._ask(host, "is-enabled").startswith(("enabled", "static"))
        active = self._ask(host, "is-active") == "active"
        return [*([_ENABLED] if enabled else []), *([_ACTIVE] if active else [])]

    def _ask(self, host: Host, question: str) -> str:
        return host.ask("systemctl", question, self.name).strip()

    def apply(self, host: Host, journal: Journal) -> None:
        """Enable it."""
        journal.note(Change("unit", self.name, before=" ".join(self._state(host))))
        if host.is_booted:
            host.call(["systemctl", "daemon-reload"])
            host.call(["systemctl", "enable", "--now", self.name])
        else:
            offline.enable(host, self.name)


class MakesNothing:
    """A step that changes no file, account or unit."""

    __slots__ = ()

    def makes(self, host: Host) -> tuple[Key, ...]:
        """Return nothing."""
        del host
        return ()


@dataclass(frozen=True, slots=True)
class Advice(MakesNothing):
    """Something that only an administrator does: setup never edits slurm.conf, and restarts none of
    Slurm's daemons."""

    is_done: bool
    text: str
    lines: tuple[str, ...] = ()

    def look(self, host: Host, journal: Journal) -> Look:
        """Return whether it is done, as far as that can be seen."""
        del host, journal
        if self.is_done:
            return Look(State.DONE, self.text)
        return Look(State.BY_HAND, self.text, self.lines)

    def apply(self, host: Host, journal: Journal) -> None:
        """Nothing: it is never to do."""


@dataclass(frozen=True, slots=True)
class Obstacle(MakesNothing):
    """Something without which a role cannot be set up."""

    text: str

    def look(self, host: Host, journal: Journal) -> Look:
        """Refuse."""
        del host, journal
        return Look(State.REFUSED, self.text)

    def apply(self, host: Host, journal: Journal) -> None:
        """Nothing: it is never to do."""


def _remove(host: Host, path: Path) -> None:
    with host.tree() as tree:
        tree.remove(path)


def _undo_line(host: Host, change: Change, found: bytes) -> Stay | None:
    path, text = Path(change.what), found.decode("utf-8", "surrogateescape")
    if text.count(change.appended) != 1:
        is_there = any(one.is_ours for one in stack_entries(path, lambda _: text))
        return Stay(f"{path}: the line was changed by hand, and stays") if is_there else None
    text = text.replace(change.appended, change.replaced)
    if not text and change.before is None:
        _remove(host, path)
    else:
        host.write(path, text.encode("utf-8", "surrogateescape"))
    return None


def _undo_file(host: Host, change: Change) -> Stay | None:
    path = Path(change.what)
    found = host.read(path)
    if found is None:
        return None
    if change.appended:
        return _undo_line(host, change, found)
    if change.before is not None and found == change.before.encode("utf-8", "surrogateescape"):
        return None
    if fingerprint(found) != change.written:
        return Stay(f"{path} was changed by hand, and stays")
    if change.before is None:
        _remove(host, path)
    else:
        host.write(path, change.before.encode("utf-8", "surrogateescape"))
    return None


def _undo_directory(host: Host, change: Change) -> Stay | None:
    try:
        with host.tree() as tree:
            tree.remove_directory(change.what)
    except FileNotFoundError:
        return None
    except OSError:
        # A parent directory that others use stays, without a message.
        return None if change.kind == "parent" else Stay(f"{change.what} is not empty, and stays")
    return None


def _undo_unit(host: Host, change: Change) -> Stay | None:
    was = (change.before or "").split()
    if not offline.unit_file(host, change.what):  # its package is gone, and systemd has stopped it
        return None
    if not host.is_booted:
        if _ENABLED not in was:
            offline.disable(host, change.what)
        return None
    if _ENABLED not in was:
        host.call(["systemctl", "disable", change.what])
    if _ACTIVE in was:
        return None
    try:
        host.call(["systemctl", "stop", change.what])
    except InspectorError:
        if not change.what.endswith(".mount"):
            raise
        return Stay(
            f"{change.what} stays mounted, because {_users_of_mount(host)}. Wait until they have "
            "ended, and restart slurmd, whose new jobs use it until then",
            is_final=False,
        )
    return None


def _users_of_mount(host: Host) -> str:
    """Return who keeps the run directory from being unmounted, for a message."""
    try:
        with host.tree() as tree:
            found = tree.names(_RUN_DIR / "jobs")
    except OSError:
        found = []
    jobs = sorted((name for name in found if JOB_ID.fullmatch(name)), key=int)
    if not jobs:
        return f"processes use it: fuser -vm {_RUN_DIR}"
    shown = ", ".join(jobs[:_JOBS_SHOWN_MAX])
    return f"jobs use it: {shown}{' and more' if len(jobs) > _JOBS_SHOWN_MAX else ''}"


def undo(host: Host, change: Change) -> Stay | None:
    """Undo a change; return what stays and why, None if nothing does."""
    try:
        if change.kind == "file":
            return _undo_file(host, change)
        if change.kind in ("directory", "parent"):
            return _undo_directory(host, change)
        if change.kind == "unit":
            return _undo_unit(host, change)
    except OSError as err:
        return Stay(f"{change.what}: {err.strerror}", is_final=False)
    except InspectorError as err:
        return Stay(str(err), is_final=False)
    if host.id_of(change.what) is None:  # making it failed
        return None
    return Stay(f"account {change.what} stays: reports may be its files")
