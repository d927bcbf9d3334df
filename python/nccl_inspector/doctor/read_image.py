# SPDX-License-Identifier: Apache-2.0
"""An unpacked image of a container: what in it keeps its processes from being measured.

Nothing of the image is run.
"""

import platform
import re
from collections.abc import Iterator
from pathlib import Path

from nccl_inspector.doctor.elf import BYTES_MAX, NUMBERS, parse_elf
from nccl_inspector.doctor.facts import CannotTellError, Image, ImageFile, Version
from nccl_inspector.doctor.files import read_library
from nccl_inspector.doctor.nccl import lines_that_matter, version_of_name
from nccl_inspector.settings.config import Config
from nccl_inspector.system.tree import Tree

NEEDS_GLIBC = (2, 28)  # the plugin of the package; a test holds the build to it
_TEXT_BYTES, _CHUNK_BYTES, _SCAN_BYTES_MAX = 1 << 16, 8 << 20, 1 << 30
_OVERLAP = 64
_LIBRARIES_MAX = 16
_FILES = (
    "/etc/environment",
    "/etc/nccl.conf",
    "/etc/profile",
    "/etc/bash.bashrc",
    "/root/.nccl.conf",
)
_FOLDERS = ("/etc/profile.d", "/.singularity.d/env", "/etc/enroot/environ.d")
_LIB_FOLDERS = (
    "/usr/lib",
    "/lib",
    "/usr/lib64",
    "/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/local/cuda/lib64",
    "/opt/rocm/lib",
    "/opt/nccl/lib",
    "/opt/conda/lib",
)
_PYTHONS = ("/usr/lib", "/usr/local/lib", "/opt/conda/lib", "/opt/venv/lib")
_MULTIARCH = re.compile(r"[a-z0-9_]+-linux-gnu")
_PYTHON = re.compile(r"python3(?:\.[0-9]{1,2})?")
_VERSION = re.compile(rb"NCCL version ([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{1,2})")


def _lib_folders(tree: Tree) -> Iterator[str]:
    for folder in _LIB_FOLDERS:
        yield folder
        for name in tree.names(folder):
            if _MULTIARCH.fullmatch(name):
                yield f"{folder}/{name}"
    for folder in _PYTHONS:
        for python in filter(_PYTHON.fullmatch, tree.names(folder)):
            for packages in ("site-packages", "dist-packages"):
                yield f"{folder}/{python}/{packages}/nvidia/nccl/lib"


def _scanned(tree: Tree, path: str) -> Version | None:
    """Return the version that the library prints, from its text."""
    size = min(tree.size(path), _SCAN_BYTES_MAX)
    for offset in range(0, max(size, 0), _CHUNK_BYTES):
        match = _VERSION.search(tree.read(path, _CHUNK_BYTES + _OVERLAP, offset))
        if match:
            return int(match[1]), int(match[2]), int(match[3])
    return None


def _libraries(tree: Tree, *, scan: bool) -> tuple[dict[str, Version | None], tuple[str, ...]]:
    """Return the NCCL and the RCCL libraries; of links and files of one size only one.

    `scan`: read a library whose name does not have its version.
    """
    nccl: dict[str, Version | None] = {}
    rccl: list[str] = []
    sizes: set[int] = set()
    for folder in _lib_folders(tree):
        # The longest name first: it has the version, and shorter ones are links to it.
        for name in sorted(tree.names(folder), key=len, reverse=True):
            path = f"{folder}/{name}"
            if not name.startswith(("libnccl.so", "librccl.so")):
                continue
            size = tree.size(path)
            if size < 0 or size in sizes or len(sizes) >= _LIBRARIES_MAX:
                continue
            sizes.add(size)
            if name.startswith("librccl"):
                rccl.append(path)
            else:
                nccl[path] = version_of_name(name) or (_scanned(tree, path) if scan else None)
    return nccl, tuple(rccl)


def _sets(tree: Tree) -> tuple[ImageFile, ...]:
    files = [*_FILES, *(f"{folder}/{name}" for folder in _FOLDERS for name in tree.names(folder))]
    found = []
    for path in files:
        text = tree.read(path, _TEXT_BYTES).decode("utf-8", "replace")
        if lines := lines_that_matter(text):
            found.append(ImageFile(path, lines))
    return tuple(found)


def _find(tree: Tree, name: str) -> str:
    paths = (f"{folder}/{name}" for folder in _lib_folders(tree))
    return next((path for path in paths if tree.size(path) >= 0), "")


def read_image(config: Config, root: Path) -> Image:
    """Return what matters of an unpacked image.

    Raises:
        CannotTellError: the directory holds no image.
    """
    host = read_library(config.profiler)
    with Tree(root) as tree:
        if not tree.names("/etc") and not tree.names("/usr"):
            raise CannotTellError(f"{root} has neither etc nor usr: it is no unpacked image")
        libc = _find(tree, "libc.so.6")
        found = None
        if libc:
            try:
                found = parse_elf(tree.read(libc, BYTES_MAX))
            except ValueError as err:
                raise CannotTellError(f"{libc} of the image: {err}") from err
        nccl, rccl = _libraries(tree, scan=True)
        profiler = str(config.profiler)
        has_own = profiler.startswith("/") and tree.size(profiler) >= 0
        return Image(
            root,
            found.glibc if found else None,
            any(name.startswith("ld-musl") for name in tree.names("/lib")),
            found.machine if found else None,
            (host.elf.glibc if host.elf else None) or NEEDS_GLIBC,
            host.elf.machine if host.elf else NUMBERS.get(platform.machine(), 0),
            _sets(tree),
            nccl,
            rccl,
            profiler if has_own else "",
            bool(_find(tree, "libz.so.1")),
        )


def read_nccl_of_host() -> dict[str, Version | None]:
    """Return this host's own NCCL libraries, with the versions that their names have.

    Their content is not read: hundreds of MB, perhaps from a slow disk.
    """
    with Tree(Path("/")) as tree:
        return _libraries(tree, scan=False)[0]
