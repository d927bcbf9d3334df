# SPDX-License-Identifier: Apache-2.0
"""The page of the docs: what the plugin counted of each release."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.nccl.judge import Verdict
from tests.nccl.scenes import RANKS
from tests.nccl.wheels import PACKAGE

BY_NAME = r"\*"
HEAD = f"""# NCCL's own releases

Made by `make test-nccl`; no line is written by hand. Each line is NVIDIA's unmodified
`libnccl.so.2` of that release, from the wheel `{PACKAGE}`, which loads this plugin. {RANKS} ranks
play the same calls twice: on one host, and each on a host of its own, which talk over NCCL's
sockets.

**What is real:** NCCL makes the communicators, chooses algorithms, plans and launches kernels,
captures CUDA graphs, runs its proxy and profiler threads, and calls the plugin.

**What is played:** there is no GPU. The CUDA runtime inside the library is replaced in memory
(`tests/nccl/played`). Device memory is memory of the host. Kernels move no data; they tell the
profiler when each channel's work began and ended, as NCCL's kernels do. So no result of a
collective and no bandwidth is tested here, nor NVLink, CollNet, symmetric kernels, copy engines
or the phases of kernels.

The run fails unless all of these are exact, rank by rank: operations and bytes of each function
of each communicator; operations with each peer; which of them have a time, and that time to the
nanosecond; the steps of the network; and that nothing was dropped or lost. *Differences* counts
what was not.

- *called*: operations that the ranks called. A group of Sends and Recvs is one more, as in the
  plugin's figures.
- *timed*: counted with a time of the GPU's clock.
- *untimed*: counted without a time, where NCCL tells of no kernel: Broadcast from 2.29 on, and
  what a rank sends to itself.
- *implausible*: dropped with their bytes, and not among the counted: NCCL gave a start and an end
  that cannot both be true. It can read the clocks of a channel's last 64 works only; when its
  thread is later than that, it gives the time of a later work. Provoked here by 600 calls without
  a pause, and allowed there and where there are *foreign* times.
- *unstarted*: counted without a time, because up to 2.30 NCCL may tell the end of a kernel without
  its start, when both come between two looks of its thread. It depends on luck.
- *foreign*: kinds of operation of a rank that have times of other operations. Up to 2.30 NCCL
  does not count the work of what a rank sends to itself, but its kernel does; from then on that
  communicator's operations on that channel get the clocks of earlier ones: here, AllReduces of
  300 us that follow AlltoAlls of 30 us have 30 us. From 2.31 on it must be 0.
- *steps*: pieces that NCCL's proxy sent over the network, counted of sent.
- {BY_NAME}: this release opens no profiler that `NCCL_PROFILER_PLUGIN` gives by a path, as Slurm's
  side does. Here it was given by its name, with its folder in `LD_LIBRARY_PATH`.

"""


COLUMNS = (
    *("NCCL", "interface", "called", "counted", "timed", "untimed", "implausible"),
    *("unstarted", "foreign", "steps", "differences"),
)


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |\n"


def write_table(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write it."""
    rows = [_row(COLUMNS), _row(["---"] * len(COLUMNS))]
    for one in verdicts:
        cells = [
            one.release + (BY_NAME if one.by_name else ""),
            f"v{one.api}",
            *(one.called, one.counted, one.timed, one.untimed, one.implausible),
            *(one.unstarted, one.foreign),
            f"{one.steps} of {one.sent}",
            len(one.differences),
        ]
        rows.append(_row(cells))
    path.write_text(HEAD + "".join(rows))
