# SPDX-License-Identifier: Apache-2.0
"""Checks of an unpacked image."""

from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.elf import MACHINES
from nccl_inspector.doctor.facts import CannotTellError, Facts, known
from nccl_inspector.doctor.nccl import (
    OPENS_NO_PATH,
    PROFILER,
    libraries_advised_against,
    problem_of,
    version_words,
)

_IMAGE = frozenset({Role.IMAGE})
_CONF_FILES = ("/etc/nccl.conf", "/root/.nccl.conf")


def _libc(facts: Facts) -> str:
    image = known(facts.image)
    if image.glibc is None:
        return "its C library is musl" if image.musl else "it has no libc.so.6"
    if image.glibc >= image.needs_glibc:
        return ""
    has, needs = (".".join(map(str, one)) for one in (image.glibc, image.needs_glibc))
    return f"it has glibc {has}, and the plugin needs {needs}"


def _machine(facts: Facts) -> str:
    image = known(facts.image)
    if image.machine is None or not image.host_machine or image.machine == image.host_machine:
        return ""
    inside, ours = (
        MACHINES.get(one, f"machine {one}") for one in (image.machine, image.host_machine)
    )
    return f"the image is for {inside}, the plugin for {ours}"


def _sets_profiler(facts: Facts) -> str:
    return "; ".join(
        f"{one.path}: {line}"
        for one in known(facts.image).sets
        if one.path not in _CONF_FILES
        for line in one.lines
        if PROFILER in line
    )


def _sets_others(facts: Facts) -> str:
    return "; ".join(
        f"{one.path}: {line}"
        for one in known(facts.image).sets
        for line in one.lines
        if one.path in _CONF_FILES or PROFILER not in line
    )


def _nccl(facts: Facts) -> str:
    deny = facts.settings.values.deny_nccl
    found = [
        f"{path}: {why}"
        for path, version in known(facts.image).nccl.items()
        if version and (why := problem_of(version, deny))
    ]
    left = known(facts.image).not_scanned
    if left and not found:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise CannotTellError(f"not scanned, because there is too much to read: {left[0]}{more}")
    return "; ".join(found)


def _better_not(facts: Facts) -> str:
    image = known(facts.image)
    return libraries_advised_against(image.nccl, facts.settings.values.deny_nccl)


def _opens_no_path(facts: Facts) -> str:
    if "/" not in str(facts.settings.values.profiler):
        return ""
    found = [path for path, version in known(facts.image).nccl.items() if version == OPENS_NO_PATH]
    return f"{found[0]} is {version_words(OPENS_NO_PATH)}" if found else ""


def _rccl(facts: Facts) -> str:
    return ", ".join(known(facts.image).rccl)


def _own_plugin(facts: Facts) -> str:
    path = known(facts.image).own_profiler
    return f"the image has {path}" if path else ""


def _zlib(facts: Facts) -> str:
    has = known(facts.image).has_zlib
    return "" if has or not facts.settings.values.gzip else "it has no libz.so.1"


CHECKS = (
    Check(
        id="image-libc",
        roles=_IMAGE,
        looks_at="the C library of the image",
        meaning="The image's loader cannot load the plugin: its jobs run and are not measured.",
        mend="Use an image with glibc 2.28 or later.",
        page="containers.md#what-must-be-there-inside",
        judge=_libc,
    ),
    Check(
        id="image-machine",
        roles=_IMAGE,
        looks_at="the architecture of the image and of the plugin on this host",
        meaning="The plugin cannot be loaded in it.",
        mend="Look on a node of the image's architecture.",
        page="containers.md#what-must-be-there-inside",
        judge=_machine,
    ),
    Check(
        id="image-sets-profiler",
        roles=_IMAGE,
        looks_at="the files in which images keep their variables",
        meaning="With Pyxis and others the image's value wins: our plugin is not loaded.",
        mend="Take it out of the image, or make the runtime keep the host's value: srun "
        "--container-env=NCCL_PROFILER_PLUGIN with Pyxis.",
        page="containers.md#environment-variables",
        judge=_sets_profiler,
    ),
    Check(
        id="image-sets-others",
        roles=_IMAGE,
        looks_at="the same files, and NCCL's configuration files",
        meaning="These values may win over those of the site.",
        mend="Take them out of the image, if that is not meant.",
        page="containers.md#environment-variables",
        judge=_sets_others,
    ),
    Check(
        id="image-nccl",
        roles=_IMAGE,
        looks_at="the NCCL libraries of the image, and the setting `deny_nccl`",
        meaning="Processes with this NCCL are not measured.",
        mend="Use an image with another release of NCCL.",
        page="troubleshoot.md#step-3-did-nccl-call-the-plugin",
        judge=_nccl,
    ),
    Check(
        id="image-nccl-advice",
        roles=_IMAGE,
        looks_at="the NCCL libraries of the image, and the list that comes with the package",
        meaning="Measuring harms jobs with this NCCL.",
        mend="Use another release of NCCL in the image, or set deny_nccl = recommended.",
        page="operate.md#releases-of-nccl-that-are-better-not-measured",
        judge=_better_not,
    ),
    Check(
        id="image-nccl-2273",
        roles=_IMAGE,
        looks_at="the NCCL libraries of the image, and the setting `profiler`",
        meaning="This release opens no profiler by its path.",
        mend="Give the setting `profiler` a name that the loader of the image finds.",
        page="site-policy.md#nccl-2273",
        judge=_opens_no_path,
    ),
    Check(
        id="image-rccl",
        roles=_IMAGE,
        looks_at="RCCL in the image",
        meaning="RCCL, AMD's library, is recognised and not measured.",
        mend="None.",
        page="troubleshoot.md#step-3-did-nccl-call-the-plugin",
        judge=_rccl,
    ),
    Check(
        id="image-own-plugin",
        roles=_IMAGE,
        looks_at="the plugin's path inside the image",
        meaning="Without a mount the image's copy is loaded, which may be of another release.",
        mend="Take it out of the image, and mount that of the host.",
        page="containers.md#what-must-be-there-inside",
        judge=_own_plugin,
    ),
    Check(
        id="image-zlib",
        roles=_IMAGE,
        looks_at="libz.so.1 in the image, if the setting `gzip` is on",
        meaning="JSON lines are not compressed.",
        mend="Add zlib to the image.",
        page="containers.md#what-must-be-there-inside",
        judge=_zlib,
    ),
)
