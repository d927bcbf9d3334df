"""The documentation site and the man pages: python -m tests.docsite (`make docs`).

The pages are those of packaging/doc. Three things are done on the way to build/site:

- The page of the commands must be what click says of them; `--write` writes it.
- The page of the report's JSON is made of its schema.
- Links that leave packaging/doc are settled, because a site has no folder above it.

Zensical then builds strictly: a broken link or anchor ends it.
"""

import argparse
import shutil
import sys

from tests.docsite.commands import PAGE, commands_page
from tests.docsite.man import write_man_pages
from tests.docsite.site import DOC, REPO, build, stage

BUILD = REPO / "build"


def main() -> int:
    """Build all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.docsite")
    parser.add_argument("--write", action="store_true", help="the page of the commands, anew")
    parser.add_argument("--repository", default="", help="where a git host shows the files")
    wish = parser.parse_args()
    page = DOC / PAGE
    if wish.write:
        page.write_text(commands_page(), "utf-8")
    elif page.read_text("utf-8") != commands_page():
        print(f"{page.relative_to(REPO)} is not what --help says: make docs DOCS_ARGS=--write")
        return 1
    work = BUILD / "docs"
    try:
        stage(DOC, work, wish.repository)
    except ValueError as err:
        print(err)
        return 1
    well, said = build(work)
    if not well:
        print(said)
        return 1
    site = BUILD / "site"
    shutil.rmtree(site, ignore_errors=True)
    (work / "site").rename(site)
    shutil.rmtree(BUILD / "man", ignore_errors=True)
    pages = write_man_pages(BUILD / "man")
    print(f"build/site: {len(list(site.rglob('*.html')))} pages; build/man: {len(pages)} man pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
