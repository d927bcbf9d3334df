# SPDX-License-Identifier: Apache-2.0
"""What the RAS service of a release says, asked by the client of `nccl-inspector ras`."""

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.ras.client import Address, RefusedRequestError, ask_diagnostics, ask_status
from nccl_inspector.ras.judge import judge
from nccl_inspector.ras.status import RasStatus, parse_status
from tests.nccl.scenes import RANKS

ADDRESS = "NCCL_RAS_ADDR"
JSON_SINCE, DIAGNOSTICS_SINCE = (2, 28, 7), (2, 31, 2)
_READY, _ASKED = "ready", "asked"
_PATIENCE_S = 60.0


def free_port() -> int:
    """Return a port of loopback that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def await_questions(directory: Path, rank: int) -> None:
    """In a rank with RAS: stay with all communicators until the questions have been asked."""
    if ADDRESS not in os.environ:
        return
    (directory / f"{rank}.{_READY}").touch()
    until_s = time.monotonic() + _PATIENCE_S
    while not (directory / _ASKED).exists() and time.monotonic() < until_s:
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

    def look(self) -> None:
        """Ask if all ranks are ready, and let them go on."""
        asked = self._directory / _ASKED
        if asked.exists() or len(list(self._directory.glob(f"*.{_READY}"))) < RANKS:
            return
        try:
            self._ask()
        except InspectorError as err:
            self._problems.append(f"RAS: {err}")
        asked.touch()

    def _ask(self) -> None:
        try:
            lines = ask_diagnostics(self.address)
            as_said = self._number >= DIAGNOSTICS_SINCE and "NCCL DIAG" in lines[0]
        except RefusedRequestError:
            as_said = self._number < DIAGNOSTICS_SINCE
        if not as_said:
            self._problems.append("RAS: its diagnostics are not as documented")
        try:
            self._status = parse_status(ask_status(self.address))
        except RefusedRequestError:
            if self._number >= JSON_SINCE:
                raise

    def differences(self, called: Sequence[Counter[str]]) -> Iterator[str]:
        """Yield what is not as documented, and where RAS' counts differ from the ranks' calls."""
        yield from self._problems
        if self._status:
            yield from differences(self._status, called)
        elif self._number >= JSON_SINCE and not self._problems:
            yield "RAS: it was not asked"


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
