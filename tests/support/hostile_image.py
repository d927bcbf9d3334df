# SPDX-License-Identifier: Apache-2.0
"""Images that lead root to the host: made from a seed, beside a piece of host that is watched."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

from click.testing import CliRunner

from nccl_inspector.cli import cli
from nccl_inspector.errors import InspectorError
from tests.support.host_image import make_image, setup

OUR_LINE = "optional /usr/lib/nccl-inspector/spank_nccl_inspector.so default=prom\n"
_LIBS = "usr/lib/x86_64-linux-gnu"
# What setup and the doctor open, list or write in an image, and what is above that.
PLACES = (
    "etc", "etc/environment", "etc/group", "etc/nccl-inspector",
    "etc/nccl-inspector/nccl-inspector.conf", "etc/passwd", "etc/profile.d", "etc/shadow",
    "etc/slurm", "etc/slurm/plugstack.conf", "etc/slurm/plugstack.conf.d", "etc/slurm/slurm.conf",
    "etc/systemd", "etc/systemd/system", "etc/systemd/system-preset",
    "etc/systemd/system/multi-user.target.wants", "etc/tmpfiles.d", "shared", "shared/reports",
    "usr/lib/nccl-inspector", "usr/lib/nccl-inspector/tmpfiles-controller.conf",
    "usr/lib/systemd/system/nccl-inspector-agent.service", "var", "var/lib",
    "var/lib/nccl-inspector", "var/lib/nccl-inspector/setup",
    "var/lib/nccl-inspector/setup/journal.json", _LIBS, f"{_LIBS}/libnccl.so.2",
)  # fmt: skip
_HOST_FILES = "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"
_OTHER = 64123  # an owner that is not root


def make_canary(root: Path) -> Path:
    """Return a piece of a host below `root`: whatever an image may want changed is in it."""
    make_image(root)
    (root / "etc/slurm/plugstack.conf").write_text(f"# the host's\n{OUR_LINE}")
    (root / "etc/slurm/plugstack.conf").chmod(0o600)
    (root / "etc/slurm/only-our-line").write_text(OUR_LINE)
    (root / "etc/slurm/plugstack.conf.d").mkdir()
    for name in ("etc/nccl-inspector", "etc/systemd/system/multi-user.target.wants",
                 "var/lib/nccl-inspector/setup", "empty/in-it", "shared/reports"):  # fmt: skip
        (root / name).mkdir(parents=True)
    (root / "etc/nccl-inspector/nccl-inspector.conf").write_text("cluster = host\n")
    (root / "secret").write_text("NCCL_PROFILER_PLUGIN=/opt/secret.so\n")
    (root / "secret").chmod(0o600)
    return root


def watch(*roots: Path) -> dict[str, tuple[object, ...]]:
    """Return all that is below some directories: kind, mode, owner, time and content."""
    found: dict[str, tuple[object, ...]] = {}
    for root in roots:
        for path in (root, *sorted(root.rglob("*"))):
            status = path.lstat()
            data = ""
            if stat.S_ISREG(status.st_mode):
                data = sha256(path.read_bytes()).hexdigest()
            elif stat.S_ISLNK(status.st_mode):
                data = str(path.readlink())
            found[str(path)] = (
                status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, data,
            )  # fmt: skip
    return found


def watched_host() -> list[Path]:
    """Return what is watched of this machine itself."""
    names = [*_HOST_FILES, "etc/systemd/system", "etc/nccl-inspector", "etc/slurm",
             "var/lib/nccl-inspector"]  # fmt: skip
    return [path for name in names if (path := Path("/") / name).exists()]


class HostileImage:
    """An image from a seed, which knows where the canary is."""

    def __init__(self, root: Path, canary: Path, seed: int) -> None:
        """Make it."""
        self.root, self._canary = make_image(root), canary
        self._random = Random(seed)  # noqa: S311
        for folder in (_LIBS, "etc/profile.d", "var/lib/nccl-inspector"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / _LIBS / "libc.so.6").write_bytes(b"\x7fELF\x02\x01" + b"\0" * 80)
        (root / "etc/profile.d/a.sh").write_text("export NCCL_PROFILER_PLUGIN=/x.so\n")
        for _ in range(self._random.randrange(3)):
            self._spoil(self._random.choice(PLACES))
        self._plugstack()
        if self._random.random() < 0.8:
            self._journal()
        for _ in range(self._random.randrange(3)):
            self._spoil(self._random.choice(PLACES))

    def _at(self, name: str) -> Path | None:
        """Return where a name is below the root; None: something above it is no directory."""
        path = self.root
        for part in Path(name).parent.parts:
            path /= part
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                return None
            path.mkdir(exist_ok=True)
        return path / Path(name).name

    def _spoil(self, name: str) -> None:
        """Put something else in the place of a file or a directory."""
        path = self._at(name)
        if path is None:
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        self._random.choice(self._tricks())(path, name)

    def _tricks(self) -> list[Callable[[Path, str], None]]:
        return [
            self._absolute, self._absolute, self._relative, self._relative, self._loop,
            self._magic, self._inside, self._fifo, self._device, self._others, self._others,
            self._socket, self._numbers,
        ]  # fmt: skip

    def _absolute(self, path: Path, name: str) -> None:
        path.symlink_to(self._canary / self._random.choice([name, "secret", "etc", name]))

    def _relative(self, path: Path, name: str) -> None:
        up = "../" * self._random.choice([len(path.relative_to(self.root).parts), 40])
        target = self._canary if up.count("..") == 40 else Path(self._canary.name)
        path.symlink_to(f"{up}{str(target).lstrip('/')}/{name}")

    def _loop(self, path: Path, name: str) -> None:
        path.symlink_to(self._random.choice([Path(name).name, f"/{name}", f"/{name}/..//{name}"]))

    def _magic(self, path: Path, name: str) -> None:
        # An image that is being built may have /proc mounted.
        (self.root / "proc").mkdir(exist_ok=True)
        path.symlink_to(f"/proc/self/root{self._canary}/{name}")

    def _inside(self, path: Path, name: str) -> None:
        """A link to a place in the image that the host has, too."""
        target = self.root / str(self._canary).lstrip("/") / name
        target.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self._canary / name)

    def _fifo(self, path: Path, name: str) -> None:
        del name
        os.mkfifo(path)

    def _device(self, path: Path, name: str) -> None:
        del name
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, self._random.choice([3, 5])))
        except PermissionError:
            os.mkfifo(path)

    def _socket(self, path: Path, name: str) -> None:
        del name
        os.mknod(path, stat.S_IFSOCK | 0o666)

    def _numbers(self, path: Path, name: str) -> None:
        """Numbers that no account has; in a file of accounts they are of one."""
        del name
        number = self._random.choice(["9" * 5000, "-1", str(2**32 - 1), str(2**64), "\u0663", ""])
        path.write_text(f"nccl-inspector:x:{number}:{number}::/:\nx:x:{number}:{number}::/:\n")

    def _others(self, path: Path, name: str) -> None:
        """Something of another owner that everybody may write to."""
        if "." in Path(name).name or name.endswith(("passwd", "group", "shadow", "environment")):
            path.write_text("x:y\n")
        else:
            path.mkdir()
        path.chmod(0o777)
        os.chown(path, _OTHER, _OTHER)

    def _plugstack(self) -> None:
        path = self._at("etc/slurm/plugstack.conf")
        if path is None or path.exists() or path.is_symlink() or self._random.random() < 0.3:
            return
        canary = self._canary
        up = "../" * 40 + str(canary).lstrip("/")
        line = self._random.choice([
            f"include {canary}/etc/slurm/*\n", f"include {up}/etc/slurm/only*\n",
            f"include {canary}/etc/slurm/plugstack.conf.d/*\n", "include /*/*\n", OUR_LINE,
            f"include {up}/etc/slurm/only-our-line\n", f"include {up}/etc/slurm/*\n",
        ])  # fmt: skip
        path.write_text(line)

    def _whats(self) -> Iterator[str]:
        canary = str(self._canary)
        for name in (
            "etc/slurm/plugstack.conf", "etc/slurm/only-our-line", "secret", "empty",
            "empty/in-it", "etc/passwd", "etc/nccl-inspector/nccl-inspector.conf",
        ):  # fmt: skip
            yield f"/../{self._canary.name}/{name}"
            yield f"/{'../' * 40}{canary.lstrip('/')}/{name}"
            yield f"{canary}/{name}"
            yield f"/{name}"
            yield f"../{self._canary.name}/{name}"
        yield from ("", "/", "/..", "nccl-inspector-agent.service", "../../x", "sshd.service")

    def _row(self) -> dict[str, object]:
        what = self._random.choice(list(self._whats()))
        named = self._canary / what.rpartition(f"{self._canary.name}/")[2].lstrip("/")
        data = named.read_bytes() if named.is_file() else b""
        row: dict[str, object] = {
            "kind": self._random.choice(["file", "file", "file", "directory", "parent", "unit",
                                         "account", "other"]),
            "what": what,
            "written": sha256(data).hexdigest(),
            "before": self._random.choice([None, None, "", "root::0:0::/:/bin/sh\n"]),
            "appended": self._random.choice(["", OUR_LINE, "# the host's\n", data.decode()]),
            "replaced": self._random.choice(["", "", "", "x=y\n"]),
            "roles": self._random.choice([["node"], ["controller"], ["node"], "node", 7]),
        }  # fmt: skip
        if self._random.random() < 0.1:
            row["extra"] = 1
        return row

    def _journal(self) -> None:
        path = self._at("var/lib/nccl-inspector/setup/journal.json")
        if path is None or path.is_dir() or path.is_symlink():
            return
        rows = [self._row() for _ in range(self._random.choice([1, 1, 1, 3]))]
        odd = [json.dumps(rows), json.dumps(rows), json.dumps(rows), json.dumps(rows)[:-9],
               "[" * 100_000, '{"a": 1}', "7"]  # fmt: skip
        path.unlink(missing_ok=True)
        path.write_text(self._random.choice(odd))
        if self._random.random() < 0.15:
            os.chown(path, _OTHER, _OTHER)
        if self._random.random() < 0.15:
            path.chmod(0o666)


def use(image: Path) -> str:
    """Do all that root does with an image, and return what was printed."""
    said = []
    for role in ("node", "controller"):
        for words in ((), ("--undo",), ("--apply",), ("--apply",), ("--undo",)):
            said.append(setup(image, role, *words)[1])
    done = CliRunner().invoke(cli, ["doctor", "--image", str(image)])
    if done.exception and not isinstance(done.exception, SystemExit | InspectorError):
        raise done.exception
    return "\n".join([*said, done.output])


def use_apart(place: Path, seeds: Iterable[int]) -> None:
    """Use images one by one below the only directory that can be written to."""
    canary = make_canary(place / "canary")
    for seed in seeds:
        folder = place / str(seed)
        folder.mkdir()
        HostileImage(folder / "image", canary, seed)
        text = use(folder / "image")
        assert "Read-only file system" not in text, (seed, text)
        shutil.rmtree(folder)
