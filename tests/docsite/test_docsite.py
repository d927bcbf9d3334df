"""The documentation site: what is done to the pages, and what ends the build."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nccl_inspector.settings.config import load_settings
from tests.docsite.commands import PAGE, commands, commands_page
from tests.docsite.man import write_man_pages
from tests.docsite.site import (
    CONFIG,
    DOC,
    REPO,
    build,
    plain_cells,
    settle_links,
    stage,
    widen_lists,
)

_TYPES = """<script>
setTimeout(() => {
  document.querySelector(".md-search__button").click();
  setTimeout(() => {
    const all = (root) => [...root.querySelectorAll("*")].flatMap(
      (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])]);
    const field = all(document).find((one) => one.matches("input[aria-label=Search]"));
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, "drained");
    field.dispatchEvent(new Event("input", { bubbles: true }));
    setTimeout(() => {
      const found = all(document).filter((one) => one.matches("a[href*='?h=']"));
      document.title = "found " + found.map((one) => one.getAttribute("href")).join(" ");
    }, 4000);
  }, 1500);
}, 800);
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    stage(DOC, folder)
    well, said = build(folder)
    assert well, said
    return folder / "site"


def with_index(folder: Path, text: str) -> Path:
    """Return a folder of pages of which the first has one line more."""
    shutil.copytree(DOC, folder)
    (folder / "index.md").write_text(f"# Home\n\n{text}\n")
    return folder


def test_the_page_of_the_commands_is_what_help_says() -> None:
    assert (DOC / PAGE).read_text("utf-8") == commands_page(), "make docs DOCS_ARGS=--write"


def test_every_command_has_a_man_page_that_says_what_it_is_for(tmp_path: Path) -> None:
    pages = write_man_pages(tmp_path)
    assert len(pages) == len(commands()) + 1 > 18
    assert {page.parent.name for page in pages} == {"man1", "man5", "man8"}
    for page in pages:
        text = page.read_text()
        assert re.search(r"^\.SH NAME\n\S+ \\- \S.+$", text, re.M)
        assert not re.search(r"^'", text, re.M)
    report = (tmp_path / "man1" / "nccl-inspector-report.1").read_text()
    assert "\\fB\\-\\-attempt INTEGER RANGE\\fP" in report
    assert "Exit status 0: healthy" in report
    assert (tmp_path / "man8" / "nccl-inspector-agent.8").exists()


def test_the_man_page_of_the_configuration_has_every_setting(tmp_path: Path) -> None:
    write_man_pages(tmp_path)
    text = (tmp_path / "man5" / "nccl-inspector.conf.5").read_text()
    for setting in load_settings().values():
        assert text.count(f"\n\\fB{setting.name}\\fP") == 1, setting.name


