# SPDX-License-Identifier: Apache-2.0
"""How Slurm finds the SPANK plugin and the scripts around jobs: plugstack.conf, slurm.conf."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from nccl_inspector.doctor.facts import (
    CannotTell,
    CannotTellError,
    Fact,
    Hooks,
    PlugStack,
    Script,
    Slurm,
    StackLine,
)
from nccl_inspector.doctor.files import file_facts, read_library, read_text
from nccl_inspector.doctor.processes import Running, nearest
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config, load_settings, parse_value, read_config
from nccl_inspector.slurm.plugstack import maps_have_our_library, matching, stack_entries
from nccl_inspector.system.printable import printable

HOOK = "50-nccl-inspector.sh"
_LINES_MAX = 64
_SCOPES = ("site", "option")
# Where slurmd keeps what slurmctld sent it on a configless site.
_CONFIGLESS = Path("/run/slurm/conf")


def _stack_file(config: Mapping[str, str]) -> Path:
    """Return the path of plugstack.conf.

    Raises:
        CannotTellError: it is nowhere.
    """
    named = config.get("PlugStackConfig", "")
    slurm_conf = os.environ.get("SLURM_CONF") or config.get("SLURM_CONF", "")
    places = [Path(named)] if named.startswith("/") else []
    # A name that slurmctld reads may be a copy elsewhere on this host.
    places += [Path(slurm_conf).parent / "plugstack.conf"] if slurm_conf else []
    places += [_CONFIGLESS / "plugstack.conf", Path("/etc/slurm/plugstack.conf")]
    return next((one for one in places if one.exists()), places[0])


def _refused_words(words: tuple[str, ...]) -> Iterator[str]:
    settings = load_settings()
    for word in words:
        key, equals, value = word.partition("=")
        if key == "conf" and equals:
            try:
                read_config(Path(value))
            except InspectorError as err:
                yield str(err)
        elif not equals or key not in settings:
            yield f"unknown word {word[:40]!r}"
        elif settings[key].scope not in _SCOPES:
            yield f"{key} is the agent's, only nccl-inspector.conf may have it"
        else:
            try:
                parse_value(settings[key], value)
            except ValueError as err:
                yield f"{key}: {err}"


def _library_path(name: str, config: Mapping[str, str]) -> Path:
    folders = config.get("PluginDir", "").split(":")
    paths = [Path(folder, name) for folder in folders if folder]
    return next((one for one in paths if one.exists()), paths[0] if paths else Path(name))


def read_plugstack(slurm: Fact[Slurm]) -> PlugStack:
    """Return our lines of plugstack.conf.

    If there is no plugstack.conf, there are no files and no lines.
    """
    config = {} if isinstance(slurm, CannotTell) else slurm.config
    seen: list[Path] = []
    lines: list[StackLine] = []
    path = _stack_file(config)
    for one in stack_entries(path, read_text, seen=seen) if path.exists() else ():
        if one.is_ours and len(lines) < _LINES_MAX:
            kind, name, *words = one.words
            refused = tuple(printable(why) for why in _refused_words(tuple(words)))
            library = _library_path(name, config)
            lines.append(StackLine(one.file, kind.lower(), library, tuple(words), refused))
    return PlugStack(
        tuple(seen or [path]), tuple(lines), read_library(lines[0].path) if lines else None
    )


def plugin_settings(stack: Fact[PlugStack], config: Config) -> Config:
    """Return the settings as the SPANK plugin sees them, as far as they are valid."""
    if isinstance(stack, CannotTell) or not stack.lines:
        return config
    line, settings = stack.lines[0], load_settings()
    if line.refused:
        return config
    pairs = dict(word.split("=", 1) for word in line.words)
    found = read_config(Path(pairs.pop("conf"))) if "conf" in pairs else config
    for key, word in pairs.items():
        # `parse_value` gives the type of the field.
        found = replace(found, **{settings[key].field: parse_value(settings[key], word)})  # type: ignore[arg-type]
    return found


def read_script(key: str, entry: str) -> Script:
    """Return the files that an entry names, dangling links included."""
    return Script(key, entry, tuple(file_facts(one) for one in matching(entry)))


def entries(config: Mapping[str, str], key: str) -> list[str]:
    """Return the values of a key of slurm.conf that may be there several times."""
    return [one for one in config.get(key, "").split(",") if one.startswith("/")]


def _has_plugin(daemons: tuple[Running, ...]) -> bool:
    running = nearest(daemons, "slurmd")
    if not running:
        raise CannotTellError("slurmd does not run here")
    maps = read_text(Path(f"/proc/{running[0].pid}/maps"), 8 << 20)
    if not maps:
        raise CannotTellError("only root sees what slurmd has loaded")
    return maps_have_our_library(maps)


def _slurmd_has_plugin(daemons: tuple[Running, ...]) -> Fact[bool]:
    try:
        return _has_plugin(daemons)
    except CannotTellError as err:
        return CannotTell(str(err))
    except PermissionError:
        return CannotTell("only root sees what slurmd has loaded")


def read_hooks(slurm: Slurm, plugin: Config, daemons: tuple[Running, ...]) -> Hooks:
    """Return what slurmd runs around jobs."""
    ours = [read_script(kind, str(plugin.hooks / kind / HOOK)) for kind in ("prolog", "epilog")]
    named = [
        read_script(key, entry)
        for key in ("Prolog", "Epilog")
        for entry in entries(slurm.config, key)
    ]
    return Hooks(tuple(ours), tuple(named), _slurmd_has_plugin(daemons))
