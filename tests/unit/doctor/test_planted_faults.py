# SPDX-License-Identifier: Apache-2.0
"""Each check finds its fault, and nothing else does; where all is well the doctor is silent."""

import re
import threading
from dataclasses import fields, replace
from errno import EDQUOT, ENOSPC, EROFS
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.agent.kill_switch import Disabled
from nccl_inspector.controller.status import ServiceStatus, Shunned, Stuck
from nccl_inspector.doctor import examine
from nccl_inspector.doctor.check import Outcome, Result, Role, run_check
from nccl_inspector.doctor.examine import Examination
from nccl_inspector.doctor.facts import CannotTell, Facts, FileFacts, ImageFile, known
from nccl_inspector.doctor.registry import BY_ID, CHECKS
from nccl_inspector.doctor.text import ALL_WELL, find_page, render
from nccl_inspector.model.process import DENIED, RCCL, UNTIMED
from nccl_inspector.settings.config import parse_config
from nccl_inspector.settings.in_force import AGENT, CONTROLLER
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.in_force import AnswerStep, InForceStep
from nccl_inspector.setup.journal import Journal
from nccl_inspector.setup.steps import Look, MakesNothing, State
from tests.support.doctor_facts import LIB, RUN, changed, environment, healthy, note_of, script
from tests.support.repository import DOC

MISSING = "No such file or directory"
HOOK = f"{LIB}/prolog/50-nccl-inspector.sh"
IMAGE_FILE = ImageFile("/etc/environment", ("NCCL_PROFILER_PLUGIN=/opt/other.so",))
CONF_LINE = "NCCL_PROFILER_PLUGIN=/opt/other.so"
OTHER = environment(NCCL_PROFILER_PLUGIN="/home/me/own.so")
_WITHOUT = environment()
del _WITHOUT["NCCL_PROFILER_PLUGIN"]
LINE = known(healthy().plugstack).lines[0]
OLD_SETTINGS = parse_config("report_dir = /old\n", "test")
FULL = {"used_bytes": 250 << 20}

