# SPDX-License-Identifier: Apache-2.0
"""The files for Prometheus: scrape configuration, targets, recording rules and alerts."""

import json
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from nccl_inspector.monitoring.site import Site

TEMPLATES = ("scrape", "rules", "alerts")


@cache
def _environment() -> Environment:
    # Other delimiters, because Prometheus' own templates have {{ }} and {% %}. Nothing must be
    # escaped: the output is YAML, and all values were checked when the site was made.
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
    return _environment().get_template(f"{name}.yml.j2").render(site)


def render_targets(nodes: list[str], port: str) -> str:
    """Return the targets for file_sd_configs, as JSON, which is valid YAML."""
    targets = [f"{node}:{port}" for node in nodes]
    return json.dumps([{"targets": targets}], indent=1) + "\n"
