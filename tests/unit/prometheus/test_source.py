# SPDX-License-Identifier: Apache-2.0
"""A job whose files are gone is told from its series."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import parse_qs

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card
from nccl_inspector.model.kind_labels import size_class_of
from nccl_inspector.prometheus.api import Api
from nccl_inspector.prometheus.source import prometheus_card
from tests.support.past_prometheus import STEP_S, line, prometheus_with

MINUTES, RANKS, BYTES = 20, 4, 1 << 20
OURS, THEIRS = 810, 4711


def _begin() -> int:
    return (int(time.time()) - 3 * 3600) // 60 * 60


def _family(name: str) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    return f"# TYPE {name.removesuffix('_total')} {kind}\n"


def _ours(begin: int) -> str:
    """Counters of four ranks, ten operations a second; rank 2 waits least, and is slow later."""
    texts: dict[str, list[str]] = {}
    for rank in range(RANKS):
        own = {
            "cluster": "c", "slurm_job_id": OURS, "node": f"n{rank // 2}", "gpu": f"GPU{rank}",
            "rank": rank, "comm": "0xabc", "comm_name": "dp", "n_nodes": 2, "nranks": RANKS,
            "collective": "AllReduce", "message_size": "1-2MB", "algo_proto": "RING_SIMPLE",
        }  # fmt: skip
        busy = 0.0
        for at in range(MINUTES * 60 // STEP_S):
            time_s = 0.002 if at >= 20 else 0.001
            busy += 10 * STEP_S * time_s * (1 if rank == 2 else 3)
            ops = 10 * STEP_S * (at + 1)
            for name, value in (
                ("operations", ops),
                ("bytes", ops * BYTES),
                ("busy_seconds", busy),
            ):
                metric = f"nccl_collective_{name}_total"
                labels = {key: str(word) for key, word in own.items()}
                texts.setdefault(metric, []).append(
                    line(metric, labels, value, begin + at * STEP_S)
                )
    info = {"slurm_job_id": str(OURS), "cluster": "c", "node": "n0", "user": "ada",
            "account": "a", "partition": "gpu", "slurm_nodelist": "n[0-1]"}  # fmt: skip
    for name, labels in (("nccl_inspector_job_info", info),
                         ("nccl_inspector_job_throughput",
                          {"slurm_job_id": str(OURS), "unit": "TFLOP/s/GPU"})):  # fmt: skip
        texts[name] = [
            line(name, labels, 1 if name.endswith("info") else 300, begin + at * STEP_S)
            for at in range(MINUTES * 60 // STEP_S)
        ]
    return "".join(_family(name) + "".join(lines) for name, lines in texts.items())


def _theirs(begin: int) -> str:
    """NVIDIA's gauges, of a site where nothing of ours runs."""
    text = ""
    for name, values in (("nccl_bus_bandwidth_gbs", (44.0, 40.0)),
                         ("nccl_collective_exec_time_microseconds", (100.0, 110.0))):  # fmt: skip
        text += f"# TYPE {name} gauge\n"
        for gpu, value in enumerate(values):
            labels = {
                "version": "v5.1", "slurm_job_id": str(THEIRS), "node": "nvl1",
                "gpu": f"GPU{gpu}", "comm_name": "unknown", "n_nodes": "4", "nranks": "32",
                "collective": "ReduceScatter", "message_size": "134-135MB",
                "algo_proto": "RING_SIMPLE",
            }  # fmt: skip
            text += "".join(line(name, labels, value, begin + at * STEP_S) for at in range(10))
    return text


@pytest.fixture(scope="module")
def cards() -> Iterator[tuple[Card, Card]]:
    """The cards of a job of ours and of NVIDIA's, from a real Prometheus."""
    begin = _begin()
    with prometheus_with(_ours(begin) + _theirs(begin)) as url:
        with pytest.raises(InspectorError, match="no series of job 1"):
            prometheus_card(url, 1)
        yield prometheus_card(url, OURS), prometheus_card(url, THEIRS)


def test_the_figures_are_the_best_rank_s_with_waiting(cards: tuple[Card, Card]) -> None:
    ours, _ = cards
    (kind,) = ours.operations
    assert (kind.func, kind.size_class, kind.algo_proto) == ("AllReduce", 20, "RING_SIMPLE")
    assert kind.count == 10 * MINUTES * 60
    assert 1.2e6 < kind.time_ns < 1.8e6
    assert kind.waiting_included
    assert kind.waiting_share is None
    assert ours.exit_code == 3


