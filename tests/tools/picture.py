"""A picture of terminal text, for the docs: python -m tests.tools.picture OUT.png <text

Needs Chromium. nccl-inspector report 1 | python -m tests.tools.picture report.png
"""

import html
import subprocess
import sys
import tempfile
from pathlib import Path

_LINE_PX, _COLUMN_PX, _MARGIN_PX = 18, 8.43, 16
_PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #14171c }}
pre {{ margin: {margin}px; color: #d8dee6; font: 14px/{line}px "DejaVu Sans Mono", monospace }}
</style><pre>{text}</pre>"""


def draw(text: str, out: Path) -> None:
    """Write a PNG of the text. Raises CalledProcessError when Chromium fails."""
    lines = text.rstrip("\n").split("\n")
    width = round(max(map(len, lines)) * _COLUMN_PX) + 2 * _MARGIN_PX
    height = len(lines) * _LINE_PX + 2 * _MARGIN_PX
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(_PAGE.format(margin=_MARGIN_PX, line=_LINE_PX, text=html.escape(text)))
        screenshot(page, out, width, height)


def screenshot(page: Path, out: Path, width: int, height: int) -> None:
    """Write a PNG of a page, size in pixels. Raises CalledProcessError when Chromium fails."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", "--no-first-run",
             f"--user-data-dir={profile}", "--hide-scrollbars", "--virtual-time-budget=8000",
             f"--window-size={width},{height}", f"--screenshot={out.resolve()}", page.as_uri()],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip


if __name__ == "__main__":
    draw(sys.stdin.read(), Path(sys.argv[1]))
