"""The option where users write it: sbatch, srun, salloc, #SBATCH, and steps within a job."""

import re

import pytest

from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.support.marks import long_but
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import raw_files

ENVIRONMENT = "env | grep ^NCCL_ | sort"
SHORT = ("--steps", "3", *jobs.QUICK)
# What is refused or taken in one place of the plugin, however it was said, is a short test once.
ONE_SHORT = long_but({"prom"}, ["prom", "report", "off"])


def mode(text: str) -> str:
    """What the task whose environment this is will do."""
    found = re.findall("^NCCL_INSPECTOR_PROM_DUMP=([01])$", text, re.MULTILINE)
    profiler = re.findall("^NCCL_PROFILER_PLUGIN=.*/libnccl-profiler-inspector.so$", text, re.M)
    assert len(found) == len(profiler) <= 1
    return {"1": "prom", "0": "report"}[found[0]] if found else "off"


def batch(cluster: Cluster, *words: str, lines: str = "") -> str:
    """What a batch script's own step says of its environment."""
    job_id = jobs.submit(cluster, "-N1", *words, script=f"{lines}\n{ENVIRONMENT}")
    assert cluster.wait_for_job(job_id).state in ("COMPLETED", "FAILED")  # grep found nothing
    return mode(jobs.output(cluster, job_id))


def command(cluster: Cluster, *argv: str, env: dict[str, str] | None = None) -> str:
    """What a task says that a command started at once."""
    done = cluster.run_as(JOB_USER, [*argv, "sh", "-c", f"{ENVIRONMENT}; exit 0"], env=env)
    assert done.returncode == 0, done.stderr
    return mode(done.stdout)


# Each command.


@pytest.mark.case("Options", "a mode for srun, sbatch, `#SBATCH`, salloc")
@pytest.mark.parametrize("wanted", ["prom", "report", "off"])
def test_srun_takes_the_option(healthy_cluster: Cluster, wanted: str) -> None:
    assert command(healthy_cluster, "srun", "-N1", f"--nccl-inspector={wanted}") == wanted


@pytest.mark.case("Options", "a mode for srun, sbatch, `#SBATCH`, salloc")
@pytest.mark.parametrize("wanted", ["prom", "report", "off"])
def test_sbatch_takes_the_option(healthy_cluster: Cluster, wanted: str) -> None:
    assert batch(healthy_cluster, f"--nccl-inspector={wanted}") == wanted


@pytest.mark.case("Options", "a mode for srun, sbatch, `#SBATCH`, salloc")
@pytest.mark.parametrize("wanted", ONE_SHORT)
def test_a_line_in_the_script_is_the_option(healthy_cluster: Cluster, wanted: str) -> None:
    assert batch(healthy_cluster, lines=f"#SBATCH --nccl-inspector={wanted}") == wanted


@pytest.mark.case("Options", "the command line wins over `#SBATCH`")
def test_the_command_line_wins_over_the_line_in_the_script(healthy_cluster: Cluster) -> None:
    line = "#SBATCH --nccl-inspector=prom"
    assert batch(healthy_cluster, "--nccl-inspector=report", lines=line) == "report"


@pytest.mark.case("Options", "a mode for srun, sbatch, `#SBATCH`, salloc")
@pytest.mark.parametrize("wanted", ONE_SHORT)
def test_salloc_takes_the_option_for_the_steps_inside(
    healthy_cluster: Cluster, wanted: str
) -> None:
    words = "salloc", "-N1", f"--nccl-inspector={wanted}", "srun"
    assert command(healthy_cluster, *words) == wanted


@pytest.mark.case("Options", "a job that asks for nothing is not measured")
def test_a_job_that_asks_for_nothing_gets_nothing(healthy_cluster: Cluster) -> None:
    assert batch(healthy_cluster) == "off"
    assert command(healthy_cluster, "srun", "-N1") == "off"


def test_a_variable_stands_for_the_option(healthy_cluster: Cluster) -> None:
    wish = {"SLURM_NCCL_INSPECTOR": "report"}
    assert command(healthy_cluster, "srun", "-N1", env=wish) == "report"
    assert command(healthy_cluster, "srun", "-N1", "--nccl-inspector=prom", env=wish) == "prom"


@pytest.mark.case("Options", "options reach the task")
def test_keys_reach_the_task(healthy_cluster: Cluster) -> None:
    words = ["srun", "-N1", "--nccl-inspector=prom,interval=250ms,p2p=0,min_size=1M"]
    said = healthy_cluster.run_as(JOB_USER, [*words, "sh", "-c", ENVIRONMENT]).stdout.split("\n")
    assert {
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=250000",
        "NCCL_INSPECTOR_ENABLE_P2P=0",
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=1048576",
    } <= set(said)


# The site's default.


def test_a_default_of_the_site_measures_who_asks_for_nothing(healthy_cluster: Cluster) -> None:
    healthy_cluster.set_plugstack("default=prom")
    assert batch(healthy_cluster) == "prom"
    assert command(healthy_cluster, "srun", "-N1") == "prom"
    assert command(healthy_cluster, "salloc", "-N1", "srun") == "prom"


