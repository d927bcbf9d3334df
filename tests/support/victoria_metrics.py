# SPDX-License-Identifier: Apache-2.0
"""A real VictoriaMetrics on loopback, with a past that is imported, and its vmalert."""

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox.lifetime import wait_until

# Name, labels, value, Unix time (s).
Sample = tuple[str, Mapping[str, str], float, int]
# By the labels as JSON, the value at each time.
Answer = dict[str, dict[int, float]]


def ask_range(url: str, expr: str, start_s: int, end_s: int) -> Answer:
    """What a server answers for each minute from `start_s` to `end_s`; Prometheus' way to ask."""
    words = urllib.parse.urlencode(
        {"query": expr, "start": start_s, "end": end_s, "step": 60, "nocache": 1}
    )
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{words}", timeout=30) as answer:  # noqa: S310
        found = json.load(answer)["data"]["result"]
    return {
        json.dumps(one["metric"], sort_keys=True): {
            int(float(at)): float(value) for at, value in one["values"]
        }
        for one in found
    }


@dataclass(frozen=True)
class VictoriaMetrics:
    """The server, from outside."""

    url: str

    def _get(self, path: str, **words: str) -> bytes:
        address = f"{self.url}{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310
            return bytes(answer.read())

    @property
    def is_ready(self) -> bool:
        try:
            return self._get("/health") == b"OK"
        except (urllib.error.URLError, OSError):
            return False

    def take(self, samples: Iterable[Sample]) -> None:
        """Import samples, and wait until they are found."""
        lines = (
            f"{name}{{{','.join(f'{key}={json.dumps(word)}' for key, word in labels.items())}}}"
            f" {value} {at_s * 1000}\n"
            for name, labels, value, at_s in samples
        )
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{self.url}/api/v1/import/prometheus", "".join(lines).encode(), method="POST"
        )
        urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
        self._get("/internal/force_flush")

    def replay(self, rules: Path, start_s: int, end_s: int) -> None:
        """Let vmalert make what the recording rules would have made in that time."""
        times = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (start_s, end_s)]
        done = subprocess.run(
            ["vmalert", f"-rule={rules}", f"-datasource.url={self.url}",
             f"-remoteWrite.url={self.url}", f"-replay.timeFrom={times[0]}",
             f"-replay.timeTo={times[1]}", "-replay.rulesDelay=1s", "-replay.disableProgressBar"],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-500:]
        self._get("/internal/force_flush")

    @contextmanager
    def evaluating(self, rules: Sequence[Path]) -> Iterator[None]:
        """Let vmalert evaluate rules and alerts meanwhile, each second."""
        alert = subprocess.Popen(
            ["vmalert", *(f"-rule={path}" for path in rules), f"-datasource.url={self.url}",
             f"-remoteWrite.url={self.url}", "-evaluationInterval=1s",
             "-remoteWrite.flushInterval=1s", "-httpListenAddr=127.0.0.1:0",
             "-notifier.url=http://127.0.0.1:9"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
            assert alert.poll() is None, "vmalert ended by itself"
        finally:
            alert.terminate()
            alert.wait(30)

    def recorded(self) -> list[Sample]:
        """Every sample that a recording rule has made."""
        text = self._get("/api/v1/export", **{"match[]": '{__name__=~".+:.+"}'}).decode()
        found: list[Sample] = []
        for one in map(json.loads, text.splitlines()):
            labels = dict(one["metric"])
            name = labels.pop("__name__")
            pairs = zip(one["values"], one["timestamps"], strict=True)
            found += [(name, labels, value, at // 1000) for value, at in pairs]
        return found


@contextmanager
def victoria_metrics() -> Iterator[VictoriaMetrics]:
    """Give an empty server."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        server = subprocess.Popen(
            ["victoria-metrics", f"-httpListenAddr={address}", f"-storageDataPath={name}",
             "-retentionPeriod=100y", "-search.latencyOffset=0s", "-search.disableCache"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            found = VictoriaMetrics(f"http://{address}")
            wait_until(lambda: found.is_ready, 30, "VictoriaMetrics answers")
            yield found
        finally:
            server.terminate()
            server.wait(30)
