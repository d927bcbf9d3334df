"""Pictures of the report's page for the docs: python -m tests.card.pictures (needs Chromium)."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from nccl_inspector.render.html import render_html
from tests import cards
from tests.cluster.layout import REPO
from tests.picture import screenshot

PICTURES = REPO / "packaging" / "doc"
NOW = datetime(2026, 8, 2, 17, tzinfo=UTC)
# Name, width and height in pixels, whether in dark colours.
PAGES = (("report-page", 940, 1110, False), ("report-page-dark", 940, 1110, True))
_DARK = "@media (prefers-color-scheme: dark)"


def main() -> None:
    """Draw the page of the network example, light and dark."""
    page = render_html(cards.network(), NOW)
    with tempfile.TemporaryDirectory() as folder:
        for name, width, height, dark in PAGES:
            path = Path(folder) / "page.html"
            # Headless Chromium has no switch for it that lasts.
            path.write_text(page.replace(_DARK, "@media all") if dark else page, "utf-8")
            picture = PICTURES / f"{name}.png"
            screenshot(path, picture, width, height)
            print(picture, picture.stat().st_size)


if __name__ == "__main__":
    main()
