"""A Slurm that the tester has built: SLURM_PREFIX=/opt/slurm-25.11 is tested as another release.

Its tree is the host's Debian with the libraries that it needs, the prefix at the same path, links
to its programs where a machine looks for them, and a pyslurm, if `pip install --prefix` has put
one below the prefix. Python's modules are of the releases that the tests use: those of the host's
Debian may be older than ours need. All nodes share one munged, so it must have been configured
with --enable-multiple-slurmd, as Debian's is: steps over two nodes fail without that.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from tests.sandbox import tree
from tests.sandbox.errors import ClusterError
from tests.sandbox.processes import DAEMON_ENV
from tests.sandbox.tree import PACKAGES, Recipe, Tree

SUITE = "given"  # its name among the suites of Debian
_OTHERS = re.compile("slurm|munge$|mariadb|python3-")  # than what every tree has
_MODULES = ("click", "prometheus-client", "numpy", "jinja2", "sqlalchemy", "psycopg")
_DIST_PACKAGES = "usr/lib/python3/dist-packages"
_LIBRARY = re.compile(r"=> (/\S+)")
_OWNER = re.compile(r"([a-z0-9.+-]+)(?::[a-z0-9-]+)?: ")
_PROGRAMS = ("bin", "sbin")


def release(name: str) -> Tree:
    """The tree of a Debian suite, or of the given Slurm.

    Raises:
        ClusterError: it is not available here; with the reason in one line.
    """
    return tree.made(_recipe(prefix())) if name == SUITE else tree.make(name)


def releases() -> tuple[str, ...]:
    """Names of all releases but the host's that are to be tried."""
    return (*tree.SUITES, *((SUITE,) if os.environ.get("SLURM_PREFIX") else ()))


def prefix() -> Path:
    """Where the tester's Slurm is installed.

    Raises:
        ClusterError: it is not a Slurm in a directory of its own.
    """
    named = Path(os.environ.get("SLURM_PREFIX", ""))
    if not named.is_absolute() or len(named.parts) < 3 or named.parts[1] == "usr":
        raise ClusterError("SLURM_PREFIX must be the absolute path of a directory of its own")
    for program in ("sbin/slurmctld", "sbin/slurmd", "bin/sbatch", "include/slurm/spank.h"):
        if not (named / program).exists():
            raise ClusterError(f"SLURM_PREFIX: there is no {named / program}")
    return named


def _recipe(slurm: Path) -> Recipe:
    others = [name for name in PACKAGES if not _OTHERS.search(name)]
    needed = sorted({*others, *_packages(slurm), "munge", *_databases(slurm)})
    stamp = f"{slurm} {(slurm / 'sbin' / 'slurmctld').stat().st_mtime_ns} {_modules(slurm)[1]}"
    suite = tree.host_suite()
    return Recipe(SUITE, suite, tuple(needed), lambda root: _put(slurm, root), stamp)


def _databases(slurm: Path) -> tuple[str, ...]:
    return _servers() if (slurm / "lib" / "slurm" / "accounting_storage_mysql.so").exists() else ()


def _servers() -> tuple[str, ...]:
    return tuple(name for name in PACKAGES if name.startswith("mariadb"))


def _modules(slurm: Path) -> tuple[str, str]:
    """Where its Python modules are, and which pyslurm is there; empty if it has none.

    Debian's pip puts them elsewhere than that of a virtual environment.
    """
    python = f"python3.{sys.version_info.minor}"
    for place in (f"lib/{python}/site-packages", f"local/lib/{python}/dist-packages"):
        for found in sorted((slurm / place).glob("pyslurm-*.dist-info")):
            return str(found.parent), found.name
    return "", ""


@cache
def _packages(slurm: Path) -> set[str]:
    """The packages of the host whose libraries its programs and plugins were linked with.

    Raises:
        ClusterError: no package has one of them.
    """
    files = [path for part in _PROGRAMS for path in (slurm / part).iterdir()]
    files += [*(slurm / "lib" / "slurm").glob("*.so")]
    said = subprocess.run(
        ["ldd", *map(str, files)], env=DAEMON_ENV, capture_output=True, text=True, check=False
    ).stdout
    libraries = {Path(found) for found in _LIBRARY.findall(said)}
    return {_owner(path) for path in libraries if not path.is_relative_to(slurm)}


def _owner(library: Path) -> str:
    for path in (library, library.resolve()):
        said = subprocess.run(
            ["dpkg-query", "--search", str(path)],
            env=DAEMON_ENV, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if found := _OWNER.match(said.stdout):
            return found[1]
    raise ClusterError(f"SLURM_PREFIX: {library} is of no package")


def _put(slurm: Path, root: Path) -> None:
    """Put the prefix into the tree, and links to it."""
    target = root / slurm.relative_to("/")
    shutil.copytree(slurm, target, symlinks=True)
    for part in _PROGRAMS:
        for program in (slurm / part).iterdir():
            (root / "usr" / part / program.name).symlink_to(program)
    # No link: the host builds with these headers.
    shutil.copytree(slurm / "include" / "slurm", root / "usr" / "include" / "slurm")
    (root / "etc" / "ld.so.conf.d" / "given.conf").write_text(f"{slurm / 'lib'}\n")
    _put_modules(root)
    if modules := _modules(slurm)[0]:
        (root / _DIST_PACKAGES / "given.pth").write_text(f"{modules}\n")


def _put_modules(root: Path) -> None:
    """Put the Python modules of the releases that this process has into the tree.

    Raises:
        ClusterError: its Python is another release, or they cannot be got.
    """
    python = (root / "usr" / "bin" / "python3").readlink().name
    if python != f"python3.{sys.version_info.minor}":
        raise ClusterError(f"{SUITE}: the host's Debian has {python}; run the tests with that one")
    (root / _DIST_PACKAGES).mkdir(parents=True, exist_ok=True)
    wanted = [f"{name}=={metadata.version(name)}" for name in _MODULES]
    into = str(root / _DIST_PACKAGES)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", into]
    done = subprocess.run([*words, *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{SUITE}: pip: {done.stderr.strip().splitlines()[-1]}")
