# SPDX-License-Identifier: Apache-2.0
"""The steps of each kind of host."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.monitoring.site import make_site
from nccl_inspector.settings.config import DEFAULT_CONF, Config, parse_config
from nccl_inspector.settings.in_force import AGENT, CONTROLLER, agent_note, controller_note
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.in_force import AGENT_UNIT, CONTROLLER_UNIT, AnswerStep, InForceStep
from nccl_inspector.setup.journal import Key
from nccl_inspector.setup.site_file import SiteFile
from nccl_inspector.setup.slurm_layout import (
    SlurmLayout,
    find_layout,
    plugstack_files,
    slurm_value,
)
from nccl_inspector.setup.steps import (
    AccountStep,
    Advice,
    DirectoryStep,
    Obstacle,
    OwnFile,
    PlugstackLineStep,
    Step,
    TmpfilesStep,
    UnitStep,
)
from nccl_inspector.slurm.prolog_flags import flags_of, has_alloc

RUN_UNIT = "run-nccl\\x2dinspector.mount"
_PLUGIN = "/usr/lib/nccl-inspector/spank_nccl_inspector.so"
_CONTROLLER_TMPFILES = Path("/etc/tmpfiles.d/nccl-inspector-controller.conf")
_NO_SLURM = (
    "no slurm.conf was found: say where it is in the site file (conf_dir, in the table slurm)"
)
_NO_SLURM_YET = (
    "plugstack.conf: there is no slurm.conf in this image. If slurmd gets its files from "
    "slurmctld, the line of the controller is enough; if not, say where they are in the site file "
    "(conf_dir, in the table slurm)"
)
_HEAD = "# Written by nccl-inspector setup from the site file.\n"


def _settings_text(site: SiteFile) -> str:
    return _HEAD + "".join(f"{key} = {value}\n" for key, value in site.settings)


def _config(host: Host, site: SiteFile) -> Config:
    """Return the settings of the site file, or if it has none, those of the host.

    Raises:
        InspectorError: one of them is not known or not valid.
    """
    if site.settings:
        return parse_config(_settings_text(site), "site file, settings")
    return parse_config(host.read_text(DEFAULT_CONF), str(DEFAULT_CONF))


def _settings(site: SiteFile, wanted: Config) -> list[Step]:
    """Return the step of the settings file; without settings a site's own file stays as it is."""
    if not site.settings:
        return []
    text = _settings_text(site)

    def says_the_same(data: bytes) -> bool:
        try:
            return parse_config(data.decode("utf-8", "replace"), str(DEFAULT_CONF)) == wanted
        except InspectorError:
            return False

    return [OwnFile(DEFAULT_CONF, text.encode(), tuple(text.splitlines()[1:]), says_the_same)]


def _plugstack(host: Host, site: SiteFile, layout: SlurmLayout) -> list[Step]:
    if layout.conf_dir is None:
        return [Obstacle(_NO_SLURM) if host.is_booted else Advice(False, _NO_SLURM_YET)]
    conf = host.read_text(layout.conf_dir / "slurm.conf")
    is_sent = "enable_configless" in slurm_value(conf, "SlurmctldParameters")
    step = PlugstackLineStep(
        layout.conf_dir, site.plugin or _PLUGIN, site.words, is_sent or layout.is_configless
    )
    if layout.is_configless and layout.conf_dir in step.path(host).parents:
        text = "plugstack.conf: slurmctld sends it; set up the controller"
        return [Advice(True, text)]
    return [step]


def _preset(role: str) -> Path:
    return Path(f"/etc/systemd/system-preset/70-nccl-inspector-{role}.preset")


def _presets(host: Host, role: str, *units: str) -> list[Step]:
    """Return the step of a file that keeps units enabled at the first boot of an image.

    Some distributions apply all presets then, and the package's own disable what is ours.
    """
    if not host.has_systemd:
        return []
    text = _HEAD + "".join(f"enable {one}\n" for one in units)
    return [OwnFile(_preset(role), text.encode())]


def _prolog_flags(host: Host, layout: SlurmLayout) -> list[Step]:
    if layout.conf_dir is None:
        return []
    text = host.read_text(layout.conf_dir / "slurm.conf")
    flags = flags_of(slurm_value(text, "PrologFlags"))
    has = has_alloc(flags)
    found: list[Step] = [
        Advice(has, f"slurm.conf: PrologFlags {'has' if has else 'needs'} Alloc",
               ("PrologFlags=Alloc     # in slurm.conf, then scontrol reconfigure",))
    ]  # fmt: skip
    if "runinjob" in flags:
        text = "PrologFlags=RunInJob: use the hook of the page Install (Without the callbacks)"
        found.append(Advice(False, text))
    return found


def node_steps(host: Host, site: SiteFile) -> list[Step]:
    """Return what a node needs.

    Raises:
        InspectorError: the site file's settings or a file of the host cannot be read.
    """
    config, layout = _config(host, site), find_layout(host, site.conf_dir)
    return [
        AccountStep(site.account, site.uid),
        *_settings(site, config),
        *_plugstack(host, site, layout),
        *_presets(host, "node", RUN_UNIT, AGENT_UNIT),
        UnitStep(RUN_UNIT),
        UnitStep(AGENT_UNIT),
        InForceStep(AGENT_UNIT, AGENT, agent_note(config), config),
        *_prolog_flags(host, layout),
        AnswerStep(config.listen, agent_note(config))
        if config.listen
        else Advice(
            False,
            "metrics: let node_exporter read them",
            (f"--collector.textfile.directory={config.run_dir}/prom",),
        ),
        Advice(
            not host.is_booted,
            "slurmd: it looks for the plugin when it starts; running jobs go on",
            ("systemctl restart slurmd     # from Slurm 24.11 on scontrol reconfigure is enough",),
        ),
    ]


