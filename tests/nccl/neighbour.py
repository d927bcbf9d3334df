# SPDX-License-Identifier: Apache-2.0
"""Another job on the node: `python -m tests.nccl.neighbour LIBRARY DIRECTORY`.

One rank with a communicator, whose RAS service listens where NCCL_RAS_ADDR says. It stays until the
file `asked` is in DIRECTORY.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nccl_inspector.ras.client import Address
from tests.nccl.nccl import PlayedNccl

ADDRESS = "NCCL_RAS_ADDR"
ASKED = "asked"
_READY = "neighbour"
_PATIENCE_S = 600.0  # as long as a play may take on a busy machine


class Neighbour:
    """The process of the other job, and where its service listens."""

    def __init__(
        self, library: Path, directory: Path, env: Mapping[str, str], address: Address
    ) -> None:
        """Start it; `env`: a rank's environment."""
        self.address = address
        self._directory = directory
        own = {ADDRESS: str(address), "NCCL_PROFILER_PLUGIN": "none"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.nccl.neighbour", str(library), str(directory)],
            env={**env, **own},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def is_ready(self) -> bool:
        """Whether it has its communicator; true as well if it has ended, as it cannot have it."""
        name = f"{_READY}.{self.process.pid}"
        return (self._directory / name).exists() or self.process.poll() is not None


@contextmanager
def running(neighbours: list[Neighbour]) -> Iterator[None]:
    """End them at the end, if they have not."""
    try:
        yield
    finally:
        for one in neighbours:
            one.process.kill()
            one.process.wait()


def main(library: str, directory: Path) -> None:
    """Be the job."""
    nccl = PlayedNccl(library, directory)
    comm = nccl.init(1, nccl.unique_id(), 0, _READY)
    (directory / f"{_READY}.{os.getpid()}").touch()
    until_s = time.monotonic() + _PATIENCE_S
    while not (directory / ASKED).exists() and time.monotonic() < until_s:
        time.sleep(0.1)
    nccl.destroy(comm)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
