# SPDX-License-Identifier: Apache-2.0
"""One rank: `python -m tests.nccl.rank LIBRARY DIRECTORY RANK RANKS`.

Plays all scenes, waits until its box has them, and writes what it called to <RANK>.json.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.gpu.rank import share_id
from tests.nccl.box import counted, find_box
from tests.nccl.nccl import Comm, PlayedNccl
from tests.nccl.scenes import scenes

# The plugin looks each second whether calls without an operation stay so, and needs two looks.
PATIENCE_S = 20.0
LOOK_S = 0.2


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
        if process and sum(one.ops + one.untimed for one in counted(process).values()) >= called:
            return
        time.sleep(LOOK_S)


def main(library: str, directory: Path, rank: int, nranks: int) -> None:
    """Be a rank."""
    boxes = Path(os.environ["NCCL_INSPECTOR_RUN_DIR"])
    nccl = PlayedNccl(library, boxes)
    comms = []
    only = os.environ.get("TEST_NCCL_SCENES", "").split()
    for name, play in scenes(nccl.version()).items():
        if only and name not in only:
            continue
        comms.append(open_comm(nccl, directory, name, rank, nranks))
        play(comms[-1])
    nccl.wait()
    await_box(boxes, len(nccl.called))
    for comm in comms:
        nccl.destroy(comm.handle)
    said = {"pid": os.getpid(), "called": [asdict(one) for one in nccl.called]}
    (directory / f"{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