# What is wrong: paths in the facts of a healthy system, and what is there instead.
FAULTS: dict[str, dict[str, Any]] = {
    "settings-refused": {"settings.refused": "x.conf:3: unknown key 'colour'"},
    "setup-pending": {"setup.has_site_file": True, "setup.todo": {"node": ("x.mount: enable",)}},
    "plugstack-line": {"plugstack.lines": (), "plugstack.library": None},
    "plugstack-required": {"plugstack.lines.0.word": "required"},
    "plugstack-twice": {"plugstack.lines": (LINE, LINE)},
    "plugstack-words": {"plugstack.lines.0.refused": ("unknown word 'colour'",)},
    "spank-missing": {
        "plugstack.library.file.problem": MISSING,
        "plugstack.library.elf": None,
        "plugstack.library.problem": MISSING,
    },
    "spank-broken": {"plugstack.library.elf.cut": True},
    "spank-other-slurm": {"slurm.slurmd_release": (26, 5)},
    "files-writable": {"plugstack.library.file.mode": 0o100757},
    "profiler-missing": {"profiler.file.problem": MISSING, "profiler.elf": None},
    "profiler-broken": {"profiler.elf.exports": frozenset()},
    "slurmd-without-plugin": {"hooks.slurmd_has_plugin": False},
    "hook-below-package": {"hooks.named": (script("Prolog", HOOK),)},
    "hook-would-drain": {"hooks.named.0.files": ()},
    "hook-run-in-job": {"slurm.config.PrologFlags": "Alloc,RunInJob"},
    "prolog-flags": {"slurm.config.PrologFlags": ""},
    "prolog-timeout": {"slurm.config.PrologEpilogTimeout": "5"},
    "hook-missing": {"hooks.ours.0.files.0.problem": MISSING},
    "hook-mode": {"hooks.ours.1.files.0.mode": 0o100644},
    "node-drained": {"slurm.node_state": "IDLE+DRAIN", "slurm.node_reason": "Prolog error"},
    "run-dir-missing": {"run_dir.places.jobs.file.problem": MISSING},
    "run-dir-modes": {"run_dir.places.ended.file.mode": 0o040755},
    "run-dir-not-tmpfs": {"run_dir.places.jobs.kind": "ext4"},
    "run-dir-small": {"run_dir.places": "small"},
    "run-dir-options": {"run_dir.places.jobs.options": frozenset({"nosuid"})},
    "run-dir-full": {"agent.status.fill.used_bytes": 250 << 20},
    "agent-missing": {"agent.status.agent_pid": None},
    "agent-stale": {"agent.own_age_s": 400.0},
    "agent-settings": {"agent.note": note_of(OLD_SETTINGS, AGENT)},
    "agent-not-enabled": {"agent.unit.enabled": "disabled"},
    "agent-python": {"agent.python.version": (3, 9)},
    "disabled": {"agent.status.disabled": Disabled(1, "NCCL 2.99 hangs")},
    "jobs-not-collected": {"agent.oldest_ended_s": 4000.0, "agent.status.ended": 3},
    "prom-group": {"run_dir.prom_gid": CannotTell("prom_group = x: there is no such group")},
    "exporter-missing": {"monitoring.exporters": (), "monitoring.pages": ()},
    "exporter-directory": {
        "monitoring.exporters.0.directories": ("/var/lib/node_exporter",),
        "monitoring.pages.0.last_pass_age_s": None,
        "monitoring.pages.0.scrape_error": True,
    },
    "exporter-group": {"monitoring.exporters.0.may_read": False},
    "page-without-series": {"monitoring.pages.0.last_pass_age_s": None},
    "scrape-error": {"monitoring.pages.0.scrape_error": True},
    "prometheus-scrape": {"scrape.last_pass_age_s": None},
    "clock": {"clock_ahead_s": -7.5},
    "selinux": {"security.denials": ('avc: denied { write } comm="nccl-inspector"',)},
    "nvml": {"gpus.nvml": ""},
    "enroot-files": {"enroot.mounts": (Path("/opt/nccl-inspector"), RUN / "control")},
    "nccl-advice": {"nccl": {"/usr/lib/libnccl.so.2.31.2": (2, 31, 2)}},
    "account-missing": {
        "reports.uid": None,
        "reports.problem": CannotTell("no account"),
        "reports.has_acl": CannotTell("no account"),
    },
    "report-dir": {"reports.problem": "Permission denied"},
    "report-dir-full": {"reports.problem": "No space left on device", "reports.errno": ENOSPC},
    "report-dir-mode": {"reports.file.mode": 0o040777},
    "object-store": {"objects": "s3://bucket/doctor: AccessDenied"},
    "report-dir-acl": {"reports.has_acl": False},
    "controller-hook": {"controller.epilog": None, "slurm.config.EpilogSlurmctld": "/x"},
    "controller-hook-file": {"controller.epilog.files.0.mode": 0o100700},
    "queue-missing": {"controller.folders.queue.problem": MISSING},
    "queue-modes": {"controller.folders.queue.mode": 0o040700},
    "queue-full": {"spool.problem": "No space left on device", "spool.errno": ENOSPC},
    "controller-settings": {"controller.note": note_of(OLD_SETTINGS, CONTROLLER)},
    "controller-service": {"controller.age_s": 4000.0},
    "controller-root": {"controller.unit.user": "root"},
    "reports-set-aside": {"controller.failed": 3},
    "reports-unentered": {"controller.unentered": (3, 4000.0)},
    "ends-dropped": {"controller.service": ServiceStatus(dropped={"1000": 7})},
    "storage-hangs": {
        "controller.service": ServiceStatus(
            stuck=(Stuck(5, "a report", 1.0),), shunned=(Shunned(1000, "/scratch", 9.0),)
        )
    },
    "store-dir": {"store.problem": "Read-only file system", "store.errno": EROFS},
    "store-dir-full": {"store.problem": "Disk quota exceeded", "store.errno": EDQUOT},
    "job-directory": {"job.directory.problem": MISSING},
    "job-manifest": {"job.manifest_refused": "torn_manifest: no line `end`"},
    "job-no-variables": {"job.processes.0.environ": {"SLURM_JOB_ID": "7"}},
    "job-other-profiler": {"job.processes.0.environ": OTHER},
    "job-profiler-of-image": {
        "job.processes.0.environ": OTHER,
        "job.processes.0.image_sets": ("/etc/environment",),
    },
    "job-variables-changed": {
        "job.processes.0.environ": environment(NCCL_INSPECTOR_RUN_DIR="/tmp/mine")
    },
    "job-nccl-conf": {"job.processes.0.conf_lines": ("NCCL_RAS_ENABLE=0",)},
    "job-nccl-conf-file": {
        "job.processes.0.environ": environment(NCCL_CONF_FILE="/home/me/nccl.conf")
    },
    "job-ras-off": {"job.processes.0.environ": environment(NCCL_RAS_ENABLE="0")},
    "job-raw-hidden": {"job.processes.0.sees_raw": False},
    "job-raw-unwritable": {"job.processes.0.writes_raw": False},
    "job-plugin-hidden": {"job.processes.0.sees_profiler": False},
    "job-nccl": {"job.processes.0.nccl_version": (2, 21, 5)},
    "job-nccl-advice": {"job.processes.0.nccl_version": (2, 31, 2)},
    "job-nccl-2273": {"job.processes.0.nccl_version": (2, 27, 3)},
    "job-rccl": {"job.processes.0.rccl": "/opt/rocm/lib/librccl.so.1"},
    "job-plugin-not-loaded": {"job.processes.0.profiler": ""},
    "job-disabled": {"job.disabled": True},
    "job-no-events": {"job.boxes.0.followed": 0},
    "job-no-times": {"job.boxes.0.timing": UNTIMED},
    "job-run-dir-full": {"job.fill_trouble": "97% of the run directory's bytes are in use"},
    "image-libc": {"image.glibc": (2, 17)},
    "image-machine": {"image.machine": 183},
    "image-sets-profiler": {"image.sets": (IMAGE_FILE,)},
    "image-sets-others": {"image.sets": (ImageFile("/etc/nccl.conf", (CONF_LINE,)),)},
    "image-nccl": {"image.nccl": {"/usr/lib/libnccl.so.2.19.3": (2, 19, 3)}},
    "image-nccl-advice": {"image.nccl": {"/usr/lib/libnccl.so.2.31.2": (2, 31, 2)}},
    "image-nccl-2273": {"image.nccl": {"/usr/lib/libnccl.so.2.27.3": (2, 27, 3)}},
    "image-rccl": {"image.rccl": ("/opt/rocm/lib/librccl.so.1",)},
    "image-own-plugin": {"image.own_profiler": f"{LIB}/libnccl-profiler-inspector.so"},
    "image-zlib": {"image.has_zlib": False, "settings.values.gzip": True},
}
# The same fault in another form.
MORE: list[tuple[str, dict[str, Any]]] = [
    ("spank-broken", {"plugstack.library.elf": None, "plugstack.library.problem": "not a library"}),
    ("spank-broken", {"plugstack.library.elf.exports": frozenset()}),
    ("spank-other-slurm", {"slurm.command_release": (22, 5)}),
    ("files-writable", {"hooks.ours.0.files.0.uid": 1000}),
    ("files-writable", {"profiler.file.writable_above": "/usr/lib/nccl-inspector"}),
    ("profiler-missing", {"profiler.file.mode": 0o100700}),
    ("profiler-broken", {"profiler.elf.machine": 183}),
    ("hook-below-package", {"hooks.named.0.files.0.link_to": HOOK}),
    ("hook-would-drain", {"hooks.named.0.files.0.problem": MISSING}),
    ("hook-would-drain", {"hooks.named.0.files.0.mode": 0o100644}),
    ("prolog-timeout", {"slurm.config.PrologTimeout": "3 sec"}),
    ("run-dir-modes", {"settings.values.prom_group": "monitoring"}),
    ("agent-stale", {"agent.own_age_s": None}),
    ("agent-settings", {"agent.note": None}),
    ("controller-settings", {"controller.note": None}),
    ("ends-dropped", {"controller.uncounted": 3}),
    ("queue-full", {"spool.problem": "Read-only file system", "spool.errno": EROFS}),
    ("agent-python", {"agent.python.version": None, "agent.python.problem": MISSING}),
    ("agent-python", {"agent.python.problem": "ModuleNotFoundError: No module named 'click'"}),
    ("exporter-directory",
     {"monitoring.exporters.0.reads_textfiles": False, "monitoring.pages": ()}),
    ("page-without-series", {"monitoring.pages.0.last_pass_age_s": 500.0}),
    ("prometheus-scrape", {"scrape.last_pass_age_s": 400.0}),
    ("clock", {"clock_ahead_s": 3.0}),
    ("nvml", {"gpus.has_bindings": False}),
    ("enroot-files", {"enroot.wanted": {"run_dir": Path("/local/nccl/control")}}),
    ("enroot-files", {"enroot.fstab.problem": MISSING, "enroot.mounts": ()}),
    ("enroot-files", {"enroot.hook.problem": MISSING}),
    ("enroot-files", {"enroot.hook.mode": 0o100644}),
    ("report-dir", {"reports.file.problem": MISSING}),
    ("report-dir-mode", {"reports.file.mode": 0o040700}),
    ("queue-modes", {"controller.slurm_uid": 500}),
    ("queue-modes", {"controller.account_gids": ()}),
    ("controller-service", {"controller.unit.active": "failed"}),
    ("controller-service", {"controller.unit.active": "inactive"}),
    ("job-rccl", {"job.boxes.0.silent": RCCL}),
    ("job-nccl", {"job.boxes.0.silent": DENIED}),
    ("job-nccl", {"settings.values.deny_nccl": "2.28.0-2.28.5", "image.nccl": {}}),
    ("job-nccl", {"settings.values.deny_nccl": "recommended",
                  "job.processes.0.nccl_version": (2, 31, 2)}),
    ("image-libc", {"image.glibc": None, "image.musl": True}),
    ("image-nccl", {"settings.values.deny_nccl": "2.28.3", "job.processes.0.nccl_version": None}),
]  # fmt: skip


