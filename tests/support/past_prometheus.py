# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus whose past is made: blocks by promtool, served on loopback."""

import json
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.sandbox.lifetime import wait_until

STEP_S = 30


def line(metric: str, labels: Mapping[str, str], value: float, at_s: float) -> str:
    """A line of OpenMetrics."""
    words = ",".join(f'{name}="{word}"' for name, word in labels.items())
    return f"{metric}{{{words}}} {value} {at_s}\n"


def rules_of(url: str) -> list[tuple[str, str]]:
    """Return name and expression of each rule, as Prometheus has read them."""
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=10) as answer:  # noqa: S310
        groups = json.load(answer)["data"]["groups"]
    return [(rule["name"], rule["query"]) for group in groups for rule in group["rules"]]


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def _serving(folder: Path, *words: str) -> Iterator[str]:
    """Give the URL of a Prometheus with the configuration and the data in a directory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen(
        ["prometheus", f"--config.file={folder / 'prometheus.yml'}",
         f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = f"http://{address}"
        wait_until(lambda: _is_ready(url), 30, "Prometheus answers")
        yield url
    finally:
        server.terminate()
        server.wait(10)


@contextmanager
def prometheus_of(files: Mapping[str, str]) -> Iterator[str]:
    """Give the URL of a Prometheus with these files; `prometheus.yml` is its configuration."""
    with tempfile.TemporaryDirectory() as name:
        for path, text in files.items():
            (Path(name) / path).write_text(text, encoding="utf-8")
        with _serving(Path(name)) as url:
            yield url


@contextmanager
def prometheus_with(text: str, rules: Sequence[Path] = ()) -> Iterator[str]:
    """Give the URL of a Prometheus that has these samples and rules, and scrapes nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "past.txt").write_text(text + "# EOF\n", encoding="utf-8")
        subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "past.txt",
             folder / "data"], check=True, capture_output=True,
        )  # fmt: skip
        (folder / "prometheus.yml").write_text(
            json.dumps({"rule_files": [str(one) for one in rules]}), encoding="utf-8"
        )
        with _serving(folder, "--storage.tsdb.retention.time=10y") as url:
            yield url
