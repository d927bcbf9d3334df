# SPDX-License-Identifier: Apache-2.0
"""Choose which series of a job's files the agent keeps, and count those left out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from nccl_inspector.agent.series_budget import FILE_BYTES_MAX, SeriesBudget
from nccl_inspector.exposition.text import SeriesLine
from nccl_inspector.exposition.thinning import importance, series_bytes
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.clock import Clock
from nccl_inspector.system.safe_files import read_owners

# File in the job's directory with the series that count against its limit, for the next agent.
FILE = "series"
# Why series are left out. LIFE: the job has had too many different ones. SHARE: they do not fit
# into its share of the node's page.
LEFT_OUT = LIFE, SHARE = "life", "share"

_Key = TypeVar("_Key")


class Admission:
    """What one job may publish: different series over its life, and bytes at one time."""

    def __init__(self, limit: int, clock: Clock) -> None:
        """Start for a job that has published nothing; `limit`: the number of different series."""
        self._budget = SeriesBudget(limit, clock)
        self._bytes: dict[str, int] = {}  # kept for each source
        self.left_out: Counter[str] = Counter(dict.fromkeys(LEFT_OUT, 0))

    def take_up(self, job_fd: int) -> None:
        """Continue with what an earlier agent has published of the job.

        Raises:
            RefusedError: the earlier agent's file cannot be read.
        """
        data = read_owners(FILE, FILE_BYTES_MAX, job_fd)
        if data is not None:
            self._budget.restore(data)

    def keep(self, job_fd: int) -> None:
        """Write the file for the next agent, if it has changed.

        Raises:
            OSError: it could not be written; the next call tries again.
        """
        if self._budget.is_changed:
            replace_file(job_fd, FILE, self._budget.encode(), 0o600)
            self._budget.is_changed = False

    def choose(
        self,
        source: str,
        series: Mapping[_Key, SeriesLine],
        known: Mapping[_Key, SeriesLine],
        room_bytes: int,
    ) -> dict[_Key, SeriesLine]:
        """Return the series of a source that are kept, the most important first; count the others.

        `known`: the series of this source that were kept before. `room_bytes`: for all sources of
        the job together.
        """
        kept = {key: one for key, one in series.items() if key in known}
        if len(kept) == len(series) == len(known):
            return kept
        size = sum(map(series_bytes, kept.values()))
        room = room_bytes - sum(self._bytes.values()) + self._bytes.get(source, 0)
        new = [(key, one) for key, one in series.items() if key not in known]
        for key, one in sorted(new, key=lambda item: -importance(item[1].metric)):
            if size + series_bytes(one) > room:
                self.left_out[SHARE] += 1
            elif not self._budget.admit(one.text):
                self.left_out[LIFE] += 1
            else:
                size += series_bytes(one)
                kept[key] = one
        self._bytes[source] = size
        return {key: one for key, one in series.items() if key in kept}

    def drop(self, sources: Iterable[str]) -> None:
        """Forget the bytes of sources that are gone; their series still count against the limit."""
        kept = set(sources)
        self._bytes = {source: size for source, size in self._bytes.items() if source in kept}

    @property
    def wants_look(self) -> bool:
        """Whether `look` should be called."""
        return self._budget.wants_look

    def look(self, series: Iterable[SeriesLine]) -> None:
        """Note which series exist now."""
        self._budget.look(one.text for one in series)
