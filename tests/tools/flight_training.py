# SPDX-License-Identifier: Apache-2.0
"""A training of four ranks on CPUs that goes wrong in a known way, and dumps its flight recorder.

`record_flight.py` starts it once for each rank, in a Python that has PyTorch. The file is copied,
so that the frames in the dumps have a path that means nothing.
"""

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

RANKS = 4
TIMEOUT_S = 10
DUMP_S = 7  # after the start of what goes wrong
STEPS = 3
SIZE = 1024


def all_reduce(group: dist.ProcessGroup | None = None, count: int = SIZE) -> None:
    dist.all_reduce(torch.ones(count), group=group)


def healthy(rank: int) -> None:
    data = [rank + 0.5 * torch.ones(8)]
    dist.broadcast(data[0], 0)
    dist.all_gather([torch.zeros(8) for _ in range(RANKS)], data[0])
    dist.barrier()


def absent(rank: int) -> None:
    """Rank 2 is busy with something else when the others call the fourth operation."""
    if rank == 2:
        time.sleep(TIMEOUT_S + 1)
        return
    all_reduce()


def mismatched(rank: int) -> None:
    """Rank 1 takes a branch of its own."""
    if rank == 1:
        dist.all_gather([torch.zeros(SIZE) for _ in range(RANKS)], torch.ones(SIZE))
    else:
        all_reduce()


def sizes(rank: int) -> None:
    """Rank 0 has a batch of another size."""
    all_reduce(count=SIZE // 2 if rank == 0 else SIZE)


given_up = absent


def died(rank: int) -> None:
    """Rank 3 is gone before the fourth operation."""
    if rank == 3:
        os._exit(9)
    all_reduce()


def wrapped(rank: int) -> None:
    """Rank 2 stops early; the others go on until their rings are overwritten."""
    for _ in range(17):
        all_reduce()
    if rank == 2:
        time.sleep(TIMEOUT_S + 1)
        return
    works = [dist.all_reduce(torch.ones(SIZE), async_op=True) for _ in range(12)]
    works[0].wait()


def deadlock(rank: int) -> None:
    """Even and odd ranks use two groups of all ranks in different orders."""
    groups = [
        dist.new_group(timeout=timedelta(seconds=TIMEOUT_S), group_desc=name)
        for name in ("tensor", "data")
    ]
    for group in groups:
        all_reduce(group)
    for group in groups if rank % 2 == 0 else reversed(groups):
        all_reduce(group)


def stage(rank: int) -> None:
    """Rank 3 never joins its pair; rank 1 waits for it, and rank 0 for rank 1."""
    limit = timedelta(seconds=TIMEOUT_S)
    pairs = [dist.new_group(one, timeout=limit, group_desc="pair") for one in ([0, 1], [1, 3])]
    for pair, members in zip(pairs, ((0, 1), (1, 3)), strict=True):
        if rank in members:
            all_reduce(pair)
    if rank == 3:
        time.sleep(TIMEOUT_S + 1)
        return
    if rank == 1:
        all_reduce(pairs[1])
    if rank in (0, 1):
        all_reduce(pairs[0])


def dump(rank: int, out: Path) -> None:
    """Write both forms, as PyTorch does when a byte comes through its pipe."""
    (out / f"comm_lib_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
    (out / f"comm_lib_trace_rank_{rank}.json").write_bytes(c10d._dump_fr_trace_json())


def train(rank: int, case: str) -> None:
    for _ in range(STEPS - 1):
        all_reduce()
    globals()[case](rank)


def main() -> None:
    rank, case, out = int(os.environ["RANK"]), sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    all_reduce()
    c10d._dump_fr_trace()  # the first dump imports what takes seconds
    if case != "given_up":
        threading.Timer(DUMP_S, dump, (rank, out)).start()
    try:
        train(rank, case)
    except RuntimeError as error:
        print(rank, str(error).splitlines()[0][:100])
    if case == "given_up":
        dump(rank, out)
    time.sleep(DUMP_S + 1)  # a rank that goes away ends the others' operations
    os._exit(0)


if __name__ == "__main__":
    main()
