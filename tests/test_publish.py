# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nccl_inspector import publish
from nccl_inspector.atomic import replace_file
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition import cut_nodelist, make_series, parse_file, render
from nccl_inspector.metrics import load_metrics
from nccl_inspector.publish import Publisher
from nccl_inspector.tally import Tally
from tests.boxes import (
    JOB_UID,
    BoxOf,
    fixed_chance,
    line,
    lock_held,
    make_job,
    make_run_dir,
    manifest_text,
    metrics_text,
    names,
    write_box,
    write_user_file,
)

GAUGE = "nccl_collective_inflight_seconds"
OPS = "nccl_collective_operations_total"
STEM = "0_77"
PROM = f"nccl_inspector_metrics_GPU-1a2b_{STEM}.prom"
GOOD = metrics_text(line(GAUGE, "0.25", rank="3"))

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@contextmanager
def publisher(run_dir: Path, tally: Tally | None = None) -> Iterator[Publisher]:
    run_fd = os.open(run_dir, os.O_RDONLY)
    one = Publisher(run_fd, "", tally or Tally())
    try:
        yield one
    finally:
        one.close()
        os.close(run_fd)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run_dir(tmp_path / "run")


@pytest.fixture
def raw(run_dir: Path) -> Iterator[Path]:
    """The raw directory of job 42, in which one process lives."""
    raw = make_job(run_dir / "jobs" / "42")
    with lock_held(write_box(raw, STEM, BoxOf(state=1))):
        yield raw


def published(run_dir: Path, job: int = 42) -> str:
    path = run_dir / "prom" / f"{job}.prom"
    return path.read_text() if path.exists() else ""


def one_pass(run_dir: Path) -> Tally:
    tally = Tally()
    with publisher(run_dir, tally) as one:
        one.run_pass()
    return tally


def labelled(pairs: str, value: str = "1") -> bytes:
    return metrics_text(f"{GAUGE}{{{pairs}}} {value}\n")


WHOLE = 'cluster="c",slurm_job_id="1",node="n",gpu="g",rank="0",comm="c",comm_name="m"'

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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_breaks_a_rule_is_refused_whole_with_its_reason(
    run_dir: Path, raw: Path, name: str
) -> None:
    data, reason = HOSTILE[name]
    write_user_file(raw / PROM, data)
    tally = one_pass(run_dir)
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
    monkeypatch.setattr("nccl_inspector.rawdir.ENTRIES_MAX", 3)
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


def test_a_spoofed_identity_is_overwritten_with_the_manifests(run_dir: Path, raw: Path) -> None:
    text = line(
        OPS, "5", slurm_job_id="999", cluster="other", node="victim", slurm_nodelist="v[1-9]"
    )
    write_user_file(raw / PROM, metrics_text(text))
    one_pass(run_dir)
    (series,) = [one for one in published(run_dir).splitlines() if one.startswith(OPS)]
    assert 'cluster="c1",slurm_job_id="42",slurm_nodelist="n[1-4]",node="n1"' in series
    assert "999" not in series
    assert "victim" not in series


def test_the_process_of_a_series_is_the_files(run_dir: Path, raw: Path) -> None:
    name = "nccl_inspector_self_seconds_total"
    write_user_file(raw / PROM, metrics_text(line(name, "0.5", process="9_9")))
    one_pass(run_dir)
    assert f'process="{STEM}"}} 0.5' in published(run_dir)


def test_help_and_type_are_the_tables_whatever_the_file_says(run_dir: Path, raw: Path) -> None:
    help_line = f"# HELP {GAUGE} Another text.\n# TYPE {GAUGE} counter\n"
    write_user_file(raw / PROM, metrics_text(help_line, line(GAUGE)))
    one_pass(run_dir)
    assert f"# TYPE {GAUGE} gauge\n" in published(run_dir)
    assert "Another text" not in published(run_dir)


def test_a_values_text_is_copied_not_formatted(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, labelled(WHOLE, "0.10000000000000001"))
    one_pass(run_dir)
    assert "} 0.10000000000000001\n" in published(run_dir)


