# SPDX-License-Identifier: Apache-2.0
"""One rank: `python -m tests.gpu.rank DIRECTORY RANK`. Does the plan and logs what it issued.

Writes log/<rank>.jsonl (a line for each operation, as tests/support/application_log.py reads it),
<rank>.json (what it was and, of training-like steps, how long they took) and <rank>.prom (a copy of
its last metrics file, which the plugin takes away when the communicator is destroyed).
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.cuda import Cuda
from tests.gpu.libnccl import SUM, TYPES, Nccl
from tests.gpu.plan import APART, HALF, WORLD, Op, Plan, read_plan
from tests.support.exposition import read_prom

ID_WAIT_S = 60
PROM_WAIT_S = 20
# The plugin looks each second whether calls without an operation stay so, and needs two looks.
SETTLE_S = 3.5
TELL_S = 0.3  # for NCCL's other thread to tell of the last operation
WARM_STEPS = 3  # of a training-like run, not counted

Record = dict[str, Any]


def share_id(directory: Path, rank: int, make: Callable[[], bytes]) -> bytes:
    """Return rank 0's id to all ranks.

    Raises:
        TimeoutError: rank 0 has not written it.
    """
    path = directory / "id"
    if rank == 0:
        beside = directory / ".id"
        beside.write_bytes(make())
        beside.rename(path)
    end = time.monotonic() + ID_WAIT_S
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"no id of rank 0 within {ID_WAIT_S} s")
        time.sleep(0.01)
    return path.read_bytes()


class Rank:
    """A rank with its communicators, two buffers and a stream for NCCL."""

    def __init__(self, plan: Plan, rank: int, nccl: Nccl, cuda: Cuda, directory: Path) -> None:
        """Make them; returns when all ranks are there. They find each other in the directory."""
        self.plan, self.rank, self.nccl, self.cuda = plan, rank, nccl, cuda
        self.send = cuda.allocate(plan.buffer_bytes)
        self.recv = cuda.allocate(plan.buffer_bytes)
        self.stream = cuda.stream()
        # Never what the memory happens to hold: sums of that may be no numbers.
        for buffer in (self.send, self.recv):
            cuda.fill(buffer, 1.0, plan.buffer_bytes // 4, self.stream)
        cuda.wait(self.stream)
        world = nccl.init(plan.nranks, share_id(directory, rank, nccl.unique_id), rank, WORLD)
        self.comms = {WORLD: (world, rank, plan.nranks)}
        if plan.uses(HALF):  # even and odd ranks
            half = nccl.split(world, rank % 2, rank, HALF)
            self.comms[HALF] = (half, rank // 2, (plan.nranks + 1 - rank % 2) // 2)
        if plan.uses(APART):
            place = directory / APART
            place.mkdir(exist_ok=True)
            apart_id = share_id(place, rank, nccl.unique_id)
            self.comms[APART] = (nccl.init(plan.nranks, apart_id, rank, APART), rank, plan.nranks)

    def issue(self, op: Op) -> None:
        """Give an operation to NCCL."""
        comm, rank, nranks = self.comms[op.comm]
        number, _ = TYPES[op.dtype]
        both, end = (self.send, self.recv, op.count, number), (comm, self.stream)
        match op.func:
            case "AllReduce" | "ReduceScatter":
                self.nccl.call(f"nccl{op.func}", *both, SUM, *end)
            case "AllGather":
                self.nccl.call("ncclAllGather", *both, *end)
            case "Reduce":
                self.nccl.call("ncclReduce", *both, SUM, 0, *end)
            case "Broadcast":
                self.nccl.call("ncclBroadcast", *both, 0, *end)
            case "SendRecv":
                # In a group: each alone would wait for the other.
                self.nccl.call("ncclGroupStart")
                to, by = (rank + 1) % nranks, (rank - 1) % nranks
                self.nccl.call("ncclSend", self.send, op.count, number, to, *end)
                self.nccl.call("ncclRecv", self.recv, op.count, number, by, *end)
                self.nccl.call("ncclGroupEnd")
            case _:
                raise ValueError(f"no such function: {op.func}")

    def records(self, op: Op, times: Record) -> Iterator[Record]:
        """Return what a log says of an operation that is over."""
        _, rank, nranks = self.comms[op.comm]
        common = {
            "comm_name": op.comm, "nranks": nranks, "comm_rank": rank,
            "bytes": op.count * TYPES[op.dtype][1], **times,
        }  # fmt: skip
        if op.func != "SendRecv":
            yield {"func": op.func, **common}
            return
        yield {"func": "Send", "peer": (rank + 1) % nranks, **common}
        yield {"func": "Recv", "peer": (rank - 1) % nranks, **common}

    def measured(self, op: Op) -> list[Record]:
        """Do an operation and wait for its end."""
        if self.rank == self.plan.late_rank:
            time.sleep(self.plan.late_s)
        start_ns, wall_ns = time.monotonic_ns(), time.time_ns()  # the call's bracket has both
        self.issue(op)
        issued_ns = time.monotonic_ns()
        self.cuda.wait(self.stream)
        times = {
            "wall_ns": wall_ns,  # Unix time before the call; the others are of one steady clock
            "start_ns": start_ns,
            "issued_ns": issued_ns,
            "stop_ns": time.monotonic_ns(),
        }
        return list(self.records(op, times))

    def sums_right(self) -> tuple[list[Record], bool]:
        """Do an AllReduce whose result is known: whether the plugin leaves it right."""
        op = Op("AllReduce", WORLD, 1024)
        self.cuda.fill(self.send, float(self.rank + 1), op.count, self.stream)
        done = self.measured(op)
        wanted = self.plan.nranks * (self.plan.nranks + 1) / 2
        found = {self.cuda.read_float(self.recv + 4 * place) for place in (0, 511, 1023)}
        return done, found == {wanted}

    def train(self) -> list[tuple[int, int]]:
        """Do training-like steps; return the time of each and of a call of NCCL in it, ns.

        The AllReduce of a bucket may overlap the computing of the next.
        """
        steps = []
        compute, event = self.cuda.stream(), self.cuda.event()
        layer = self.cuda.allocate(4 * self.plan.compute_floats)
        op = Op("AllReduce", WORLD, self.plan.bucket_floats)
        for number in range(WARM_STEPS + self.plan.rounds):
            begin_ns, calls_ns = time.monotonic_ns(), 0
            for _ in range(self.plan.buckets):
                self.cuda.fill(layer, 1.0, self.plan.compute_floats, compute)
                self.cuda.order(event, compute, self.stream)
                before_ns = time.monotonic_ns()
                self.issue(op)
                calls_ns += time.monotonic_ns() - before_ns
            self.cuda.wait(compute)
            self.cuda.wait(self.stream)
            step_ns = time.monotonic_ns() - begin_ns
            if number >= WARM_STEPS:
                steps.append((step_ns, calls_ns // self.plan.buckets))
        return steps

    def close(self) -> None:
        """Destroy the communicators."""
        for comm, _, _ in reversed(self.comms.values()):
            self.nccl.destroy(comm)


def newest_metrics(directory: Path, pid: int) -> tuple[float, str]:
    """Return when this process's metrics were written, Unix seconds, and their text."""
    for path in directory.glob(f"*_{pid}.prom"):
        text = path.read_text()
        for series in read_prom(text):
            if series.name == "nccl_inspector_last_write_timestamp_seconds":
                return series.value, text
    return 0.0, ""


