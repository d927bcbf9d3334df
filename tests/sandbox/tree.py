"""Other releases of Slurm: small Debian trees, made once with debootstrap and used by clusters.

By hand: python -m tests.sandbox tree trixie forky
"""

import fcntl
import json
import os
import platform
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox.errors import ClusterError
from tests.sandbox.processes import DAEMON_ENV

SUITES = ("trixie", "forky")
# What a machine runs. No compiler: the host builds, with the headers of libslurm-dev.
PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libslurm-dev", "munge",
    "python3", "python3-click", "python3-prometheus-client", "python3-numpy", "python3-jinja2",
    "python3-sqlalchemy", "python3-psycopg",
    "mount", "procps", "hostname",
    "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core", "mariadb-client-core",
)  # fmt: skip
_MARKER = "nccl-inspector-tree.json"
_MOVING = ("stable", "testing", "unstable", "sid")  # names of suites that may mean the host's
_RECIPES = Path("/usr/share/debootstrap/scripts")
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_STEP_S = 900
# In namespaces of its own: whatever ends the step, or us, takes its processes and mounts along.
APART = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
    "--mount-proc", "--",
)  # fmt: skip
_TRANSPORT = re.compile(r"Acquire::(?:https?|Retries|Check-|Force|Allow)")
_FILE_KEYS = re.compile(r"::(?:CaInfo|SslCert|SslKey)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Tree:
    """A complete Debian, never changed by a cluster. `slurm`: version, `24.11.5`; empty: none."""

    suite: str
    root: Path
    slurm: str

    @property
    def include(self) -> Path:
        """What SLURM_INCLUDE must be to build the SPANK plugin for it."""
        return self.root / "usr" / "include"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a tree is made. `name`: its directory.

    `finish`: what is done in it after the packages; `stamp`: tells one result of that from another.
    """

    name: str
    suite: str
    packages: tuple[str, ...]
    finish: Callable[[Path], None] = lambda _: None
    stamp: str = ""


def folder() -> Path:
    """$NCCL_INSPECTOR_TREES, else a directory of root that outlives a boot."""
    return Path(os.environ.get("NCCL_INSPECTOR_TREES", "/var/tmp/nccl-inspector-trees"))


def find(suite: str, more: tuple[str, ...] = ()) -> Tree | None:
    """The tree if it is complete and made as this file makes it; `more`: packages besides."""
    return found(_debian(suite, more))


def make(suite: str, more: tuple[str, ...] = ()) -> Tree:
    """The tree of a Debian suite; made when there is none, which takes a minute and the network.

    Raises:
        ClusterError: the release is not available here; with the reason in one line.
    """
    return made(_debian(suite, more))


def found(recipe: Recipe) -> Tree | None:
    """The tree if it is complete and made by this recipe."""
    root = folder() / recipe.name
    try:
        text = json.loads((root / _MARKER).read_text())
    except FileNotFoundError:
        return None
    same = text["packages"] == [*recipe.packages] and text.get("stamp", "") == recipe.stamp
    return Tree(recipe.suite, root, text["slurm"]) if same else None


def made(recipe: Recipe) -> Tree:
    """The tree of a recipe; made when there is none.

    Raises:
        ClusterError: it cannot be made here; with the reason in one line.
    """
    if not re.fullmatch("[a-z]+", recipe.suite):
        raise ClusterError(f"{recipe.suite}: not the name of a Debian suite")
    if os.geteuid() != 0 or not shutil.which("debootstrap", path=DAEMON_ENV["PATH"]):
        raise ClusterError(
            f"{recipe.name} is not available: needs root and the package debootstrap"
        )
    with _alone(recipe.name):
        return found(recipe) or _make(recipe)


def _debian(suite: str, more: tuple[str, ...]) -> Recipe:
    return Recipe(f"{suite}-more" if more else suite, suite, (*PACKAGES, *more))


@contextmanager
def _alone(suite: str) -> Iterator[None]:
    """One maker a suite; the directory must be ours, or we would enter somebody else's tree."""
    folder().mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder().lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ClusterError(f"{folder()}: not a directory that only we can write")
    with (folder() / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(recipe: Recipe) -> Tree:
    """Fill a folder beside, mark it complete, and only then give it its name."""
    root, part = folder() / recipe.name, folder() / f"{recipe.name}.part"
    for old in (root, part):
        if old.exists():
            shutil.rmtree(old)
    try:
        slurm = _fill(recipe, part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    part.rename(root)
    return Tree(recipe.suite, root, slurm)


def _fill(recipe: Recipe, part: Path) -> str:
    """Make the tree in `part`, its marker last; the version of the Slurm in it."""
    suite = recipe.suite
    script = _RECIPES / suite if (_RECIPES / suite).exists() else _RECIPES / "sid"
    targets = _said("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)")
    mirror = pick_mirror(targets, host_suite())
    _step(suite, "debootstrap", "--variant=minbase", suite, str(part), mirror, str(script))
    _prepare(part)
    install = ("apt-get", "install", "-qq", "-y", "--no-install-recommends")
    _inside(suite, part, "apt-get", "update", "-qq")
    _inside(suite, part, *install, *recipe.packages)
    _inside(suite, part, "apt-get", "clean")
    recipe.finish(part)
    _inside(suite, part, "ldconfig")
    slurm = ""
    if (part / "usr" / "sbin" / "slurmctld").exists():
        slurm = _inside(suite, part, "slurmctld", "-V").split()[-1]
    marker = {"slurm": slurm, "packages": recipe.packages, "stamp": recipe.stamp}
    (part / _MARKER).write_text(json.dumps(marker) + "\n")
    return slurm


def host_suite() -> str:
    """The name of the host's own Debian, `bookworm`; empty if it has none."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def pick_mirror(targets: str, codename: str) -> str:
    """The archive from which the host takes its own suite, of apt's index targets (pure).

    Raises:
        ClusterError: apt has none that debootstrap could use.
    """
    for line in targets.splitlines():
        uri, _, release = line.partition(" ")
        if uri.startswith(("http:", "https:", "file:")) and release in (codename, *_MOVING):
            return uri
    raise ClusterError(f"apt takes {codename or 'this system'} from no http, https or file mirror")


def transport(dump: str) -> list[tuple[str, str]]:
    """From `apt-config dump`: the settings of how to reach a mirror, the host's quirks (pure).

    A suite that is being made may have an index past its date, which is no danger to a test.
    """
    pairs = re.findall(r'^(\S+) "(.*)";$', dump, re.MULTILINE)
    chosen = {
        key: value
        for key, value in pairs
        if _TRANSPORT.match(key) and value and "Detect" not in key and not key.endswith("::")
    }
    wanted = {"Acquire::Check-Valid-Until": "false", "Acquire::Languages": "none"}
    return list(({"Acquire::Retries": "3"} | chosen | wanted).items())


def _prepare(root: Path) -> None:
    """Let apt work inside as it does on the host, and let no package start its daemon."""
    settings = transport(_said("apt-config", "dump"))
    files = [Path(value) for key, value in settings if _FILE_KEYS.search(key)]
    for source in (Path("/etc/resolv.conf"), Path("/etc/hosts"), _CA_BUNDLE, *files):
        if source.exists():
            target = root / source.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    lines = [f'{key} "{value}";\n' for key, value in settings]
    (root / "etc" / "apt" / "apt.conf.d" / "90host").write_text("".join(lines))
    policy = root / "usr" / "sbin" / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)


def environment() -> dict[str, str]:
    """Proxies as apt knows them, or as the environment does: debootstrap's wget reads only that."""
    env = DAEMON_ENV | {"DEBIAN_FRONTEND": "noninteractive"}
    env |= {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    for key, value in transport(_said("apt-config", "dump")):
        if found := re.fullmatch(r"Acquire::(https?)::Proxy", key, re.IGNORECASE):
            env[f"{found[1].lower()}_proxy"] = value
    return env


def _said(*argv: str) -> str:
    """What one of apt's commands prints."""
    done = subprocess.run(
        argv, env=DAEMON_ENV, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"{argv[0]}: {done.stderr.strip()}")
    return done.stdout


def _inside(suite: str, root: Path, *argv: str) -> str:
    """Run a command of the tree in the tree."""
    script = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    return _step(suite, "sh", "-c", script, str(root), *argv)


def _step(suite: str, *argv: str) -> str:
    try:
        done = subprocess.run(
            [*APART, *argv], env=environment(), cwd="/", timeout=_STEP_S, umask=0o022,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as err:
        raise ClusterError(f"{suite} is not available: {argv[0]}: over {_STEP_S} s") from err
    if done.returncode != 0:
        raise ClusterError(f"{suite} is not available: {_reason(done.stdout)}")
    return done.stdout


def _reason(text: str) -> str:
    """The first error in the words of debootstrap or apt, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no word why"]
    return next((line for line in lines if line.startswith("E:")), lines[-1])
