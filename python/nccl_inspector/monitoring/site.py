# SPDX-License-Identifier: Apache-2.0
"""The settings of a site for its monitoring (site.tsv): names, windows and thresholds."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from nccl_inspector.errors import InspectorError
from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.system.tsv import read_tsv

# The valid values of each kind. All of them go into PromQL, YAML and JSON, so no value may contain
# what ends a string, a line or an expression of a template there.
_KINDS = {
    "source": re.compile(r"textfile|http"),
    "role": re.compile(r"all|shard|global"),
    "word": re.compile(r"[A-Za-z0-9_./:#~-]{1,200}"),
    "label": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
    "port": re.compile(r"[1-9][0-9]{0,4}"),
    "duration": re.compile(r"[1-9][0-9]{0,5}(?:ms|s|m|h|d)"),
    "count": re.compile(r"[1-9][0-9]{0,5}"),
    "index": re.compile(r"0|[1-9][0-9]{0,5}"),
    "number": re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?"),
}
_HTTP_PORT = "9435"
_PROMETHEUS_PORT = "9090"
SHARD, GLOBAL = "shard", "global"  # values of the setting role; the third is all
# Labels that Prometheus itself adds to every series, or our rules and scrapes to some.
_PROMETHEUS_LABELS = {"job", "instance", "shard", "point", "scope", "by"}

Site = Mapping[str, str]  # by name, with all names of the table


@dataclass(frozen=True, slots=True)
class SiteSetting:
    """One line of site.tsv."""

    name: str
    default: str
    kind: str
    help: str


@cache
def load_settings() -> dict[str, SiteSetting]:
    """Return the settings by name, in the order of the table."""
    return {row[0]: SiteSetting(*row) for row in read_tsv("monitoring/site.tsv")}


def _check_labels(site: Site) -> None:
    """Raise InspectorError if a label has the name of another label or of one of Prometheus."""
    own = {one.name: one.default for one in load_settings().values() if one.kind == "label"}
    taken = {label for metric in load_metrics().values() for label in metric.labels}
    for name, default in own.items():
        value = site[name]
        others = {site[other] for other in own if other != name} | taken - {default}
        if value.startswith("__") or value in others | _PROMETHEUS_LABELS:
            raise InspectorError(f"--set {name}={value}: another label has this name")


def make_site(words: Iterable[str]) -> Site:
    """Return the site that words like `name=value` describe; other settings have their defaults.

    Raises:
        InspectorError: a name is unknown or given twice, a value is invalid, two labels have the
            same name, or a shard does not say which one it is.
    """
    known = load_settings()
    values: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or name not in known:
            raise InspectorError(f"--set {word!r}: not NAME=VALUE with one of {', '.join(known)}")
        if name in values:
            raise InspectorError(f"--set {name}: given twice")
        if not _KINDS[known[name].kind].fullmatch(value):
            raise InspectorError(f"--set {word!r}: not a {known[name].kind}")
        values[name] = value
    if values.get("role") == GLOBAL:
        values.setdefault("port", _PROMETHEUS_PORT)
    elif values.get("source") == "http":
        values.setdefault("port", _HTTP_PORT)
    site = {one.name: one.default for one in known.values()} | values
    _check_labels(site)
    if int(site["shard"]) >= int(site["shards"]):
        raise InspectorError(f"--set shard={site['shard']}: must be below shards={site['shards']}")
    if site["role"] == SHARD and site["shards"] == "1":
        raise InspectorError("--set role=shard: set shards and shard, too")
    return site


def describe_settings() -> str:
    """Return what --set accepts: each name with its default, and its meaning on the next line."""
    return "".join(
        f"{one.name}={one.default}\n    {one.help}\n" for one in load_settings().values()
    )
