# SPDX-License-Identifier: Apache-2.0
"""All files of the monitoring bundle of a site, and writing them."""

from collections.abc import Mapping
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.monitoring.rules import TEMPLATES, render, render_targets
from nccl_inspector.monitoring.site import Site


def make_bundle(site: Site, nodes: list[str]) -> dict[str, str]:
    """Return the text of each file by its path in the bundle."""
    files = {f"prometheus/nccl-inspector-{name}.yml": render(name, site) for name in TEMPLATES}
    files["prometheus/nccl-inspector-targets.yml"] = render_targets(nodes, site["port"])
    return files


def write_bundle(out: Path, files: Mapping[str, str]) -> None:
    """Write the files below a directory, which is made if need be; others there stay.

    Raises:
        InspectorError: the system refuses.
    """
    try:
        for name, text in files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as err:
        raise InspectorError(f"{err.filename}: {err.strerror}") from err
