# SPDX-License-Identifier: Apache-2.0
"""The agent's HTTP endpoint, asked by friends and enemies."""

import gzip
import http.client
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nccl_inspector.agent import http_server as httpserver
from nccl_inspector.agent.endpoint import Endpoint
from nccl_inspector.agent.prom_page import merge
from nccl_inspector.errors import InspectorError
from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.exposition.text import make_series, render
from tests.sandbox import wait_until
from tests.support.boxes import make_run_dir
from tests.support.marks import as_root
from tests.support.processes import children, free_address

WHO = {"cluster": "c1", "node": "n1"}
STALE_S = 120.0
GAUGE = "nccl_collective_inflight_seconds"


def job_text(job: int, name: str = "comm") -> bytes:
    """What is published of a job."""
    labels = dict.fromkeys(load_metrics()[GAUGE].labels, "x")
    labels |= {"slurm_job_id": str(job), "comm_name": name}
    info = {label: str(job) for label in load_metrics()["nccl_inspector_job_info"].labels}
    return render(
        [make_series(GAUGE, labels, "0.25"), make_series("nccl_inspector_job_info", info, "1")]
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run_dir = make_run_dir(tmp_path / "run")
    for job in (7, 8):
        (run_dir / "prom" / f"{job}.prom").write_bytes(job_text(job))
    return run_dir


@contextmanager
def endpoint(run_dir: Path) -> Iterator[Endpoint]:
    run_fd = os.open(run_dir, os.O_RDONLY)
    one = Endpoint(free_address(), run_fd, WHO, STALE_S)
    try:
        yield one
    finally:
        one.close()
        os.close(run_fd)


@pytest.fixture
def serving(run_dir: Path) -> Iterator[Endpoint]:
    with endpoint(run_dir) as one:
        yield one


def scrape(one: Endpoint, **headers: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(f"http://{one.address}/metrics", headers=headers)
    answer = urllib.request.urlopen(request, timeout=5)  # noqa: S310
    assert isinstance(answer, http.client.HTTPResponse)
    return answer


def page(one: Endpoint) -> str:
    return str(scrape(one).read().decode())


def own(text: str, what: str) -> dict[str, float]:
    """Counts of the endpoint itself, by their last label."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"nccl_inspector_agent_http_{what}":
                (last,) = sample.labels.keys() - WHO.keys()
                assert sample.labels.items() >= WHO.items()
                found[sample.labels[last]] = sample.value
    return found


def jobs_part(text: str) -> str:
    """The page without the endpoint's own counters."""
    return text.partition("# HELP nccl_inspector_agent_http_")[0]


def server_pid(one: Endpoint) -> int:
    """The child that serves: it has the socket that listens."""
    port = int(one.address.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()]
    (inode,) = (row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A")
    (pid,) = (pid for pid in children(os.getpid()) if f"socket:[{inode}]" in files_of(pid))
    return pid


def files_of(pid: int) -> list[str]:
    """What its descriptors but the usual three are of."""
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            found += [str(one.readlink())] if int(one.name) > 2 else []
    return found


def connect(one: Endpoint) -> socket.socket:
    host, _, port = one.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def test_two_jobs_are_one_text_with_each_family_once(serving: Endpoint, run_dir: Path) -> None:
    text = jobs_part(page(serving))
    files = [path.read_text() for path in (run_dir / "prom").iterdir()]
    assert set(text.splitlines()) == {line for file in files for line in file.splitlines()}
    assert text.count(f"# TYPE {GAUGE} gauge\n") == 1
    assert text.count("# HELP") == 2
    families = list(text_string_to_metric_families(text))
    assert [(one.name, len(one.samples)) for one in families] == [
        (GAUGE, 2), ("nccl_inspector_job_info", 2),
    ]  # fmt: skip


def test_promtool_finds_nothing_wrong_with_the_page(serving: Endpoint) -> None:
    page(serving)
    with connect(serving) as rude:
        rude.sendall(b"x" * 20_000)
        assert rude.recv(10) == b""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page(serving), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_words_of_the_grammar_in_a_label_do_not_split_a_family() -> None:
    evil = "# HELP nccl_gpu_info # TYPE up gauge # EOF"
    text = merge([job_text(7, evil), job_text(8)])
    assert text.count(evil.encode()) == 1
    assert text.startswith(b"# HELP " + GAUGE.encode())
    assert text.splitlines()[3].startswith(GAUGE.encode())
    assert len(text.splitlines()) == 8


def test_one_file_is_served_as_it_is(run_dir: Path) -> None:
    (run_dir / "prom" / "8.prom").unlink()
    with endpoint(run_dir) as one:
        assert jobs_part(page(one)).encode() == job_text(7)


def test_who_takes_gzip_gets_the_same_text(serving: Endpoint) -> None:
    answer = scrape(serving, **{"Accept-Encoding": "deflate, gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    packed = answer.read()
    assert int(answer.headers["Content-Length"]) == len(packed)
    assert jobs_part(gzip.decompress(packed).decode()) == jobs_part(page(serving))
    refused = scrape(serving, **{"Accept-Encoding": "gzip;q=0"})
    assert refused.headers["Content-Encoding"] is None


def test_a_job_that_the_epilog_unpublished_is_gone_at_once(
    serving: Endpoint, run_dir: Path
) -> None:
    assert 'slurm_job_id="7"' in page(serving)
    (run_dir / "prom" / "7.prom").unlink()
    text = page(serving)
    assert 'slurm_job_id="7"' not in text
    assert 'slurm_job_id="8"' in text


def test_only_what_the_agent_writes_is_served(serving: Endpoint, run_dir: Path) -> None:
    (run_dir / "prom" / "other.prom").write_text("up 0\n")
    (run_dir / "prom" / "9.prom").symlink_to("/etc/passwd")
    (run_dir / "prom" / ".7.prom.tmp").write_text("half")
    text = page(serving)
    assert "up 0" not in text
    assert "root:" not in text
    assert "half" not in text


REQUESTS = {
    "another path": (b"GET /etc/passwd HTTP/1.1\r\n\r\n", 404),
    "another method": (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
    "no HTTP": (b"\x16\x03\x01\r\n\r\n", 400),
    "no words": (b"\r\n\r\n", 400),
    "a query": (b"GET /metrics?name[]=up HTTP/1.0\r\n\r\n", 200),
    "only the head": (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_every_request_has_an_answer(serving: Endpoint, name: str) -> None:
    sent, code = REQUESTS[name]
    with connect(serving) as one:
        one.sendall(sent)
        answer = http.client.HTTPResponse(one, method="HEAD" if sent[:4] == b"HEAD" else "GET")
        answer.begin()
        assert answer.status == code
        answer.read()
    assert own(page(serving), "requests_total")[str(code)] >= 1


@pytest.mark.long
def test_clients_that_hold_connections_open_keep_no_scraper_out(
    serving: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    threads = Path(f"/proc/{server_pid(serving)}/task")
    with ExitStack() as held:
        for _ in range(3 * httpserver.CONNECTIONS_MAX):
            held.enter_context(connect(serving)).sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        text = page(serving)
        assert len(list(threads.iterdir())) == 1
    assert 'slurm_job_id="7"' in text
    page(serving)
    assert capfd.readouterr().err == "", "nor does it fill the log"
    assert own(text, "dropped_connections_total")["crowded"] >= 2 * httpserver.CONNECTIONS_MAX


@pytest.mark.long
def test_a_slow_reader_costs_no_copy_of_the_page(run_dir: Path) -> None:
    many = b"".join(job_text(9, str(number)).splitlines(True)[2] for number in range(60_000))
    (run_dir / "prom" / "9.prom").write_bytes(b"".join(job_text(9).splitlines(True)[:2]) + many)
    with endpoint(run_dir) as one, ExitStack() as held:
        page(one)
        status = Path(f"/proc/{server_pid(one)}/status")

        def memory_bytes() -> int:
            (line,) = (one for one in status.read_text().splitlines() if "VmRSS" in one)
            return int(line.split()[1]) << 10

        before = memory_bytes()
        for _ in range(50):
            held.enter_context(connect(one)).sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert 'slurm_job_id="8"' in page(one)
        assert len(many) * 50 > 300 << 20
        assert memory_bytes() - before < 40 << 20


def test_a_client_that_says_nothing_is_dropped(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpserver, "HEAD_S", 0.1)
    with endpoint(run_dir) as one, connect(one) as silent:
        assert silent.recv(10) == b""
        assert own(page(one), "dropped_connections_total") == {"slow": 1}


def test_a_head_that_never_ends_is_dropped(serving: Endpoint) -> None:
    with connect(serving) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 4000)
        assert one.recv(10) == b""
    assert own(page(serving), "dropped_connections_total") == {"too_long": 1}


@as_root
def test_the_server_is_nobody_and_has_only_what_it_needs(serving: Endpoint, run_dir: Path) -> None:
    page(serving)
    pid = server_pid(serving)
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Uid:\t65534\t65534\t65534\t65534\n" in status
    assert "CapEff:\t0000000000000000\n" in status
    assert "Groups:\t \n" in status
    assert [one for one in files_of(pid) if one.startswith("/")] == [f"{run_dir}/prom"]


def test_a_server_that_died_is_started_again(
    serving: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    page(serving)
    serving.keep()
    assert not caplog.records
    pid = server_pid(serving)
    os.kill(pid, signal.SIGKILL)

    def started() -> bool:
        serving.keep()
        return bool(caplog.records)

    wait_until(started, 5, "the server's end is noticed")
    assert "the HTTP endpoint ended with status -9 and is started again" in caplog.text
    assert 'slurm_job_id="7"' in page(serving)


def test_an_address_that_is_taken_is_one_line(serving: Endpoint, run_dir: Path) -> None:
    run_fd = os.open(run_dir, os.O_RDONLY)
    with pytest.raises(InspectorError, match=f"listen = {serving.address}: Address already in use"):
        Endpoint(serving.address, run_fd, WHO, STALE_S)
    os.close(run_fd)


PROMETHEUS = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs: [{{job_name: nccl, static_configs: [{{targets: ["{target}"]}}]}}]
"""


@pytest.mark.long
def test_a_real_prometheus_reads_the_page(serving: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "p.yml").write_text(PROMETHEUS.format(target=serving.address))
    own = free_address()
    argv = ["prometheus", f"--config.file={tmp_path}/p.yml", f"--web.listen-address={own}"]
    argv += [f"--storage.tsdb.path={tmp_path}/data", "--log.level=warn"]
    log = (tmp_path / "log").open("wb")
    with subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:

            def answer(query: str) -> str:
                url = f"http://{own}/api/v1/query?query={query}"
                try:
                    with urllib.request.urlopen(url, timeout=5) as got:
                        return str(got.read().decode())
                except OSError:
                    return ""

            wait_until(lambda: '"slurm_job_id":"8"' in answer(GAUGE), 20, "both jobs", 0.1)
            assert '"slurm_job_id":"7"' in answer(GAUGE)
            assert '"1"' in answer("up")
        finally:
            process.terminate()
            process.wait(10)
