"""The monitoring bundle is what the repository shows, and no setting of a site can break it."""

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_inspector.cli import cli
from nccl_inspector.errors import InspectorError
from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.monitoring.bundle import make_bundle, render
from nccl_inspector.monitoring.site import load_settings, make_site
from tests.support.repository import DOC, PACKAGING

CHECKED_IN = PACKAGING / "monitoring"
# Everything that has another name or another way.
OTHER = [
    "source=http", "cluster=alpha", "job_name=nccl", "label_cluster=site", "label_job=jobid",
    "label_node=host", "rate_window=20s", "baseline_window=3m", "baseline_offset=30s",
    "degraded_for=15s", "runbook=https://docs.example.org/nccl/runbook", "shards=3", "shard=2",
]  # fmt: skip
ROLES = {"all": [], "shard": ["shards=3", "shard=2", "role=shard"], "global": ["role=global"]}
# Not ours: Prometheus' and node_exporter's.
FOREIGN = {"node_textfile_scrape_error", "up"}


def promtool(*words: str | Path) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def write(tmp_path: Path, *words: str) -> Path:
    """The bundle as the command writes it, for these `--set` words."""
    options = [word for one in words for word in ("--set", one)]
    argv = ["setup", "monitoring", "--out", str(tmp_path), "--nodes", "n[1-2]", *options]
    done = CliRunner().invoke(cli, argv, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return tmp_path / "prometheus"


def test_the_checked_in_bundle_is_that_of_the_defaults() -> None:
    files = make_bundle(make_site([]), [])
    found = {
        str(path.relative_to(CHECKED_IN)): path.read_text()
        for path in CHECKED_IN.rglob("*")
        if path.is_file()
    }
    assert found == files, "nccl-inspector setup monitoring --out packaging/monitoring"


@pytest.mark.parametrize(
    "words",
    [[], OTHER, ROLES["shard"], ROLES["global"], [*OTHER, "role=shard"], [*OTHER, "role=global"]],
    ids=["defaults", "all other", "shard", "global", "all other, shard", "all other, global"],
)
def test_promtool_has_nothing_to_say(tmp_path: Path, words: list[str]) -> None:
    folder = write(tmp_path, *words)
    rules = [folder / f"nccl-inspector-{name}.yml" for name in ("rules", "alerts")]
    assert promtool("check", "rules", *rules) == ""
    scrape = (folder / "nccl-inspector-scrape.yml").read_text()
    config = folder / "prometheus.yml"
    names = "\n".join(f"  - {path.name}" for path in rules)
    config.write_text(f"rule_files:\n{names}\n{scrape}")
    assert promtool("check", "config", config) == ""


def test_a_sites_names_are_everywhere(tmp_path: Path) -> None:
    folder = write(tmp_path, *OTHER)
    names = ("rules", "alerts", "scrape")
    rules, alerts, scrape = ((folder / f"nccl-inspector-{name}.yml").read_text() for name in names)
    for text in (rules, alerts):
        assert re.findall(r"\b(?:cluster|slurm_job_id|node)\b(?=[,)=])", text) == []
        assert "by (site, jobid" in text
    assert "textfile" not in scrape + alerts
    assert "target_label: jobid" in scrape
    assert "https://docs.example.org/nccl/runbook#ncclstraggler" in alerts
    targets = (folder / "nccl-inspector-targets.yml").read_text()
    assert re.findall(r'"(n\d:\d+)"', targets) == ["n1:9435", "n2:9435"]


@pytest.mark.parametrize(
    "word",
    ["", "rate_window", "colour=red", "rate_window=5", "rate_window=5m]", "label_job=job id",
     "job_name=a'b", "cluster=a\nb", 'runbook=a"b', "cluster=<<1>>", "degraded_ratio=-1",
     "source=both", "port=0", "label_job=job", "label_node=instance", "label_job=__name__",
     "label_node=rank", "label_node=shard", "label_job=node", "label_cluster=slurm_job_id",
     "shards=0", "shard=01", "shard=1", "role=shard", "role=some"],
)  # fmt: skip
def test_a_bad_word_is_refused(word: str) -> None:
    with pytest.raises(InspectorError, match="--set"):
        make_site([word])


def test_a_word_given_twice_is_refused() -> None:
    with pytest.raises(InspectorError, match="twice"):
        make_site(["rate_window=5m", "rate_window=6m"])


def test_two_labels_of_one_name_are_refused() -> None:
    with pytest.raises(InspectorError, match="another label"):
        make_site(["label_job=id", "label_node=id"])


def test_a_label_may_keep_its_own_name() -> None:
    names = ["label_cluster=cluster", "label_job=slurm_job_id", "label_node=hostname"]
    assert make_site(names)["label_node"] == "hostname"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "prometheus").write_text("in the way")
    done = CliRunner().invoke(cli, ["setup", "monitoring", "--out", str(tmp_path)])
    assert isinstance(done.exception, InspectorError)
    assert str(tmp_path / "prometheus") in str(done.exception)


