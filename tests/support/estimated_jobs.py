# SPDX-License-Identifier: Apache-2.0
"""Jobs whose cost is estimated."""

from nccl_inspector.estimate.shape import Shape

SHAPE = Shape(
    jobs=40, ranks=512, gpus_per_node=8, ports=8, counters=False, comms=6,
    sizes=10, collectives=2, p2p=0, json=False,
    interval_s=30, scrape_s=30, job_hours=6, days=15, job_id=1234567, cluster="c", node="node0001",
    comm_name="default_pg",
)  # fmt: skip
