# SPDX-License-Identifier: Apache-2.0
"""Checks of who shows the series of a node."""

from fnmatch import fnmatch

from nccl_inspector.agent.status import RENEWED_S
from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.facts import (
    CannotTell,
    Exporter,
    Facts,
    known,
)

SCRAPED_S = 180.0  # longer than any usual interval of scrapes
_NODE = frozenset({Role.NODE})
_WITHOUT_SERIES = ("report", "json")


def _prom_group(facts: Facts) -> str:
    gid = known(facts.run_dir).prom_gid
    return gid.reason if isinstance(gid, CannotTell) else ""


def _wants_exporter(facts: Facts) -> bool:
    values = facts.settings.values
    return not values.listen and values.default not in _WITHOUT_SERIES


def _no_exporter(facts: Facts) -> str:
    if not _wants_exporter(facts) or known(facts.monitoring).exporters:
        return ""
    return "no node_exporter runs, and `listen` is not set"


def _reads_ours(facts: Facts) -> list[Exporter]:
    prom = str(facts.settings.values.run_dir / "prom")
    return [
        one
        for one in known(facts.monitoring).exporters
        if one.reads_textfiles and any(fnmatch(prom, pattern) for pattern in one.directories)
    ]


def _has_our_page(facts: Facts) -> bool:
    """Tell whether a page has our series; in a container the directory may have another path."""
    pages = known(facts.monitoring).pages
    return any(
        not isinstance(page, CannotTell) and page.last_pass_age_s is not None for page in pages
    )


def _should_have_series(facts: Facts) -> bool:
    """Tell whether the pages that were read are those on which our series should be."""
    listens = bool(facts.settings.values.listen)
    return listens or bool(_reads_ours(facts)) or _has_our_page(facts)


def _exporter_directory(facts: Facts) -> str:
    exporters = known(facts.monitoring).exporters
    if not _wants_exporter(facts) or not exporters:
        return ""
    if _reads_ours(facts) or _has_our_page(facts):
        return ""
    first = exporters[0]
    if not first.reads_textfiles:
        return f"node_exporter (pid {first.pid}) runs without its textfile collector"
    wanted = facts.settings.values.run_dir / "prom"
    if first.directories:
        return f"node_exporter (pid {first.pid}) reads {', '.join(first.directories)}, not {wanted}"
    return (
        f"node_exporter (pid {first.pid}) has no --collector.textfile.directory: it reads the one "
        f"that it was built with (on Debian /var/lib/prometheus/node-exporter), not {wanted}"
    )


def _exporter_group(facts: Facts) -> str:
    prom = facts.settings.values.run_dir / "prom"
    return "; ".join(
        f"the account of node_exporter (pid {one.pid}) may not read {prom}"
        for one in _reads_ours(facts)
        if not one.may_read
    )


def _pages(facts: Facts) -> str:
    agent = known(facts.agent)
    if agent.status.agent_pid is None or not _should_have_series(facts):
        return ""  # told by another check
    found = []
    for page in map(known, known(facts.monitoring).pages):
        if page.last_pass_age_s is None:
            found.append(f"{page.url} has no series nccl_inspector_agent_...")
        elif page.last_pass_age_s > max(RENEWED_S, 6 * facts.settings.values.agent_interval_s):
            found.append(f"{page.url} shows a pass of {page.last_pass_age_s:.0f} s ago")
    return "; ".join(found)


def _scrape_error(facts: Facts) -> str:
    if not _should_have_series(facts):
        return ""
    return "; ".join(
        f"{page.url} has node_textfile_scrape_error 1"
        for page in map(known, known(facts.monitoring).pages)
        if page.scrape_error
    )


def _not_scraped(facts: Facts) -> str:
    scrape = known(facts.scrape)
    if scrape is None or known(facts.agent).status.agent_pid is None:
        return ""
    if scrape.last_pass_age_s is None:
        return f"{scrape.url} has no series of the agent on {scrape.node}"
    if scrape.last_pass_age_s <= SCRAPED_S:
        return ""
    return f"the agent's last pass in {scrape.url} is {scrape.last_pass_age_s:.0f} s old"


CHECKS = (
    Check(
        id="prom-group",
        roles=_NODE,
        looks_at="the group of the setting `prom_group`",
        meaning="The agent does not start.",
        mend="Create the group, or correct the setting.",
        page="site-policy.md#who-may-read-the-metrics-of-a-node",
        judge=_prom_group,
    ),
    Check(
        id="exporter-missing",
        roles=_NODE,
        looks_at="the processes of this host, and the setting `listen`",
        meaning="Nobody shows the published series, so Prometheus has none. Reports are complete.",
        mend="Start node_exporter with --collector.textfile.directory=/run/nccl-inspector/prom, or "
        "set `listen`. Without a Prometheus use --skip exporter-missing.",
        page="install.md#turn-on",
        judge=_no_exporter,
    ),
    Check(
        id="exporter-directory",
        roles=_NODE,
        looks_at="the command line of the running node_exporter",
        meaning="It does not read the published series, so Prometheus has none.",
        mend="Give it --collector.textfile.directory=/run/nccl-inspector/prom (on Debian in ARGS "
        "of /etc/default/prometheus-node-exporter), and restart it; or set `listen`.",
        page="troubleshoot.md#no-series-in-prometheus",
        judge=_exporter_directory,
    ),
    Check(
        id="exporter-group",
        roles=_NODE,
        looks_at="the account and the groups of the running node_exporter",
        meaning="It may not read the published series, so Prometheus has none.",
        mend="Put its account into the group of `prom_group`, then restart node_exporter.",
        page="site-policy.md#who-may-read-the-metrics-of-a-node",
        judge=_exporter_group,
    ),
    Check(
        id="page-without-series",
        roles=_NODE,
        looks_at="what node_exporter, or the agent's own endpoint, answers",
        meaning="The page lacks the agent's series or has old ones, so Prometheus has no others.",
        mend="Look at prom/ and at the log of node_exporter.",
        page="troubleshoot.md#no-series-in-prometheus",
        judge=_pages,
    ),
    Check(
        id="scrape-error",
        roles=_NODE,
        looks_at="the same page",
        meaning="node_exporter could not read one of its text files, ours or the site's.",
        mend="Its log names the file.",
        page="troubleshoot.md#no-series-in-prometheus",
        judge=_scrape_error,
    ),
    Check(
        id="prometheus-scrape",
        roles=_NODE,
        looks_at="the series of this node's agent in the Prometheus that --prometheus names",
        meaning="Prometheus does not scrape this node, or drops our series.",
        mend="Add the node to the targets: nccl-inspector setup monitoring --nodes. Look at "
        "metric_relabel_configs, and at renamed labels.",
        page="troubleshoot.md#no-series-in-prometheus",
        judge=_not_scraped,
    ),
)
