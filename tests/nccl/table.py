# SPDX-License-Identifier: Apache-2.0
"""The page of the docs: what the plugin counted of each release."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.nccl.judge import Verdict
from tests.nccl.scenes import RANKS
from tests.nccl.wheels import PACKAGE

BY_NAME = r"\*"
HEAD = f"""# NCCL's own releases

Made by `make test-nccl`; no line is written by hand. Each line of the table is NVIDIA's unmodified
`libnccl.so.2` of that release, from the wheel `{PACKAGE}`, which loads this plugin. {RANKS} ranks
play the same calls twice: on one host, and each rank on a host of its own. The hosts talk over
NCCL's sockets. Broadcasts, and what follows them, are played once more with the setting
`broadcasts`.

**What is real:** NCCL makes the communicators, chooses algorithms, plans and launches kernels,
captures CUDA graphs, runs its proxy and profiler threads, and calls the plugin.

**What is played:** there is no GPU. The CUDA runtime inside the library is replaced in memory
(`tests/nccl/played`). Device memory is memory of the host. Kernels move no data; they tell the
profiler when each channel's work began and ended, as NCCL's kernels do. So results of collectives
and bandwidth are not tested here, nor are NVLink, CollNet, symmetric kernels, copy engines and the
phases of kernels.

The run fails unless all of these are exact for each rank:

- operations and bytes of each function of each communicator;
- operations with each peer;
- which operations have a time, and that time to the nanosecond;
- the steps of the network;
- that nothing was dropped or lost;
- what NCCL's own RAS service counts (2.28.7 and later), as `nccl-inspector ras` reads it.

The columns:

- *called*: operations that the ranks called. A group of Sends and Recvs is one more, as in the
  plugin's figures.
- *counted*: operations that the plugin counted.
- *timed*: counted with a time of the GPU's clock.
- *untimed*: counted without a time. NCCL tells of no kernel for Broadcast from 2.29 on, and for
  what a rank sends to itself. The next three are untimed, too.
- *implausible*: NCCL gave a start and an end that cannot both be true. It can read the clocks of
  only the last 64 works of a channel. If its thread is later than that, it gives the time of a
  later work: often one that looks right, so the plugin compares it with what follows. Here 600
  calls without a pause provoke this, and it is allowed only there. No wrong time is.
- *unstarted*: up to 2.30 NCCL may tell the end of a kernel without its start, if both come between
  two looks of its thread. It depends on luck.
- *mixed*: communicators (of a rank) whose later operations are all counted without times, because
  NCCL gives them the times of earlier ones. NCCL's host and its kernels both count works, and find
  the times by that number. The two numbers differ after a rank sends to itself (up to 2.30; an
  AlltoAll does this), after a CUDA graph is launched between other calls (up to 2.30), after a
  Broadcast is called (from 2.31 on), and after the plugin was switched off for a while. After each
  of these, operations of 300 us that follow others of 30 us are called: NCCL says 30 us, and the
  plugin says nothing.
- *steps*: pieces that NCCL's proxy sent over the network: counted of sent.
- *differences*: how many of the figures above were not exact.
- {BY_NAME}: this release opens no profiler that `NCCL_PROFILER_PLUGIN` gives by a path, as Slurm's
  side does. Here it was given by its name, with its folder in `LD_LIBRARY_PATH`.

"""


COLUMNS = (
    *("NCCL", "interface", "called", "counted", "timed", "untimed", "implausible"),
    *("unstarted", "mixed", "steps", "differences"),
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
            *(one.unstarted, one.mixed),
            f"{one.steps} of {one.sent}",
            len(one.differences),
        ]
        rows.append(_row(cells))
    path.write_text(HEAD + "".join(rows))
