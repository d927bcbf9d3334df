# SPDX-License-Identifier: Apache-2.0
"""`make test-systemd`: a site of one host from the packages, with systemd as PID 1.

A Debian (made once with debootstrap, kept in /var/tmp) is booted by systemd-nspawn, without a
network: `--suite bookworm` or trixie. It has Debian's Slurm, under systemd, and is node and
controller. Once it is set up while it runs, and once it is built as an image, in a chroot. Each
step is what the page Install says; it ends the program if it is not as promised, and prints how
long it took. Everything is real but NCCL, which the stand-in plays.
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.sandbox import tree
from tests.support import packages
from tests.support.packages import NAME
from tests.support.repository import BUILD, DOC

MORE = ("systemd", "systemd-sysv", "dbus", "prometheus", "prometheus-node-exporter", "curl")
PLACE = Path("/var/tmp/nccl-inspector-booted")
AGENT = "nccl-inspector-agent.service"
SLURM_CONF = """ClusterName=one
SlurmctldHost=one
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=one CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
"""
HOOKS = """PrologFlags=Alloc
EpilogSlurmctld=/usr/lib/nccl-inspector/epilogctld/nccl-inspector-epilogctld
"""
OPTION = "--nccl-inspector=prom"
ALL_FILES = "find / -xdev ! -type d ! -path '/tmp/*' ! -path '/var/tmp/*' ! -path '/proc/*'"
SITE = """[slurm]
words = "default=prom"
[account]
uid = 642
[settings]
report_dir = "/shared/reports"
store_dir = "/shared/store"
listen = "127.0.0.1:9435"
"""
# A watchdog of two minutes would take two minutes to see.
QUICK_WATCHDOG = "[Service]\nWatchdogSec=10\n"
# What a site has written, or its jobs have: it stays when the packages go.
SITES_OWN = (
    "/etc/nccl-inspector", "/etc/slurm/", "/etc/tmpfiles.d/nccl-inspector-controller.conf",
    f"/etc/systemd/system/{AGENT}.d", "/shared", "/var/lib/nccl-inspector",
    "/var/spool/nccl-inspector",
    # Not ours: accounts (reports are their files), Slurm's state, logs, dpkg's database.
    "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid",
    "/etc/.pwd.lock", "/var/lib/slurm", "/var/log", "/var/lib/dpkg", "/var/lib/systemd",
    "/var/cache", "/var/lib/munge", "/var/lib/prometheus", "/home", "/etc/machine-id",
)  # fmt: skip


class BrokenPromiseError(Exception):
    """Something is not as the docs promise; the text says what."""


class Box:
    """The booted root."""

    def __init__(self, lower: Path) -> None:
        self.root = PLACE / "root"
        for name in ("up", "work", "root"):
            (PLACE / name).mkdir(parents=True)
        layers = f"lowerdir={lower},upperdir={PLACE}/up,workdir={PLACE}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "none", self.root], check=True)
        self._nspawn: subprocess.Popen[bytes] | None = None
        self.write("/etc/hosts", "127.0.0.1 localhost one\n")
        self.write("/etc/hostname", "one\n")

    def build(self, script: str) -> str:
        """Run a script that must succeed in a chroot, as who builds an image; return its output."""
        inside = 'mount -t proc proc "$0/proc" && exec chroot "$0" sh -ec "$1"'
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", inside, self.root, script],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}, timeout=300,
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise BrokenPromiseError(f"{script}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def boot(self) -> None:
        """Start it and wait until systemd has started everything."""
        self._nspawn = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--boot", "--directory", self.root, "--machine=one",
             "--private-network", "--register=no", "--keep-unit", "--console=pipe"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait("there is a PID 1", self._leader, 20)
        # With no address but 127.0.0.1, glibc resolves no name for Slurm.
        address = ["ip", "address", "add", "10.9.9.1/32", "dev", "lo"]
        subprocess.run(["nsenter", f"--target={self._leader()}", "--net", *address], check=True)
        ready = "running", "degraded"
        wait("systemd runs", lambda: self.out("systemctl is-system-running") in ready, 120)

    def _leader(self) -> str:
        """Return the pid of its PID 1; empty if it is not booted."""
        if self._nspawn is None or self._nspawn.poll() is not None:
            return ""
        pid = self._nspawn.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().partition(" ")[0]

    def halt(self) -> None:
        """Let systemd shut down, as for a reboot."""
        if self._nspawn and self._nspawn.poll() is None:
            self.run("systemctl --no-block poweroff")
            try:
                self._nspawn.wait(90)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()

    def reboot(self) -> None:
        """Shut down and boot again; what is not on a tmpfs is still there."""
        self.halt()
        self.boot()

    def end(self) -> None:
        """Take everything away."""
        self.halt()
        subprocess.run(["umount", self.root], check=False)
        shutil.rmtree(PLACE)

    def run(self, script: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """Run a script inside."""
        leader = self._leader()
        if not leader:
            return subprocess.CompletedProcess([], 1, "", "not booted")
        env = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", f"HOME=/home/{user}"]
        become = (
            []
            if user == "root"
            else ["setpriv", f"--reuid={user}", "--init-groups", "--regid=1000"]
        )
        return subprocess.run(
            ["nsenter", f"--target={leader}", "--all", "--root", "--wd", *env, *become, "sh",
             "-c", script],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=300,
        )  # fmt: skip

    def out(self, script: str) -> str:
        """Return what a script prints."""
        return self.run(script).stdout.strip()

    def must(self, script: str, status: int = 0) -> str:
        """Run a script that must end so; return what it prints."""
        done = self.run(script)
        if done.returncode != status:
            raise BrokenPromiseError(f"{script}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file as root."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def files(self) -> set[str]:
        """Return all files outside of /run, /proc, /sys, /dev and /tmp."""
        return set(self.must(ALL_FILES).split("\n"))


def wait(what: str, check: Callable[[], object], seconds: float) -> None:
    """Poll until it is so."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise BrokenPromiseError(f"not after {seconds:.0f} s: {what}")
        time.sleep(0.3)


