# SPDX-License-Identifier: Apache-2.0
"""The site file: one TOML file that says the same for all hosts of a site.

Each key is optional. A key that is not known is an error, so that a typing error is seen.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccl_inspector.errors import InspectorError

DEFAULT_SITE = Path("/etc/nccl-inspector/site.toml")
_BYTES_MAX = 64 << 10
_ACCOUNT = "nccl-inspector"
UID_MAX = (1 << 32) - 2
# Slurm splits the line at blanks, and a quote or a backslash means something to it.
_WORD = re.compile(r"[a-z0-9_]+=[A-Za-z0-9_.,:/@%+-]+")
_PLUGIN = re.compile(r"[A-Za-z0-9_./+-]*\.so")
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_KEYS: Mapping[str, Mapping[str, type]] = {
    "slurm": {"conf_dir": str, "plugin": str, "words": str},
    "account": {"name": str, "uid": int},
    "monitoring": {"out": str, "nodes": str, "set": dict},
}


@dataclass(frozen=True, slots=True)
class SiteFile:
    """What the site file says; empty or None: not said."""

    conf_dir: Path | None = None  # where slurm.conf and plugstack.conf are
    plugin: str = ""  # path of the SPANK plugin, or its name in Slurm's PluginDir
    words: tuple[str, ...] = ()  # what follows it in plugstack.conf
    account: str = _ACCOUNT
    uid: int | None = None
    settings: tuple[tuple[str, str], ...] = ()  # lines of nccl-inspector.conf
    monitoring_dir: Path | None = None
    nodes: str = ""  # to scrape, as in Slurm
    monitoring: tuple[str, ...] = ()  # NAME=VALUE, as of `setup monitoring --set`


def is_line_of_setup(text: str) -> bool:
    """Tell whether a text is a line that setup may have put into plugstack.conf."""
    words = text.removesuffix("\n").split(" ")
    return (
        text.endswith("\n")
        and len(words) > 1
        and words[0] == "optional"
        and _PLUGIN.fullmatch(words[1]) is not None
        and all(map(_WORD.fullmatch, words[2:]))
    )


def is_account_name(text: str) -> bool:
    """Tell whether a text may be the name of the service account."""
    return _NAME.fullmatch(text) is not None


def _text(value: Any) -> str:
    """Return a value of TOML as it stands in nccl-inspector.conf.

    Raises:
        ValueError: it is neither text nor a number nor true or false, or would be read differently.
    """
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise ValueError("not text, a number, true or false")
    text = str(value)
    if "#" in text or not text.isprintable():
        raise ValueError(f"{text[:40]!r} cannot stand in nccl-inspector.conf")
    return text


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError("not an absolute path")
    return path


def _checked(table: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a table.

    Raises:
        ValueError: an unknown key, or a value of the wrong type.
    """
    known = _KEYS[table]
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"unknown key {key[:40]!r}; known: {', '.join(known)}")
        if not isinstance(value, known[key]) or isinstance(value, bool):
            raise ValueError(f"{key}: not of type {known[key].__name__}")
    return values


def _settings(table: Mapping[str, Any], account: str) -> tuple[tuple[str, str], ...]:
    """Return the settings; an account of another name than usual is one of them.

    Raises:
        ValueError: a value is of no type that a setting has, or the account is another one.
    """
    found = {key: _text(value) for key, value in table.items()}
    if account != _ACCOUNT:
        found.setdefault("report_user", account)
    if found.get("report_user", _ACCOUNT) != account:
        raise ValueError(f"report_user is {found['report_user']}, and the account is {account}")
    return tuple(found.items())


def _from_tables(tables: Mapping[str, Any]) -> SiteFile:
    """Return what the tables say.

    Raises:
        ValueError: something in them is not known or not valid.
    """
    for name, table in tables.items():
        if name not in {*_KEYS, "settings"} or not isinstance(table, dict):
            raise ValueError(f"unknown table [{name[:40]}]; known: {', '.join(_KEYS)}, settings")
    parts = {name: _checked(name, tables.get(name, {})) for name in _KEYS}
    slurm, account, monitoring = parts["slurm"], parts["account"], parts["monitoring"]
    words = tuple(str(slurm.get("words", "")).split())
    for word in words:
        if not _WORD.fullmatch(word):
            raise ValueError(f"words: {word[:40]!r} is not key=value")
    plugin = slurm.get("plugin", "")
    if plugin and not _PLUGIN.fullmatch(plugin):
        raise ValueError(f"plugin: {plugin[:40]!r} is not the path or name of a library")
    name, uid = account.get("name", _ACCOUNT), account.get("uid")
    if not is_account_name(name):
        raise ValueError(f"name: {name[:40]!r} is not the name of an account")
    if uid is not None and not 0 < uid <= UID_MAX:
        raise ValueError(f"uid: {uid} is not the id of an account")
    conf_dir, out = slurm.get("conf_dir"), monitoring.get("out")
    return SiteFile(
        conf_dir=_absolute(conf_dir) if conf_dir else None,
        plugin=plugin,
        words=words,
        account=name,
        uid=uid,
        settings=_settings(tables.get("settings", {}), name),
        monitoring_dir=_absolute(out) if out else None,
        nodes=monitoring.get("nodes", ""),
        monitoring=tuple(f"{key}={_text(one)}" for key, one in monitoring.get("set", {}).items()),
    )


def read_site(path: Path | None) -> SiteFile:
    """Return what the site file says; None: DEFAULT_SITE, or nothing if that is missing.

    Raises:
        InspectorError: the file cannot be read or has a mistake.
    """
    source = path or DEFAULT_SITE
    try:
        data = source.read_bytes()[: _BYTES_MAX + 1]
        if len(data) > _BYTES_MAX:
            raise ValueError("larger than 64 KiB")
        return _from_tables(tomllib.loads(data.decode("utf-8")))
    except FileNotFoundError:
        if path is None:
            return SiteFile()
        raise InspectorError(f"{source}: no such file") from None
    except (OSError, ValueError) as err:
        raise InspectorError(f"{source}: {err}") from err
