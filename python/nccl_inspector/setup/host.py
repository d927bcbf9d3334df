# SPDX-License-Identifier: Apache-2.0
"""The host that is set up: this one, or the root directory of an image."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError

_COMMAND_S = 60
# What other hosts may have mounted, too; so may everything of FUSE.
_SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "wekafs", "panfs", "afs",
     "9p", "virtiofs", "orangefs")
)  # fmt: skip
_FILE_BYTES_MAX = 1 << 20


@contextmanager
def directory_of(place: Path) -> Iterator[int]:
    """Give a descriptor of the directory that a file is in.

    Raises:
        OSError: it cannot be opened.
    """
    fd = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # Not slurm.command.ask: its limit on a file's size is too small for what useradd writes.
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=_COMMAND_S,
        )  # fmt: skip
    except OSError as err:
        raise InspectorError(f"{words[0]}: {err.strerror}") from err
    except subprocess.TimeoutExpired as err:
        raise InspectorError(f"{' '.join(words)}: no end after {_COMMAND_S} s") from err


def _in_chroot() -> bool:
    """Tell whether PID 1 has another root directory, as systemctl does before it talks to it."""
    try:
        return not Path("/proc/1/root").samefile("/")
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Host:
    """Where everything is, and how commands are called there."""

    root: Path = Path("/")

    @property
    def is_live(self) -> bool:
        """It is this machine, and not an image that will be booted elsewhere."""
        return self.root == Path("/")

    @property
    def has_systemd(self) -> bool:
        """systemd is installed: units can be enabled."""
        if self.is_live:
            return shutil.which("systemctl") is not None
        return self.at(Path("/usr/lib/systemd/system")).is_dir()

    @property
    def is_booted(self) -> bool:
        """systemd runs here: units can be started. It does not in an image, nor in a chroot or a
        container in which one is built."""
        return self.is_live and Path("/run/systemd/system").is_dir() and not _in_chroot()

    @property
    def systemctl(self) -> list[str]:
        """The words that call systemctl for this host; it changes only links if none runs."""
        return ["systemctl"] if self.is_booted else ["systemctl", f"--root={self.root}"]

    def is_shared(self, path: Path) -> bool:
        """Tell whether a file of this machine is on storage that other hosts may have mounted."""
        try:
            device = self.at(path).stat().st_dev
            text = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return False
        number = f"{os.major(device)}:{os.minor(device)}"
        mounts = [line.partition(" - ") for line in text.splitlines()]
        kinds = {right.split()[0] for left, _, right in mounts if left.split()[2] == number}
        return bool(kinds & _SHARED) or any(kind.startswith("fuse") for kind in kinds)

    def at(self, path: Path) -> Path:
        """Return where a path of the host is here."""
        return self.root / path.relative_to("/")

    def missing_parents(self, path: Path) -> list[Path]:
        """Return the directories above a path that are not there, the outermost first."""
        return [one for one in reversed(path.parents) if not self.at(one).exists()]

    def make_parents(self, path: Path) -> None:
        """Make the directories above a path that are missing, as 0755 whatever the umask is.

        Raises:
            OSError: one of them cannot be made.
        """
        for one in self.missing_parents(path):
            self.at(one).mkdir(mode=0o755)
            self.at(one).chmod(0o755)

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file; None if there is none.

        Raises:
            InspectorError: it is something else than a regular file, or too large, or unreadable.
        """
        try:
            fd = os.open(self.at(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as err:
            raise InspectorError(f"{path}: cannot be read: {err.strerror}") from err
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InspectorError(f"{path}: not a regular file")
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise InspectorError(f"{path}: larger than 1 MiB")
        return data

    def read_text(self, path: Path) -> str:
        """Return the text of a file; empty if there is none.

        Raises:
            InspectorError: as of read().
        """
        return (self.read(path) or b"").decode("utf-8", "surrogateescape")

    def id_of(self, account: str, file: str = "passwd") -> int | None:
        """Return the uid (with "group": the gid) of a name in the host's own files or, on this
        machine, of whatever else knows accounts; None if there is no such name."""
        if self.is_live:
            said = self.ask("getent", file, account)
            lines = said.splitlines()
        else:
            lines = self.read_text(Path("/etc") / file).splitlines()
        for line in lines:
            fields = line.split(":")
            if fields[0] == account and len(fields) > 2 and fields[2].isdecimal():
                return int(fields[2])
        return None

    def name_of(self, uid: int) -> str:
        """Return the account that has a uid; empty if none has."""
        if self.is_live:
            lines = self.ask("getent", "passwd", str(uid)).splitlines()
        else:
            lines = self.read_text(Path("/etc/passwd")).splitlines()
        for line in lines:
            fields = line.split(":")
            if len(fields) > 2 and fields[2] == str(uid):
                return fields[0]
        return ""

    def ask(self, *words: str) -> str:
        """Return what a command prints; empty if it fails or is missing."""
        try:
            done = _run(words)
        except InspectorError:
            return ""
        return done.stdout if done.returncode == 0 else ""

    def call(self, words: Sequence[str]) -> None:
        """Run a command.

        Raises:
            InspectorError: it is missing, fails, or takes longer than a minute.
        """
        done = _run(words)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            why = said[-1] if said else f"status {done.returncode}"
            raise InspectorError(f"{' '.join(words)}: {why}")
