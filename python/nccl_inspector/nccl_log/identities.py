# SPDX-License-Identifier: Apache-2.0
"""Which of the log's writers are one process, and what each is called."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_inspector.model.wording import cut_list
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
        if not own_files:
            self._join_labels()
        self._join_torn()
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

    def _join_torn(self) -> None:
        """Join a writer whose host has another line's text glued to it with the true one."""
        whole: dict[int | None, list[int]] = defaultdict(list)
        for at, one in enumerate(self._processes):
            if not one.torn and one.host:
                whole[one.pid].append(at)
        for at, one in enumerate(self._processes):
            if one.torn and one.pid is not None:
                hosts = (
                    other for other in whole[one.pid]
                    if one.host.endswith(self._processes[other].host)
                )  # fmt: skip
                self._leader[at] = next(hosts, self._leader[at])

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
        if one.rank is not None:
            name = f"rank {one.rank}"
        elif one.label is not None:
            name = f"rank {one.label}" if one.is_rank else f"task {one.label}"
        elif one.alias:
            name = one.alias
        elif one.pid is not None:
            name = f"pid {one.pid}"
        else:
            name = "a process that is not named"
        return Identity(f"{name} ({one.host})" if one.host else name, one.host, one.number)

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