def say_that(what: str, found: object) -> None:
    """End the program if something is not so."""
    if not found:
        raise BrokenPromiseError(what)


def put_programs(box: Box) -> None:
    """The job's program."""
    for name in ("nccl-standin", "fakecuda/libcuda.so.1"):
        shutil.copy(BUILD / name, box.root / "opt" / Path(name).name)


def put_slurm(box: Box) -> None:
    """A site that has Slurm, and nothing of ours."""
    box.write("/etc/slurm/slurm.conf", SLURM_CONF)
    box.must("useradd --create-home --uid 1000 alice && mkdir -p /shared")
    put_programs(box)
    box.must("systemctl enable --now slurmctld slurmd && systemctl restart slurmctld slurmd")
    wait("the node is idle", lambda: "idle" in box.out("sinfo -h -o %T"), 60)


def submit(box: Box, seconds: int, option: str = "", steps: int = 1) -> str:
    """Submit a job of two ranks as a user; return its number. sbatch must print no error.

    `option`: of sbatch, in the script.
    """
    command = f"srun -n2 /opt/nccl-standin --seconds {seconds} --sizes 1M --compute-ms 2\n"
    script = f"#!/bin/sh\n#SBATCH {option or '--ntasks=2'}\n{command * steps}"
    box.write("/home/alice/job.sh", script)
    words = "cd && NCCL_STANDIN_CUDA=/opt/libcuda.so.1 sbatch -n2 --parsable job.sh"
    done = box.run(words, user="alice")
    say_that(f"sbatch: {done.stderr}", done.returncode == 0 and not done.stderr)
    job = done.stdout.strip()
    wait(f"job {job} runs", lambda: "RUNNING" in box.out(f"scontrol show job {job}"), 60)
    return job


