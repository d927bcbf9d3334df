# SPDX-License-Identifier: Apache-2.0
"""Files that break a rule are refused whole, and nothing else happens."""

import os
from pathlib import Path

import pytest

from nccl_inspector.agent.log_once import Tally
from tests.support.boxes import JOB_UID, line, make_job, metrics_text, names, write_user_file
from tests.support.marks import as_root
from tests.support.publishing import (
    GAUGE,
    GOOD,
    PROM,
    WHOLE,
    labelled,
    one_pass,
    published,
    publisher,
)

HOSTILE = {
    "empty": (b"", "torn"),
    "cut at a line": (line(GAUGE).encode(), "torn"),
    "cut in a line": (GOOD[:40], "torn"),
    "no last newline": (GOOD[:-1], "torn"),
    "label __foo": (labelled(WHOLE + ',__foo="1"'), "unknown_label"),
    "label missing": (labelled(WHOLE[:-14]), "missing_label"),
    "label twice": (labelled(WHOLE + ',node="z"'), "duplicate_label"),
    "labels turned round": (labelled('comm_name="m",' + WHOLE[:-14]), "label_order"),
    "trailing comma": (labelled(WHOLE + ","), "syntax"),
    "no labels": (metrics_text(f"{GAUGE} 1\n"), "syntax"),
    "sample without a name": (metrics_text(f"{{{WHOLE}}} 1\n"), "syntax"),
    "quoted name": (metrics_text(f'{{"{GAUGE}",{WHOLE}}} 1\n'), "syntax"),
    "HELP of another": (metrics_text("# HELP up is it up\n"), "comment"),
    "TYPE of another": (metrics_text("# TYPE node_cpu gaugehistogram\n"), "comment"),
    "free comment": (metrics_text("# hello\n"), "comment"),
    "EOF in the middle": (metrics_text(line(GAUGE), "# EOF\n", line(GAUGE)), "comment"),
    "up": (metrics_text("up 0\n"), "syntax"),
    "node metric": (metrics_text(f"node_cpu_seconds_total{{{WHOLE}}} 1\n"), "unknown_metric"),
    "ALERTS": (metrics_text(f"ALERTS{{{WHOLE}}} 1\n"), "unknown_metric"),
    "root's own word": (metrics_text(line("nccl_inspector_job_info")), "unknown_metric"),
    "agent's metric": (metrics_text(line("nccl_inspector_agent_jobs")), "unknown_metric"),
    "timestamp": (labelled(WHOLE, "1 1700000000000"), "timestamp"),
    "two blanks": (labelled(WHOLE, " 1"), "syntax"),
    "exemplar": (labelled(WHOLE, '1 # {a="b"} 1'), "syntax"),
    "carriage return": (labelled(WHOLE, "1\r"), "bad_number"),
    "NaN": (labelled(WHOLE, "NaN"), "not_finite"),
    "+Inf": (labelled(WHOLE, "+Inf"), "not_finite"),
    "1e999": (labelled(WHOLE, "1e999"), "not_finite"),
    "negative": (labelled(WHOLE, "-1"), "negative"),
    "hex": (labelled(WHOLE, "0x10"), "bad_number"),
    "underscore": (labelled(WHOLE, "1_0"), "bad_number"),
    "no value": (labelled(WHOLE, ""), "syntax"),
    "bad escape": (labelled(WHOLE[:-2] + '\\x"'), "bad_escape"),
    "newline in a label": (labelled(WHOLE[:-2] + '\\n# HELP up"'), "bad_escape"),
    "raw quote in a label": (labelled(WHOLE[:-2] + '"" 1'), "syntax"),
    "control character": (labelled(WHOLE[:-2] + '\x1b[2J"'), "bad_label_value"),
    "NUL": (labelled(WHOLE[:-2] + '\0"'), "bad_label_value"),
    "not ASCII": (labelled(WHOLE).replace(b'"m"', b'"\xc3\xa4"'), "not_ascii"),
    "not UTF-8": (labelled(WHOLE).replace(b'"m"', b'"\xff"'), "not_ascii"),
    "long label": (labelled(WHOLE[:-2] + "m" * 200 + '"'), "bad_label_value"),
    "label of 100 KB": (labelled(WHOLE[:-2] + "m" * 100_000 + '"'), "long_line"),
    "label of 1 MB": (labelled(WHOLE[:-2] + "m" * 1_000_000 + '"'), "too_big"),
    "series twice": (metrics_text(line(GAUGE, "1"), line(GAUGE, "2")), "duplicate_series"),
    "301 series": (
        metrics_text(*[line(GAUGE, rank=str(n)) for n in range(301)]),
        "too_many_series",
    ),
    "a version that is none": (
        metrics_text(line("nccl_inspector_build_info", plugin_version="rm -rf")),
        "bad_label_value",
    ),
    "10^6 series": (b"a 1\n" * 1_000_000 + b"# EOF\n", "too_big"),
}


