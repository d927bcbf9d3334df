# SPDX-License-Identifier: Apache-2.0
"""Who shows the published series: node_exporter's command line and page, the agent's endpoint."""

import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from nccl_inspector.agent.service import agent_labels
from nccl_inspector.doctor.facts import CannotTell, Exporter, Fact, Monitoring, Page, Scrape
from nccl_inspector.doctor.files import read_text
from nccl_inspector.doctor.processes import Running, nearest
from nccl_inspector.errors import InspectorError
from nccl_inspector.exposition.page import LAST_PASS, last_pass_s, page_url, read_page
from nccl_inspector.prometheus.api import Api
from nccl_inspector.settings.config import Config

# The kernel cuts a name after 15 characters: prometheus-node-exporter.
EXPORTERS = ("node_exporter", "prometheus-node")
_PAGE_S, _EXPORTERS_MAX = 3.0, 4
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


def exporter_url(flags: dict[str, list[str]]) -> str:
    """Return the address of node_exporter's page on this host; empty: it speaks TLS."""
    if _TLS in flags:
        return ""
    return page_url(flags.get(_LISTEN, [":9100"])[0], flags.get(_TELEMETRY, ["/metrics"])[0])


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
        one.pid, not (off or only), directories, _may_read(one.pid, prom), exporter_url(flags)
    )


def parse_page(url: str, text: str, now_s: float) -> Page:
    """Return what a page of metrics has of us."""
    last_s = last_pass_s(text)
    age_s = None if last_s is None else now_s - last_s
    return Page(url, age_s, bool(_ERROR.search(text)))


def _page(url: str) -> Fact[Page]:
    try:
        return parse_page(url, read_page(url, _PAGE_S), time.time())
    except InspectorError as err:
        return CannotTell(f"{url}: {err}")


def read_scrape(config: Config, url: str) -> Scrape:
    """Return what a Prometheus has of this node's agent.

    Raises:
        InspectorError: it does not answer.
    """
    who = {name: value for name, value in agent_labels(config).items() if value}
    selector = ",".join(f"{name}={json.dumps(value)}" for name, value in who.items())
    samples = Api(url).query(f"max({LAST_PASS}{{{selector}}})")
    age_s = time.time() - samples[0].value if samples else None
    return Scrape(url, who["node"], age_s)


def read_monitoring(config: Config, daemons: tuple[Running, ...]) -> Monitoring:
    """Return the node_exporters that run here, and the pages that should have our series."""
    prom = config.run_dir / "prom"
    running = nearest(daemons, *EXPORTERS)[:_EXPORTERS_MAX]
    exporters = tuple(_exporter(one, prom) for one in running)
    urls = [one.url for one in exporters]
    if config.listen:
        urls = [page_url(config.listen)]
    pages: list[Fact[Page]] = [
        _page(url) if url else CannotTell("node_exporter speaks TLS") for url in urls
    ]
    return Monitoring(exporters, tuple(pages))