def test_published_text_is_exactly_this(run_dir: Path, raw: Path) -> None:
    other = "nccl_inspector_metrics_unknown_0_78.prom"
    gpu = line("nccl_gpu_info", gpu="GPU0", gpu_uuid="u", pci_bus_id="p")
    write_user_file(
        raw / PROM, metrics_text(gpu, line(GAUGE, "0.25", rank="3", comm_name='a\\"b\\\\'))
    )
    write_user_file(raw / other, metrics_text(gpu, line(GAUGE, "0", rank="4")))
    with lock_held(write_box(raw, "0_78", BoxOf(state=1))):
        one_pass(run_dir)
    who = 'cluster="c1",slurm_job_id="42",node="n1"'
    info = 'cluster="c1",slurm_job_id="42",slurm_nodelist="n[1-4]",node="n1",'
    info += 'user="amy",account="phys",partition="gpu"'
    assert published(run_dir) == (
        f"# HELP {GAUGE} {load_metrics()[GAUGE].help}\n"
        f"# TYPE {GAUGE} gauge\n"
        f'{GAUGE}{{{who},gpu="x",rank="3",comm="x",comm_name="a\\"b\\\\"}} 0.25\n'
        f'{GAUGE}{{{who},gpu="x",rank="4",comm="x",comm_name="x"}} 0\n'
        "# HELP nccl_gpu_info Which physical GPU a label gpu means; always 1.\n"
        "# TYPE nccl_gpu_info gauge\n"
        f'nccl_gpu_info{{{who},gpu="GPU0",gpu_uuid="u",pci_bus_id="p"}} 1\n'
        "# HELP nccl_inspector_job_info What Slurm says of a measured job; always 1, for joins.\n"
        "# TYPE nccl_inspector_job_info gauge\n"
        f"nccl_inspector_job_info{{{info}}} 1\n"
    )


def test_series_of_a_killed_process_go_and_it_counts_as_lost_once(run_dir: Path) -> None:
    raw, tally = make_job(run_dir / "jobs" / "42"), Tally()
    box = write_box(raw, STEM, BoxOf(state=1))
    write_user_file(raw / PROM, GOOD)
    with publisher(run_dir, tally) as one:
        with lock_held(box):
            one.run_pass()
            assert (GAUGE in published(run_dir), tally.lost) == (True, 0)
        one.run_pass()
        one.run_pass()
    assert (published(run_dir), tally.lost) == ("", 1)


@pytest.mark.parametrize("state", [2, 3])
def test_a_process_that_ended_in_order_is_not_published_and_not_lost(
    run_dir: Path, state: int
) -> None:
    raw = make_job(run_dir / "jobs" / "42")
    write_box(raw, STEM, BoxOf(state=state))
    write_user_file(raw / PROM, GOOD)
    assert one_pass(run_dir).lost == 0
    assert published(run_dir) == ""