def _controller_tmpfiles(host: Host, config: Config, slurm_user: str) -> list[Step]:
    """Return the queue's directories, as the package says them, for this site's SlurmUser."""
    sample = Path(config.hooks) / "tmpfiles-controller.conf"
    text = host.read_text(sample)
    if not text:
        return [Obstacle(f"{sample} is not there: install the package first")]
    lines, directories = [], []
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == "d":
            words = [slurm_user if word == "slurm" else word for word in words]
            directories.append(Path(words[1]))
            line = " ".join(words)
        lines.append(line)
    data = ("\n".join(lines) + "\n").encode()
    return [TmpfilesStep(OwnFile(_CONTROLLER_TMPFILES, data), tuple(directories))]


def controller_steps(host: Host, site: SiteFile) -> list[Step]:
    """Return what the host of slurmctld needs.

    Raises:
        InspectorError: as of node_steps().
    """
    config, layout = _config(host, site), find_layout(host, site.conf_dir)
    if layout.conf_dir is None:
        return [Obstacle(_NO_SLURM)]
    text = host.read_text(layout.conf_dir / "slurm.conf")
    hook = f"{config.hooks}/epilogctld/nccl-inspector-epilogctld"
    return [
        AccountStep(site.account, site.uid),
        *_settings(site, config),
        *_plugstack(host, site, replace(layout, is_configless=False)),
        *_controller_tmpfiles(host, config, slurm_value(text, "SlurmUser") or "root"),
        DirectoryStep(config.report_dir, site.account, 0o711),
        DirectoryStep(config.store_dir, site.account, 0o711),
        *_presets(host, "controller", CONTROLLER_UNIT),
        UnitStep(CONTROLLER_UNIT),
        InForceStep(CONTROLLER_UNIT, CONTROLLER, controller_note(config), config),
        *_prolog_flags(host, layout),
        Advice(
            hook in text,
            f"slurm.conf: EpilogSlurmctld {'runs' if hook in text else 'must run'} our hook",
            (
                f"EpilogSlurmctld={hook}     # in slurm.conf",
                "scontrol reconfigure     # Slurm 22.05: restart slurmctld instead",
            ),
        ),
    ]


def _bundle(site: SiteFile) -> dict[str, str]:
    # Imported here, because it loads jinja2, which is not on a node.
    from nccl_inspector.monitoring.bundle import make_bundle

    return make_bundle(make_site(site.monitoring), expand(site.nodes))


def monitoring_steps(host: Host, site: SiteFile) -> list[Step]:
    """Return what the host of Prometheus and Grafana needs: files, which the site includes.

    Raises:
        InspectorError: a value for the monitoring is not valid.
    """
    del host
    out = site.monitoring_dir
    if out is None:
        return [Obstacle("the site file does not say where to put the files (out, in the table "
                         "monitoring)")]  # fmt: skip
    files = _bundle(site)
    return [
        *(OwnFile(out / name, text.encode()) for name, text in files.items()),
        Advice(
            False,
            "prometheus.yml: include the rules and the scrape configuration (the page Monitoring)",
            (
                f"rule_files: [{out}/prometheus/nccl-inspector-rules.yml, "
                f"{out}/prometheus/nccl-inspector-alerts.yml]",
                f"scrape_config_files: [{out}/prometheus/nccl-inspector-scrape.yml]",
                "# before Prometheus 2.43 (Debian 12 has 2.42): put the scrape_configs of that file"
                " into",
                "# prometheus.yml instead of the second line",
            ),
        ),
    ]


def own_changes(host: Host, role: str, site: SiteFile) -> frozenset[Key]:
    """Return all that steps of this release may have made on a host with this site file.

    In an image only the site file says where reports are: the settings file in it may be anybody's.

    Raises:
        InspectorError: the settings cannot be read.
    """
    if role == "monitoring":
        out = site.monitoring_dir
        return (
            frozenset(("file", str(out / name)) for name in _bundle(site)) if out else frozenset()
        )
    config = parse_config(_settings_text(site), "site file, settings")
    if host.is_live:
        config = _config(host, site)
    files = [DEFAULT_CONF, _CONTROLLER_TMPFILES, _preset("node"), _preset("controller")]
    files += plugstack_files(host, site.conf_dir)
    units = RUN_UNIT, AGENT_UNIT, CONTROLLER_UNIT
    return frozenset((
        ("account", site.account),
        *(("unit", one) for one in units),
        *(("directory", str(one)) for one in (config.report_dir, config.store_dir)),
        *(("file", str(one)) for one in files),
    ))  # fmt: skip


ROLES: Mapping[str, Callable[[Host, SiteFile], list[Step]]] = {
    "node": node_steps,
    "controller": controller_steps,
    "monitoring": monitoring_steps,
}
