# SPDX-License-Identifier: Apache-2.0
"""Run a command on a machine that is as none of ours: python -m tests.tools.company NAME COMMAND...

It gets namespaces of its own, so nothing of this machine changes; only root may make them. NAME is
a company below, or some parts: `just-booted`, or `uptime,no-ipv6`.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.repository import BUILD, REPO

UPTIME_S = 5
# As long as a path in TMPDIR gets; a name of a socket has at most 107 characters.
TMP_CHARS = 100
FAKE_DATE = BUILD / "fakedate" / "libfakedate.so"
TURKISH = "tr_TR.UTF-8"

# Interfaces of a new network namespace are down.
_LOOPBACK = """
import fcntl, socket, struct
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
"""


@dataclass(frozen=True)
class Part:
    """One way in which a machine is odd."""

    unshare: tuple[str, ...] = ()  # namespaces
    prepare: str = ""  # shell, as root in them; $WORK is an empty directory
    environment: dict[str, str] = field(default_factory=dict)
    wrap: tuple[str, ...] = ()  # what the command runs under


def _uptime() -> Part:
    """The kernel takes whole seconds, and none before the boot of the machine itself."""
    offsets = {
        clock: UPTIME_S - int(time.clock_gettime(number))
        for clock, number in (
            ("monotonic", time.CLOCK_MONOTONIC),
            ("boottime", time.CLOCK_BOOTTIME),
        )
    }
    return Part(("--time", *(f"--{clock}={by_s}" for clock, by_s in offsets.items())))


def _one_cpu() -> Part:
    return Part(wrap=("taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))))


def parts() -> dict[str, Part]:
    """Every part by its name."""
    return {
        "uptime": _uptime(),
        # By a file and not by LD_PRELOAD, which many children do not inherit.
        "2038": Part(
            ("--mount",),
            'mkdir "$WORK/up" "$WORK/over"\n'
            'mount -t overlay -o "lowerdir=/etc,upperdir=$WORK/up,workdir=$WORK/over" etc /etc\n'
            f"echo {shlex.quote(str(FAKE_DATE))} >/etc/ld.so.preload",
            # The cache has the times of sources in it; ASan wants to be the first library.
            {"PYTHONPYCACHEPREFIX": "$WORK/pycache", "ASAN_OPTIONS": "verify_asan_link_order=0"},
        ),
        "C": Part(environment={"LC_ALL": "C"}),
        "Turkish": Part(
            prepare=f'localedef -i tr_TR -f UTF-8 "$WORK/{TURKISH}"',
            environment={"LOCPATH": "$WORK", "LC_ALL": TURKISH},
        ),
        "Chatham": Part(environment={"TZ": "Pacific/Chatham"}),  # 12:45 or 13:45 before us
        "umask": Part(wrap=("sh", "-c", 'umask 077; exec "$@"', "umask")),
        "long-tmp": Part(
            ("--mount",),
            f'long=$(printf "/tmp/company-%s-%0{TMP_CHARS}d" "$$" 0 | cut -c1-{TMP_CHARS})\n'
            'mkdir "$long"\n'
            'trap \'umount "$long"; rmdir "$long"\' EXIT\n'
            'mount -t tmpfs -o mode=1777 company "$long"; export TMPDIR=$long',
        ),
        "one-cpu": _one_cpu(),
        "no-ipv6": Part(
            ("--net",),
            f"{shlex.quote(sys.executable)} -c {shlex.quote(_LOOPBACK)}\n"
            "echo 1 | tee /proc/sys/net/ipv6/conf/*/disable_ipv6 >/dev/null",
        ),
        "unknown-host": Part(("--uts",), "hostname nobody-knows-it"),
    }


# What can be together is together, because each of them runs the short tests once.
COMPANIES = {
    "just-booted": ("uptime", "no-ipv6", "C", "umask", "long-tmp"),
    "later-elsewhere": ("2038", "Turkish", "Chatham", "unknown-host"),
    "one-cpu": ("one-cpu",),
}


def names_of(words: str) -> tuple[str, ...]:
    """Return the parts of a company, or those that are named.

    Raises:
        KeyError: there is no such part.
    """
    names = COMPANIES.get(words) or tuple(words.split(","))
    known = parts()
    for name in names:
        known[name]
    return names


@contextmanager
def in_company(names: Sequence[str]) -> Iterator[list[str]]:
    """Give what to put before a command."""
    known = parts()
    chosen = [known[name] for name in names]
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-company-", dir="/var/tmp") as work:
        Path(work).chmod(0o755)
        variables = {name: text for part in chosen for name, text in part.environment.items()}
        words = [f'{name}="{text}"' for name, text in variables.items()]
        words += [shlex.quote(word) for part in chosen for word in part.wrap]
        lines = ["set -euo pipefail", f"WORK={work}", *(part.prepare for part in chosen)]
        # Not in the shell's own environment: it would be odd itself from then on.
        lines.append(f'env {" ".join(words)} "$@"')
        flags = {flag: None for part in chosen for flag in part.unshare}
        yield ["unshare", *flags, "--", "bash", "-c", "\n".join(lines), "company"]


def main() -> int:
    """Exit status as the command's."""
    with in_company(names_of(sys.argv[1])) as before:
        return subprocess.run([*before, *sys.argv[2:]], check=False, cwd=REPO).returncode


if __name__ == "__main__":
    sys.exit(main())