def test_the_file_of_a_job_that_is_gone_goes(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    with publisher(run_dir) as one:
        one.run_pass()
        (run_dir / "jobs" / "42").rename(run_dir / "ended" / "42.1")
        one.run_pass()
    assert names(run_dir / "prom") == []


def test_a_job_that_ends_while_it_is_published_leaves_no_file(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_then_replace(dir_fd: int, name: str, data: bytes, mode: int) -> None:
        shutil.rmtree(run_dir / "jobs" / "42")  # the epilog's rename and unlink, just before ours
        replace_file(dir_fd, name, data, mode)

    monkeypatch.setattr(publish, "replace_file", end_then_replace)
    write_user_file(raw / PROM, GOOD)
    one_pass(run_dir)
    assert names(run_dir / "prom") == []


def test_an_idle_pass_writes_nothing_but_restores_what_was_deleted(
    run_dir: Path, raw: Path
) -> None:
    write_user_file(raw / PROM, GOOD)
    path = run_dir / "prom" / "42.prom"
    with publisher(run_dir) as one:
        one.run_pass()
        before = path.stat().st_ino
        one.run_pass()
        assert path.stat().st_ino == before
        path.unlink()
        one.run_pass()
    assert path.exists()


def test_a_refused_file_counts_once_until_it_changes(run_dir: Path, raw: Path) -> None:
    tally = Tally()
    write_user_file(raw / PROM, b"bad")
    with publisher(run_dir, tally) as one:
        one.run_pass()
        one.run_pass()
        assert dict(tally.rejected) == {"torn": 1}
        (raw / PROM).unlink()
        write_user_file(raw / PROM, b"worse")
        one.run_pass()
        assert dict(tally.rejected) == {"torn": 2}
        (raw / PROM).unlink()
        write_user_file(raw / PROM, GOOD)
        one.run_pass()
    assert GAUGE in published(run_dir)


def test_a_requeued_job_begins_anew(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    with publisher(run_dir) as one:
        one.run_pass()
        (raw.parent / "manifest").unlink()
        (raw.parent / "manifest").write_text(manifest_text(restart=1, node="n2"))
        one.run_pass()
    assert 'node="n2"' in published(run_dir)


def test_a_jobs_series_are_capped_by_whole_files(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.jobfiles.JOB_SERIES_MAX", 3)
    two = metrics_text(line(GAUGE, rank="1"), line(GAUGE, rank="2"))
    write_user_file(raw / PROM, two)
    write_user_file(raw / f"nccl_inspector_metrics_unknown_{STEM}.prom", two)
    assert dict(one_pass(run_dir).rejected) == {"job_series": 1}
    assert published(run_dir).count("\n" + GAUGE) == 2


def test_build_information_is_for_the_agents_file(run_dir: Path, raw: Path) -> None:
    build = line("nccl_inspector_build_info", plugin_version="0.1.0", nccl_version="2.30.7")
    write_user_file(raw / PROM, metrics_text(line(GAUGE), build))
    with publisher(run_dir) as one:
        one.run_pass()
        assert render(one.build_info()).endswith(
            b'plugin_version="0.1.0",nccl_version="2.30.7"} 1\n'
        )
    assert "build_info" not in published(run_dir)


def test_build_information_is_bounded(run_dir: Path, raw: Path) -> None:
    builds = [
        line("nccl_inspector_build_info", plugin_version=f"0.{n}", nccl_version="2")
        for n in range(9)
    ]
    write_user_file(raw / PROM, metrics_text(line(GAUGE), *builds))
    with publisher(run_dir) as one:
        one.run_pass()
        assert len(one.build_info()) == 4


def test_boxes_that_die_under_new_names_count_once_and_are_bounded(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.tally._LOST_A_JOB", 3)
    raw, tally = make_job(run_dir / "jobs" / "42"), Tally()
    box = write_box(raw, "0_1", BoxOf(state=1))
    with publisher(run_dir, tally) as one:
        for number in range(2, 5):
            one.run_pass()
            box = box.rename(raw / f"nccl_inspector_0_{number}.box")
        assert tally.lost == 1
        for number in range(5, 10):
            write_box(raw, f"0_{number}", BoxOf(state=1))
        one.run_pass()
    assert tally.lost == 3


def test_many_names_of_one_file_are_one_file(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    for number in range(3):
        os.link(raw / PROM, raw / f"nccl_inspector_metrics_n{number}_{STEM}.prom")
    assert dict(one_pass(run_dir).rejected) == {"same_file": 3}
    assert GAUGE in published(run_dir)


def test_a_jobs_files_are_capped(run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccl_inspector.jobfiles.JOB_FILES_MAX", 2)
    for number in range(5):
        name = f"nccl_inspector_metrics_n{number}_{STEM}.prom"
        write_user_file(raw / name, metrics_text(line(GAUGE, rank=str(number))))
    assert dict(one_pass(run_dir).rejected) == {"too_many_files": 1}
    assert published(run_dir).count("\n" + GAUGE) == 2


def test_a_job_that_takes_too_long_is_cut(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.jobfiles.JOB_S", -1)
    write_user_file(raw / PROM, GOOD)
    assert dict(one_pass(run_dir).rejected) == {"too_slow": 1}
    assert published(run_dir) == ""


def test_jobs_for_which_a_pass_has_no_time_come_first_in_the_next(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = {}
    for job in (41, 42, 43):
        raw = make_job(run_dir / "jobs" / str(job), job)
        boxes[job] = write_box(raw, STEM, BoxOf(state=1))
        write_user_file(raw / PROM, GOOD)
    clock = [0.0]

    def tick() -> float:
        clock[0] += 0.3
        return clock[0]

    monkeypatch.setattr("nccl_inspector.publish.time.monotonic", tick)
    monkeypatch.setattr(publish, "PASS_S", 0.5)
    with publisher(run_dir) as one:
        with lock_held(boxes[41]), lock_held(boxes[42]), lock_held(boxes[43]):
            seen = []
            for _ in range(3):
                one.run_pass()
                seen.append(names(run_dir / "prom"))
        assert seen == [["41.prom"], ["41.prom", "42.prom"], ["41.prom", "42.prom", "43.prom"]]
        monkeypatch.setattr(publish, "PASS_S", 0)
        one.run_pass()
    assert names(run_dir / "prom") == [], "the dead are withdrawn in time or not"


def test_a_series_of_two_processes_that_differs_is_counted(run_dir: Path, raw: Path) -> None:
    tally = Tally()
    write_user_file(raw / PROM, metrics_text(line("nccl_gpu_info"), line(GAUGE, "1")))
    other = raw / "nccl_inspector_metrics_unknown_0_78.prom"
    write_user_file(other, metrics_text(line("nccl_gpu_info"), line(GAUGE, "2")))
    box = write_box(raw, "0_78", BoxOf(state=1))
    with lock_held(box), publisher(run_dir, tally) as one:
        one.run_pass()
        one.run_pass()
    assert dict(tally.rejected) == {"duplicate_series": 1}
    assert published(run_dir).count("\n" + GAUGE) == 1


def test_promtool_finds_nothing_wrong_with_every_metric_published(run_dir: Path, raw: Path) -> None:
    names = [metric.name for metric in load_metrics().values() if metric.source == "plugin"]
    write_user_file(raw / PROM, metrics_text(*map(line, names)))
    assert one_pass(run_dir).rejected == {}
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=published(run_dir), capture_output=True, text=True
    )
    ours = [one for one in done.stderr.splitlines() if not one.startswith("nccl_p2p_exec_time_")]
    ours = [one for one in ours if not one.startswith("nccl_collective_exec_time_")]
    assert ours == []


def test_a_spoilt_file_is_refused_or_taken_and_nothing_else_happens() -> None:
    chance = fixed_chance(4)
    good = metrics_text(line(GAUGE, "0.25"), line(OPS, "7", comm_name='a\\"b'))
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice(b'\\"{},= \n#_e9-\xff\0N')
        try:
            series = parse_file(bytes(data))
        except RefusedError:
            continue
        assert all(one.metric.source == "plugin" for one in series)
        parse_file(render(series) + b"# EOF\n")


def test_a_long_node_list_is_cut_at_a_comma_and_says_how_much_is_left_out() -> None:
    nodes = ",".join(f"node{number:04}" for number in range(100))
    cut = cut_nodelist(nodes)
    kept, rest = cut.split(",+")
    assert len(cut) <= 256
    assert nodes.startswith(kept + ",")
    assert kept.count(",") + 1 + int(rest) == 100
    assert cut_nodelist("n[1-4]") == "n[1-4]"
    assert len(cut_nodelist("x" * 1000)) <= 256


def test_our_own_labels_are_escaped() -> None:
    series = make_series("nccl_inspector_agent_jobs", {"cluster": 'a"b\\\n', "node": "n"}, "1")
    assert b'cluster="a\\"b\\\\\\n"' in render([series])


def test_leftovers_of_a_killed_agent_go_and_stop_withdraws_everything(
    run_dir: Path, raw: Path
) -> None:
    write_user_file(raw / PROM, GOOD)
    (run_dir / "prom" / ".42.prom.tmp").write_text("half")
    (run_dir / "prom" / "other.prom").write_text("not ours")
    with publisher(run_dir) as one:
        one.run_pass()
        one.write_own([])
        one.stop()
    assert names(run_dir / "prom") == ["other.prom"]
