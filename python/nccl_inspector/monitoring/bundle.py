# SPDX-License-Identifier: Apache-2.0
"""Make all files of a site's monitoring bundle, and write them.

Prometheus' part is made of templates: scrape configuration, recording rules and alerts.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import is_host
from nccl_inspector.monitoring.cluster import cluster_dashboard
from nccl_inspector.monitoring.hang_parts import hang_parts, shard_hang_rules
from nccl_inspector.monitoring.job import job_dashboard
from nccl_inspector.monitoring.node import node_dashboard
from nccl_inspector.monitoring.panels import dashboard_json
from nccl_inspector.monitoring.rule_parts import FEDERATED, rule_labels, rule_parts, shard_rules
from nccl_inspector.monitoring.site import GLOBAL, SHARD, Site
from nccl_inspector.system.printable import printable

TEMPLATES = ("scrape", "rules", "alerts")
# Files that are another one for a role.
_OF_ROLE = {("scrape", GLOBAL): "federate", ("rules", SHARD): "shard_rules"}


@cache
def _environment() -> Environment:
    # Prometheus has {{ }} and {% %} in its own templates. The output is YAML, and every value
    # was checked when the site was made: nothing is to be escaped.
    return Environment(  # noqa: S701
        loader=PackageLoader("nccl_inspector.monitoring"),
        undefined=StrictUndefined,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(name: str, site: Site) -> str:
    """Return the text of one of TEMPLATES for a site."""
    template = _OF_ROLE.get((name, site["role"]), name)
    return (
        _environment()
        .get_template(f"{template}.yml.j2")
        .render(
            site, by=rule_labels(site), parts=rule_parts(site), hang=hang_parts(site),
            shard_rules=shard_rules(site), shard_hang_rules=shard_hang_rules(site),
            federated=FEDERATED,
        )
    )  # fmt: skip


def render_targets(nodes: list[str], port: str) -> str:
    """Return the targets for file_sd_configs; JSON is YAML.

    Raises:
        InspectorError: one of the nodes is no name of a host.
    """
    for node in nodes:
        if not is_host(node):
            raise InspectorError(f"{printable(node[:80])!r} is not the name of a host")
    targets = [f"{node}:{port}" for node in nodes]
    return json.dumps([{"targets": targets}], indent=1) + "\n"


def make_bundle(site: Site, nodes: list[str]) -> dict[str, str]:
    """Return the text of each file, by its path in the bundle."""
    files = {f"prometheus/nccl-inspector-{name}.yml": render(name, site) for name in TEMPLATES}
    files["prometheus/nccl-inspector-targets.yml"] = render_targets(nodes, site["port"])
    for make in (job_dashboard, node_dashboard, cluster_dashboard):
        board = make(site)
        text = json.dumps(dashboard_json(board, site["scrape_interval"]), indent=1)
        files[f"grafana/{board.uid}.json"] = text + "\n"
    return files


def write_bundle(out: Path, files: Mapping[str, str]) -> None:
    """Write the files below a directory, which is created if necessary; other files in it stay.

    Raises:
        InspectorError: a file or directory cannot be written.
    """
    try:
        for name, text in files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as err:
        raise InspectorError(f"{err.filename}: {err.strerror}") from err
