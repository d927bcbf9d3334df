# SPDX-License-Identifier: Apache-2.0
"""node_exporter's command line, and what a page of metrics has of us."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs

import pytest

from nccl_inspector.doctor.bounded import gather
from nccl_inspector.doctor.facts import CannotTell, Page
from nccl_inspector.doctor.processes import Running
from nccl_inspector.doctor.read_monitoring import (
    exporter_url,
    parse_flags,
    parse_page,
    read_monitoring,
    read_scrape,
)
from nccl_inspector.settings.config import Config, parse_config

SERIES = "nccl_inspector_agent_last_pass_timestamp_seconds"


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ([], "http://127.0.0.1:9100/metrics"),
        (["--web.listen-address=:9200"], "http://127.0.0.1:9200/metrics"),
        (["--web.listen-address", "10.0.0.5:9100"], "http://10.0.0.5:9100/metrics"),
        (["--web.listen-address=[::]:9100"], "http://[::1]:9100/metrics"),
        (["--web.telemetry-path=/m"], "http://127.0.0.1:9100/m"),
        (["--web.config.file=/x.yml"], ""),
    ],
)
def test_the_address_of_the_page_follows_from_the_flags(words: list[str], url: str) -> None:
    assert exporter_url(parse_flags(["node_exporter", *words])) == url


def test_the_directory_may_be_given_twice_and_with_a_blank() -> None:
    words = ["x", "--collector.textfile.directory", "/a", "--collector.textfile.directory=/b/"]
    assert parse_flags(words)["collector.textfile.directory"] == ["/a", "/b/"]


def test_the_newest_pass_counts() -> None:
    text = f'# HELP x\n{SERIES}{{node="a"}} 100\n{SERIES}{{node="b"}} 1.5e+02\n'
    assert parse_page("u", text, 160.0) == Page("u", 10.0, scrape_error=False)
    assert parse_page("u", "node_textfile_scrape_error 1\n", 1.0) == Page("u", None, True)


class _Answer(BaseHTTPRequestHandler):
    """A page of metrics, and a Prometheus."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(parse_qs(body)["query"][0])
        series = {"metric": {}, "value": [time.time(), str(time.time() - 100)]}
        answer = {"status": "success", "data": {"resultType": "vector", "result": [series]}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{SERIES} {time.time()}\n".encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def exporter(port: int, *words: str) -> Running:
    argv = "node_exporter", f"--web.listen-address=127.0.0.1:{port}", *words
    return Running(1, "node_exporter", argv, 0, is_here=True)


def settings(run_dir: Path, more: str = "") -> Config:
    return parse_config(f"run_dir = {run_dir}\n{more}", "test")


def test_the_page_of_the_exporter_that_reads_our_directory_is_read(
    tmp_path: Path, port: int
) -> None:
    words = "--collector.textfile", f"--collector.textfile.directory={tmp_path}/prom/"
    found = read_monitoring(settings(tmp_path), (exporter(port, *words),))
    assert found.exporters[0].directories == (f"{tmp_path}/prom",)
    assert found.exporters[0].reads_textfiles
    (page,) = found.pages
    assert isinstance(page, Page)
    assert page.last_pass_age_s is not None
    assert page.last_pass_age_s < 10


def test_with_listen_the_agents_own_endpoint_is_read(tmp_path: Path, port: int) -> None:
    found = read_monitoring(settings(tmp_path, f"listen = 127.0.0.1:{port}\n"), ())
    assert isinstance(found.pages[0], Page)


def test_an_exporter_that_does_not_answer_is_told(tmp_path: Path) -> None:
    words = (f"--collector.textfile.directory={tmp_path}/prom",)
    found = read_monitoring(settings(tmp_path), (exporter(1, *words),))
    assert isinstance(found.pages[0], CannotTell)
    assert "Connection refused" in found.pages[0].reason


def test_a_prometheus_is_asked_for_the_series_of_this_node(port: int) -> None:
    config = parse_config('cluster = alpha\nnode_name = n"1\n', "test")
    found = read_scrape(config, f"http://127.0.0.1:{port}")
    assert found.node == 'n"1'
    assert found.last_pass_age_s is not None
    assert 90 < found.last_pass_age_s < 110
    assert _Answer.asked == [f'max({SERIES}{{cluster="alpha",node="n\\"1"}})']


def test_a_prometheus_that_does_not_answer_is_told() -> None:
    found = gather({"it": lambda: read_scrape(settings(Path("/run")), "http://127.0.0.1:1")})
    assert found == {"it": CannotTell("http://127.0.0.1:1: Connection refused")}


@pytest.mark.parametrize("words", [["--no-collector.textfile"], ["--collector.disable-defaults"]])
def test_an_exporter_without_its_textfile_collector_is_seen(
    tmp_path: Path, words: list[str]
) -> None:
    found = read_monitoring(settings(tmp_path), (exporter(1, *words),))
    assert not found.exporters[0].reads_textfiles


def test_a_daemon_in_our_mount_namespace_counts_before_others(tmp_path: Path, port: int) -> None:
    flag = f"--collector.textfile.directory={tmp_path}/prom"
    other = Running(2, "node_exporter", ("x", flag), 0, is_here=False)
    found = read_monitoring(settings(tmp_path), (other, exporter(port)))
    assert [one.pid for one in found.exporters] == [1]
    found = read_monitoring(settings(tmp_path), (other,))
    assert [one.pid for one in found.exporters] == [2]
