# SPDX-License-Identifier: Apache-2.0
"""plugstack.conf: its entries, with those of the files that it includes, and which are ours."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.system.tree import Tree

_LIBRARY = "spank_nccl_inspector"
_FILES_MAX, _DEEP_MAX = 64, 8
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class StackEntry:
    """A line that names a plugin; its first two words are required or optional, and the library."""

    file: Path
    number: int  # from 1
    words: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        """It names our SPANK plugin."""
        return is_our_library(self.words[1])


def is_our_library(text: str) -> bool:
    """Tell whether a path or name is that of our SPANK plugin, or of a copy of it."""
    return _LIBRARY in Path(text).name


def maps_have_our_library(maps: str) -> bool:
    """Tell whether our SPANK plugin is in /proc/PID/maps."""
    return _LIBRARY in maps


def matching(entry: str, root: Path = _ROOT) -> list[Path]:
    """Return the files below `root` that a path or a pattern names, as glob(3): no hidden ones."""
    if not re.search(r"[*?\[]", entry):
        return [Path(entry)]
    try:
        with Tree(root) as tree:
            return [Path(one) for one in tree.glob(entry)]
    except OSError:
        return []


def drop_in_file(path: Path, text: str, name: str) -> Path | None:
    """Return where a file of its own is read with plugstack.conf (`path`, with the content `text`):
    in a directory of which it includes all files, or those with one suffix; None: in none."""
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if len(words) < 2 or words[0].lower() != "include":
            continue
        pattern = path.parent / words[1]
        suffix = pattern.name.removeprefix("*")
        if pattern.name.startswith("*") and not re.search(r"[*?\[]", f"{pattern.parent}{suffix}"):
            return pattern.parent / f"{name}{suffix or '.conf'}"
    return None


def stack_entries(
    path: Path,
    read: Callable[[Path], str],
    root: Path = _ROOT,
    seen: list[Path] | None = None,
    deep: int = 0,
) -> Iterator[StackEntry]:
    """Yield the entries of plugstack.conf and of the files that it includes.

    `read` returns the text of a file, and its errors are passed on. `seen` gets the files.
    """
    seen = [] if seen is None else seen
    if path in seen or len(seen) >= _FILES_MAX or deep > _DEEP_MAX:
        return
    seen.append(path)
    for number, line in enumerate(read(path).splitlines(), 1):
        words = tuple(line.split("#", 1)[0].split())
        if len(words) < 2:
            continue
        if words[0].lower() == "include":
            for one in matching(str(path.parent / words[1]), root):
                yield from stack_entries(one, read, root, seen, deep + 1)
        else:
            yield StackEntry(path, number, words)
