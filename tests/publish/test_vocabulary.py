# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
from pathlib import Path

import pytest

from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.exposition.process_file import parse_file
from nccl_inspector.exposition.vocabulary import (
    COMM_NAMES_MAX,
    LABEL_VALUES_MAX,
    NET_STATES,
    OTHER,
    Vocabulary,
    checked_word,
)
from tests.boxes import line, metrics_text
from tests.publish.helpers import GAUGE

REPO = Path(__file__).parents[2]
FREE = {"comm_name", "value", "plugin_version", "nccl_version"}
IDENTITY = {"cluster", "slurm_job_id", "slurm_nodelist", "node", "process"}


def test_what_the_plugin_writes_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "all.prom"
    expo = REPO / "build/c/test_expo"
    subprocess.run([expo, path], check=True, stdout=subprocess.DEVNULL)
    uuid = b'gpu_uuid="GPU-1a2b3c4d-0000-1111-2222-333344445555"'
    series = parse_file(path.read_bytes().replace(b'gpu_uuid="GPU-1"', uuid), {}, {})
    assert len(series) > 50
    assert [text for text, one in series.items() if one.text != text] == []


def test_every_label_that_a_user_writes_has_a_vocabulary() -> None:
    for metric in load_metrics().values():
        if metric.source == "plugin":
            for label in {*metric.labels} - FREE - IDENTITY:
                assert checked_word(label, "no word of any plugin") == OTHER, label


def test_the_states_of_the_network_are_the_plugins() -> None:
    source = (REPO / "plugin" / "prom" / "text_of_gpu.c").read_text()
    assert tuple(re.findall(r'\[BOX_NET_\w+\] = "(\w+)"', source)) == NET_STATES


@pytest.mark.parametrize(
    ("label", "value"),
    [("collective", "AllReduce"), ("collective", "Unknown"), ("algo_proto", "NVLS_TREE_SIMPLE"),
     ("algo_proto", "CE"), ("message_size", "0-2B"), ("message_size", "512-1024KB"),
     ("message_size", "512-513MB"), ("comm", "0x9e3779b97f4a7c15"), ("comm", ""), ("rank", ""),
     ("gpu", "GPU0"), ("gpu", "GPU-1a2b3c4d"), ("gpu", "unknown"), ("rank", "16383"),
     ("pci_bus_id", "0000:1b:00.0"), ("gpu_uuid", "GPU-1a2b3c4d-0000-1111-2222-333344445555")],
)  # fmt: skip
def test_words_of_our_plugin_and_of_nvidias_stay(label: str, value: str) -> None:
    assert checked_word(label, value) == value


@pytest.mark.parametrize(
    ("label", "value"),
    [("collective", "AllReduce2"), ("algo_proto", "RING_RING"), ("message_size", "1-3MB"),
     ("message_size", "64-128kb"), ("comm", "0x"), ("comm", "1f"), ("rank", "0000000000"),
     ("rank", "1e3"), ("gpu", "GPU"), ("version", "v1"), ("nranks", "\\\\")],
)  # fmt: skip
def test_any_other_word_becomes_other(label: str, value: str) -> None:
    assert checked_word(label, value) == OTHER


@pytest.mark.parametrize(
    ("label", "most"), [("comm_name", COMM_NAMES_MAX), ("value", LABEL_VALUES_MAX)]
)
def test_of_words_that_a_job_chooses_only_the_first_are_shown(label: str, most: int) -> None:
    words = Vocabulary()
    names = [f"pg {number}" for number in range(most)]
    assert [words.word(label, name) for name in names] == names
    assert words.word(label, "one more") == OTHER
    assert words.word(label, names[3]) == names[3], "those that were first stay"


def test_a_made_up_collective_is_published_as_other() -> None:
    (one,) = parse_file(metrics_text(line(GAUGE, gpu="H800", rank="x")), {}, {}).values()
    assert 'gpu="other",rank="other"' in one.text