def test_a_slow_time_is_in_the_series(cards: tuple[Card, Card]) -> None:
    ours, _ = cards
    (series,) = ours.timeline.series
    gbs = [one for one in series.bus_gbs if one is not None]
    assert gbs[2] == pytest.approx(BYTES * 1.5 / 1e6, rel=0.01)
    assert gbs[-2] == pytest.approx(BYTES * 1.5 / 2e6, rel=0.01)
    assert MINUTES - 2 <= len(gbs) <= MINUTES + 1
    throughput = ours.timeline.throughput
    assert throughput is not None
    assert (throughput.unit, throughput.values[3]) == ("TFLOP/s/GPU", 300)


def test_the_job_and_its_ranks_are_told(cards: tuple[Card, Card]) -> None:
    ours, _ = cards
    assert (ours.job.user, ours.job.partition, ours.job.nodelist) == ("ada", "gpu", "n[0-1]")
    (comm,) = ours.communicators
    assert (comm.id, comm.ranks_seen, comm.nodes) == ("0xabc", RANKS, ("n0", "n1"))
    assert any("waiting" in words for words in ours.data_quality.missing)


def test_nvidia_s_gauges_are_enough_for_means(cards: tuple[Card, Card]) -> None:
    _, theirs = cards
    (kind,) = theirs.operations
    assert (kind.func, kind.size_class, kind.count) == ("ReduceScatter", 27, 0)
    assert kind.time_ns == pytest.approx(100_000)
    assert kind.bus_gbs == pytest.approx(44)
    assert theirs.communicators[0].ranks_seen == 2
    assert any("NVIDIA" in words for words in theirs.data_quality.missing)


@pytest.mark.parametrize(
    ("label", "wanted"),
    [("64-128KB", 16), ("64-65KB", 16), ("0-2B", 0), ("134-135MB", 27), ("4-5GB", 32),
     ("9KB", None), ("1-2XB", None), ("", None), ("9999999999-1B", None)],
)  # fmt: skip
def test_both_plugins_sizes_are_classes(label: str, wanted: int | None) -> None:
    assert size_class_of(label) == wanted


def _matrix(*series: object) -> bytes:
    data = {"resultType": "matrix", "result": list(series)}
    return json.dumps({"status": "success", "data": data}).encode()


@pytest.fixture
def hostile() -> Iterator[str]:
    """A server that answers every range with odd series, and every instant with none."""
    now = time.time()
    good = {"comm": "0x1", "comm_name": "\x1b[2J", "nranks": "4", "n_nodes": "1", "rank": "0",
            "collective": "AllReduce", "message_size": "1-2MB", "algo_proto": "X"}  # fmt: skip
    points = [[now - 600 + 60 * at, "0.5"] for at in range(10)]
    body = _matrix(
        {"metric": good, "values": points},
        {"metric": good | {"nranks": "many"}, "values": points},
        {"metric": good | {"message_size": "\x00"}, "values": points},
        {"metric": {"a": 1}, "values": points},
        {"metric": good, "values": points[::-1]},
        {"metric": good, "values": [["soon", "1"]]},
        {"metric": good | {"collective": "Reduce"}, "values": [[now, "1e30"], [now + 1, "NaN"]]},
        17,
    )
    empty = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            answer = body if self.path.endswith("query_range") else empty.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,)).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_odd_series_are_refused_one_by_one_with_a_reason(hostile: str) -> None:
    refused: Counter[str] = Counter()
    found = Api(hostile).query_range("up", 0, 1, 1, refused)
    assert len(found) == 4
    assert refused == {"odd_series": 3, "time_goes_back": 1}


def test_a_card_is_made_of_the_rest_of_a_hostile_answer(hostile: str) -> None:
    card = prometheus_card(hostile, 7)
    assert [one.func for one in card.operations] == ["AllReduce"]
    assert all(char.isprintable() for char in card.operations[0].communicator)
    assert set(card.data_quality.refused) >= {"odd_series", "odd_labels", "time_goes_back"}
