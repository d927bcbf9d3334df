# SPDX-License-Identifier: Apache-2.0
"""When an operation in flight is so old that it may never end."""

from nccl_inspector.analysis.histogram import quantile_ns
from nccl_inspector.model.bandwidth import size_class
from nccl_inspector.model.process import Operation, Process

# An operation is suspect if it is older than both of these.
SUSPECT_S = 60.0
SUSPECT_TIMES = 20.0  # of the 99th percentile of its kind
# For a job that failed by itself: the least age of an operation that its ranks may have given up
# on.
GIVEN_UP_S = 4.0


def is_suspect(
    operation: Operation, age: float, process: Process, least_s: float = SUSPECT_S
) -> bool:
    """Tell whether an operation of this age (seconds) is so old that it may never end."""
    if age <= least_s:
        return False
    same = (
        key
        for key in process.keys
        if (key.comm, key.func, key.algo, key.proto, key.size_class)
        == (operation.comm, operation.func, operation.algo, operation.proto,
            size_class(operation.bytes))
    )  # fmt: skip
    usual_ns = max((quantile_ns(key.histogram, 0.99) for key in same), default=0.0)
    return age > SUSPECT_TIMES * usual_ns / 1e9