def planted(changes: dict[str, Any]) -> Facts:
    facts = healthy()
    for path, new in changes.items():
        if new == "small":
            facts = changed(facts, "run_dir.places", _small(facts))
        else:
            facts = changed(facts, path, new)
    values = facts.settings.values
    if values != healthy().settings.values and not {"agent.note", "controller.note"} & set(changes):
        facts = changed(facts, "agent.note", note_of(values, AGENT))  # the services have read them
        facts = changed(facts, "controller.note", note_of(values, CONTROLLER))
    return facts


def _small(facts: Facts) -> dict[str, Any]:
    """The run directory's parts; the empty name cannot be part of a path."""
    places = known(facts.run_dir).places
    return {**places, "": replace(places[""], size_bytes=8 << 20)}


def results(facts: Facts) -> list[Result]:
    return [run_check(one, facts) for one in CHECKS]


def found(facts: Facts) -> set[str]:
    return {one.check.id for one in results(facts) if one.outcome is Outcome.FOUND}


def shown(facts: Facts) -> str:
    return render(Examination((Role.NODE,), facts, tuple(results(facts))), 100)


def test_a_healthy_system_is_one_line() -> None:
    assert shown(healthy()) == f"{ALL_WELL}\n"


@pytest.mark.parametrize(
    ("name", "changes"), [*FAULTS.items(), *MORE], ids=lambda one: one if type(one) is str else ""
)
def test_a_planted_fault_is_named_with_its_mend_and_nothing_else_is(
    name: str, changes: dict[str, Any]
) -> None:
    facts = planted(changes)
    assert found(facts) == {name}
    text = " ".join(shown(facts).split())
    assert text.startswith(f"{name}: ")
    assert " ".join(BY_ID[name].mend.split()) in text


