"""What Zensical builds the site from: the pages, and links that are settled."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docsite import schema

REPO = Path(__file__).resolve().parents[2]
DOC = REPO / "packaging" / "doc"
CONFIG = REPO / "packaging" / "mkdocs.yml"

# Files beside packaging/ that are pages of the site, too.
BESIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_WORKER = Path(__file__).with_name("worker.js")
_FETCHED = "https://unpkg.com/iframe-worker/shim"
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)\s]+)?\)")
_CODE = re.compile(r"`[^`]*`")
_ITEM = re.compile(r"(?:[-*]|[0-9]+\.) +(?=\S)")
_NAV_PAGE = re.compile(r"^ +- (?:.*: )?([\w/-]+\.md)$", re.M)


def settle_links(text: str, folder: Path, repository: str) -> str:
    """Return a page of `folder` whose links to files outside packaging/doc lead somewhere.

    `repository`: the address below which a git host shows the files. Without it the file is named.

    Raises:
        ValueError: there is no such file.
    """

    def settle(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = (folder / target).resolve()
        if path.is_relative_to(DOC):
            return match[0]
        if not path.exists() or not path.is_relative_to(REPO):
            raise ValueError(f"a link to a file that is not there: {target}")
        name = path.relative_to(REPO)
        if str(name) in BESIDE:
            page = os.path.relpath(DOC / BESIDE[str(name)], folder)
            return f"[{words}]({page}{anchor})"
        if repository:
            return f"[{words}]({repository.rstrip('/')}/{name}{anchor})"
        return words if words.strip("`") == str(name) else f"{words} (`{name}`)"

    return _LINK.sub(settle, text)


def plain_cells(text: str) -> str:
    """Return Markdown without the `\\|` that git hosts need in the code of a table's cell.

    Python-Markdown takes a bar in code for text, and would show the backslash.
    """
    return "\n".join(
        _CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in text.split("\n")
    )


def widen_lists(text: str) -> str:
    """Return Markdown as git hosts read it in the form that Python-Markdown needs.

    What belongs to an item of a list is indented by the width of its marker there, by four here.
    """
    done: list[str] = []
    lines = text.split("\n")
    at, fenced = 0, False
    while at < len(lines):
        line = lines[at]
        at += 1
        fenced ^= line.startswith("```")
        match = None if fenced else _ITEM.match(line)
        if match is None:
            done.append(line)
            continue
        width, inside = len(match[0]), [line[len(match[0]) :]]
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" " * width)):
            inside.append(lines[at][width:])
            at += 1
        first, *rest = widen_lists("\n".join(inside)).split("\n")
        done.append(match[0] + first)
        done += [" " * 4 + one if one else "" for one in rest]
        if "" in rest and rest[-1]:  # else the next item would be a line of this one
            done.append("")
    return "\n".join(done)


def lost_pages(config: str, names: set[str]) -> list[str]:
    """Return the pages that the navigation does not lead to."""
    return sorted(names - set(_NAV_PAGE.findall(config)))


def stage(source: Path, folder: Path, repository: str = "") -> None:
    """Make `folder` what Zensical builds from.

    Raises:
        ValueError: a page is in no place of the navigation, or a link leads nowhere.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder / "doc")
    config = CONFIG.read_text("utf-8")
    (folder / "mkdocs.yml").write_text(config, "utf-8")
    members = json.loads((DOC / "report.schema.json").read_text("utf-8"))
    (folder / "doc" / schema.PAGE).write_text(schema.page_of(members), "utf-8")
    for name, page_name in BESIDE.items():
        text = (REPO / name).read_text("utf-8").replace("](packaging/doc/", "](")
        (folder / "doc" / page_name).write_text(text, "utf-8")
    pages = {
        page.relative_to(folder / "doc"): page for page in sorted((folder / "doc").rglob("*.md"))
    }
    if lost := lost_pages(config, {str(name) for name in pages}):
        raise ValueError(f"not in the nav of packaging/mkdocs.yml: {', '.join(lost)}")
    for place, page in pages.items():
        try:
            text = settle_links(page.read_text("utf-8"), DOC / place.parent, repository)
        except ValueError as err:
            raise ValueError(f"{place}: {err}") from err
        page.write_text(plain_cells(widen_lists(text)), "utf-8")


def build(folder: Path) -> tuple[bool, str]:
    """Build the staged site into `site` below; return whether that went well, and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"NO_COLOR": "1"},
    )  # fmt: skip
    if done.returncode == 0:
        _fetch_nothing(folder / "site")
    return done.returncode == 0, done.stdout + done.stderr


def _fetch_nothing(site: Path) -> None:
    """Give the pages our own script in place of the one that they would fetch from the network."""
    shutil.copy(_WORKER, site / "assets" / "javascripts" / _WORKER.name)
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        script = os.path.relpath(site / "assets" / "javascripts" / _WORKER.name, page.parent)
        page.write_text(text.replace(_FETCHED, script), "utf-8")
