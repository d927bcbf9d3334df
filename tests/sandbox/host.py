"""What a cluster needs from the machine it runs on: root, Debian's packages, three accounts."""

import grp
import os
import pwd
import shutil
import socket
import subprocess
import zlib
from pathlib import Path

from tests.sandbox import given
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import JOB_USER, OTHER_USER, PORTS, REPORT_USER, Layout, Options
from tests.sandbox.processes import DAEMON_ENV

# Program: the Debian package that brings it.
PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "nsenter": "util-linux",
    "useradd": "passwd",
    "make": "make",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
    "prometheus": "prometheus",
    "prometheus-node-exporter": "prometheus-node-exporter",
}
_MONITORING = ("prometheus", "prometheus-node-exporter")
_ACCOUNTING = ("slurmdbd", "mariadbd", "my_print_defaults")
_ACCOUNTS = {
    JOB_USER: ("--shell", "/bin/bash"),
    OTHER_USER: ("--shell", "/bin/bash"),
    # No system account: a site's setup might want the uid for the service.
    REPORT_USER: ("--shell", "/usr/sbin/nologin"),
}
_LOWEST_PORT, _PORT_STEPS = 17000, 1200  # below the kernel's range for outgoing connections


def needed_programs(*, monitoring: bool, accounting: bool) -> dict[str, str]:
    """Return the programs that a cluster runs, and the Debian package of each."""
    spared = (() if monitoring else _MONITORING) + (() if accounting else _ACCOUNTING)
    return {program: package for program, package in PROGRAMS.items() if program not in spared}


def missing(*, monitoring: bool = True, accounting: bool = True) -> str | None:
    """Return in one line why no cluster can run here; None if one can."""
    if os.geteuid() != 0:
        return "the sandbox cluster needs root (it makes mount namespaces and runs slurmd)"
    needed = needed_programs(monitoring=monitoring, accounting=accounting)
    absent = {
        package
        for program, package in needed.items()
        if not shutil.which(program, path=DAEMON_ENV["PATH"])
    }
    if absent:
        return (
            f"packages missing: apt-get install --no-install-recommends {' '.join(sorted(absent))}"
        )
    return None


def make_accounts() -> list[str]:
    """Create the accounts that are missing; they stay when a cluster goes. Returns their names."""
    made = []
    for name, words in _ACCOUNTS.items():
        if _exists(name):
            continue
        argv = ["useradd", "--user-group", "--no-create-home", "--home-dir", "/nonexistent", *words]
        done = subprocess.run(
            [*argv, name], capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode == 0:
            made.append(name)
        elif not _exists(name):  # else a cluster beside us was faster
            raise ClusterError(f"useradd {name}: {done.stderr.strip()}")
    return made


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def own(path: Path, user: str, mode: int) -> None:
    """Make the directory `path` belong to `user` and the user's own group."""
    path.mkdir(exist_ok=True)
    account = pwd.getpwnam(user)
    os.chown(path, account.pw_uid, grp.getgrgid(account.pw_gid).gr_gid)
    path.chmod(mode)


def choose_layout(root: Path, options: Options) -> Layout:
    """A loopback network and ports on which nobody listens.

    The same directory gets the same ones if they are free.

    Raises:
        ClusterError: all tries met somebody's port, or the chosen Slurm is not available.
    """
    slurm, machines_root = _release(options)
    seed = zlib.crc32(str(root).encode())
    for attempt in range(50):
        number = seed + attempt * 7919
        net = f"127.{64 + number % 128}.{number // 128 % 250 + 1}"
        port = _LOWEST_PORT + number % _PORT_STEPS * PORTS
        layout = Layout(root, net, port, options, slurm, machines_root)
        if all(_is_free(*pair) for pair in layout.listeners()):
            return layout
    raise ClusterError("found no free ports on the loopback network")


def _release(options: Options) -> tuple[str, Path | None]:
    """Version of the Slurm that the options choose, and its tree."""
    if options.tree:
        found = given.release(options.tree)
        return found.slurm, found.root
    said = subprocess.run(
        ["slurmctld", "-V"],
        env=DAEMON_ENV, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    return said.stdout.split()[-1], None


def _is_free(address: str, port: int) -> bool:
    """Slurm's daemons listen on every address, so a listener anywhere on the port counts."""
    for host in (address, ""):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True
