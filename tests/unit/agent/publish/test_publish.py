# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nccl_inspector.agent import publish
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.raw_dir import box_name, in_turns
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.exposition.process_file import parse_file
from nccl_inspector.exposition.text import cut_nodelist, make_series, render
from nccl_inspector.system.atomic import replace_file
from tests.support.boxes import (
    BoxOf,
    fixed_chance,
    line,
    lock_held,
    make_job,
    manifest_text,
    metrics_text,
    names,
    write_box,
    write_user_file,
)
from tests.support.publishing import (
    GAUGE,
    GOOD,
    OPS,
    PROM,
    STEM,
    WHOLE,
    labelled,
    one_pass,
    published,
    publisher,
)


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
    gpu = line("nccl_gpu_info", gpu="GPU0", pci_bus_id="0000:1b:00.0")
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
        f'{GAUGE}{{{who},gpu="GPU0",rank="3",comm="0x1f",comm_name="a\\"b\\\\"}} 0.25\n'
        f'{GAUGE}{{{who},gpu="GPU0",rank="4",comm="0x1f",comm_name="x"}} 0\n'
        "# HELP nccl_gpu_info The physical GPU that a value of the label gpu means; always 1.\n"
        "# TYPE nccl_gpu_info gauge\n"
        f'nccl_gpu_info{{{who},gpu="GPU0",gpu_uuid="unknown",pci_bus_id="0000:1b:00.0"}} 1\n'
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
    monkeypatch.setattr("nccl_inspector.agent.job_files.JOB_SERIES_MAX", 3)
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
    monkeypatch.setattr("nccl_inspector.agent.log_once._LOST_A_JOB", 3)
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
    monkeypatch.setattr("nccl_inspector.agent.job_files.JOB_FILES_MAX", 2)
    for number in range(5):
        name = f"nccl_inspector_metrics_n{number}_{STEM}.prom"
        write_user_file(raw / name, metrics_text(line(GAUGE, rank=str(number))))
    assert dict(one_pass(run_dir).rejected) == {"too_many_files": 1}
    assert published(run_dir).count("\n" + GAUGE) == 2


def test_a_process_with_many_boxes_hides_no_other_process() -> None:
    boxes = [(box_name(f"0_1.{number}"), f"0_1.{number}") for number in range(300)]
    boxes += [(box_name(f"9_{pid}"), f"9_{pid}") for pid in range(20)]
    chosen = {stem for _, stem in in_turns(sorted(boxes), 64)}
    assert len(chosen) == 64
    assert {f"9_{pid}" for pid in range(20)} < chosen


def test_what_counts_against_a_job_is_kept_where_only_root_reads_it(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.agent.series_budget.GPU_SERIES_MAX", 1)  # of two GPUs
    three = [line(GAUGE, rank=str(rank)) for rank in range(3)]
    write_user_file(raw / PROM, metrics_text(*three))
    one_pass(run_dir)
    assert published(run_dir).count("\n" + GAUGE) == 2
    record = raw.parent / "series"
    assert record.stat().st_mode & 0o7777 == 0o600
    write_user_file(raw / "other", metrics_text(*three[::-1])).rename(raw / PROM)
    one_pass(run_dir)  # another agent
    assert 'rank="2"' not in published(run_dir)
    record.write_bytes(b"spoilt")
    assert dict(one_pass(run_dir).rejected) == {"bad_series_budget": 1}
    assert published(run_dir).count("\n" + GAUGE) == 2


def test_a_job_that_takes_too_long_is_cut(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.agent.job_files.JOB_S", -1)
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
    monkeypatch.setattr(publish, "PASS_S", 0)  # one job has its turn all the same
    with publisher(run_dir) as one:
        with lock_held(boxes[41]), lock_held(boxes[42]), lock_held(boxes[43]):
            seen = []
            for _ in range(3):
                one.run_pass()
                seen.append(names(run_dir / "prom"))
        assert seen == [["41.prom"], ["41.prom", "42.prom"], ["41.prom", "42.prom", "43.prom"]]
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
            series = parse_file(bytes(data), {}, {}).values()
        except RefusedError:
            continue
        assert all(one.metric.source == "plugin" for one in series)
        parse_file(render(series) + b"# EOF\n", {}, {})


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
