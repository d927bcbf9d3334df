# SPDX-License-Identifier: Apache-2.0
"""The host that is set up: this one, or the root directory of an image."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.setup.site_file import UID_MAX
from nccl_inspector.system.safe_files import read_at
from nccl_inspector.system.tree import Tree

_COMMAND_S = 60
# What other hosts may have mounted, too; so may everything of FUSE.
_SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "wekafs", "panfs", "afs",
     "9p", "virtiofs", "orangefs")
)  # fmt: skip
_FILE_BYTES_MAX = 1 << 20
_ID = re.compile(r"[0-9]{1,10}")


def id_in(field: str) -> int | None:
    """Return the uid or gid in a field of passwd or group; None: it has no such number.

    An image may have these files from anywhere.
    """
    return int(field) if _ID.fullmatch(field) and int(field) <= UID_MAX else None


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
    """Where everything is, and how commands are called there.

    Its files are opened below its root only: a link in an image leads to a place in the image. No
    program of this machine is let loose on an image, because it would follow such links.
    """

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
        return self.is_directory(Path("/usr/lib/systemd/system"))

    @property
    def is_booted(self) -> bool:
        """systemd runs here: units can be started. It does not in an image, nor in a chroot or a
        container in which one is built."""
        return self.is_live and Path("/run/systemd/system").is_dir() and not _in_chroot()

    def tree(self) -> Tree:
        """Return its root, held open.

        Raises:
            OSError: it is not a directory.
        """
        return Tree(self.root)

    def is_shared(self, path: Path) -> bool:
        """Tell whether a file of this machine is on storage that other hosts may have mounted."""
        try:
            with self.tree() as tree, tree.found(path) as fd:
                device = os.fstat(fd).st_dev
            text = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return False
        number = f"{os.major(device)}:{os.minor(device)}"
        mounts = [line.partition(" - ") for line in text.splitlines()]
        kinds = {right.split()[0] for left, _, right in mounts if left.split()[2] == number}
        return bool(kinds & _SHARED) or any(kind.startswith("fuse") for kind in kinds)

    def is_file(self, path: Path) -> bool:
        """Tell whether a regular file is there, be it through links."""
        with self.tree() as tree:
            return tree.is_file(path)

    def is_directory(self, path: Path) -> bool:
        """Tell whether a directory is there, be it through links."""
        with self.tree() as tree:
            return tree.is_directory(path)

    def missing_parents(self, path: Path) -> list[Path]:
        """Return the directories above a path that are not there, the outermost first."""
        with self.tree() as tree:
            return [one for one in reversed(path.parents) if not tree.exists(one)]

    def make_parents(self, path: Path) -> None:
        """Make the directories above a path that are missing, as 0755 whatever the umask is.

        Raises:
            OSError: one of them cannot be made.
        """
        for one in self.missing_parents(path):
            with self.tree() as tree:
                try:
                    tree.make_directory(one, 0o755)
                except FileExistsError as err:
                    # A site's directory may be mounted there only once the image has booted.
                    raise OSError(err.errno, f"{one} is a link to what is not there") from err

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file; None if there is none.

        Raises:
            InspectorError: it is something else than a regular file, or too large, or unreadable.
        """
        try:
            with self.tree() as tree, tree.file(path) as fd:
                data = read_at(fd, _FILE_BYTES_MAX + 1, 0)
        except FileNotFoundError:
            return None
        except (OSError, RefusedError) as err:
            why = err.strerror if isinstance(err, OSError) else err
            raise InspectorError(f"{path}: cannot be read: {why}") from err
        if len(data) > _FILE_BYTES_MAX:
            raise InspectorError(f"{path}: larger than 1 MiB")
        return data

    def write(self, path: Path, data: bytes, mode: int = 0o644, *, is_new: bool = False) -> None:
        """Replace a file, which keeps its mode and owner; a new one is root's with `mode`, and with
        `is_new` one that was there, too.

        Directories above it that are missing are made, as root's and 0755.

        Raises:
            InspectorError: it cannot be written; the old content is there then.
        """
        try:
            self.make_parents(path)
            with self.tree() as tree:
                tree.replace(path, data, mode, is_new=is_new)
        except OSError as err:
            raise InspectorError(f"{path}: cannot be written: {err.strerror}") from err

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
            if fields[0] == account and len(fields) > 2 and (uid := id_in(fields[2])) is not None:
                return uid
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