def test_every_check_has_a_planted_fault() -> None:
    assert FAULTS.keys() == BY_ID.keys()
    assert len(FAULTS) >= 25


def test_ids_are_unique() -> None:
    assert len(BY_ID) == len(CHECKS)


@pytest.mark.parametrize("name", [one.name for one in fields(Facts) if one.name != "settings"])
def test_a_fact_that_is_not_known_is_told_and_is_no_fault(name: str) -> None:
    facts: Facts = changed(healthy(), name, CannotTell("no answer in 12 s"))
    assert found(facts) == set()
    text = shown(facts)
    assert "cannot tell: no answer in 12 s" in text
    assert ALL_WELL not in text
    assert Examination((Role.NODE,), facts, tuple(results(facts))).exit_code == 1


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#{1,6} (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^a-z0-9 _-]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", sorted({one.page for one in CHECKS}))
def test_the_page_of_a_check_and_its_section_exist(page: str) -> None:
    name, _, anchor = page.partition("#")
    assert (DOC / name).is_file()
    assert not anchor or anchor in anchors(DOC / name)


# What must not be taken for a fault.


@pytest.mark.parametrize(
    "changes",
    [
        {"monitoring.exporters": (), "monitoring.pages": (), "settings.values.default": "report"},
        {"monitoring.exporters": (), "settings.values.listen": "127.0.0.1:9435"},
        {"monitoring.exporters.0.directories": ("/host/run/nccl-inspector/prom",)},
        {"monitoring.exporters.0.directories": ("/run/*/prom",)},
        {"controller.unit.active": "inactive", "controller.unit.enabled": "disabled"},
        {"controller.timer.active": "active", "controller.unit.active": "inactive",
         "controller.age_s": 4000.0},
        {"scrape": None},
        {"gpus.count": 0, "gpus.nvml": ""},
        {"gpus.nvml": "", "settings.values.counters": False},
        {"agent.unit": None, "agent.python": None},
        {"controller.set_up": False, "controller.epilog": None, "controller.age_s": 9e9},
        {"slurm.config.PrologFlags": "Contain"},
        {"profiler.file.path": Path("libnccl-profiler-inspector.so"),
         "profiler.file.problem": MISSING},
        {"agent.status.agent_pid": None, "agent.status.collected_age_s": 100.0,
         "agent.own_age_s": None, "monitoring.pages.0.last_pass_age_s": None},
        {"slurm.node_state": "IDLE+DRAIN", "slurm.node_reason": "new disk"},
        {"agent.oldest_ended_s": 30.0, "agent.status.ended": 1},
        {"security.enforcing": False, "security.denials": CannotTell("no log")},
        {"settings.values.prom_group": "monitoring", "run_dir.prom_gid": 77,
         "run_dir.places.prom.file.mode": 0o040750, "run_dir.places.prom.file.gid": 77},
        {"slurm.config.PrologFlags": "RunInJob",
         "hooks.named": (script("Prolog", "/etc/slurm/nccl-inspector-hook"),)},
        {"job.boxes.0.followed": 0, "job.boxes.0.age_s": 10.0},
        {"nccl": {"/usr/lib/libnccl.so.2": None}},
        {"setup.todo": {"node": ("run-nccl\\x2dinspector.mount: enable and start",)}},
        {"enroot.fstab.problem": MISSING, "enroot.hook.problem": MISSING, "enroot.mounts": ()},
        {"enroot.mounts": (LIB, RUN)},
        {"nccl": {"/usr/lib/libnccl.so.2.31.2": (2, 31, 2)},
         "settings.values.deny_nccl": "recommended"},
    ],
)  # fmt: skip
def test_what_is_allowed_is_no_fault(changes: dict[str, Any]) -> None:
    facts = planted(changes)
    assert {one.check.id for one in results(facts) if one.outcome is not Outcome.WELL} == set()