def finish(box: Box, job: str) -> None:
    """Wait until a job has ended, which must be well, and its node not drained."""
    ends = re.compile("JobState=(RUNNING|COMPLETING)")
    wait(f"job {job} ends", lambda: not ends.search(box.out(f"scontrol show job {job}")), 120)
    said = box.out(f"scontrol show job {job}")
    say_that(f"job {job}: {said}", "JobState=COMPLETED" in said and "ExitCode=0:0" in said)
    output = box.out(f"cat /home/alice/slurm-{job}.out")
    say_that(f"job {job}: {output}", not re.search("dlopen|plugin|unrecognized", output))
    wait("the node is idle", lambda: box.out("sinfo -h -o %T") == "idle", 60)


def measured(box: Box, job: str) -> None:
    """Wait for a job's report, which the controller service stores."""
    finish(box, job)
    stored = f"nccl-inspector history --json | grep -q '\"job_id\": *{job}\\b'"
    wait(f"job {job} is reported", lambda: box.run(stored).returncode == 0, 60)
    report = box.run(f"nccl-inspector report {job}")
    say_that(f"report {job}: {report.stdout}{report.stderr}", "VERDICT" in report.stdout)


def agent_pid(box: Box) -> str:
    """Return the pid of the agent that has made its first pass; empty if there is none."""
    said = box.out(f"systemctl show --property MainPID,ActiveState {AGENT}")
    values = dict(line.split("=") for line in said.splitlines())
    return values["MainPID"] if values.get("ActiveState") == "active" else ""


def is_another(box: Box, before: str) -> bool:
    """Tell whether an agent runs that is not the one with this pid."""
    return agent_pid(box) not in ("", before)


def copy(box: Box, files: list[Path]) -> None:
    """Copy packages into the root."""
    (box.root / "opt/debs").mkdir(exist_ok=True)
    for file in files:
        shutil.copy(file, box.root / "opt/debs")


def install(box: Box, files: list[Path]) -> None:
    """Install packages as an administrator does who has them in a directory."""
    copy(box, files)
    box.must(f"cd /opt/debs && dpkg --install {' '.join(file.name for file in files)} && rm *.deb")


def nothing_is_active(box: Box) -> None:
    """No unit of ours is enabled or runs."""
    units = box.out("systemctl list-unit-files --no-legend '*nccl*inspector*'")
    say_that("units are there", AGENT in units)
    say_that(f"enabled: {units}", " enabled " not in units)
    running = box.out("systemctl list-units --no-legend --state=active '*nccl*inspector*'")
    say_that(f"active: {running}", not running)
    say_that("no account", box.run("getent passwd nccl-inspector").returncode)


def set_up(box: Box) -> None:
    """Steps 2 to 4 of the page, for a node and for the controller."""
    box.write("/etc/nccl-inspector/site.toml", SITE)
    box.must("nccl-inspector setup controller --apply")
    box.must("nccl-inspector setup node --apply")
    box.write("/etc/slurm/slurm.conf", SLURM_CONF + HOOKS)
    box.must("systemctl restart slurmctld slurmd")
    wait("the node is idle", lambda: box.out("sinfo -h -o %T") == "idle", 60)


def page_commands() -> list[str]:
    """Return the commands of the page Install, from the packages to the first report."""
    section = (DOC / "install.md").read_text().split("\n## One machine, all roles\n")[1]
    lines = section.split("\n## ")[0].replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


