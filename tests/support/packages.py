# SPDX-License-Identifier: Apache-2.0
"""The packages as `make deb` and `make rpm` build them, and roots to install them in."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from tests.support.make_install import make
from tests.support.repository import PACKAGING

NAME = "slurm-nccl-inspector"
PACKAGES: list[dict[str, Any]] = tomllib.loads(
    (PACKAGING / "packages" / "packages.toml").read_text()
)["package"]
# Without `tools`, which has 120 MB of others.
QUICK = tuple(one["suffix"] or "command" for one in PACKAGES if one["suffix"] != "tools")
# What the maintainer scripts run, and dpkg and rpm themselves in the root.
_COMMANDS = (
    "sh", "find", "rm", "rmdir", "ls", "grep", "echo", "touch", "cp", "mv", "sed", "sort", "cat",
)  # fmt: skip


def build(kind: str, place: Path, *words: str, suffixes: tuple[str, ...] = QUICK) -> list[Path]:
    """Run `make deb` or `make rpm`; return the files, without those of debug symbols."""
    where = f"PACKAGES_OUT={place}", f"PACKAGES={' '.join(suffixes)}", "PACKAGES_LEVEL=1"
    said = make(kind, *where, *words, stage=place / "s")
    found = [Path(line) for line in said.splitlines() if line.endswith(f".{kind}")]
    return [file for file in found if file.parent == place]


def suffix_of(file: Path) -> str:
    """Return the suffix of a package file; empty for the command's."""
    return re.match(rf"{NAME}(?:-([a-z]+))?[-_]\d", file.name)[1] or ""  # type: ignore[index]


def unpacked(file: Path, place: Path) -> Path:
    """Unpack a package below a directory; return its root."""
    root = place / (suffix_of(file) or "command")
    root.mkdir()
    if file.suffix == ".deb":
        subprocess.run(["dpkg-deb", "--extract", file, root], check=True)
    else:
        data = subprocess.run(["rpm2cpio", file], capture_output=True, check=True).stdout
        cpio = ["cpio", "--quiet", "-idm", "--no-absolute-filenames"]
        subprocess.run(cpio, cwd=root, input=data, check=True)
    return root


def fresh_root(root: Path) -> Path:
    """Return a root with busybox for the packages' scripts, and dpkg's empty database."""
    busybox = root / "bin" / "busybox"
    busybox.parent.mkdir(parents=True)
    shutil.copy("/bin/busybox", busybox)
    for name in _COMMANDS:
        (root / "bin" / name).symlink_to("busybox")
    (root / "dev").mkdir()
    (root / "dev/null").touch()  # a file will do for what scripts write there
    for name in ("info", "updates", "triggers"):
        (root / "var/lib/dpkg" / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    return root


def pretend_installed(root: Path, versions: dict[str, str]) -> None:
    """Tell dpkg's database of a root that others' packages are there."""
    text = "".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\n"
        f"Maintainer: a <a@b>\nVersion: {version}\nDescription: x\n\n"
        for name, version in versions.items()
    )
    (root / "var/lib/dpkg/status").write_text(text)
    for name in versions:
        (root / "var/lib/dpkg/info" / f"{name}.list").touch()


def dpkg(root: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run dpkg on a root."""
    return subprocess.run(
        ["dpkg", f"--root={root}", "--log=/dev/null", *words],
        capture_output=True, text=True, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
    )  # fmt: skip


def left(root: Path) -> set[str]:
    """Return what is in a root beside what was there before any package of ours."""
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if not path.is_dir() and path.parts[len(root.parts)] != "bin"
        if not str(path.relative_to(root)).startswith(("var/lib/dpkg/", "var/lib/rpm/", "dev/"))
        if not str(path.relative_to(root)).startswith("root/")
    }