def test_a_dangling_link_into_the_package_is_both_that_and_a_drain() -> None:
    link = FileFacts(Path("/etc/slurm/prolog.d/50-nccl"), MISSING, link_to=HOOK)
    facts = planted({"hooks.named.0.files": (link,)})
    assert found(facts) == {"hook-below-package", "hook-would-drain"}
    assert "50-nccl is a dangling link" in " ".join(shown(facts).split())


def test_only_the_evidence_of_a_job_that_uses_nccl_makes_it_well() -> None:
    facts = planted({"job.processes.0.nccl": "", "job.processes.0.profiler": "", "job.boxes": ()})
    assert found(facts) == set()
    assert "has loaded NCCL yet" in shown(facts)


def test_the_run_directory_as_the_package_makes_it_is_what_the_check_wants() -> None:
    lines = (DOC.parent / "tmpfiles.conf").read_text().splitlines()
    modes = {line.split()[1]: int(line.split()[2], 8) for line in lines if line.startswith("d ")}
    places = known(healthy().run_dir).places
    assert modes == {str(one.file.path): one.file.permissions for one in places.values()}
    assert str(RUN) in modes


def test_a_process_without_the_variables_beside_others_with_them_is_found_if_it_uses_nccl() -> None:
    facts = healthy()
    process = known(facts.job).processes[0]
    other = replace(process, pid=4713, environ=_WITHOUT)
    facts = changed(facts, "job.processes", (process, other))
    assert "job-no-variables" in found(facts)