def by_the_page(box: Box, debs: list[Path]) -> None:
    """Do what the page says, word by word, as a new user with the packages and a job script."""
    home = Path("/home/alice")
    for file in debs:
        shutil.copy(file, box.root / home.relative_to("/"))
    command = "srun -n2 /opt/nccl-standin --seconds 6 --sizes 1M --compute-ms 2"
    export = "export NCCL_STANDIN_CUDA=/opt/libcuda.so.1"
    box.write(f"{home}/job.sh", f"#!/bin/sh\n#SBATCH -n2\n{export}\n{command}\n")
    box.must(f"chown -R alice: {home}")
    commands, job = page_commands(), ""
    say_that(f"{len(commands)} commands, not twelve", len(commands) == 12)
    for line in commands:
        if line.startswith("sbatch "):
            done = box.run(f"cd && {line}", user="alice")
            say_that(f"{line}: {done.stderr}", done.returncode == 0)
            job = done.stdout.split()[-1]
            ended = f"scontrol show job {job} | grep -q JobState=COMPLETED"
            wait(f"job {job} has ended", lambda: box.run(ended).returncode == 0, 60)  # noqa: B023
        elif line == "nccl-inspector doctor":
            wait(line, lambda: box.out("nccl-inspector doctor") == "all well", 30)
        elif "JOBID" in line:
            ask = line.replace("JOBID", job)
            wait(ask, lambda: "VERDICT" in box.run(ask, user="alice").stdout, 30)  # noqa: B023
        else:
            box.must(f"cd {home} && {line}")
    wait("Prometheus has the node", lambda: "nccl_inspector_agent" in box.out(
        "curl -s localhost:9090/api/v1/label/__name__/values"), 60)  # fmt: skip


def all_well(box: Box) -> None:
    """Wait until the doctor finds no fault: the controller's first status takes some seconds."""
    wait("doctor finds no fault", lambda: box.out("nccl-inspector doctor") == "all well", 30)


def heal(box: Box) -> None:
    """The agent is killed, then stopped."""
    box.write(f"/etc/systemd/system/{AGENT}.d/quick.conf", QUICK_WATCHDOG)
    box.must(f"systemctl daemon-reload && systemctl restart {AGENT}")
    for signal in ("KILL", "STOP"):
        before = agent_pid(box)
        box.must(f"kill -{signal} {before}")
        wait(f"healed after SIG{signal}", partial(is_another, box, before), 60)


def change_a_setting(box: Box) -> None:
    """Change a directory for both roles on the host: nothing runs with the old one afterwards."""
    conf = "/etc/nccl-inspector/nccl-inspector.conf"
    box.must(f"sed -i s,/shared/reports,/shared/other, {conf}")
    said = box.must("nccl-inspector doctor", status=1)
    for service in ("agent-settings", "controller-settings"):
        what = f"{service}: report_dir: it runs with /shared/reports, configured is /shared/other"
        say_that(f"{what}: {said}", what in said)
    box.must(f"sed -i s,/shared/other,/shared/reports, {conf}")
    box.write("/etc/nccl-inspector/site.toml", SITE.replace("/shared/reports", "/shared/other"))
    for role in ("node", "controller"):
        box.must(f"nccl-inspector setup {role} --apply")
        again = box.must(f"nccl-inspector setup {role}")
        say_that(f"nothing is to do: {again}", "Nothing is to do." in again)
    all_well(box)
    job = submit(box, 4)
    measured(box, job)
    say_that("its summary is in the new directory", job in box.out("find /shared/other"))


def upgrade(box: Box, newer: list[Path]) -> None:
    """Install a newer release while a job runs."""
    job, before = submit(box, 25), agent_pid(box)
    controller = "systemctl show --property MainPID nccl-inspector-controller"
    old = box.out(controller)
    install(box, newer)
    wait("the agent runs anew", partial(is_another, box, before), 30)
    say_that("the controller service runs anew", box.out(controller) != old)
    say_that("still enabled", box.out(f"systemctl is-enabled {AGENT}") == "enabled")
    measured(box, job)


def plugged(box: Box) -> bool:
    """Tell whether plugstack.conf, or a file that it includes, names our plugin."""
    return not box.run("grep -rqs spank_nccl_inspector /etc/slurm/plugstack.conf*").returncode


