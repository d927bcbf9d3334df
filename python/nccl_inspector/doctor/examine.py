# SPDX-License-Identifier: Apache-2.0
"""Find out what this host is, gather the facts that its checks need, and judge them."""

import os
import shutil
import socket
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from nccl_inspector.doctor.bounded import Reader, gather
from nccl_inspector.doctor.check import Outcome, Result, Role, run_check
from nccl_inspector.doctor.facts import CannotTell, Fact, Facts, PlugStack, Settings, SetUp, Slurm
from nccl_inspector.doctor.files import read_library
from nccl_inspector.doctor.processes import Running, find_daemons
from nccl_inspector.doctor.read_controller import read_controller, read_spool
from nccl_inspector.doctor.read_enroot import read_enroot
from nccl_inspector.doctor.read_image import read_image, read_nccl_of_host
from nccl_inspector.doctor.read_job import read_job
from nccl_inspector.doctor.read_monitoring import EXPORTERS, read_monitoring, read_scrape
from nccl_inspector.doctor.read_node import read_agent, read_gpus, read_run_dir, read_security
from nccl_inspector.doctor.read_plugin import plugin_settings, read_hooks, read_plugstack
from nccl_inspector.doctor.read_slurm import read_clock, read_slurm
from nccl_inspector.doctor.read_storage import read_objects, read_storage
from nccl_inspector.doctor.registry import CHECKS
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import DEFAULT_CONF, Config, parse_config, read_config
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.in_force import AnswerStep, InForceStep
from nccl_inspector.setup.plan import ROLES as SETUP_ROLES
from nccl_inspector.setup.run import look as look_at_setup
from nccl_inspector.setup.site_file import DEFAULT_SITE, read_site
from nccl_inspector.setup.steps import State

EXIT_WELL, EXIT_FOUND = 0, 1
_SLURMD_PLACES = "/usr/sbin:/usr/bin:/sbin:/usr/local/sbin:/opt/slurm/sbin"


@dataclass(frozen=True, slots=True)
class Examination:
    """What was looked at as what, and the results of all checks that fit."""

    roles: tuple[Role, ...]
    facts: Facts
    results: tuple[Result, ...]

    def without(self, ids: Collection[str]) -> Self:
        """Return the same without the results of these checks."""
        kept = tuple(one for one in self.results if one.check.id not in ids)
        return replace(self, results=kept)

    @property
    def exit_code(self) -> int:
        """EXIT_WELL only if every check could be made and found nothing."""
        well = all(one.outcome is Outcome.WELL for one in self.results)
        return EXIT_WELL if well else EXIT_FOUND


def read_settings(conf: Path | None) -> Settings:
    """Return the settings; a file that is refused gives the defaults."""
    path = conf or DEFAULT_CONF
    try:
        return Settings(path, "", read_config(conf))
    except InspectorError as err:
        return Settings(path, str(err), parse_config("", str(path)))


def _daemons() -> tuple[Running, ...]:
    found = gather({"": partial(find_daemons, "slurmd", "slurmctld", *EXPORTERS)})[""]
    return () if isinstance(found, CannotTell) else found


def detect_roles(
    config: Config, slurm: Fact[Slurm], daemons: tuple[Running, ...]
) -> tuple[Role, ...]:
    """Return what this host is, by its daemons, its directories and the name of the controller."""
    here = {one.name for one in daemons if one.is_here}
    host = socket.gethostname().split(".")[0]
    named = "" if isinstance(slurm, CannotTell) else slurm.config.get("SlurmctldHost", "")
    controllers = {part.split("(")[0].split(".")[0] for part in named.split(",")}
    is_controller = "slurmctld" in here or host in controllers
    is_node = "slurmd" in here or (config.run_dir / "jobs").exists()
    has_slurmd = shutil.which("slurmd", path=_SLURMD_PLACES) is not None
    if is_node or (has_slurmd and not is_controller):
        return (Role.NODE, Role.CONTROLLER) if is_controller else (Role.NODE,)
    return (Role.CONTROLLER,) if is_controller else (Role.SUBMIT,)


