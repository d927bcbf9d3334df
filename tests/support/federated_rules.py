# SPDX-License-Identifier: Apache-2.0
"""The rules of two shards and of the global server above them, in one run of promtool.

promtool has one storage. So the shards' series are kept apart by the label `cluster`, which all
rules keep: the part of cluster `c` on shard 1 is `c~1`. What the shards record has another name
until a rule here does what the scrape of /federate does.
"""

import json
import re
from collections.abc import Iterable, Iterator

from nccl_inspector.monitoring.bundle import render
from nccl_inspector.monitoring.site import make_site
from tests.support.promtool import Labels, Series

SHARDS = 2


def _shard(labels: Labels) -> int:
    match = re.search(r"n(\d+)", labels.get("node") or labels["instance"])
    assert match, labels
    return int(match[1]) % SHARDS


def spread(series: Iterable[Series]) -> Iterator[Series]:
    """Give each node's series to one shard."""
    for one in series:
        cluster = f"{one.labels['cluster']}~{_shard(one.labels)}"
        yield Series(one.name, one.labels | {"cluster": cluster}, one.values)


def _federate(names: Iterable[str]) -> str:
    rules = []
    for name in names:
        of_shard = f'label_replace(of_{name}, "shard", "$1", "cluster", ".+~(.+)")'
        expr = f'label_replace({of_shard}, "cluster", "$1", "cluster", "(.+)~.+")'
        rules.append(f"      - record: {name}\n        expr: {json.dumps(expr)}\n")
    return f"groups:\n  - name: federate\n    rules:\n{''.join(rules)}"


def federated_rules() -> dict[str, str]:
    """The files in the order in which they are evaluated."""
    shard, above = make_site(["role=shard", f"shards={SHARDS}"]), make_site(["role=global"])
    rules = render("rules", shard)
    names = sorted(set(re.findall(r"record: (shard:\S+)", rules)))
    return {
        "shard.yml": re.sub(r"\bshard:", "of_shard:", rules),
        "federate.yml": _federate(names),
        "rules.yml": render("rules", above),
        "alerts.yml": render("alerts", above),
        "shard_alerts.yml": render("alerts", shard).replace("name: nccl", "name: shard-nccl"),
    }
