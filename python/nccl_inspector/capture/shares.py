# SPDX-License-Identifier: Apache-2.0
"""How a capture is divided into shares, each of which is joined by itself.

All lines of a collective are in one share. So are all lines of a communicator without such a number
(sends, receives, groups), because these are counted in their order.
"""

from collections.abc import Sequence

from nccl_inspector.capture.capture_files import CaptureFile
from nccl_inspector.capture.collectives import NUMBERED

# Each piece that is read may become as many files. So a capture has no more than SHARES_FEW, unless
# each share has SHARE_BYTES of lines: joining these takes some ten seconds.
SHARES_FEW, SHARES_MAX = 64, 512
SHARE_BYTES = 256 << 20
_GZIPPED = 10  # about how many bytes of lines one byte of a compressed file has
# Collectives of a communicator with neighbouring numbers stay together, up to so many: 2^BLOCK_BITS
# of a function. So a job with one communicator is divided too.
BLOCK_BITS = 16
BLOCK = f"if({NUMBERED}, sn >> {BLOCK_BITS}, -1)"


def shares_of(files: Sequence[CaptureFile], tasks: int) -> int:
    """Return into how many shares a capture is divided, so that all tasks have work if it pays."""
    lines = sum(file.size * (_GZIPPED if file.gzipped else 1) for file in files)
    return min(tasks, max(SHARES_FEW, min(SHARES_MAX, lines // SHARE_BYTES)))


def share_sql(shares: int) -> str:
    """Return the SQL for the share of a line, from 0."""
    together = f"if(reason = '' and {NUMBERED}, hash(comm, func, {BLOCK}), hash(comm))"
    return f"({together} % {shares})::integer"
