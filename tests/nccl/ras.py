# SPDX-License-Identifier: Apache-2.0
"""What the RAS service of a release says, asked by the client of `nccl-inspector ras`."""

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.ras.client import Address, RefusedRequestError, ask_diagnostics, ask_status
from nccl_inspector.ras.find import RasPlace
from nccl_inspector.ras.judge import judge
from nccl_inspector.ras.origin import Origin, ask_job, find_origin
from nccl_inspector.ras.status import RasStatus, parse_status
from tests.nccl.neighbour import ADDRESS, ASKED, Neighbour
from tests.nccl.scenes import RANKS

JSON_SINCE, DIAGNOSTICS_SINCE = (2, 28, 7), (2, 31, 2)
_READY = "ready"
_PATIENCE_S = 60.0
# At a port of four listeners the neighbour would answer one of so many questions in 99 of 100 runs.
_QUESTIONS = 16


def free_port() -> int:
    """Return a port of loopback that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def await_questions(directory: Path, rank: int) -> None:
    """In a rank with RAS: stay with all communicators until the questions have been asked."""
    if ADDRESS not in os.environ:
        return
    (directory / f"{rank}.{os.getpid()}.{_READY}").touch()
    until_s = time.monotonic() + _PATIENCE_S
    while not (directory / ASKED).exists() and time.monotonic() < until_s:
        time.sleep(0.1)


class Questions:
    """Asks the service of a running play once, when all its ranks wait for that."""

    def __init__(self, release: str, directory: Path) -> None:
        """Choose an address for the ranks; ask nothing yet."""
        self.address = Address("127.0.0.1", free_port())
        self._number = tuple(map(int, release.split(".")))
        self._directory = directory
        self._status: RasStatus | None = None
        self._problems: list[str] = []
        self._neighbours: list[Neighbour] = []

    def start_neighbours(self, library: Path, env: Mapping[str, str]) -> list[Neighbour]:
        """Start two more jobs: one with an address of its own, and one that shares the ranks'."""
        apart = Address(self.address.host, free_port())
        for address in (apart, self.address):
            self._neighbours.append(Neighbour(library, self._directory, env, address))
        return self._neighbours

    def look(self) -> None:
        """Ask if all ranks are ready, and let them go on."""
        asked = self._directory / ASKED
        if asked.exists() or len(self._pids()) < RANKS:
            return
        if not all(neighbour.is_ready for neighbour in self._neighbours):
            return
        try:
            self._ask()
        except InspectorError as err:
            self._problems.append(f"RAS: {err}")
        asked.touch()

    def _pids(self) -> frozenset[int]:
        """Return the ranks that wait."""
        paths = self._directory.glob(f"*.{_READY}")
        return frozenset(int(path.name.split(".")[1]) for path in paths)

    def _ask(self) -> None:
        try:
            lines = ask_diagnostics(self.address)
            as_said = self._number >= DIAGNOSTICS_SINCE and "NCCL DIAG" in lines[0]
        except RefusedRequestError:
            as_said = self._number < DIAGNOSTICS_SINCE
        if not as_said:
            self._problems.append("RAS: its diagnostics are not as documented")
        place = RasPlace(self.address, pids=self._pids())
        try:
            self._status, _ = ask_job(place, ())
        except RefusedRequestError:
            if self._number >= JSON_SINCE:
                raise
            return
        if mistaken := list(self._mistaken(place)):
            self._problems += mistaken
            self._status = None  # it may be another job's, too

    def _mistaken(self, place: RasPlace) -> Iterator[str]:
        """Yield where the answers of several jobs on this node are mixed up."""
        apart, sharing = self._neighbours
        answers = [ask_job(place, ())[0] for _ in range(_QUESTIONS)]
        if any(found != place.pids for found in map(_processes, answers)):
            yield "RAS: at a shared port another job was taken for the ranks'"
        for _ in range(_QUESTIONS):
            status = parse_status(ask_status(apart.address))
            own = find_origin(status, {apart.process.pid}, ())
            if (own, find_origin(status, place.pids, ())) != (Origin.JOB, Origin.OTHER):
                yield "RAS: at its own port a neighbour was not told from the ranks' job"
                return
        status, _ = ask_job(RasPlace(self.address, pids=frozenset({sharing.process.pid})), ())
        if _processes(status) != {sharing.process.pid}:
            yield "RAS: the job that shares the port was not found"

    def differences(self, called: Sequence[Counter[str]]) -> Iterator[str]:
        """Yield what is not as documented, and where RAS' counts differ from the ranks' calls."""
        yield from self._problems
        if self._status:
            yield from differences(self._status, called)
        elif self._number >= JSON_SINCE and not self._problems:
            yield "RAS: it was not asked"


def _processes(status: RasStatus) -> set[int]:
    return {rank.pid for comm in status.comms for rank in comm.ranks}


def differences(status: RasStatus, called: Sequence[Counter[str]]) -> Iterator[str]:
    """Yield where RAS' counts differ from what each rank called of each function."""
    if any(comm.unwell for comm in judge(status)):
        yield "RAS: a rank is not well"
    for rank, wanted in enumerate(called):
        found: Counter[str] = Counter()
        for comm in status.comms:
            found += Counter(comm.ranks[rank].launched)
        for function in status.comms[0].ranks[rank].launched:
            if found[function] != wanted[function]:
                yield f"RAS: rank {rank}, {function}: {found[function]} of {wanted[function]}"
