# SPDX-License-Identifier: Apache-2.0
"""One rank: `python -m tests.nccl.rank LIBRARY DIRECTORY RANK RANKS PLACE`.

Plays all scenes, waits until its box has them, and writes what it called to <RANK>.json.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.gpu.rank import share_id
from tests.nccl.box import all_ops, find_box, sent_steps
from tests.nccl.nccl import Comm, PlayedNccl
from tests.nccl.ras import await_questions
from tests.nccl.scenes import NETWORK, scenes

# The plugin looks each second whether calls without an operation stay so, and needs two looks.
PATIENCE_S = 20.0
LOOK_S = 0.2
QUIET_S = 0.5


def open_comm(nccl: PlayedNccl, directory: Path, name: str, rank: int, nranks: int) -> Comm:
    """Return a new communicator of all ranks."""
    place = directory / name
    place.mkdir(exist_ok=True)
    unique_id = share_id(place, rank, nccl.unique_id)
    return Comm(nccl, name, nccl.init(nranks, unique_id, rank, name), nranks, rank)


def await_box(boxes: Path, called: int) -> None:
    """Wait until the box has that many operations; in vain where some are lost."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        process = find_box(boxes, os.getpid())
        if process and all_ops(process) >= called:
            return
        time.sleep(LOOK_S)


def end_network(nccl: PlayedNccl) -> int:
    """Return how many pieces NCCL has sent, once it sends no more."""
    before = -1
    while (now := sent_steps(find_box(nccl.boxes, os.getpid()))) != before:
        before = now
        time.sleep(QUIET_S)
    return nccl.network_end()


def perform(nccl: PlayedNccl, directory: Path, rank: int, nranks: int, place: str) -> None:
    """Play the scenes of `place`, HOST or NETWORK."""
    comms = []
    if place == NETWORK:
        nccl.network_begin()
    for name, play in scenes(place, nccl.version()).items():
        comms.append(open_comm(nccl, directory, name, rank, nranks))
        play(comms[-1])
    nccl.wait()
    await_box(nccl.boxes, len(nccl.called))
    steps = end_network(nccl) if place == NETWORK else 0
    await_questions(directory, rank)
    for comm in comms:
        nccl.destroy(comm.handle)
    said = {
        "pid": os.getpid(),
        "steps": steps,
        "called": [asdict(one) for one in nccl.called],
        "unseen": nccl.unseen,
    }
    (directory / f"{rank}.json").write_text(json.dumps(said))


def main(library: str, directory: Path, rank: int, nranks: int, place: str) -> None:
    """Be a rank."""
    nccl = PlayedNccl(library, Path(os.environ["NCCL_INSPECTOR_RUN_DIR"]))
    perform(nccl, directory, rank, nranks, place)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
