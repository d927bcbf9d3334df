# SPDX-License-Identifier: Apache-2.0
"""All files of `prom/` as one text: each family once, with the samples of all files.

The files cannot just be concatenated, because two jobs have the same families. If the agent has not
renewed its own file for long, it hangs, and the text is empty: old values would look like new ones.
"""

import gzip
import os
import re
import stat
import time
from collections.abc import Iterable

from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.model.jobid import JOB_ID

# The agent writes this one in each pass.
_OWN = "nccl_inspector_agent.prom"
# Files that the publisher writes; other files are ignored.
PUBLISHED = re.compile(rf"(?:{JOB_ID.pattern}|nccl_inspector_agent)\.prom")

# After this many tries a text is used even if its files are not all of the same moment.
_TRIES = 3
_FAMILY = b"\n# HELP "

Stamps = dict[str, tuple[int, int, int]]


def merge(texts: Iterable[bytes]) -> bytes:
    """Return texts of `exposition.text.render` as one, with the families in the table's order."""
    heads: dict[bytes, bytes] = {}
    samples: dict[bytes, list[bytes]] = {}
    for text in texts:
        # A label may contain these words, but never a line end before them.
        for family in (b"\n" + text).split(_FAMILY)[1:]:
            help_line, type_line, rest = family.split(b"\n", 2)
            name = help_line.partition(b" ")[0]
            heads.setdefault(name, b"# HELP " + help_line + b"\n" + type_line + b"\n")
            samples.setdefault(name, []).append(rest.removesuffix(b"\n"))
    parts = []
    for name in (metric.encode("ascii") for metric in load_metrics()):
        if name in heads:
            parts.append(heads[name] + b"\n".join(samples[name]) + b"\n")
    return b"".join(parts)


class Page:
    """The text of a directory of published files, kept as long as they do not change."""

    def __init__(self, prom_fd: int, stale_s: float) -> None:
        """Read below `prom_fd`; `stale_s`: the age of the agent's own file that is too old."""
        self._prom_fd, self._stale_s = prom_fd, stale_s
        self._stamps: Stamps | None = None
        self._text = b""
        self._packed = b""

    def text(self, *, packed: bool) -> bytes:
        """Return what is published now, all files of one moment; `packed`: compressed with gzip.

        Raises:
            OSError: the directory cannot be read.
        """
        for _ in range(_TRIES):
            stamps = self._look()
            if stamps == self._stamps:
                break
            self._text = merge(self._read(name) for name in sorted(stamps))
            self._stamps, self._packed = stamps, b""
        if packed and not self._packed:
            self._packed = gzip.compress(self._text, 1, mtime=0)
        return self._packed if packed else self._text

    def _look(self) -> Stamps:
        found: Stamps = {}
        with os.scandir(self._prom_fd) as entries:
            for entry in entries:
                if not PUBLISHED.fullmatch(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # its job has just ended
                    continue
                if stat.S_ISREG(status.st_mode):
                    found[entry.name] = status.st_ino, status.st_mtime_ns, status.st_size
        # Before the end of its first pass the agent has no file of its own. A clock that was set
        # back is as bad as one that was set ahead; the next pass makes up for both.
        own = found.get(_OWN)
        if own and abs(time.time() - own[1] / 1e9) > self._stale_s:
            return {}
        return found

    def _read(self, name: str) -> bytes:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._prom_fd)
        except FileNotFoundError:
            return b""
        with os.fdopen(fd, "rb") as file:
            return file.read()
