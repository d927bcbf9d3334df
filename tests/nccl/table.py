# SPDX-License-Identifier: Apache-2.0
"""The page of the docs: what the plugin counted of each release."""

from collections.abc import Sequence
from pathlib import Path

from tests.nccl.judge import Verdict
from tests.nccl.wheels import PACKAGE

HEAD = f"""# NCCL's own releases

Made by `make test-nccl`; no line is written by hand. Each line is NVIDIA's unmodified
`libnccl.so.2` of that release, from the wheel `{PACKAGE}`, with this plugin loaded by it. NCCL
itself makes communicators, chooses algorithms, plans and launches kernels, runs its proxy and
profiler threads, and calls the plugin. There is no GPU: the CUDA runtime inside the library is
replaced in memory by one that keeps device memory on the host, and whose kernels move no data
but tell the profiler when they began and ended, as NCCL's kernels do.

- *called*: operations that the ranks called, and each group of Sends and Recvs once more
  as the plugin does. Bytes, and operations with each peer, are compared, too.
- *timed*: counted with a time of the (played) GPU's clock.
- *untimed*: counted without one, where NCCL tells of no kernel: Broadcast from 2.29 on, and what
  a rank sends to itself.
- *implausible*: dropped. NCCL reads the clocks of the last 64 works of a channel; when its
  thread comes late it gives the time of a later one. Provoked here by 600 calls without a pause.
- *differences*: between what was called and what was counted, other than these. The run fails
  unless it is 0.

| NCCL | interface | called | counted | timed | untimed | implausible | differences |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def write_table(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write it."""
    rows = [
        f"| {one.release} | v{one.api} | {one.called} | {one.counted} | {one.timed} "
        f"| {one.untimed} | {one.implausible} | {len(one.differences)} |\n"
        for one in verdicts
    ]
    path.write_text(HEAD + "".join(rows))
