# SPDX-License-Identifier: Apache-2.0
"""A job tells its throughput, from the command line or Python, and the agent publishes it."""

import os
import statistics
import sys
import tempfile
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_inspector import mark, marking
from nccl_inspector.agent import mark_file as markfile
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.publish import Publisher
from nccl_inspector.cli import cli, main
from tests.support.boxes import give, make_job, make_run_dir, manifest_text, names, write_user_file
from tests.support.clocks import SteppedClock
from tests.support.publishing import published, publisher

GAUGE = "nccl_inspector_job_throughput"
WHO = 'cluster="c1",slurm_job_id="42",node="n1"'


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run_dir(tmp_path / "run")


@pytest.fixture
def raw(run_dir: Path) -> Path:
    return make_job(run_dir / "jobs" / "42")


def marked(raw: Path, throughput: object, unit: object = "TFLOP/s/GPU") -> None:
    marking.write_mark(throughput, unit, raw)
    give(raw / marking.MARK_FILE)


def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[object, str]:
    """Exit status and what stands on stderr."""
    monkeypatch.setattr(sys, "argv", ["nccl-inspector", "mark", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


def test_the_last_mark_is_published_with_its_unit_and_time(run_dir: Path, raw: Path) -> None:
    with publisher(run_dir) as one:
        marked(raw, 310)
        one.run_pass()
        marked(raw, 268.5)
        before_s = time.time()
        one.run_pass()
    text = published(run_dir)
    assert f'\n{GAUGE}{{{WHO},unit="TFLOP/s/GPU"}} 268.5\n' in text
    assert " 310\n" not in text
    (when,) = (one for one in text.splitlines() if one.startswith(f"{GAUGE}_timestamp_seconds"))
    assert abs(float(when.split()[-1]) - before_s) < 5
    assert "nccl_inspector_job_info" in text, "a job that has only a mark is shown too"
    assert names(raw) == [marking.MARK_FILE]


def test_a_job_has_one_gauge_whatever_units_it_tries(run_dir: Path, raw: Path) -> None:
    with publisher(run_dir) as one:
        for unit in marking.UNITS:
            marked(raw, 1, unit)
            one.run_pass()
            assert published(run_dir).count(f"\n{GAUGE}{{") == 1


def test_an_old_mark_goes(run_dir: Path, raw: Path) -> None:
    marked(raw, 314)
    clock = SteppedClock()
    with publisher(run_dir, clock=clock) as one:
        one.run_pass()
        assert GAUGE in published(run_dir)
        clock.ahead_s = markfile.MARK_STALE_S + 1
        one.run_pass()
        assert published(run_dir) == ""
        marked(raw, 314)
        one.run_pass()
    assert GAUGE in published(run_dir)


def test_a_mark_from_before_the_agents_start_has_its_age(run_dir: Path, raw: Path) -> None:
    marked(raw, 314)
    old_s = time.time() - markfile.MARK_STALE_S - 1
    os.utime(raw / marking.MARK_FILE, (old_s, old_s))
    with publisher(run_dir) as one:
        one.run_pass()
    assert published(run_dir) == ""


BAD = {
    "nothing": b"",
    "no end": b"throughput=1\nunit=MFU\n",
    "another unit": b'throughput=1\nunit=x"} 1\\nend\nend\n',
    "unit not known": b"throughput=1\nunit=furlongs\nend\n",
    "not a number": b"throughput=fast\nunit=MFU\nend\n",
    "not finite": b"throughput=nan\nunit=MFU\nend\n",
    "below 0": b"throughput=-1\nunit=MFU\nend\n",
    "too large": b"throughput=1e16\nunit=MFU\nend\n",
    "more lines": b"throughput=1\nunit=MFU\nend\nup 0\n",
    "too long": b"throughput=1\nunit=MFU\nend\n" + b"x" * 1000,
    "not text": b"throughput=\xff\nunit=MFU\nend\n",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_mark_is_refused_and_counted_once(run_dir: Path, raw: Path, name: str) -> None:
    tally = Tally()
    with publisher(run_dir, tally) as one:
        marked(raw, 1, "MFU")
        one.run_pass()
        (raw / marking.MARK_FILE).unlink()
        write_user_file(raw / marking.MARK_FILE, BAD[name])
        one.run_pass()
        one.run_pass()
        assert published(run_dir) == ""
        assert sum(tally.rejected.values()) == 1
        (raw / marking.MARK_FILE).unlink()
        one.run_pass()
    assert sum(tally.rejected.values()) == 1


def test_a_link_is_not_followed(run_dir: Path, raw: Path) -> None:
    tally = Tally()
    (raw / "x").write_text("throughput=1\nunit=MFU\nend\n")
    (raw / marking.MARK_FILE).symlink_to(raw / "x")
    with publisher(run_dir, tally) as one:
        one.run_pass()
    assert dict(tally.rejected) == {"link": 1}


def test_a_requeued_job_begins_without_a_mark(run_dir: Path, raw: Path) -> None:
    def has_mark(one: Publisher) -> bool:
        one.run_pass()
        return GAUGE in published(run_dir)

    marked(raw, 314)
    with publisher(run_dir) as one:
        assert has_mark(one)
        (raw / marking.MARK_FILE).unlink()
        (raw.parent / "manifest").unlink()
        (raw.parent / "manifest").write_text(manifest_text(restart=1))
        assert not has_mark(one)


def test_one_line_of_python_marks(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_INSPECTOR_RUN_DIR", str(raw))
    assert mark(314.25)
    assert (raw / marking.MARK_FILE).read_text() == "throughput=314.25\nunit=TFLOP/s/GPU\nend\n"


def test_a_mark_takes_well_below_a_millisecond_on_a_tmpfs(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setenv("NCCL_INSPECTOR_RUN_DIR", folder)
        for number in range(200):
            begun_s = time.perf_counter()
            assert mark(number, "steps/s")
            times_s.append(time.perf_counter() - begun_s)
    assert statistics.median(times_s) < 0.5e-3


class Tensor:
    """Something that is no number, though it could be asked for one."""

    def __float__(self) -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    "throughput", [float("nan"), float("inf"), -1, 10**400, "314", None, True, Tensor(), Decimal(1)]
)
def test_a_training_loop_never_sees_an_error(
    raw: Path, monkeypatch: pytest.MonkeyPatch, throughput: object
) -> None:
    monkeypatch.setenv("NCCL_INSPECTOR_RUN_DIR", str(raw))
    assert not mark(throughput)  # type: ignore[arg-type]
    assert not mark(1.0, "furlongs")
    assert mark(Fraction(1, 2))  # type: ignore[arg-type]
    monkeypatch.setenv("NCCL_INSPECTOR_RUN_DIR", "/nowhere")
    assert not mark(1.0)
    monkeypatch.delenv("NCCL_INSPECTOR_RUN_DIR")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not mark(1.0)
    assert names(raw) == [marking.MARK_FILE]


def test_the_command_writes_where_slurms_job_is(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conf = tmp_path / "x.conf"
    conf.write_text(f"run_dir = {run_dir}\n")
    monkeypatch.delenv("NCCL_INSPECTOR_RUN_DIR", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    words = ["mark", "--throughput", "314", "--unit", "tokens/s", "--conf", str(conf)]
    done = CliRunner().invoke(cli, words)
    assert (done.exit_code, done.output) == (0, "")
    assert (raw / marking.MARK_FILE).read_text() == "throughput=314.0\nunit=tokens/s\nend\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "the throughput is not a number"),
        (["--throughput", "fast"], "the throughput is not a number"),
        (["--throughput", "-3"], "the throughput is not between 0 and 1e+15"),
        (["--throughput", "nan"], "the throughput is not between 0 and 1e+15"),
        (["--throughput", "3", "--unit", "x\ny"], "unknown unit 'x\\ny'; known: TFLOP/s/GPU, "),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], why: str
) -> None:
    status, said = command(capsys, monkeypatch, *words)
    assert status == 2
    assert said.startswith(f"nccl-inspector: {why}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (None, "not inside a Slurm job: there is no SLURM_JOB_ID"),
        ("../1", "not inside a Slurm job: there is no SLURM_JOB_ID"),
        ("99", "No such file or directory"),
    ],
)
def test_outside_a_job_it_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, job: str | None, why: str
) -> None:
    monkeypatch.delenv("NCCL_INSPECTOR_RUN_DIR", raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    status, said = command(capsys, monkeypatch, "--throughput", "3")
    assert status == 1
    assert said.startswith("nccl-inspector: not marked: ")
    assert why in said
    assert said.count("\n") == 1


def test_the_module_needs_only_pythons_own_library() -> None:
    source = Path(marking.__file__).read_text()
    imports = [row.split()[1] for row in source.splitlines() if row.startswith(("import", "from"))]
    assert set(imports) <= set(sys.stdlib_module_names) | {"collections.abc"}
