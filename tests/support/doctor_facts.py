# SPDX-License-Identifier: Apache-2.0
"""What the doctor reads where all is well, and the same with a single thing changed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nccl_inspector.agent.status import Fill, NodeStatus
from nccl_inspector.controller.status import ServiceStatus
from nccl_inspector.doctor.elf import Elf
from nccl_inspector.doctor.facts import (
    Agent,
    Controller,
    Enroot,
    Exporter,
    Facts,
    FileFacts,
    Gpus,
    Hooks,
    Image,
    Interpreter,
    Job,
    JobBox,
    JobProcess,
    Library,
    Monitoring,
    Page,
    Place,
    PlugStack,
    RunDir,
    Scrape,
    Script,
    Security,
    Settings,
    SetUp,
    Slurm,
    StackLine,
    Storage,
    Unit,
)
from nccl_inspector.doctor.nccl import PROFILER
from nccl_inspector.doctor.set_by_slurm import MARKER, fnv1a
from nccl_inspector.model.process import GPU_TIMED, MEASURING
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.settings.in_force import AGENT, CONTROLLER, Note, Process, texts

LIB = Path("/usr/lib/nccl-inspector")
RUN = Path("/run/nccl-inspector")
SPANK = LIB / "spank_nccl_inspector.so"
PLUGIN = LIB / "libnccl-profiler-inspector.so"
ACCOUNT, SLURM_USER = 642, 64030
SLURM_GROUP = 64030
RAW = f"{RUN}/jobs/7/raw"
_X86 = 62
_CALLBACKS = "slurm_spank_init", "slurm_spank_user_init", "slurm_spank_job_prolog"


def changed(value: Any, path: str, new: Any) -> Any:
    """Return a copy in which the thing at a dotted path is another.

    A number is a place in a tuple, and any other word a field or a key.
    """
    name, _, rest = path.partition(".")
    if isinstance(value, tuple):
        at = int(name)
        inner = changed(value[at], rest, new) if rest else new
        return (*value[:at], inner, *value[at + 1 :])
    if isinstance(value, Mapping):
        return {**value, name: changed(value[name], rest, new) if rest else new}
    inner = changed(getattr(value, name), rest, new) if rest else new
    return replace(value, **{name: inner})


def script(key: str, path: str, mode: int = 0o100755) -> Script:
    return Script(key, path, (FileFacts(Path(path), mode=mode),))


def _directory(path: Path, mode: int, uid: int = 0, gid: int = 0) -> FileFacts:
    return FileFacts(path, "", uid, gid, 0o040000 | mode)


def _place(name: str, mode: int) -> Place:
    options = frozenset({"rw", "nosuid", "nodev", "noexec"})
    path = RUN / name if name else RUN
    is_mount = name in ("", "prom", "control")
    return Place(_directory(path, mode), "tmpfs", options, 256 << 20, 20_000, is_mount)


def _agent() -> Agent:
    fill = Fill(1 << 20, 256 << 20, 50, 20_000, True, "the run directory")
    status = NodeStatus(RUN, True, None, fill, 4711, None, 1, 0, 2, 3.0, "")
    unit = Unit("nccl-inspector-agent.service", "loaded", "active", "enabled", "", "/x/python")
    python = Interpreter("/usr/bin/python3", (3, 11), "")
    return Agent(status, 3.0, None, unit, python, note_of(parse_config("", "test"), AGENT))


def note_of(config: Config, reader: str) -> Note:
    """What a service says that runs with these settings."""
    return Note(Process(4711, "5", "boot", "spaces"), texts(config, reader))


def storage(path: str) -> Storage:
    return Storage(_directory(Path(path), 0o711, ACCOUNT), "nccl-inspector", ACCOUNT, "", True)


def _controller() -> Controller:
    spool = Path("/var/spool/nccl-inspector")
    folders = {
        "queue": _directory(spool / "queue", 0o2770, SLURM_USER, ACCOUNT),
        "dropped": _directory(spool / "dropped", 0o2770, SLURM_USER, ACCOUNT),
        "state": _directory(spool / "state", 0o750, ACCOUNT, ACCOUNT),
        "failed": _directory(spool / "failed", 0o750, ACCOUNT, ACCOUNT),
    }
    hook = script("EpilogSlurmctld", f"{LIB}/epilogctld/nccl-inspector-epilogctld")
    unit = Unit("nccl-inspector-controller.service", "loaded", "active", "enabled")
    timer = Unit("nccl-inspector-reports.timer", "loaded", "inactive", "disabled")
    return Controller(
        set_up=True,
        epilog=hook,
        folders=folders,
        slurm_uid=SLURM_USER,
        slurm_gids=(SLURM_GROUP,),
        account_gids=(ACCOUNT,),
        service=ServiceStatus(written_s=1.0),
        age_s=4.0,
        failed=0,
        unentered=(0, 0.0),
        unit=unit,
        timer=timer,
        note=note_of(parse_config("", "test"), CONTROLLER),
        uncounted=0,
    )


def environment(**more: str) -> dict[str, str]:
    """The variables of a step as SPANK has set them, with some changed afterwards."""
    ours = {
        PROFILER: str(PLUGIN),
        "NCCL_INSPECTOR_RUN_DIR": RAW,
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_RAS_ADDR": "localhost:61056",
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
    marker = " ".join(["7", *(f"{name}:{fnv1a(value)}" for name, value in ours.items())])
    return {**ours, MARKER: marker, "SLURM_JOB_ID": "7", **more}


def _job() -> Job:
    process = JobProcess(
        4712, environment(), "/usr/lib/libnccl.so.2.28.3", "", str(PLUGIN), (2, 28, 3)
    )
    box = JobBox("0_4712", "NCCL 2.28.3", MEASURING, GPU_TIMED, 5000, 5000, 300.0)
    return Job(7, _directory(RUN / "jobs/7", 0o711), "", (process,), (box,), False, "")


def _image() -> Image:
    return Image(
        Path("/images/pytorch"),
        (2, 35),
        False,
        _X86,
        (2, 28),
        _X86,
        (),
        {"/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3": (2, 28, 3)},
    )


def _slurm() -> Slurm:
    config = {
        "PlugStackConfig": "/etc/slurm/plugstack.conf",
        "PrologFlags": "Alloc",
        "PrologEpilogTimeout": "65534",
        "SlurmUser": f"slurm({SLURM_USER})",
        "SlurmctldHost": "head",
        "EpilogSlurmctld": f"{LIB}/epilogctld/nccl-inspector-epilogctld",
    }
    return Slurm(config, (24, 11), (24, 11), "n1", "IDLE", "")


def healthy() -> Facts:
    """A node that is also the controller, with a job and an image: all is well."""
    spank = Elf(
        _X86, frozenset(_CALLBACKS), {"plugin_version": 24 << 16 | 11 << 8 | 5}, False, None
    )
    profiler = Elf(_X86, frozenset({"ncclProfiler_v4"}), {}, False, (2, 28))
    library = Library(FileFacts(SPANK, mode=0o100755), spank)
    line = StackLine(Path("/etc/slurm/plugstack.conf"), "optional", SPANK, ("default=prom",))
    hooks = [script(kind, f"{LIB}/{kind}/50-nccl-inspector.sh") for kind in ("prolog", "epilog")]
    sites = script("Prolog", "/etc/slurm/prolog.d/10-site")
    modes = {"": 0o755, "jobs": 0o711, "ended": 0o700, "prom": 0o755, "control": 0o755}
    exporter = Exporter(
        99, True, (f"{RUN}/prom",), may_read=True, url="http://127.0.0.1:9100/metrics"
    )
    return Facts(
        settings=Settings(Path("/etc/nccl-inspector.conf"), "", parse_config("", "test")),
        slurm=_slurm(),
        plugstack=PlugStack((line.file,), (line,), library),
        profiler=Library(FileFacts(PLUGIN, mode=0o100755), profiler),
        hooks=Hooks(tuple(hooks), (sites,), slurmd_has_plugin=True),
        run_dir=RunDir({name: _place(name, mode) for name, mode in modes.items()}, 0),
        agent=_agent(),
        monitoring=Monitoring((exporter,), (Page(exporter.url, 4.0, scrape_error=False),)),
        scrape=Scrape("http://prometheus:9090", "n1", 20.0),
        gpus=Gpus(8, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", has_bindings=True),
        enroot=Enroot(
            FileFacts(Path("/etc/enroot/mounts.d/50-nccl-inspector.fstab"), mode=0o100644),
            FileFacts(Path("/etc/enroot/hooks.d/50-nccl-inspector.sh"), mode=0o100755),
            (LIB, RUN / "control"),
            {"run_dir": RUN / "control", "profiler": PLUGIN},
        ),
        nccl={"/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3": (2, 28, 3)},
        security=Security(enforcing=True, denials=()),
        clock_ahead_s=0.0,
        reports=storage("/shared/reports"),
        objects="",
        store=storage("/shared/store"),
        spool=storage("/var/spool/nccl-inspector/dropped"),
        controller=_controller(),
        job=_job(),
        image=_image(),
        setup=SetUp(has_site_file=False, todo={}),
    )
