# SPDX-License-Identifier: Apache-2.0
"""The table `counted`: how many operations of each kind a rank had in each time bucket.

It has far fewer rows than there are operations, and can answer most questions about them.
"""

from nccl_inspector.capture.collectives import NUMBERED
from nccl_inspector.capture.line_schema import SIZE_CLASS

RATE_ONE = 1 << 20  # the unit of rates is 1/RATE_ONE, as in a box; sums of whole numbers are exact
RATE = f"round(log2(greatest(bytes, 1) / time_ns) * {RATE_ONE})::bigint"


def bucket_sql(time_ns: str) -> str:
    """Return the SQL for the bucket of a time: the same as bucket_of in analysis/histogram.py."""
    return f"""case when {time_ns} < 1024 then {time_ns} >> 5
    when {time_ns} >= 1::bigint << 37 then 895
    else 32 * (floor(log2({time_ns}))::integer - 9)
        + (({time_ns} >> (floor(log2({time_ns}))::integer - 5)) & 31) end"""


COUNTED = f"""
select hostname, pid, comm, rank, func, {SIZE_CLASS} as size_class, coalesce(algo, '') as algo,
    coalesce(proto, '') as proto, {NUMBERED} as numbered, {bucket_sql("time_ns")} as bucket,
    count(*) as n,
    sum(bytes) as bytes, sum(time_ns) as busy_ns, min(time_ns) as least_ns,
    max(time_ns) as most_ns, min(sn) as first_sn, max(sn) as last_sn,
    sum({RATE}) as rate, min(comm_name) as comm_name,
    min(nranks) as least_nranks, max(nranks) as nranks, min(nnodes) as least_nnodes,
    max(nnodes) as nnodes, min(when_us) as first_us, max(when_us) as last_us,
    bool_or(source = 'kernel_gpu') as by_gpu, bool_or(source <> 'kernel_gpu') as by_cpu
from ops group by all
"""