@pytest.mark.skipif(not shutil.which("man"), reason="there is no man")
def test_man_understands_the_pages(tmp_path: Path) -> None:
    for page in write_man_pages(tmp_path):
        shown = subprocess.run(
            ["man", "--warnings", "-l", page], capture_output=True, text=True, check=True,
            env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert "SYNOPSIS" in shown.stdout
        assert shown.stderr == ""


@pytest.mark.long
def test_no_page_of_the_site_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text("utf-8")
        assert re.findall(r"<(?:script|img|iframe)[^>]+src=.?(?:https?:)?//", text) == []
        assert re.findall(r"<link[^>]+href=.?(?:https?:)?//", text) == []


@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no Chromium")
def test_the_search_works_in_a_site_that_was_opened_as_a_file(site: Path, tmp_path: Path) -> None:
    page = site / "try.html"
    page.write_text((site / "index.html").read_text("utf-8").replace("</body>", _TYPES), "utf-8")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         f"--user-data-dir={tmp_path}", "--virtual-time-budget=15000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    title = re.findall(r"<title>(.*?)</title>", done.stdout)[0]
    assert title.startswith("found ")
    assert "troubleshoot.html" in title


@pytest.mark.long
def test_a_broken_anchor_ends_the_build(tmp_path: Path) -> None:
    stage(
        with_index(tmp_path / "doc", "[there](report.md#nothing-of-that-name)"), tmp_path / "work"
    )
    well, said = build(tmp_path / "work")
    assert not well
    assert "anchor does not exist" in said


@pytest.mark.long
def test_a_link_to_a_page_that_is_not_there_ends_the_build(tmp_path: Path) -> None:
    stage(with_index(tmp_path / "doc", "[there](nothing.md)"), tmp_path / "work")
    well, said = build(tmp_path / "work")
    assert not well
    assert "page does not exist" in said


def test_a_page_that_the_navigation_does_not_lead_to_is_an_error(tmp_path: Path) -> None:
    pages = with_index(tmp_path / "doc", "")
    (pages / "lost.md").write_text("# Lost\n")
    (pages / "internals" / "lost.md").write_text("# Lost, too\n")
    lost = r"not in the nav of packaging/mkdocs.yml: internals/lost.md, lost.md"
    with pytest.raises(ValueError, match=lost):
        stage(pages, tmp_path / "work")


def test_the_navigation_goes_from_the_first_look_to_the_internals() -> None:
    navigation = CONFIG.read_text("utf-8").partition("\nnav:\n")[2]
    assert re.findall(r"^  - ([^:]+):", navigation, re.M) == [
        "Home", "Try", "Install", "Roll out", "Check and troubleshoot", "For users", "Findings",
        "Monitoring and runbooks", "Containers and launchers", "Security model", "Operate",
        "Reference", "Internals", "Compared and verified",
    ]  # fmt: skip


def test_a_link_out_of_the_docs_names_the_file_or_leads_to_the_git_host() -> None:
    text = "see [the list](../../spank/hooks.c#L3) and [`Makefile`](../../Makefile)"
    assert settle_links(text, DOC, "") == "see the list (`spank/hooks.c`) and `Makefile`"
    assert settle_links(text, DOC, "https://git.example/x/") == (
        "see [the list](https://git.example/x/spank/hooks.c#L3)"
        " and [`Makefile`](https://git.example/x/Makefile)"
    )


def test_a_link_to_a_file_that_is_a_page_of_the_site_leads_to_that_page() -> None:
    assert settle_links("[rules](../../CONTRIBUTING.md)", DOC, "") == "[rules](contributing.md)"
    inside = settle_links("[rules](../../../CONTRIBUTING.md)", DOC / "internals", "")
    assert inside == "[rules](../contributing.md)"


def test_a_link_from_a_folder_of_pages_to_another_page_stays() -> None:
    text = "[install](../install.md#remove) and [JSON](../report-json.md)"
    assert settle_links(text, DOC / "internals", "") == text


@pytest.mark.parametrize("target", ["../../nothing.c", "../../../elsewhere"])
def test_a_link_to_a_file_that_is_not_there_is_an_error(target: str) -> None:
    with pytest.raises(ValueError, match="not there"):
        settle_links(f"[x]({target})", DOC, "")


def test_what_belongs_to_an_item_stays_in_it() -> None:
    assert widen_lists("1. one\n\n       code\n\n   more\n2. two\n   lines\nend") == (
        "1. one\n\n        code\n\n    more\n\n2. two\n    lines\nend"
    )
    assert widen_lists("- a\n  - b\n    c") == "- a\n    - b\n        c"
    fenced = "```\n- a\n  - b\n```"
    assert widen_lists(fenced) == fenced


def test_a_bar_in_the_code_of_a_cell_has_no_backslash() -> None:
    assert plain_cells("| `a\\|b` | c\\|d |") == "| `a|b` | c\\|d |"


def test_the_pages_say_nothing_of_this_machine() -> None:
    for page in DOC.rglob("*.md"):
        assert str(REPO) not in page.read_text("utf-8")
