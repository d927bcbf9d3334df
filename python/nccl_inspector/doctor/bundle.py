# SPDX-License-Identifier: Apache-2.0
"""One archive for whoever helps: what the doctor saw, without names of users and jobs."""

import io
import json
import os
import platform
import pwd
import re
import sys
import tarfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from nccl_inspector import __version__
from nccl_inspector.doctor.bounded import gather
from nccl_inspector.doctor.examine import Examination
from nccl_inspector.doctor.facts import CannotTell, Fact, Settings, Slurm, Unit
from nccl_inspector.doctor.read_controller import SERVICE, TIMER
from nccl_inspector.doctor.read_node import AGENT_UNIT, COLLECT_TIMER, read_unit
from nccl_inspector.doctor.text import as_json
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import load_settings, parse_value

FOLDER = "nccl-inspector-doctor"
_README = """What is in this archive

  doctor.json    the result of each check
  versions.json  releases of this package, Python, Slurm, the kernel and the C library
  settings.json  our settings that are not the default
  units.json     what systemd says of our units

Names of users and groups, home directories, uids and free texts of administrators are replaced by
marks such as USER. Nothing of a job is in it but ids of jobs and paths of libraries. Names of hosts
and of partitions, and other paths, are left as they are: look before you send it.
"""
_UNITS = (AGENT_UNIT, COLLECT_TIMER, SERVICE, TIMER, r"run-nccl\x2dinspector.mount")
_OF_PEOPLE = frozenset({"report_user", "report_group", "prom_group"})
# A URL may have a login in its beginning, and secrets in its query.
_OF_STORES = frozenset({"store_url", "object_url"})
_SECRET = re.compile(
    r"(?i)\b([a-z0-9_-]*(?:passw|secret|token|passphrase|api_?key|access_?key)[a-z0-9_-]*)"
    r"(=|%3d|: ?)([^\s&;,\"']+)"
)
_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@]*@")
_HOME = re.compile(r"(/home/|/users?/|/Users/|/scratch/)[^\s\"',;:]+")
_UID = re.compile(r"\b(uid|owner|auid)([ =:])[0-9]+(:[0-9]+)?")
_QUOTED = re.compile(r'\b(comm|name|path|exe|proctitle)=("[^"]*"|\S+)')
_VALUE = re.compile(r"\b(NCCL_CONF_FILE|NCCL_INSPECTOR_DUMP_DIR|dir)=\S+")
_REASON = re.compile(r"(the kill switch is on): .*")
_CHANGED = re.compile(
    rf"\b({'|'.join(sorted(_OF_PEOPLE | _OF_STORES))}): it runs with .*?, configured is \S+"
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{1,31}")
_WORDS_MAX = 2000
_FIRST_USER = 1000
_NO_LOGIN = ("nologin", "false", "")


def _people(words: set[str]) -> frozenset[str]:
    """Return those of the words that are names of accounts with which somebody logs in."""
    found = set()
    for word in sorted(words)[:_WORDS_MAX]:
        try:
            account = pwd.getpwnam(word)
        except KeyError:
            continue
        if account.pw_uid >= _FIRST_USER and Path(account.pw_shell).name not in _NO_LOGIN:
            found.add(word)
    return frozenset(found)


def redact(text: str, people: frozenset[str]) -> str:
    """Return the text without what names a user."""
    text = _REASON.sub(r"\1: (a reason)", text)
    text = _CHANGED.sub(r"\1: it runs with another one", text)
    text = _LOGIN.sub(r"\1(left out)@", text)
    text = _SECRET.sub(r"\1\2(left out)", text)
    text = _HOME.sub(r"\1USER", text)
    text = _UID.sub(r"\1\2N", text)
    text = _QUOTED.sub(r"\1=(left out)", text)
    text = _VALUE.sub(r"\1=(a path)", text)
    return _WORD.sub(lambda match: "USER" if match[0] in people else match[0], text)


def _redacted(value: Any, people: frozenset[str]) -> Any:
    if isinstance(value, str):
        return redact(value, people)
    if isinstance(value, dict):
        return {key: _redacted(one, people) for key, one in value.items()}
    if isinstance(value, list):
        return [_redacted(one, people) for one in value]
    return value


def _texts(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(map(_texts, value.values()))
    if isinstance(value, list):
        return " ".join(map(_texts, value))
    return str(value)


def _settings(settings: Settings) -> dict[str, str]:
    found = {"refused": settings.refused} if settings.refused else {}
    for name, setting in load_settings().items():
        value = getattr(settings.values, setting.field)
        if value != parse_value(setting, setting.default):
            if name in _OF_STORES:
                found[name] = f"{str(value).partition('://')[0]}://(set)"
            else:
                found[name] = "(set)" if name in _OF_PEOPLE else str(value)
    return found


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _versions(slurm: Fact[Slurm]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "nccl_inspector": __version__,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "system": _system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }
    if not isinstance(slurm, CannotTell):
        found["slurm"] = {
            "commands": slurm.command_release,
            "slurmd": slurm.slurmd_release,
            "controller": slurm.config.get("SLURM_VERSION", ""),
        }
    return found


def _units() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _UNITS:
        unit: Fact[Unit | None] = gather({"": partial(read_unit, name)})[""]
        if isinstance(unit, CannotTell):
            found[name] = unit.reason
        elif unit is not None:
            found[name] = {key: one for key, one in asdict(unit).items() if key != "user"}
    return found


def bundle_files(examination: Examination) -> dict[str, str]:
    """Return the files of the archive: name and text."""
    parts: dict[str, Any] = {
        "doctor.json": as_json(examination),
        "versions.json": _versions(examination.facts.slurm),
        "settings.json": _settings(examination.facts.settings),
        "units.json": _units(),
    }
    words = set(_WORD.findall(_texts(parts)))
    people = gather({"": lambda: _people(words)})[""]
    if isinstance(people, CannotTell):
        raise InspectorError(f"no archive: names of users cannot be looked up: {people.reason}")
    texts = {
        name: json.dumps(_redacted(part, people), indent=1) + "\n" for name, part in parts.items()
    }
    return {"README.txt": _README, **texts}


def write_bundle(path: Path, files: dict[str, str]) -> None:
    """Write the archive, only for its owner.

    Raises:
        InspectorError: there is such a file already, or it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with (
            os.fdopen(os.open(path, flags, 0o600), "wb") as stream,
            tarfile.open(fileobj=stream, mode="w:gz") as archive,
        ):
            for name, text in files.items():
                data = text.encode("utf-8")
                info = tarfile.TarInfo(f"{FOLDER}/{name}")
                info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
                archive.addfile(info, io.BytesIO(data))
    except OSError as err:
        raise InspectorError(f"{path}: {err.strerror}") from err
