"""Pictures of the dashboards for the docs: make previews (needs npm and Chromium, and root).

A job with a late rank, and slower links between its nodes for a while, runs on the sandbox
cluster; what its Prometheus answers is drawn with the components that Grafana itself draws with
(@grafana/ui). It is a preview: Grafana's own handling of dashboards (import, variables, links)
is not part of it.
"""

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from nccl_inspector.monitoring.bundle import make_bundle
from nccl_inspector.monitoring.site import make_site
from tests.sandbox import Cluster
from tests.sandbox.layout import REPO
from tests.support.sandbox import jobs
from tests.support.sandbox.monitoring_rules import SHORT_WINDOWS, load_rules
from tests.tools.picture import screenshot
from tests.tools.preview.data import page

TOOL = Path(__file__).parent
BUILD = REPO / "build" / "preview"
PICTURES = REPO / "packaging" / "doc"
WIDTH_PX, CELL_PX, TITLE_PX = 1424, 34, 60
# From when the baselines are there, for as long as the lines are worth looking at.
BEFORE_S, SHOWN_S = 30, 120
# A late rank all the while, and slower links between the nodes for a part of it.
TROUBLE = ("--slow-rank", "5:40", "--throttle", "all:24:75:110")


def bundle(folder: Path) -> None:
    """Install what package-lock.json names and make bundle.js of it. Raises CalledProcessError."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "preview.jsx"):
        shutil.copyfile(TOOL / name, BUILD / name)
    npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(npm, cwd=BUILD, check=True)
    subprocess.run(
        ["node", "node_modules/esbuild/bin/esbuild", "preview.jsx", "--bundle", "--minify",
         f"--outfile={folder}/bundle.js", '--define:process.env.NODE_ENV="production"',
         "--loader:.svg=dataurl", "--loader:.ttf=empty", "--log-level=error"],
        cwd=BUILD, check=True,
    )  # fmt: skip


def run_job(cluster: Cluster) -> tuple[int, tuple[float, float]]:
    """Run a job for long enough; its id, and from when until when its figures are shown."""
    load_rules(cluster)
    seconds = str(BEFORE_S + SHOWN_S + 60)
    command = jobs.standin(cluster, "--seconds", seconds, *TROUBLE)
    words = ("--nccl-inspector=prom", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1")
    job_id = jobs.submit(cluster, *words, script=f"srun {command}")
    jobs.wait_for_operations(cluster, job_id, 8)
    time.sleep(BEFORE_S + SHOWN_S)
    end = time.time()
    return job_id, (end - SHOWN_S, end)


def pages() -> dict[str, dict[str, Any]]:
    """What preview.jsx needs, by dashboard, from a cluster of its own."""
    cluster = Cluster.up(Path(tempfile.mkdtemp(prefix="nccl-inspector-preview-", dir="/tmp")))
    try:
        job_id, span = run_job(cluster)
        values = {
            "cluster": ["sandbox"], "job": [str(job_id)], "node": ["n3"],
            "comm_name": ["standin_world", "standin_node2", "standin_cross1"],
            "message_size": [".*"], "collective": ["AllGather", "ReduceScatter"],
        }  # fmt: skip
        url = cluster.layout.prometheus_url()
        return {
            Path(name).stem: page(url, json.loads(text), values, span)
            for name, text in make_bundle(make_site(SHORT_WINDOWS), []).items()
            if name.endswith(".json")
        }
    finally:
        cluster.down()


def draw(folder: Path, name: str, data: dict[str, Any]) -> None:
    """Write the picture of one dashboard. Raises CalledProcessError."""
    (folder / f"{name}.js").write_text(f"window.PAGE = {json.dumps(data)}")
    html = folder / f"{name}.html"
    html.write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="bundle.css">'
        f'<div id="page"></div><script src="{name}.js"></script><script src="bundle.js"></script>'
    )
    places = [one["panel"]["gridPos"] for one in data["panels"]]
    rows = max(place["y"] + place["h"] for place in places)
    screenshot(html, PICTURES / f"{name}.png", WIDTH_PX, rows * CELL_PX + TITLE_PX)


def main() -> None:
    """Draw every dashboard."""
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own)
        bundle(folder)
        for name, data in pages().items():
            draw(folder, name, data)
            print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
