# SPDX-License-Identifier: Apache-2.0
"""Which of the log's writers are one process, and what each is called."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_inspector.model.wording import cut_list
from nccl_inspector.nccl_log.lines import GPU
from nccl_inspector.nccl_log.process_log import ProcessLog

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """One process; `host` is empty if no line says it."""

    name: str  # as text: `rank 5 (n3)`
    host: str
    number: int | None  # its rank, else what its launcher calls it


class Identities:
    """Maps a writer's number in the log to its identity.

    PyTorch's lines have a rank and no process; they belong to the process of that rank, if there is
    only one. A line that another process wrote into may have lost its label.
    """

    def __init__(self, processes: Sequence[ProcessLog], *, own_files: bool = False) -> None:
        self._processes = processes
        self._leader = {at: at for at in range(len(processes))}
        self._has_pids = any(one.pid is not None for one in processes)
        self._hostless: set[int] = set()  # only the end of their host is known
        if not own_files:
            self._join_labels()
        self._join_torn(own_files=own_files)
        self._join_ranks()
        self._names = {at: self._identity(at) for at in set(self._leader.values())}

    def _join_labels(self) -> None:
        """Join writers of one host and pid if one of them has no label."""
        first: dict[tuple[str, int], int] = {}
        for at, one in enumerate(self._processes):
            if one.pid is None:
                continue
            before = first.setdefault((one.host, one.pid), at)
            if None in (one.label, self._processes[before].label):
                self._leader[at] = before

    def _join_torn(self, *, own_files: bool) -> None:
        """Join a writer whose host is glued to another line's text, or cut off by it.

        What only one in several can have written is of none of them.
        """
        whole: dict[int | None, dict[str, int]] = defaultdict(dict)
        sure: dict[int | None, dict[str, int]] = defaultdict(dict)
        for at, one in enumerate(self._processes):
            if one.host and not one.torn:
                whole[one.pid].setdefault(one.host, at)
                if one.comms:
                    sure[one.pid].setdefault(one.host, at)
        ordered = {pid: sorted(host[::-1] for host in hosts) for pid, hosts in sure.items()}
        for at, one in enumerate(self._processes):
            if one.pid is None or not one.host:
                continue
            if one.torn:
                self._join_glued(at, one.host, whole[one.pid])
            elif not own_files and not one.comms and one.pid in sure:
                self._join_glued(at, one.host[1:], sure[one.pid])
                if self._leader[at] == at:
                    self._join_cut(at, one.host[::-1], ordered[one.pid], sure[one.pid])

    def _join_glued(self, at: int, text: str, known: dict[str, int]) -> None:
        """Join a writer with the one whose host is the longest end of the text."""
        for begin in range(len(text)):
            if text[begin:] in known:
                self._join(at, known[text[begin:]])
                return

    def _join(self, at: int, other: int) -> None:
        labels = {self._processes[one].label for one in (at, other)} - {None}
        if len(labels) < 2:
            self._leader[at] = other

    def _join_cut(self, at: int, end: str, ordered: list[str], known: dict[str, int]) -> None:
        """Join a writer with the one whose host ends so; hosts are written from right to left."""
        first = bisect_left(ordered, end)
        same = [host for host in ordered[first : first + 2] if host.startswith(end)]
        if end in same:
            return  # a whole host
        if len(same) == 1:
            self._join(at, known[same[0][::-1]])
        elif same:
            self._hostless.add(at)

    def _join_ranks(self) -> None:
        """Join lines that have only a rank with the process of that rank."""
        by_rank: dict[int, list[int]] = defaultdict(list)
        for at, one in enumerate(self._processes):
            if one.pid is not None and one.number is not None and self._leader[at] == at:
                by_rank[one.number].append(at)
        by_task: dict[int, list[int]] = defaultdict(list)
        for at, one in enumerate(self._processes):
            if one.pid is not None and one.label is not None and self._leader[at] == at:
                by_task[one.label].append(at)
        for at, one in enumerate(self._processes):
            if one.pid is None and one.label is not None:
                known = by_rank if one.is_rank else by_task
                same = known[one.label] or [at]
                known[one.label] = same
                if len(same) == 1:
                    self._leader[at] = same[0]

    def _identity(self, at: int) -> Identity:
        one = self._processes[at]
        if one.alias.startswith(GPU) and self._has_pids:
            name = one.alias  # of whichever node
        elif one.rank is not None:
            name = f"rank {one.rank}"
        elif one.label is not None:
            name = f"rank {one.label}" if one.is_rank else f"task {one.label}"
        elif one.alias:
            name = one.alias
        elif one.pid is not None:
            name = f"pid {one.pid}"
        else:
            name = "a process that is not named"
        host = "" if at in self._hostless else one.host
        return Identity(f"{name} ({host})" if host else name, host, one.number)

    def is_known(self, at: int) -> bool:
        """Tell whether it is known which process a writer is, and not only its number there."""
        return self._processes[at].pid is not None and at not in self._hostless

    def of(self, at: int) -> Identity:
        """Return the identity of a writer."""
        return self._names[self._leader[at]]

    def leaders(self) -> list[int]:
        """Return a writer of each process, in the order in which they wrote first."""
        return sorted(self._names)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of all processes, sorted."""
        return tuple(sorted({one.host for one in self._names.values() if one.host}))

    def leader(self, at: int) -> int:
        """Return the writer that stands for the process of this one."""
        return self._leader[at]

    def of_rank(self, rank: int) -> Identity:
        """Return the identity of a rank of the job, which may have written nothing."""
        found = [one for one in self._names.values() if one.number == rank]
        return found[0] if len(found) == 1 else Identity(f"rank {rank}", "", rank)

    def distinct(self, writers: Iterable[int]) -> list[Identity]:
        """Return the processes of some writers, each once, by their number."""
        found = {self._leader[at]: self.of(at) for at in writers}
        return sorted(
            found.values(), key=lambda one: (one.number is None, one.number or 0, one.name)
        )


def said_names(found: Sequence[Identity]) -> str:
    """Return the first names and how many more there are."""
    return cut_list((one.name for one in found), _SHOWN)


def said_hosts(found: Sequence[Identity]) -> str:
    """Return the hosts with how many of the processes each has; without hosts, the names."""
    hosts = Counter(one.host for one in found if one.host)
    if not hosts:
        return said_names(found)
    words = (
        f"{host} ({count} processes)" if count > 1 else next(
            one.name for one in found if one.host == host
        )
        for host, count in sorted(hosts.items())
    )  # fmt: skip
    return cut_list(words, _SHOWN)
