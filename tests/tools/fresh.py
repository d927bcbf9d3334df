# SPDX-License-Identifier: Apache-2.0
"""`make test-fresh`: the README's `make demo` and `make test`, each on a fresh Debian of its own.

A small Debian of each release with git, make, gcc and python3 is made once with debootstrap and
kept in /var/tmp. Each command gets a copy of it, in which this commit is cloned below /srv. It runs
in namespaces, with the host's network, because apt and pip download there what a new user's
machine lacks. That is part of the time that is measured.

systemd-nspawn would not do: it takes privileges away that root on a user's machine has.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox import tree
from tests.sandbox.errors import ClusterError
from tests.support.repository import BUILD, REPO

PACKAGES = ("git", "make", "gcc", "python3")
COMMANDS = ("make demo", "make test")
LIMIT_S = 600.0  # what README promises
_GIVE_UP_S = 2400.0
_CLONE = Path("/srv/slurm-nccl-inspector")
_ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root")
# $1: the root; then the command. /tmp is a tmpfs from Debian 13 on.
_ENTER = r"""
set -eu
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mkdir -m 1777 "$root/run/lock"
version=$(sed -n 's/^VERSION_ID="\(.*\)"/\1/p' "$root/etc/os-release")
if [ "${version:-99}" -ge 13 ]; then
	mount -t tmpfs -o mode=1777,size=50% tmpfs "$root/tmp"
fi
hostname fresh
cd "$root"
mkdir .host
pivot_root . .host
umount -l .host
rmdir .host
exec chroot . "$@"
"""
_CLOSING = re.compile(r"^=+ (.*\d (?:passed|failed|errors?|skipped)\b.* in \S+s\b.*?) =+$", re.M)
_ONCE = re.compile(r"^== FAILED ONCE.*", re.M)
_REACH = {
    "index-url", "extra-index-url", "trusted-host", "proxy", "cert", "client-cert", "timeout",
    "default-timeout", "retries",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended. `says`: pytest's closing lines."""

    release: str
    command: str
    status: int
    seconds: float
    says: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """As the README promises."""
        return self.status == 0 and self.seconds < LIMIT_S

    def row(self) -> str:
        """A line of the table."""
        verdict = "passed" if self.status == 0 else f"FAILED ({self.status})"
        slow = "" if self.seconds < LIMIT_S else f", over {LIMIT_S:.0f} s"
        words = "; ".join((f"{verdict}{slow}", *self.says))
        return f"{self.release:<10} {self.command:<10} {self.seconds:6.0f} s  {words}"


def pip_settings(listing: str) -> dict[str, str]:
    """From `pip config list`: the settings of how to reach an index (pure).

    What is only on the host's disk is left out; the environment comes before files.
    """
    found = re.findall(r"^(\S+?)\.([a-z-]+)='(.*)'$", listing, re.MULTILINE)
    chosen = {}
    for section, key, value in sorted(found, key=lambda entry: entry[0] == ":env:"):
        remote = " ".join(word for word in value.split() if not word.startswith("file:"))
        if key in _REACH and remote and section in ("global", "install", ":env:"):
            chosen[key.replace("default-timeout", "timeout")] = remote
    return chosen


def closing_lines(log: str) -> tuple[str, ...]:
    """What pytest said at the end of each of its runs, and which tests failed once (pure)."""
    return (*_CLOSING.findall(log), *_ONCE.findall(log))


def _base(release: str) -> Path:
    def finish(root: Path) -> None:
        (root / "usr/sbin/policy-rc.d").unlink()  # a fresh machine has none

    return tree.made(tree.Recipe(f"{release}-fresh", release, PACKAGES, finish)).root


@contextmanager
def _fresh(release: str) -> Iterator[str]:
    """A root with a clone of this commit; it goes at the end."""
    base = _base(release)
    with tempfile.TemporaryDirectory(prefix=f"{release}-fresh-", dir=tree.folder()) as name:
        root = Path(name)
        subprocess.run(["cp", "--archive", "--reflink=auto", f"{base}/.", root], check=True)
        root.chmod(0o755)
        shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 fresh\n")
        _let_pip_work(root)
        clone = root / _CLONE.relative_to("/")
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", REPO, clone], check=True)
        yield name


def _let_pip_work(root: Path) -> None:
    """Let pip reach an index inside as it does on the host."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings = pip_settings(listing.stdout)
    for key in {"cert", "client-cert"} & settings.keys():
        # Under another name: the package ca-certificates would write its own file over it.
        shutil.copyfile(settings[key], root / "etc" / f"pip-{key}.pem")
        settings[key] = f"/etc/pip-{key}.pem"
    lines = [f"{key} = {value}\n" for key, value in settings.items()]
    (root / "etc/pip.conf").write_text("".join(["[global]\n", *lines]))


def _proxies() -> list[str]:
    env = tree.environment()
    return [f"{key}={value}" for key, value in env.items() if key.lower().endswith("_proxy")]


def run(release: str, command: str, log: Path) -> Result:
    """Run a command in the clone on a fresh root; its output goes into `log`."""
    inside = ["env", "-i", "-C", str(_CLONE), *_ENVIRONMENT, *_proxies(), "sh", "-c", command]
    with _fresh(release) as name, log.open("wb") as file:
        begun = time.monotonic()
        argv = [*tree.APART, "unshare", "--uts", "--ipc", "sh", "-c", _ENTER, "sh", name, *inside]
        try:
            status = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd="/",
                timeout=_GIVE_UP_S, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = 124
        seconds = time.monotonic() - begun
    return Result(release, command, status, seconds, closing_lines(log.read_text(errors="replace")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fresh", description=__doc__)
    parser.add_argument("release", nargs="+", help="of Debian: bookworm trixie")
    parser.add_argument(
        "--command", action="append", help="a shell's line, instead of make demo and make test"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if all commands ended well and in time."""
    words = _parser().parse_args(argv)
    logs = BUILD / "fresh"
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    for release in words.release:
        for command in words.command or COMMANDS:
            log = logs / f"{release}-{re.sub('[^a-z0-9]+', '-', command.lower())[:40]}.log"
            print(f"{release}: {command} ({log.relative_to(REPO)})", flush=True)
            try:
                results.append(run(release, command, log))
            except ClusterError as err:
                print(f"{err}", file=sys.stderr)
                return 1
            if results[-1].status:
                print("".join(log.read_text(errors="replace").splitlines(True)[-40:]), flush=True)
    for result in results:
        print(result.row())
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
