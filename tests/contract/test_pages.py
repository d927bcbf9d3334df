"""The pages say what the tables and the code say."""

import re
import subprocess
from pathlib import Path

from nccl_inspector import __version__
from nccl_inspector.capture.members import columns
from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.model.process import DROP_REASONS
from nccl_inspector.settings.config import read_config
from tests.support.repository import DOC, PYTHON_DIR, REPO

TABLE = REPO / "python" / "nccl_inspector" / "settings" / "settings.tsv"
BESIDE = "README", "CONTRIBUTING", "CHANGELOG"
# Their titles are those of tests, in one line.
MADE_BY_RUNS = {"verified.md"}


def internals() -> str:
    """The text of all pages of the internals."""
    pages = sorted((REPO / "packaging" / "doc" / "internals").glob("*.md"))
    assert len(pages) > 10
    return "\n".join(page.read_text() for page in pages)


def settings() -> list[list[str]]:
    lines = TABLE.read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def test_the_page_of_settings_is_the_table() -> None:
    generator = REPO / "packaging" / "gen-settings-page.awk"
    page = subprocess.run(
        ["awk", "-f", generator, TABLE], capture_output=True, text=True, check=True
    ).stdout
    assert (REPO / "packaging" / "doc" / "settings.md").read_text() == page
    assert re.findall(r"^\| `(\w+)`", page, re.M) == [row[0] for row in settings()]


def test_the_readme_is_one_screen() -> None:
    lines = (REPO / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 100


def test_the_sample_configuration_is_valid_with_everything_turned_on(tmp_path: Path) -> None:
    script = REPO / "packaging" / "gen-conf.awk"
    sample = subprocess.run(
        ["awk", "-f", script, TABLE], capture_output=True, text=True, check=True
    ).stdout
    conf = tmp_path / "nccl-inspector.conf"
    conf.write_text(re.sub(r"^#(\w+ =)", r"\1", sample, flags=re.M))
    assert len(re.findall(r"^\w+ =", conf.read_text(), re.M)) == len(settings())
    assert read_config(conf) == read_config(None)


def test_the_internals_name_every_variable_that_spank_sets() -> None:
    text = internals()
    source = (REPO / "spank" / "taskenv.c").read_text() + (REPO / "spank" / "taskenv.h").read_text()
    names = set(re.findall(r'"(NCCL_(?:INSPECTOR|PROFILER)_\w+)"', source))
    assert names
    assert [name for name in sorted(names) if name not in text] == []


def test_the_page_of_metrics_is_the_table() -> None:
    text = (REPO / "packaging" / "doc" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \| (.+) \|$", text, re.M)
    metrics = load_metrics().values()
    assert rows == [(one.name, one.type, one.group, one.help) for one in metrics]
    groups = dict(re.findall(r"^\| (\w+) \| (\w+(?:, \w+)+) \|$", text, re.M))
    assert groups == {one.group: ", ".join(one.labels) for one in metrics}
    reasons = text[text.index("## Why events were dropped") :]
    assert re.findall(r"^\| (\w+) \| [A-Z]", reasons, re.M) == list(DROP_REASONS)


def test_the_internals_name_every_variable_that_the_plugin_reads() -> None:
    text = internals()
    source = (REPO / "plugin" / "config.c").read_text()
    names = set(re.findall(r'"(NCCL_INSPECTOR_\w+)"', source))
    assert len(names) > 15
    assert [name for name in sorted(names) if name not in text] == []


def numbers_of_checks() -> set[str]:
    """Numbers of the defects of NVIDIA's Inspector that a test is there for."""
    folder = REPO / "tests" / "native" / "defects"
    sources = "\n".join(path.read_text() for path in folder.glob("test_*.py"))
    return set(re.findall(r'^@defect\(\s*"([DPS]\d+)"', sources, re.M))


def test_every_defect_of_the_list_has_a_check() -> None:
    letters = {"D": 14, "P": 7, "S": 13}
    listed = {f"{letter}{n + 1}" for letter, last in letters.items() for n in range(last)}
    assert numbers_of_checks() == listed


def test_the_page_of_defects_has_those_that_are_tested() -> None:
    text = (DOC / "compared.md").read_text()
    tested = numbers_of_checks()
    rows = re.findall(r"^\| ([DPS])(\d+) \| .+ \| .+ \|$", text, re.M)
    assert rows == sorted(rows, key=lambda row: (row[0], int(row[1])))
    assert {letter + number for letter, number in rows} == tested
    assert len(rows) == len(tested)


def test_the_page_of_limits_has_those_of_the_box() -> None:
    text = (REPO / "packaging" / "doc" / "limits.md").read_text()
    limits = " ".join(text[text.index("## Limits") :].replace(",", "").split())
    box = (REPO / "plugin" / "box" / "box.h").read_text()
    sizes = {word: int(size) for word, size in re.findall(r"^#define BOX_(\w+) (\d+)u", box, re.M)}
    shared = sizes["OPS"] // 2
    track = (REPO / "plugin" / "hot" / "state.h").read_text()
    rings = int(re.findall(r"^#define TRACK_RINGS (\d+)u", track, re.M)[0])
    for words in (
        f"{sizes['LIVE_COMMS']} live communicators",
        f"{sizes['KEYS']} kinds of operation",
        f"{sizes['PEERS']} peers",
        f"{shared // rings} operations of each thread that calls NCCL of {rings} threads",
        f"and {shared} more that all share",
    ):
        assert words in limits


def _pages() -> list[Path]:
    return [
        *(REPO / "packaging" / "doc").rglob("*.md"), *(REPO / f"{name}.md" for name in BESIDE),
    ]  # fmt: skip


def test_the_files_that_the_pages_name_are_there() -> None:
    places = (REPO, PYTHON_DIR, PYTHON_DIR / "nccl_inspector", REPO / "plugin")
    missing = [
        f"{page.name}: {name}"
        for page in _pages()
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|[ch]|tsv))`", page.read_text())
        if not any((place / name).exists() for place in places)
    ]
    assert missing == []


def test_the_pages_are_wrapped_at_100_columns() -> None:
    pages = _pages()
    long = [
        f"{page.name}:{number}"
        for page in pages
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > 100 and not line.startswith(("|", "    ", "<!--"))
        if page.name not in MADE_BY_RUNS
    ]
    assert long == []


def test_the_changelog_knows_this_version() -> None:
    assert f"## {__version__}" in (REPO / "CHANGELOG.md").read_text()


def test_the_document_has_every_column() -> None:
    document = (DOC / "capture.md").read_text(encoding="utf-8")
    for name, kind, words in columns():
        assert f"| `{name}` | {kind} | {words} |" in document