def remove_plugin_first(box: Box, again: list[Path]) -> None:
    """Remove the SPANK plugin alone between two steps of a job; install it again."""
    job = submit(box, 5, OPTION, steps=2)
    said = box.must(f"dpkg --remove {NAME}-slurm")
    say_that(f"the line is taken out: {said}", "took the line out" in said and not plugged(box))
    finish(box, job)
    finish(box, submit(box, 2))
    install(box, [file for file in again if packages.suffix_of(file) == "slurm"])
    say_that("no line before setup", not plugged(box))
    box.must("nccl-inspector setup node --apply && systemctl restart slurmd")
    wait("the node is idle", lambda: box.out("sinfo -h -o %T") == "idle", 60)
    measured(box, submit(box, 4))


def remove_plugin_last(box: Box) -> None:
    """Remove all but the SPANK plugin while a job runs: scripts with the option still start."""
    job = submit(box, 5, OPTION, steps=2)
    names = box.out(f"dpkg-query -W -f '${{Package}} ' '{NAME}*'").split()
    box.must(f"dpkg --remove {' '.join(name for name in names if name != f'{NAME}-slurm')}")
    say_that("the line stays", plugged(box))
    finish(box, job)
    finish(box, submit(box, 2, OPTION))
    box.must(f"dpkg --remove {NAME}-slurm")
    finish(box, submit(box, 2))


def remove(box: Box, before: set[str]) -> None:
    """Remove all that is left while a job runs, without a word to Slurm; then run another job."""
    job = submit(box, 5, steps=2)
    box.must(f"dpkg --purge $(dpkg-query -W -f '${{Package}} ' '{NAME}*')")
    finish(box, job)
    finish(box, submit(box, 2))
    say_that("no line is left", not plugged(box))
    left = sorted(path for path in box.files() - before if path and not path.startswith(SITES_OWN))
    say_that(f"left: {left}", not left)
    say_that("reports stay", box.out("ls /shared/store"))


def build_image(box: Box, debs: list[Path]) -> set[str]:
    """Build an image in which everything is set up; return the files that it had before."""
    put_programs(box)
    box.write("/etc/slurm/slurm.conf", SLURM_CONF + HOOKS)
    # As the page of pyxis says, in the words of a site that has it.
    box.write("/etc/slurm/plugstack.conf", "include /etc/slurm/plugstack.conf.d/*\n")
    box.build("useradd --create-home --uid 1000 alice && mkdir -p /shared")
    # At a first boot Debian's presets enable all that is installed. There is no network to wait
    # for, and nobody whom the first boot could ask.
    box.build("systemctl enable slurmctld slurmd; echo uninitialized >/etc/machine-id")
    box.build("systemctl mask systemd-networkd-wait-online systemd-firstboot slurmdbd")
    before = set(box.build(ALL_FILES).split("\n"))
    box.write("/etc/nccl-inspector/site.toml", SITE)
    copy(box, debs)
    box.build("cd /opt/debs && dpkg --install *.deb && rm *.deb")
    for role in ("controller", "node"):
        said = box.build(f"nccl-inspector setup {role} --apply")
        say_that(f"what is left to the boot: {said}", said.count("systemd does not run here") == 1)
        again = box.build(f"nccl-inspector setup {role}")
        say_that(f"nothing is to do: {again}", "Nothing is to do." in again)
    return before


def first_boot(box: Box) -> None:
    """Boot the image: everything runs without another step."""
    box.boot()
    wait("the node is idle", lambda: box.out("sinfo -h -o %T") == "idle", 60)
    say_that("the agent runs", agent_pid(box))
    box.must("mountpoint /run/nccl-inspector && systemctl is-active nccl-inspector-controller")
    say_that("a file of its own", "nccl-inspector" in box.out("ls /etc/slurm/plugstack.conf.d"))
    all_well(box)


@dataclass(frozen=True, slots=True)
class Site:
    """What the parts of the program work with."""

    box: Box
    step: Callable[[str, Callable[[], Any]], Any]
    debs: list[Path]
    newer: Callable[[], list[Path]]