@pytest.mark.parametrize("role", ROLES)
def test_a_sites_names_are_in_the_rules_of_each_role(role: str) -> None:
    names = ["label_cluster=site", "label_job=jobid", "label_node=host"]
    for name in ("rules", "alerts"):
        text = render(name, make_site([*ROLES[role], *names]))
        assert re.findall(r"\b(?:cluster|slurm_job_id|node)\b(?=[,)=])", text) == []
        assert "by (site, jobid" in text


def test_a_global_server_scrapes_the_shards_and_takes_only_what_they_recorded_for_it(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path, "role=global")
    scrape = (folder / "nccl-inspector-scrape.yml").read_text()
    assert "metrics_path: /federate" in scrape
    (asked,) = re.findall(r'__name__=~"(.+)"', scrape)
    recorded = re.findall(r"record: (\S+)", render("rules", make_site(ROLES["shard"])))
    taken = {name for name in recorded if re.fullmatch(asked, name)}
    assert taken == {name for name in recorded if name.startswith("shard:")}
    assert {name.partition(":")[0] for name in set(recorded) - taken} == {"rank"}
    targets = (folder / "nccl-inspector-targets.yml").read_text()
    assert re.findall(r'"(n\d:\d+)"', targets) == ["n1:9090", "n2:9090"]


@pytest.mark.parametrize("role", ROLES)
def test_rule_files_have_only_what_mimir_and_thanos_know(role: str) -> None:
    """Their rulers refuse unknown fields, and Mimir more than 20 rules in a group."""
    known = {
        "": {"groups"},
        "  - ": {"name"},
        "    ": {"interval", "rules"},
        "      - ": {"record", "alert"},
        "        ": {"expr", "for", "labels", "annotations"},
    }
    for name in ("rules", "alerts"):
        text = render(name, make_site(ROLES[role]))
        for place, field in re.findall(r"^( {0,8}(?:- )?)(\w+):", text, re.M):
            assert field in known[place]
        for group in text.split("\n  - name: ")[1:]:
            assert 0 < len(re.findall(r"^      - (?:record|alert):", group, re.M)) <= 20


def test_the_series_of_all_ranks_are_read_and_joined_a_few_times_only() -> None:
    """What takes a server with many ranks long: see tests/bench/rules.py."""
    ranks = render("rules", make_site([])).split("nccl-inspector-ranks")[1].split("  - name: ")[0]
    rules = dict(zip(*[iter(re.split(r"- record: (\S+)\n", ranks)[1:])] * 2, strict=True))
    late, wait = rules["rank:nccl_collective_late:ratio"], rules["rank:nccl_collective_wait:ratio"]
    for rule, reads in ((late, 5), (wait, 4)):
        assert rule.count("rate(nccl_collective_") <= reads
        assert len(re.findall(r" / |group_right|group_left", rule)) <= 2


def test_rules_use_metrics_that_are_there() -> None:
    used = set()
    for name in ("rules", "alerts"):
        text = (CHECKED_IN / "prometheus" / f"nccl-inspector-{name}.yml").read_text()
        recorded = set(re.findall(r"record: (\S+)", text))
        assert all(name.startswith(("job:", "rank:", "gpu:")) for name in recorded)
        used |= set(re.findall(r"(?<![\w:])(?:nccl|node_textfile)_\w+(?![\w:])", text))
    assert used - load_metrics().keys() - FOREIGN == set()


def test_the_runbook_has_every_alert_and_no_other() -> None:
    assert "runbook_url" not in render("alerts", make_site([]))
    alerts = render("alerts", make_site(["runbook=https://docs.example.org/runbook"]))
    names = re.findall(r"alert: (\w+)", alerts)
    assert re.findall(r"^## (\w+)$", (DOC / "runbook.md").read_text(), re.M) == names
    anchors = re.findall(r"runbook_url: \S+#(\w+)", alerts)
    assert anchors == [name.lower() for name in names]
    for what in ("summary", "description"):
        assert alerts.count(f"{what}: ") == len(names)


def test_the_page_has_every_setting() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (?:`(\S+)`)? \| (.+) \|$", (DOC / "monitoring.md").read_text(), re.M
    )
    assert rows == [(one.name, one.default, one.help) for one in load_settings().values()]


@pytest.mark.parametrize("node", ["-rf", "{{7}}", "a b", "n1\n", "", "n1/../x", "${x}"])
def test_what_is_no_name_of_a_host_is_no_target(node: str) -> None:
    with pytest.raises(InspectorError, match="is not the name of a host"):
        make_bundle(make_site([]), ["n1", node])
