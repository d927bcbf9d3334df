# SPDX-License-Identifier: Apache-2.0
"""Read nccl-inspector.conf: `key = value` lines, checked against settings.tsv."""

import errno
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.deny_nccl import RECOMMENDED
from nccl_inspector.system.tsv import read_tsv

DEFAULT_CONF = Path("/etc/nccl-inspector/nccl-inspector.conf")
MODES = ("prom", "json", "prom+json", "report", "off")
SWITCH = ("off", "auto", "on")
LEVELS = ("off", "warn", "info")

_CONF_BYTES_MAX = 1 << 16  # as the SPANK plugin, which reads the same file
# O_NONBLOCK: open must not wait for a writer if the path is a FIFO.
_CONF_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(ms|s|m|h)?")
_DURATION_US = {"ms": 1000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_SIZE = re.compile(r"([0-9]{1,15})([KMGT])?")
_PERCENT = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")
_ADDRESS = re.compile(r"([0-9.]{7,15}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,2})\.([0-9]{1,2})")
_SIZE_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# What a setting's type adds to its name as a field of Config: the unit.
_UNIT_SUFFIX = {"duration": "_s", "size": "_bytes", "percent": "_percent"}

Value = str | int | float | bool | Path


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of settings.tsv."""

    name: str
    type: str
    default: str
    min: str
    max: str
    scope: str
    help: str
    reader: str

    @property
    def readers(self) -> frozenset[str]:
        """Who has to read it again before a change is in force: see settings.tsv."""
        return frozenset(self.reader.split(","))

    @property
    def field(self) -> str:
        """The name of the field in Config: the setting's name with its unit."""
        return self.name + _UNIT_SUFFIX.get(self.type, "")


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting, in the order of settings.tsv."""

    default: str
    partitions: str
    qos: str
    min_gpus: int
    sample: int
    interval_s: float
    p2p: bool
    min_size_bytes: int
    verbose: bool
    dir: str
    gzip: bool
    json_max_bytes: int
    json_min_size_bytes: int
    phases: bool
    host_time: bool
    broadcasts: bool
    net: str
    debug: str
    ras: bool
    fr: bool
    fr_pipe: bool
    deny_nccl: str
    budget_percent: float
    profiler: Path
    run_dir: Path
    hooks: Path
    cluster: str
    node_name: str
    report_dir: Path
    report_user: str
    agent_interval_s: float
    dump_before_s: float
    listen: str
    prom_group: str
    sweep_after_s: float
    scontrol: Path
    counters: bool
    mailer: Path
    sendmail: Path
    mail_wait_s: float
    controller_dir: Path
    store_dir: Path
    store_url: str
    object_url: str
    object_keys: Path
    report_group: str
    report_cost_percent: float
    summary_days: int
    report_days: int
    controller_wait_s: float
    admin_comment: bool
    docs_url: str


def load_settings() -> dict[str, Setting]:
    """Return the table of settings by name."""
    return {row[0]: Setting(*row) for row in read_tsv("settings/settings.tsv")}


def _microseconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("not a duration such as 500ms, 30s, 5m or 1h")
    return int(Decimal(match[1]) * _DURATION_US[match[2] or "s"])


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("not a size such as 8192, 8K, 1M or 1G")
    return int(match[1]) * _SIZE_BYTES[match[2] or ""]


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,15}", text):
        raise ValueError("not a number")
    return int(text)


def _thousandths(text: str) -> int:
    if not _PERCENT.fullmatch(text):
        raise ValueError("not a number")
    return int(Decimal(text) * 1000)


def _path(text: str) -> Path:
    if not text.startswith("/") or any(not char.isprintable() for char in text):
        raise ValueError("not an absolute path")
    return Path(text)


def _library(text: str) -> Path:
    """Return a path, or the file name of a library that the loader searches for."""
    is_name = re.fullmatch(r"lib[^/]+\.so", text) and text.isprintable()
    return Path(text) if is_name else _path(text)


def _dir(text: str) -> str:
    if any(not char.isprintable() for char in text):
        raise ValueError("not a path without control characters")
    return text


def _mode(text: str) -> str:
    return _one_of(MODES, text)


def _switch(text: str) -> str:
    return _one_of(SWITCH, text)


def _level(text: str) -> str:
    return _one_of(LEVELS, text)


def _one_of(words: tuple[str, ...], text: str) -> str:
    if text not in words:
        raise ValueError(f"not one of {', '.join(words)}")
    return text


def _version(text: str) -> tuple[int, ...]:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError("not versions such as recommended,2.28.0-2.28.5")
    return tuple(int(part) for part in match.groups())


def _versions(text: str) -> str:
    for part in text.split(",") if text else ():
        if part == RECOMMENDED:
            continue
        first, minus, last = part.partition("-")
        if _version(last if minus else first) < _version(first):
            raise ValueError(f"{part[:40]!r} runs backwards")
    return text


def _word(text: str) -> str:
    if any(char.isspace() or not char.isprintable() for char in text):
        raise ValueError("not one word")
    return text


def _address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if text and (match is None or not 0 < int(match[2]) < 65536):
        raise ValueError("not an address such as 127.0.0.1:9435 or [::]:9435")
    if match:
        try:
            ip_address(match[1].strip("[]"))
        except ValueError:
            raise ValueError(f"{match[1]} is not an IP address") from None
    return text


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("not 0 or 1")
    return text == "1"


_TEXTS: dict[str, Callable[[str], str | bool | Path]] = {
    "mode": _mode,
    "switch": _switch,
    "level": _level,
    "versions": _versions,
    "dir": _dir,
    "bool": _flag,
    "path": _path,
    "library": _library,
    "word": _word,
    "address": _address,
}
# The parser of a number, and how many of the parsed unit make one unit of the field.
_NUMBERS: dict[str, tuple[Callable[[str], int], int]] = {
    "duration": (_microseconds, 1_000_000),
    "size": (_bytes, 1),
    "count": (_count, 1),
    "percent": (_thousandths, 1000),
}


def parse_value(setting: Setting, text: str) -> Value:
    """Return the typed value; durations in seconds, sizes in bytes.

    Raises:
        ValueError: the text is not a value of this setting; the message says why.
    """
    if setting.type in _TEXTS:
        return _TEXTS[setting.type](text)
    if setting.type not in _NUMBERS:
        raise ValueError(f"settings.tsv has a type that nothing reads: {setting.type}")
    read, scale = _NUMBERS[setting.type]
    number = read(text)
    if not read(setting.min) <= number <= read(setting.max):
        raise ValueError(f"not between {setting.min} and {setting.max}")
    return number if scale == 1 else number / scale


def parse_config(text: str, source: str) -> Config:
    """Return the configuration in `text`; keys that it does not set have their defaults.

    Raises:
        InspectorError: an unknown key, a key set twice or an invalid value; the text has file, line
            and reason.
    """
    settings = load_settings()
    words = {name: setting.default for name, setting in settings.items()}
    lines: dict[str, int] = {}
    # Not splitlines: the SPANK plugin knows no other line end.
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.split("#", 1)[0].strip()
        if not stripped:
            continue
        key, equals, value = (part.strip() for part in stripped.partition("="))
        if not equals:
            raise InspectorError(f"{source}:{number}: not `key = value`")
        if key not in settings:
            raise InspectorError(
                f"{source}:{number}: unknown key {key[:40]!r}; known: {', '.join(settings)}"
            )
        if key in lines:
            raise InspectorError(f"{source}:{number}: {key} is set before, in line {lines[key]}")
        words[key], lines[key] = value, number
    fields = {}
    for name, setting in settings.items():
        try:
            fields[setting.field] = parse_value(setting, words[name])
        except ValueError as err:
            raise InspectorError(f"{source}:{lines.get(name, 0)}: {name}: {err}") from err
    return Config(**fields)  # type: ignore[arg-type]  # a test holds the fields against the table


def _read_regular(path: Path) -> bytes:
    """Return the content of a regular file of at most 64 KiB, without ever waiting.

    It reads one byte more than allowed, as the SPANK plugin does, so that both refuse the same
    files.

    Raises:
        InspectorError: not a regular file, or too large.
        OSError: the file cannot be opened or read.
    """
    handle = os.open(path, _CONF_FLAGS)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise InspectorError(f"{path}: not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(_CONF_BYTES_MAX + 1)
    finally:
        os.close(handle)
    if len(data) > _CONF_BYTES_MAX:
        raise InspectorError(f"{path}: larger than 64 KiB")
    return data


def read_config(path: Path | None) -> Config:
    """Return the configuration in `path`; None: DEFAULT_CONF, or all defaults if that is missing.

    Raises:
        InspectorError: the file cannot be read or has a mistake.
    """
    source = path or DEFAULT_CONF
    try:
        return parse_config(_read_regular(source).decode("utf-8"), str(source))
    except FileNotFoundError:
        if path is None:
            return parse_config("", str(source))
        raise InspectorError(f"{source}: no such file") from None
    except (OSError, UnicodeDecodeError) as err:
        raise InspectorError(f"{source}: cannot be read: {err}") from err
