# SPDX-License-Identifier: Apache-2.0
"""Who shows the published series: node_exporter's command line and page, the agent's endpoint."""

import json
import os
import re
import time
from collections.abc import Iterable
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from nccl_inspector.agent.service import agent_labels
from nccl_inspector.doctor.facts import CannotTell, Exporter, Fact, Monitoring, Page, Scrape
from nccl_inspector.doctor.files import read_text
from nccl_inspector.doctor.processes import Running, nearest
from nccl_inspector.prometheus.api import Api
from nccl_inspector.settings.config import Config

# The kernel cuts a name after 15 characters: prometheus-node-exporter.
EXPORTERS = ("node_exporter", "prometheus-node")
_PAGE_BYTES_MAX, _PAGE_S, _EXPORTERS_MAX = 64 << 20, 3.0, 4
_AGENT_SERIES = "nccl_inspector_agent_last_pass_timestamp_seconds"
_PASS = re.compile(rf"^{_AGENT_SERIES}(?:\{{[^\n]*\}})? ([0-9.e+]{{1,30}})$", re.M)
_ERROR = re.compile(r"^node_textfile_scrape_error 1$", re.M)
_DIRECTORY, _LISTEN = "collector.textfile.directory", "web.listen-address"
_TLS, _TELEMETRY = "web.config.file", "web.telemetry-path"


def parse_flags(argv: Iterable[str]) -> dict[str, list[str]]:
    """Return the flags of node_exporter; a flag without a value has an empty one."""
    found: dict[str, list[str]] = {}
    words = list(argv)[1:]
    for at, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        follows = words[at + 1] if at + 1 < len(words) else ""
        found.setdefault(name, []).append(value if equals or follows.startswith("-") else follows)
    return found


def page_url(flags: dict[str, list[str]]) -> str:
    """Return the address of the page on this host; empty: it speaks TLS."""
    if _TLS in flags:
        return ""
    host, _, port = flags.get(_LISTEN, [":9100"])[0].rpartition(":")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - no listening here
    return f"http://{host}:{port}{flags.get(_TELEMETRY, ['/metrics'])[0]}"


def _may_read(pid: int, path: Path) -> bool:
    """Tell whether a process's account and groups may list a directory."""
    try:
        status = path.stat()
        lines = dict(
            line.split(":", 1) for line in read_text(Path(f"/proc/{pid}/status")).splitlines()
        )
        uid, gid = int(lines["Uid"].split()[1]), int(lines["Gid"].split()[1])
        groups = {gid, *map(int, lines["Groups"].split())}
    except (OSError, KeyError, ValueError):
        return True  # it has ended, or we may not look
    shift = 6 if uid == status.st_uid else 3 if status.st_gid in groups else 0
    return uid == 0 or (status.st_mode >> shift) & 5 == 5


def _exporter(one: Running, prom: Path) -> Exporter:
    flags = parse_flags(one.argv)
    off = "no-collector.textfile" in flags
    only = "collector.disable-defaults" in flags and "collector.textfile" not in flags
    directories = tuple(os.path.normpath(path) for path in flags.get(_DIRECTORY, ()) if path)
    return Exporter(
        one.pid, not (off or only), directories, _may_read(one.pid, prom), page_url(flags)
    )


def parse_page(url: str, text: str, now_s: float) -> Page:
    """Return what a page of metrics has of us."""
    passes = [float(match) for match in _PASS.findall(text)]
    age_s = now_s - max(passes) if passes else None
    return Page(url, age_s, bool(_ERROR.search(text)))


def _page(url: str) -> Fact[Page]:
    parts = urlsplit(url)
    try:
        with closing(HTTPConnection(parts.hostname or "", parts.port, timeout=_PAGE_S)) as http:
            http.request("GET", parts.path)
            answer = http.getresponse()
            text = answer.read(_PAGE_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, HTTPException, ValueError) as err:
        return CannotTell(f"{url}: {err or type(err).__name__}")
    if answer.status != 200:
        return CannotTell(f"{url}: HTTP status {answer.status}")
    return parse_page(url, text, time.time())


def read_scrape(config: Config, url: str) -> Scrape:
    """Return what a Prometheus has of this node's agent.

    Raises:
        InspectorError: it does not answer.
    """
    who = {name: value for name, value in agent_labels(config).items() if value}
    selector = ",".join(f"{name}={json.dumps(value)}" for name, value in who.items())
    samples = Api(url).query(f"max({_AGENT_SERIES}{{{selector}}})")
    age_s = time.time() - samples[0].value if samples else None
    return Scrape(url, who["node"], age_s)


def read_monitoring(config: Config, daemons: tuple[Running, ...]) -> Monitoring:
    """Return the node_exporters that run here, and the pages that should have our series."""
    prom = config.run_dir / "prom"
    running = nearest(daemons, *EXPORTERS)[:_EXPORTERS_MAX]
    exporters = tuple(_exporter(one, prom) for one in running)
    urls = [one.url for one in exporters]
    if config.listen:
        urls = [page_url({_LISTEN: [config.listen]})]
    pages: list[Fact[Page]] = [
        _page(url) if url else CannotTell("node_exporter speaks TLS") for url in urls
    ]
    return Monitoring(exporters, tuple(pages))