@pytest.mark.parametrize("was_good", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_breaks_a_rule_is_refused_whole_with_its_reason(
    run_dir: Path, raw: Path, name: str, was_good: bool
) -> None:
    data, reason = HOSTILE[name]
    tally = Tally()
    with publisher(run_dir, tally) as one:
        if was_good:  # what is known of its labels must not help
            write_user_file(raw / PROM, labelled(WHOLE))
            one.run_pass()
            assert names(run_dir / "prom") == ["42.prom"]
            (raw / PROM).unlink()
        write_user_file(raw / PROM, data)
        one.run_pass()
    assert dict(tally.rejected) == {reason: 1}
    assert names(run_dir / "prom") == []


def test_a_symbolic_link_is_not_followed(run_dir: Path, raw: Path) -> None:
    (raw.parent / "elsewhere").write_bytes(GOOD)
    (raw / PROM).symlink_to(raw.parent / "elsewhere")
    assert dict(one_pass(run_dir).rejected) == {"link": 1}


def test_a_fifo_does_not_hang_the_pass(run_dir: Path, raw: Path) -> None:
    os.mkfifo(raw / PROM)
    assert dict(one_pass(run_dir).rejected) == {"not_regular": 1}


def test_a_directory_with_a_files_name_is_refused(run_dir: Path, raw: Path) -> None:
    (raw / PROM).mkdir()
    assert dict(one_pass(run_dir).rejected) == {"not_regular": 1}


@as_root
def test_a_file_of_another_owner_is_refused(run_dir: Path, raw: Path) -> None:
    (raw / PROM).write_bytes(GOOD)
    os.chown(raw / PROM, JOB_UID - 1, -1)
    assert dict(one_pass(run_dir).rejected) == {"wrong_owner": 1}


def test_a_hard_link_made_by_somebody_does_not_spoil_a_file(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    os.link(raw / PROM, run_dir / "another")
    assert one_pass(run_dir).rejected == {}
    assert GAUGE in published(run_dir)


def test_a_file_without_a_box_is_refused(run_dir: Path) -> None:
    raw = make_job(run_dir / "jobs" / "42")
    write_user_file(raw / PROM, GOOD)
    assert dict(one_pass(run_dir).rejected) == {"no_box": 1}
    assert published(run_dir) == ""


@as_root
def test_a_raw_directory_of_another_owner_is_not_read(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    os.chown(raw, JOB_UID - 1, -1)
    one_pass(run_dir)
    assert published(run_dir) == ""


def test_a_flood_of_files_is_cut_and_counted(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.agent.raw_dir.ENTRIES_MAX", 3)
    for number in range(5):
        write_user_file(raw / f"junk{number}", b"")
    assert one_pass(run_dir).rejected["too_many_files"] == 1


def test_a_bad_job_does_not_stop_the_others(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    make_job(run_dir / "jobs" / "7", job=7)
    (run_dir / "jobs" / "7" / "manifest").write_text("torn")
    make_job(run_dir / "jobs" / "8", job=9)
    (run_dir / "jobs" / "9").write_text("a file")
    one_pass(run_dir)
    assert names(run_dir / "prom") == ["42.prom"]