def _plugin_facts(
    config: Config, slurm: Fact[Slurm], roles: Collection[Role], daemons: tuple[Running, ...]
) -> dict[str, Any]:
    if not {Role.NODE, Role.SUBMIT} & set(roles):
        return {}
    found = gather({"plugstack": partial(read_plugstack, slurm)})
    stack: Fact[PlugStack] = found["plugstack"]
    plugin = gather({"": partial(plugin_settings, stack, config)})[""]
    values = config if isinstance(plugin, CannotTell) else plugin
    readers: dict[str, Reader] = {"profiler": partial(read_library, values.profiler)}
    if Role.NODE in roles:
        readers["enroot"] = partial(read_enroot, values)
    if isinstance(slurm, CannotTell):
        found["hooks"] = slurm
    elif Role.NODE in roles:
        readers["hooks"] = partial(read_hooks, slurm, values, daemons)
    return found | gather(readers)


def _readers(
    config: Config, prometheus: str, roles: Collection[Role], daemons: tuple[Running, ...]
) -> dict[str, Reader]:
    """Return the readers for these roles, except those of the plugin and of the controller."""
    readers: dict[str, Reader] = {}
    if Role.NODE in roles:
        readers |= {
            "run_dir": partial(read_run_dir, config),
            "agent": partial(read_agent, config),
            "monitoring": partial(read_monitoring, config, daemons),
            "gpus": read_gpus,
            "nccl": read_nccl_of_host,
            **({"scrape": partial(read_scrape, config, prometheus)} if prometheus else {}),
            "security": read_security,
            "clock_ahead_s": partial(read_clock, config),
        }
    if {Role.NODE, Role.CONTROLLER} & set(roles):
        readers["reports"] = partial(read_storage, config.report_dir, config.report_user)
        readers["objects"] = partial(read_objects, config)
    if Role.CONTROLLER in roles:
        readers["store"] = partial(read_storage, config.store_dir, config.report_user)
    return readers


def read_setup(roles: Collection[Role]) -> SetUp:
    """Return what `setup` would do here for each of its roles; nothing for one that it refuses.

    Its steps that ask a running service are left out: checks of their own say what these would.

    Raises:
        InspectorError: the site file or a file of the host cannot be read.
    """
    site, host = read_site(None), Host()
    todo: dict[str, tuple[str, ...]] = {}
    for role in (one for one in roles if one in SETUP_ROLES):
        steps = SETUP_ROLES[role](host, site)
        made = [one for one in steps if not isinstance(one, (AnswerStep, InForceStep))]
        shown = look_at_setup(host, role, made)
        if shown.has(State.TO_DO) and not shown.has(State.REFUSED):
            todo[role] = tuple(one.text for one in shown.looks if one.state is State.TO_DO)
    return SetUp(DEFAULT_SITE.exists(), todo)


def _examined(roles: tuple[Role, ...], facts: Facts) -> Examination:
    results = [run_check(one, facts) for one in CHECKS if one.roles & set(roles)]
    return Examination(roles, facts, tuple(results))


def examine_host(settings: Settings, forced: Collection[Role], prometheus: str = "") -> Examination:
    """Examine this host; `forced`: as these roles, whatever it looks like.

    `prometheus`: the address of one that should scrape a node; empty: none is asked.
    """
    config, daemons = settings.values, _daemons()
    slurm: Fact[Slurm] = gather({"": partial(read_slurm, config, daemons)})[""]
    roles = tuple(one for one in Role if one in forced) or detect_roles(config, slurm, daemons)
    found: dict[str, Any] = {"slurm": slurm}
    found |= _plugin_facts(config, slurm, roles, daemons)
    readers = _readers(config, prometheus, roles, daemons)
    if Role.CONTROLLER in roles:
        found["controller"] = slurm
        if not isinstance(slurm, CannotTell):
            wanted = Role.CONTROLLER in forced
            readers["controller"] = partial(read_controller, config, slurm, wanted)
            readers["spool"] = partial(read_spool, config, slurm)
    found |= gather(readers | {"setup": partial(read_setup, roles)})
    return _examined(roles, Facts(settings=settings, **found))


def examine_job(settings: Settings, job_id: int) -> Examination:
    """Examine a job on this node."""
    found = gather({"job": partial(read_job, settings.values, job_id)})
    return _examined((Role.JOB,), Facts(settings=settings, **found))


def examine_image(settings: Settings, root: Path) -> Examination:
    """Examine an unpacked image."""
    found = gather({"image": partial(read_image, settings.values, root)}, 60.0)
    return _examined((Role.IMAGE,), Facts(settings=settings, **found))


def is_root() -> bool:
    """Tell whether the caller may look at everything."""
    return os.geteuid() == 0
