# SPDX-License-Identifier: Apache-2.0
"""The cost of the agent's own process, as prometheus-client reads it from /proc."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, ProcessCollector

from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.exposition.text import SeriesLine, make_series

_COLLECTOR = ProcessCollector("nccl_inspector_agent", registry=CollectorRegistry())


def own_process(who: Mapping[str, str]) -> list[SeriesLine]:
    """Return prometheus-client's series that our table has, with the labels `who`."""
    return [
        make_series(sample.name, who, repr(float(sample.value)))
        for family in _COLLECTOR.collect()
        for sample in family.samples
        if sample.name in load_metrics()
    ]
