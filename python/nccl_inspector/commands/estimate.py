# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector estimate`."""

import json
from dataclasses import asdict
from math import isfinite
from typing import Any

import click

from nccl_inspector.estimate.cost import HOST_BYTES, add_up
from nccl_inspector.estimate.shape import Shape
from nccl_inspector.estimate.text import render

_count = click.IntRange(min=1, max=10**6)
_seconds = click.FloatRange(min=0.1, max=3600)


@click.command()
@click.option(
    "--jobs", type=_count, default=1, show_default=True, help="Jobs that run at the same time."
)
@click.option("--ranks", type=_count, required=True, help="Processes of a job, one for each GPU.")
@click.option("--gpus-per-node", type=click.IntRange(1, 128), default=8, show_default=True,
              help="GPUs of a node.")  # fmt: skip
@click.option("--ports", type=click.IntRange(0, 64), default=8, show_default=True,
              help="InfiniBand or RoCE ports of a node.")  # fmt: skip
@click.option("--counters/--no-counters", default=True, show_default=True,
              help="With the series of ports and GPUs (setting counters).")  # fmt: skip
@click.option("--comms", type=_count, default=4, show_default=True, help="Communicators of a rank.")
@click.option("--sizes", type=click.IntRange(1, 40), default=4, show_default=True,
              help="Message sizes of a communicator, in classes of powers of two.")  # fmt: skip
@click.option("--collectives", type=click.IntRange(0, 64), default=2, show_default=True,
              help="Functions times algorithms, for each communicator and size.")  # fmt: skip
@click.option("--p2p", type=click.IntRange(0, 3), default=0, show_default=True,
              help="How many of Send, Recv, SendRecv, for each communicator and size.")  # fmt: skip
@click.option("--lines", is_flag=True, help="With JSON lines (mode prom+json).")
@click.option("--interval", type=_seconds, default=30, show_default=True,
              help="The setting interval, seconds.")  # fmt: skip
@click.option("--scrape", type=_seconds, default=30, show_default=True,
              help="Scrape interval of Prometheus, seconds.")  # fmt: skip
@click.option("--job-hours", type=click.FloatRange(0.01, 10000), default=6, show_default=True,
              help="Mean run time of a job, hours.")  # fmt: skip
@click.option("--days", type=click.FloatRange(0.1, 3650), default=15, show_default=True,
              help="Days for which Prometheus keeps samples.")  # fmt: skip
@click.option("--memory", "memory_gb", type=click.FloatRange(1, 10**6), default=HOST_BYTES / 1e9,
              show_default=True, help="Memory of a host for Prometheus, GB.")  # fmt: skip
@click.option(
    "--job-id", type=click.IntRange(1), default=1234567, show_default=True, help="A typical job ID."
)
@click.option("--cluster", default="cluster", show_default=True, help="Value of the label cluster.")
@click.option("--node", default="node0001", show_default=True, help="A typical node name.")
@click.option(
    "--comm-name", default="default_pg", show_default=True, help="A typical communicator name."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def estimate(as_json: bool, memory_gb: float, **words: Any) -> None:
    """Estimate what measuring costs: series, scrapes, Prometheus, the nodes' tmpfs."""
    if not all(isfinite(word) for word in (memory_gb, *words.values()) if isinstance(word, float)):
        raise click.UsageError("a number is not finite.")
    names = {"lines": "json", "interval": "interval_s", "scrape": "scrape_s"}
    shape = Shape(**{names.get(name, name): word for name, word in words.items()})
    cost = add_up(shape, memory_gb * 1e9)
    text = json.dumps(asdict(cost)) + "\n" if as_json else render(shape, cost)
    click.echo(text, nl=False)