def test_a_fault_of_a_job_comes_with_the_libraries_that_were_seen() -> None:
    text = " ".join(shown(planted({"job.disabled": True})).split())
    assert "seen: 1 process; /usr/lib/libnccl.so.2.28.3 and our plugin; 1 measured with" in text


# Right after the packages were installed nothing is set up: one command, and not five.
NEW_NODE: dict[str, Any] = {
    "plugstack.lines": (),
    "plugstack.library": None,
    "run_dir.places.jobs.file.problem": MISSING,
    "reports.uid": None,
    "setup.todo": {"node": ("account nccl-inspector: make", "x.mount: enable and start")},
}


def test_a_node_that_is_not_set_up_is_told_to_call_setup() -> None:
    text = " ".join(shown(planted(NEW_NODE)).split())
    command = "nccl-inspector setup node --apply"
    assert found(planted(NEW_NODE)) == {"plugstack-line", "run-dir-missing", "account-missing"}
    assert text.count(f"fix: {command} (as root). By hand: ") == 3
    assert f"{command} fixes 3 of these 3 faults" in text


def test_what_a_service_would_say_is_asked_by_its_own_check_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`agent-settings` and the checks of the monitoring say it, and one fault is told once."""
    asked: list[str] = []

    class Served(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

    class Other(MakesNothing):
        def look(self, host: Host, journal: Journal) -> Look:
            del host, journal
            return Look(State.TO_DO, "another step")

        def apply(self, host: Host, journal: Journal) -> None:
            del host, journal

    with HTTPServer(("127.0.0.1", 0), Served) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        note = Path("/nowhere")
        steps = [
            InForceStep("x.service", AGENT, note, OLD_SETTINGS),
            AnswerStep(f"127.0.0.1:{server.server_address[1]}", note),
            Other(),
        ]
        monkeypatch.setattr(Host, "is_booted", property(lambda _self: True))
        monkeypatch.setitem(vars(examine)["SETUP_ROLES"], "node", lambda _host, _site: steps)
        found = examine.read_setup({Role.NODE})
        server.shutdown()
        thread.join()
    assert (found.todo, asked) == ({"node": ("another step",)}, [])


def test_where_setup_has_nothing_to_do_the_fix_is_by_hand() -> None:
    facts = planted(NEW_NODE | {"setup.todo": {}})
    assert "setup node" not in shown(facts)
    assert " ".join(BY_ID["run-dir-missing"].mend.split()) in " ".join(shown(facts).split())


def test_a_node_is_not_told_to_set_up_the_controller() -> None:
    facts = planted(NEW_NODE | {"setup.todo": {"controller": ("x.service: enable",)}})
    assert "setup controller" not in shown(facts)


def test_a_page_is_a_file_that_is_there_or_one_of_the_sites_or_in_a_package(
    tmp_path: Path,
) -> None:
    assert find_page("install.md#turn-on", "https://hpc.example/docs/", tmp_path) == (
        "https://hpc.example/docs/install.html#turn-on"
    )
    missing = "install.md#turn-on in the package slurm-nccl-inspector-doc"
    assert find_page("install.md#turn-on", "", tmp_path) == missing
    (tmp_path / "install.md").touch()
    assert find_page("install.md#turn-on", "", tmp_path) == f"{tmp_path}/install.md, turn on"
    assert find_page("install.md", "", tmp_path) == f"{tmp_path}/install.md"
