# SPDX-License-Identifier: Apache-2.0
"""What NCCL's functions return (ncclResult_t), in words."""

from typing import Final

IN_PROGRESS: Final = 7
# By NCCL's own table (nccl.h); 8 came with 2.30.
RESULTS: Final = (
    "", "unhandled CUDA error", "system error", "internal error", "invalid argument",
    "invalid usage", "remote process error", "in progress", "timeout",
)  # fmt: skip


def said_result(code: int) -> str:
    """Return `system error (2)`; of a number that is not known only that."""
    words = RESULTS[code] if 0 < code < len(RESULTS) else ""
    return f"{words} ({code})" if words else f"result {code}"
