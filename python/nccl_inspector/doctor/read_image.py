# SPDX-License-Identifier: Apache-2.0
"""An unpacked image of a container: what in it keeps its processes from being measured.

Nothing of the image is run.
"""

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nccl_inspector.doctor.elf import BYTES_MAX, NUMBERS, parse_elf
from nccl_inspector.doctor.facts import CannotTellError, Image, ImageFile, Version
from nccl_inspector.doctor.files import read_library
from nccl_inspector.doctor.nccl import lines_that_matter, version_of_name
from nccl_inspector.settings.config import Config
from nccl_inspector.system.printable import printable
from nccl_inspector.system.tree import Tree

NEEDS_GLIBC = (2, 28)  # the plugin of the package; a test holds the build to it
_TEXT_BYTES, _CHUNK_BYTES = 1 << 16, 8 << 20
SCAN_BYTES_MAX = 2 << 30  # of all libraries of an image together: some seconds
_OVERLAP = 64
_LIBRARIES_MAX, _NAMES_MAX = 16, 64
_FILES_MAX, _LINES_MAX = 256, 64  # of variables, in all files
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


def _scanned(tree: Tree, path: str, size: int) -> Version | None:
    """Return the version that the library prints, from its text."""
    for offset in range(0, size, _CHUNK_BYTES):
        match = _VERSION.search(tree.read(path, _CHUNK_BYTES + _OVERLAP, offset))
        if match:
            return int(match[1]), int(match[2]), int(match[3])
    return None


@dataclass(slots=True)
class _Libraries:
    nccl: dict[str, Version | None] = field(default_factory=dict)
    rccl: list[str] = field(default_factory=list)
    not_scanned: list[str] = field(default_factory=list)


def _libraries(tree: Tree, *, scan: bool) -> _Libraries:
    """Return the NCCL and the RCCL libraries; of links and files of one size only one.

    `scan`: read a library whose name does not have its version, as long as the budget lasts.
    """
    found = _Libraries()
    sizes: set[int] = set()
    left = SCAN_BYTES_MAX
    for folder in _lib_folders(tree):
        # The longest name first: it has the version, and shorter ones are links to it.
        for name in sorted(tree.names(folder), key=len, reverse=True):
            path = f"{folder}/{name}"
            if not name.startswith(("libnccl.so", "librccl.so")):
                continue
            size = tree.size(path)
            if size < 0 or size in sizes or len(sizes) >= _NAMES_MAX:
                continue
            sizes.add(size)
            if name.startswith("librccl"):
                found.rccl.append(path)
                continue
            version = version_of_name(name)
            if version is None and scan:
                if size > left or len(found.nccl) >= _LIBRARIES_MAX:
                    found.not_scanned.append(path)
                    continue
                left -= size
                version = _scanned(tree, path, size)
            found.nccl[path] = version
    return found


def _sets(tree: Tree) -> tuple[ImageFile, ...]:
    files = [*_FILES, *(f"{folder}/{name}" for folder in _FOLDERS for name in tree.names(folder))]
    found, left = [], _LINES_MAX
    for path in files[:_FILES_MAX]:
        text = tree.read(path, _TEXT_BYTES).decode("utf-8", "replace")
        if lines := lines_that_matter(text)[:left]:
            left -= len(lines)
            found.append(ImageFile(printable(path), lines))
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
        libraries = _libraries(tree, scan=True)
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
            libraries.nccl,
            tuple(libraries.rccl),
            profiler if has_own else "",
            bool(_find(tree, "libz.so.1")),
            tuple(libraries.not_scanned),
        )


def read_nccl_of_host() -> dict[str, Version | None]:
    """Return this host's own NCCL libraries, with the versions that their names have.

    Their content is not read: hundreds of MB, perhaps from a slow disk.
    """
    with Tree(Path("/")) as tree:
        return _libraries(tree, scan=False).nccl
