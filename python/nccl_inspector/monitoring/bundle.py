# SPDX-License-Identifier: Apache-2.0
"""Make all files of a site's monitoring bundle, and write them."""

import json
from collections.abc import Mapping
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.monitoring.cluster import cluster_dashboard
from nccl_inspector.monitoring.job import job_dashboard
from nccl_inspector.monitoring.node import node_dashboard
from nccl_inspector.monitoring.panels import dashboard_json
from nccl_inspector.monitoring.rules import TEMPLATES, render, render_targets
from nccl_inspector.monitoring.site import Site


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
