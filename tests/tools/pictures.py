"""Pictures of the docs, of jobs on the sandbox cluster: `make pictures` (needs Chromium).

They show the demo's job, run for longer. Slurm, the plugin, the agent and the report are real.
NCCL's calls come from the stand-in, which moves real bytes over loopback. The counters of links
come from files that the sandbox has in place of sysfs.
"""

import tempfile
import time
from pathlib import Path

from tests.sandbox import Cluster
from tests.sandbox.layout import REPO, default_root
from tests.sandbox.node import agent_program
from tests.tools.demo import start
from tests.tools.picture import draw, screenshot

PICTURES = REPO / "packaging" / "doc"
SECONDS = 120
SLOW_NODE = "n3"
LOOK_AT_S = 60  # at `top`
WIDTH_PX, HEIGHT_PX = 940, 1010
_DARK = "@media (prefers-color-scheme: dark)"


def draw_page(page: str) -> None:
    """Draw the page of a report, light and dark."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        for name, dark in (("report-page", False), ("report-page-dark", True)):
            # Headless Chromium has no switch for it that lasts.
            path.write_text(page.replace(_DARK, "@media all") if dark else page, "utf-8")
            screenshot(path, PICTURES / f"{name}.png", WIDTH_PX, HEIGHT_PX)


def main() -> None:
    """Run the job and draw what is seen of it."""
    cluster = Cluster.up(default_root())
    try:
        job_id = start(cluster, SECONDS)
        cluster.wait_for_state(job_id, "RUNNING")
        time.sleep(LOOK_AT_S)
        program = str(agent_program(cluster.layout))
        shown = cluster.node(SLOW_NODE).run([program, "top", str(job_id)])
        draw(shown.stdout, PICTURES / "top.png")
        while not cluster.job(job_id).finished:
            time.sleep(2)
        draw_page(cluster.report(job_id, "--html", "-").stdout)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
