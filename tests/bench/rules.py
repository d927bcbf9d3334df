# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.rules [NODES [ROLE]]`: how long a Prometheus takes to evaluate our rules.

One job runs on all nodes, with the usual communicators of `nccl-inspector estimate`. A real
Prometheus scrapes pages as the nodes would have them, and evaluates the rules of a server (ROLE
all) or of a shard. It prints what each rule took, and in sum for each kind of operation of a rank,
which `estimate` counts with: by the clock, and by the CPU time, which a busy machine changes less.
It takes a minute, so `make bench` leaves it out.
"""

import json
import os
import re
import statistics
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from nccl_inspector.estimate.pages import make_files
from nccl_inspector.estimate.shape import Shape
from nccl_inspector.exposition.text import SeriesLine
from nccl_inspector.monitoring.bundle import render
from nccl_inspector.monitoring.site import SHARD, make_site
from tests.support.past_prometheus import prometheus_of

_SCRAPE_S, _EVALUATE_S = 8, 5
_WAIT_S, _LOOKS = 45, 4  # by then a window has as many samples as usual
_JUDGED = {
    "all": "rank:nccl_collective_late:ratio",
    SHARD: "rank:nccl_collective_late:several_nodes",
}
_NAME = re.compile(r"nccl_[a-z0-9_]+")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')


def shape_of(nodes: int) -> Shape:
    """The job of `estimate` without options, on so many nodes."""
    return Shape(
        jobs=1, ranks=8 * nodes, gpus_per_node=8, ports=8, counters=True, comms=4, sizes=4,
        collectives=2, p2p=0, json=False, interval_s=30, scrape_s=30, job_hours=6, days=15,
        job_id=1234567, cluster="cluster", node="node0001", comm_name="default_pg",
    )  # fmt: skip


def _of_node(one: SeriesLine, node: int, gpus: int) -> tuple[str, dict[str, str]]:
    labels = dict(_LABEL.findall(one.text))
    labels["node"] = labels["instance"] = f"node{node:04}"
    if "rank" in labels:
        labels["rank"] = str(node * gpus + int(labels["gpu"].removeprefix("GPU")))
    return one.metric.name, labels


class _Nodes:
    """The pages of all nodes: counters grow from scrape to scrape, the others change a little."""

    def __init__(self, shape: Shape, wanted: set[str]) -> None:
        self._begun_s = time.monotonic()
        first = [one for one in make_files(shape).series if one.metric.name in wanted]
        self._lines = [
            [_line(*_of_node(one, node, shape.gpus_per_node)) for one in first]
            for node in range(shape.nodes)
        ]

    def page(self, node: int) -> bytes:
        past_s = time.monotonic() - self._begun_s
        return "".join(
            f"{line} {past_s * (1 + (at + node) % 7 / 100) * grows:.6f}\n"
            if grows
            else f"{line} {1 + (at + node + int(past_s)) % 5 / 10}\n"
            for at, (line, grows) in enumerate(self._lines[node])
        ).encode()


def _line(name: str, labels: dict[str, str]) -> tuple[str, float]:
    """Return a series as text, and by how much it grows in a second."""
    words = ",".join(f'{key}="{word}"' for key, word in labels.items())
    grows = name.endswith("_total")
    return f"{name}{{{words}}}", (0.03 if "seconds" in name else 5.0) * grows


@contextmanager
def _served(nodes: _Nodes) -> Iterator[int]:
    """Give the port on which the pages are, each below its node's number."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = nodes.page(int(self.path.strip("/")))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()


def _configuration(port: int, nodes: int) -> str:
    jobs = [
        {
            "job_name": f"node{node}", "metrics_path": f"/{node}", "honor_labels": True,
            "scrape_interval": f"{_SCRAPE_S}s", "scrape_timeout": f"{_SCRAPE_S}s",
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        for node in range(nodes)
    ]  # fmt: skip
    return json.dumps({"rule_files": ["rules.yml"], "scrape_configs": jobs})


def evaluation_times(url: str) -> dict[str, float]:
    """Return the last evaluation of each rule, in seconds, by name."""
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=30) as answer:  # noqa: S310
        groups = json.load(answer)["data"]["groups"]
    found: dict[str, float] = defaultdict(float)
    for group in groups:
        for rule in group["rules"]:
            found[rule["name"]] += rule["evaluationTime"]
            if rule["health"] == "err":
                raise AssertionError(f"{rule['name']}: {rule['lastError']}")
    return found


def _cpu_of_children() -> float:
    """Return the CPU time of the processes that this one has started, in seconds."""
    ticks = 0
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "stat").read_text().rpartition(")")[2].split()
            if int(words[1]) == os.getpid():
                ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _passes(url: str) -> float:
    """Return how often the slowest group has been evaluated."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310
        text = answer.read().decode()
    counts: dict[str, float] = defaultdict(float)
    for kind, sign in (("iterations_total", 1), ("iterations_missed_total", -1)):
        for group, value in re.findall(rf"rule_group_{kind}{{rule_group=\"(.*?)\"}} (\S+)", text):
            counts[group] += sign * float(value)
    return min(counts.values())


def value_of(url: str, question: str) -> float:
    """Return the value of a question with one answer; 0: there is none."""
    words = urllib.parse.urlencode({"query": question})
    with urllib.request.urlopen(f"{url}/api/v1/query?{words}", timeout=30) as answer:  # noqa: S310
        found = json.load(answer)["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


def main(nodes: int = 40, role: str = "all") -> None:
    """Print a line for each rule that takes long, and the sum."""
    shape = shape_of(nodes)
    words = ["shards=2", "shard=0"] if role == SHARD else []
    rules = render("rules", make_site([f"role={role}", *words]))
    rules = re.sub(r"interval: \S+", f"interval: {_EVALUATE_S}s", rules)
    rules = re.sub(r"offset \d+s", f"offset {_EVALUATE_S}s", rules)
    pages = _Nodes(shape, set(_NAME.findall(rules)))
    with (
        _served(pages) as port,
        prometheus_of({"prometheus.yml": _configuration(port, nodes), "rules.yml": rules}) as url,
    ):
        time.sleep(_WAIT_S)
        found = []
        cpu_s, passes = _cpu_of_children(), _passes(url)
        for _ in range(_LOOKS):
            time.sleep(_EVALUATE_S)
            found.append(evaluation_times(url))
        cpu_s, passes = _cpu_of_children() - cpu_s, _passes(url) - passes
        judged = value_of(url, f"count({_JUDGED[role]})")
    took = {rule: statistics.median(one[rule] for one in found) for rule in found[0]}
    if judged != shape.ranks * shape.comms:
        raise AssertionError(f"only {judged:g} ranks of communicators were judged")
    kinds = shape.ranks * shape.kinds_shown
    print(f"{role}: {nodes} nodes, {kinds:,} kinds of operation of ranks")
    for rule, seconds in sorted(took.items(), key=lambda item: -item[1])[:12]:
        print(f"{seconds * 1000:9.1f} ms  {rule}")
    total = sum(took.values())
    print(f"{total * 1000:9.1f} ms  all, {total / kinds * 1e6:.1f} us for each kind of a rank")
    cpu_s /= max(passes, 1)
    print(f"{cpu_s * 1000:9.1f} ms  of CPU, {cpu_s / kinds * 1e6:.1f} us for each, with scrapes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40, *sys.argv[2:3])
