# SPDX-License-Identifier: Apache-2.0
import re

from nccl_inspector.metrics import load_metrics


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
