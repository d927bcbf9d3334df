# SPDX-License-Identifier: Apache-2.0
import os
import re
import shutil
import subprocess
from pathlib import Path

from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.exposition.process_file import parse_file
from nccl_inspector.exposition.vocabulary import NET_STATES
from tests.support.repository import BUILD, PLUGIN_DIR, REPO

PAGE = BUILD / "c" / "test_page"


def test_names_end_in_what_they_are() -> None:
    for metric in load_metrics().values():
        assert re.fullmatch(r"nccl_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name


def test_help_needs_no_escape_and_is_a_sentence() -> None:
    for metric in load_metrics().values():
        assert re.fullmatch(r"[A-Z][ !#-\[\]-~]*\.", metric.help), metric.name


def test_no_label_is_one_that_prometheus_reserves() -> None:
    for metric in load_metrics().values():
        assert not {"job", "instance", "le", "quantile"} & set(metric.labels)
        assert not any(label.startswith("__") for label in metric.labels)


def test_every_measured_series_names_its_job_and_node() -> None:
    for metric in load_metrics().values():
        if metric.source == "plugin" and metric.group != "build":
            assert {"cluster", "slurm_job_id", "node"} <= set(metric.labels), metric.name


def test_the_agent_takes_every_metric_that_the_plugin_writes(tmp_path: Path) -> None:
    path = tmp_path / "all.prom"
    subprocess.run([PAGE, path], check=True, stdout=subprocess.DEVNULL)
    written = {series.metric.name for series in parse_file(path.read_bytes(), {}, {}).values()}
    assert written == {one.name for one in load_metrics().values() if one.source == "plugin"}


def test_families_come_in_the_order_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "all.prom"
    subprocess.run([PAGE, path], check=True, stdout=subprocess.DEVNULL)
    families = re.findall(r"^# HELP (\S+) ", path.read_text(), re.MULTILINE)
    assert families == [one.name for one in load_metrics().values() if one.source == "plugin"]


def test_what_the_plugin_writes_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "all.prom"
    subprocess.run([PAGE, path], check=True, stdout=subprocess.DEVNULL)
    uuid = b'gpu_uuid="GPU-1a2b3c4d-0000-1111-2222-333344445555"'
    series = parse_file(path.read_bytes().replace(b'gpu_uuid="GPU-1"', uuid), {}, {})
    assert len(series) > 50
    assert [text for text, one in series.items() if one.text != text] == []


def test_the_states_of_the_network_are_the_plugins() -> None:
    source = (PLUGIN_DIR / "prom" / "text_of_gpu.c").read_text()
    assert tuple(re.findall(r'\[BOX_NET_\w+\] = "(\w+)"', source)) == NET_STATES


def test_the_generated_tables_are_the_same_in_every_locale(tmp_path: Path) -> None:
    """In a Turkish one the capital letter of i is none of ASCII, and the C parts did not build."""
    language = "tr_TR.UTF-8"
    subprocess.run(["localedef", "-i", "tr_TR", "-f", "UTF-8", tmp_path / language], check=True)
    for name in ("Makefile", "packaging", "python/nccl_inspector"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(REPO / name)
    made = {}
    for locale in ("C", language):
        env = {"PATH": os.environ["PATH"], "LOCPATH": str(tmp_path), "LC_ALL": locale}
        names = [f"build/gen/{name}.h" for name in ("settings_table", "metrics_table", "deny_nccl")]
        subprocess.run(["make", "-s", *names], cwd=tmp_path, env=env, check=True)
        made[locale] = [(tmp_path / name).read_text() for name in names]
        shutil.rmtree(tmp_path / "build")
    assert made[language] == made["C"]
    assert "METRIC_NCCL_COLLECTIVE_INFLIGHT_SECONDS" in made["C"][1]