def await_metrics(directory: Path, after_s: float) -> str:
    """Return metrics written after a time, or the newest that there were when patience ended."""
    end = time.monotonic() + PROM_WAIT_S
    while True:
        written_s, text = newest_metrics(directory, os.getpid())
        if written_s > after_s or time.monotonic() > end:
            return text
        time.sleep(0.05)


@contextmanager
def log_of(directory: Path, rank: int) -> Iterator[Callable[[list[Record]], None]]:
    """Give a function that adds operations to the rank's log."""
    (directory / "log").mkdir(exist_ok=True)
    with (directory / "log" / f"{rank}.jsonl").open("w") as file:

        def add(records: list[Record]) -> None:
            file.writelines(json.dumps(record) + "\n" for record in records)

        yield add


def perform(plan: Plan, directory: Path, one: Rank) -> Record:
    """Do the plan; return what there is to say besides the log."""
    said: Record = {"pid": os.getpid(), "nccl": one.nccl.version()}
    steps: list[tuple[int, int]] = []
    with log_of(directory, one.rank) as add:
        if plan.buckets:
            steps = one.train()
        else:
            first, said["sums_right"] = one.sums_right()
            add(first)
            for _ in range(plan.rounds):
                for op in plan.ops:
                    add(one.measured(op))
    if plan.prom_dir:
        text = await_metrics(Path(plan.prom_dir), time.time() + SETTLE_S)
        (directory / f"{one.rank}.prom").write_text(text)
    else:
        # NCCL throws away what it has not told the profiler when a communicator is destroyed.
        time.sleep(TELL_S)
    said["step_ns"] = [step for step, _ in steps]
    said["call_ns"] = [call for _, call in steps]
    one.close()
    return said


def main(directory: Path, rank: int) -> None:
    """Be a rank."""
    plan = read_plan(directory)
    cuda, nccl = Cuda(plan.libcuda), Nccl(plan.libnccl)
    ordinal = rank % cuda.count()
    cuda.use(ordinal)
    said = perform(plan, directory, Rank(plan, rank, nccl, cuda, directory))
    said |= {"gpu": cuda.name(ordinal), "bus_id": cuda.bus_id(ordinal), "cuda": cuda.version()}
    (directory / f"{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