def test_off_wins_over_the_sites_default(healthy_cluster: Cluster) -> None:
    healthy_cluster.set_plugstack("default=prom")
    assert batch(healthy_cluster, "--nccl-inspector=off") == "off"
    assert command(healthy_cluster, "srun", "-N1", "--nccl-inspector=off") == "off"
    assert command(healthy_cluster, "salloc", "-N1", "--nccl-inspector=off", "srun") == "off"


@pytest.mark.case("Options", "a word in plugstack.conf wins over nccl-inspector.conf")
def test_a_word_in_plugstack_wins_over_the_file(healthy_cluster: Cluster) -> None:
    healthy_cluster.set_conf(default="report")
    assert command(healthy_cluster, "srun", "-N1") == "report"
    healthy_cluster.set_plugstack("default=prom")
    assert command(healthy_cluster, "srun", "-N1") == "prom"


# One step of a measured job.


def steps(text: str) -> dict[str, str]:
    """What each step said, by the name that it printed before."""
    parts = re.split(r"^step (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: mode(said) for name, said in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.case("Options", "one step of a measured job in another mode, or off, and back")
def test_a_step_may_have_another_mode_than_its_job(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    script = "\n".join(
        f"echo step {name}; srun {words} sh -c '{ENVIRONMENT}'"
        for name, words in {
            "usual": "",
            "off": "--nccl-inspector=off",
            "report": "--nccl-inspector=report",
            "again": "",
        }.items()
    )
    job_id = jobs.submit(cluster, "--nccl-inspector=prom", "-N1", script=script)
    cluster.wait_for_job(job_id)
    assert steps(jobs.output(cluster, job_id)) == {
        "usual": "prom", "off": "off", "report": "report", "again": "prom",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.case("Options", "one measured step in an allocation that asked for nothing")
def test_a_step_may_be_measured_in_an_unmarked_allocation(healthy_cluster: Cluster) -> None:
    words = "salloc", "-N1", "srun", "--nccl-inspector=prom"
    assert command(healthy_cluster, *words) == "prom"


@pytest.mark.long
@pytest.mark.case("Options", "mode report: a report, no series")
def test_a_step_in_report_mode_has_a_box_but_no_metrics(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    endless = jobs.standin(cluster, "--steps", "100000", *jobs.QUICK)
    script = (
        f"srun {jobs.standin(cluster, '--steps', '1', *jobs.QUICK)}\n"
        f"rm -r oplog.$SLURM_JOB_ID\nsrun --nccl-inspector=report {endless}"
    )
    words = "--nccl-inspector=prom,interval=100ms", "--nodelist=n1", "-n2", "--gpus-per-task=1"
    job_id = jobs.submit(cluster, *words, script=script)
    wait_until(lambda: len(raw_files(cluster, job_id, ".box")) == 4, 10, "boxes of two steps", 0.1)
    jobs.wait_for_operations(cluster, job_id, 2, least=60)
    assert raw_files(cluster, job_id, ".prom") == []
    assert f'slurm_job_id="{job_id}"' not in cluster.node("n1").metrics()
    cluster.run_as("root", ["scancel", str(job_id)])
    jobs.finish(cluster, job_id)
    (summary,) = jobs.summaries(cluster, job_id).values()
    operations: dict[int | None, int] = {}
    for process in summary.processes:
        done = sum(key.ops for key in process.keys)
        operations[process.facts.step] = operations.get(process.facts.step, 0) + done
    assert operations[0] == 2 * 3
    assert operations[1] >= 2 * 60


@pytest.mark.case("Options", "mode report: a report, no series")
def test_report_mode_has_a_report_and_no_series(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    job_id = jobs.submit(
        cluster, "--nccl-inspector=report,interval=100ms", "-N2", "-n4", "--gpus-per-task=1",
        script=f"srun {jobs.standin(cluster, *SHORT)}",
    )  # fmt: skip
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert jobs.summaries(cluster, job_id).keys() == {"n1", "n2"}
    assert "4 ranks" in jobs.report(cluster, job_id)
    assert cluster.history(f'{{slurm_job_id="{job_id}"}}', 60) == []


@pytest.mark.long
@pytest.mark.case("Options", "a step with mode off leaves no file")
def test_a_step_that_is_off_leaves_no_file(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    step = f"srun --nccl-inspector=off {jobs.standin(cluster, *SHORT)}"
    script = f"{step}; ls /run/nccl-inspector/jobs/$SLURM_JOB_ID/raw | wc -l"
    words = "--nccl-inspector=prom", "--nodelist=n1", "-n2", "--gpus-per-task=1"
    job_id = jobs.submit(cluster, *words, script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert jobs.output(cluster, job_id).endswith("\n0\n")
    assert jobs.summaries(cluster, job_id) == {}


@pytest.mark.case("Options", "a job with mode off has no directory")
def test_a_job_that_is_off_has_no_directory(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    script = "ls -d /run/nccl-inspector/jobs/$SLURM_JOB_ID"
    job_id = jobs.submit(cluster, "--nccl-inspector=off", "-N1", script=script)
    cluster.wait_for_job(job_id)
    assert "No such file" in jobs.output(cluster, job_id)


# What a job does not inherit, and what it cannot understand.

JOB_IN_A_JOB = """
sbatch --parsable --wait -N1 --mem=100 -o inner.out inner.sh
cat inner.out
"""


@pytest.mark.long
@pytest.mark.case("Options", "a job submitted from inside a measured job starts clean")
def test_a_job_that_a_measured_job_submits_starts_clean(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    inner = "#!/bin/sh\nenv\ngrep ^mode= /run/nccl-inspector/jobs/$SLURM_JOB_ID/manifest\n"
    cluster.run_as(JOB_USER, ["sh", "-c", "cat >inner.sh"], stdin=inner)
    words = ("--nccl-inspector=prom", "-N1", "--mem=100")
    own = {"NCCL_DEBUG": "WARN"}
    job_id = jobs.submit(cluster, *words, script=JOB_IN_A_JOB, env=own)
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    said = jobs.output(cluster, job_id)
    assert "NCCL_DEBUG=WARN\n" in said
    assert not re.search("^(NCCL_INSPECTOR|NCCL_PROFILER|SLURM_SPANK_)", said, re.MULTILINE)
    assert said.endswith("\nmode=\n"), "nor were its hooks told"


NESTED = {
    "sbatch": "sbatch -Q --wait -N1 --mem=100 -o inner.out inner.sh; cat inner.out",
    "salloc": "salloc -Q -N1 --mem=100 ./inner.sh",
    "srun": "env -u SLURM_JOB_ID -u SLURM_JOBID srun -Q -N1 --mem=100 env",
}


@pytest.mark.long
@pytest.mark.parametrize("command", NESTED)
@pytest.mark.case("Options", "a job submitted from inside a measured job starts clean")
def test_a_job_that_a_measured_sallocs_shell_submits_starts_clean(
    healthy_cluster: Cluster, command: str
) -> None:
    cluster = healthy_cluster
    inner = "#!/bin/sh\nenv\nsrun -Q --overlap env\n"
    write = "cat >inner.sh; chmod 755 inner.sh"
    cluster.run_as(JOB_USER, ["sh", "-c", write], stdin=inner)
    outer = ["salloc", "-Q", "-N1", "--mem=100", "--nccl-inspector=prom", "sh", "-c"]
    said = cluster.run_as(JOB_USER, [*outer, NESTED[command]]).stdout
    assert "SLURM_JOB_ID=" in said
    assert not re.search("^(NCCL_INSPECTOR|NCCL_PROFILER)", said, re.MULTILINE)


@pytest.mark.long
@pytest.mark.case(
    "Options",
    "a het job whose components have different modes: the first mode, and a message",
)
def test_in_a_het_job_the_first_components_mode_holds_and_a_difference_is_told(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    size = ["-N1", "-n1", "--mem=100"]
    script = f"#!/bin/sh\nsrun --het-group=0 sh -c '{ENVIRONMENT}'\n"
    for first, second in (("prom", "off"), ("off", "prom")):
        options = [f"--nccl-inspector={mode}" for mode in (first, second)]
        argv = ["sbatch", "-o", "het.out", "--wait", *size, options[0], ":", *size, options[1]]
        done = cluster.run_as(JOB_USER, argv, stdin=script)
        assert done.returncode == 0 or first == "off", done.stderr  # grep found nothing
        assert "the components of this job have different modes" in done.stderr
        assert mode((cluster.home() / "het.out").read_text()) == first


@pytest.mark.parametrize(("first", "last"), [("prom", "off"), ("off", "prom")])
@pytest.mark.case(
    "Options", "srun of components with different modes: the last mode, and a message"
)
def test_for_srun_the_last_components_mode_holds_and_a_difference_is_told(
    healthy_cluster: Cluster, first: str, last: str
) -> None:
    cluster = healthy_cluster
    size = ["-N1", "-n1", "--mem=100"]
    say = ["sh", "-c", f"{ENVIRONMENT}; exit 0"]
    words = [f"--nccl-inspector={first}", *say, ":", *size, f"--nccl-inspector={last}", *say]
    done = cluster.run_as(JOB_USER, ["srun", "-Q", *size, *words])
    assert done.returncode == 0, done.stderr
    assert "the components of this job have different modes" in done.stderr
    assert ("NCCL_INSPECTOR_PROM_DUMP=1" in done.stdout) == (last == "prom")


@pytest.mark.case("Options", "an unknown mode in the job's environment: off, and a message")
def test_an_unknown_mode_that_reaches_the_node_means_off_and_a_line(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack("default=prom")
    script = "export SLURM_NCCL_INSPECTOR=bogus\nsrun env"
    job_id = jobs.submit(cluster, "-N1", script=script)
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    assert not re.search("^NCCL_(INSPECTOR|PROFILER)", jobs.output(cluster, job_id), re.MULTILINE)
    (line,) = jobs.slurmd_lines(cluster, "n1", job_id)
    assert 'no metrics: unknown mode "bogus"; modes: prom, json, prom+json, report, off' in line