def live(site: Site) -> None:
    """A host that is set up while it runs, upgraded, and cleared in two orders."""
    box, step = site.box, site.step
    newer = step("make deb VERSION=9.9", site.newer)
    step("boot", box.boot)
    step("Slurm under systemd", lambda: put_slurm(box))
    step("a job before anything of ours is there", lambda: finish(box, submit(box, 2)))
    before = box.files()
    step("install the packages", lambda: install(box, site.debs))
    step("nothing is active", lambda: nothing_is_active(box))
    step("setup node and controller", lambda: set_up(box))
    step("doctor", lambda: all_well(box))
    step("a job is measured and reported", lambda: measured(box, submit(box, 6)))
    step("kill -9 and SIGSTOP of the agent are healed", lambda: heal(box))
    step("a changed setting: doctor is red, then green", lambda: change_a_setting(box))
    step("reboot", box.reboot)
    wait("the node is idle", lambda: box.out("sinfo -h -o %T") == "idle", 60)
    step("a job after the reboot", lambda: measured(box, submit(box, 6)))
    step("upgrade while a job runs", lambda: upgrade(box, newer))
    step("remove the SPANK plugin, then the rest", lambda: remove_plugin_first(box, newer))
    step("remove the rest, then the SPANK plugin", lambda: remove_plugin_last(box))
    step("purge while a job runs", lambda: remove(box, before))


def image(site: Site) -> None:
    """A host that is built as an image, without systemd."""
    box, step = site.box, site.step
    before = step("an image is built in a chroot", lambda: build_image(box, site.debs))
    step("its first boot: doctor finds no fault", lambda: first_boot(box))
    # What Debian itself makes at a first boot.
    before |= {path for path in box.files() if "nccl" not in path}
    step("a job is measured and reported", lambda: measured(box, submit(box, 6)))
    step("purge everything at once while a job runs", lambda: remove(box, before))


def page(site: Site) -> None:
    """A host that is set up by the page Install alone."""
    site.box.boot()
    put_slurm(site.box)
    site.step(
        "the page's twelve commands, to the first report", lambda: by_the_page(site.box, site.debs)
    )


PARTS = {"live": live, "image": image, "page": page}


def main() -> int:
    """Run all parts; 0 if everything was as promised."""
    parser = argparse.ArgumentParser(prog="make test-systemd", description=__doc__)
    parser.add_argument("--suite", default="bookworm", help="bookworm or trixie")
    parser.add_argument("--parts", default=" ".join(PARTS), help="some of: %(default)s")
    options = parser.parse_args()
    if shutil.which("systemd-nspawn") is None:
        print("needs systemd-nspawn: apt-get install systemd-container", file=sys.stderr)
        return 1
    begun = time.monotonic()

    def step(words: str, work: Callable[[], Any]) -> Any:
        start = time.monotonic()
        result = work()
        print(f"{time.monotonic() - start:6.1f} s  {words}", flush=True)
        return result

    suite = options.suite
    lower = step(f"a Debian {suite} with Slurm", lambda: tree.make(suite, MORE).root)
    every = tuple(one["suffix"] or "command" for one in packages.PACKAGES)
    out = BUILD / "booted" / suite
    (python,) = {path.name for path in (lower / "usr/bin").glob("python3.??")}
    words = (
        f"SLURM_INCLUDE={lower}/usr/include", f"REPORT_PYTHON={python.removeprefix('python')}",
        "PACKAGES_LEVEL=0",
    )  # fmt: skip

    def build(name: str, *more: str) -> list[Path]:
        return packages.build("deb", out / name, *words, *more, suffixes=every)

    debs = step("make deb", lambda: build("first"))
    for name in options.parts.split():
        box = Box(lower)
        try:
            PARTS[name](Site(box, step, debs, lambda: build("newer", "VERSION=9.9")))
        except BrokenPromiseError as err:
            print(f"NOT AS PROMISED: {err}", file=sys.stderr)
            print(box.out("systemctl --failed; journalctl --no-pager --lines 40"), file=sys.stderr)
            return 1
        finally:
            box.end()
    print(f"{time.monotonic() - begun:6.1f} s  all of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
