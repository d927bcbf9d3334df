# SPDX-License-Identifier: Apache-2.0
"""Shared storage, a directory or an object store, tried as the service account."""

import os
import pwd
import socket
from contextlib import suppress
from errno import EIO
from pathlib import Path

from nccl_inspector.doctor.bounded import gather
from nccl_inspector.doctor.facts import CannotTell, CannotTellError, Fact, Storage
from nccl_inspector.doctor.files import file_facts
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.job_objects import object_store
from nccl_inspector.system.acl import allow

_WRITE_S = 6.0
_BYTES = 4096


def _become(account: pwd.struct_passwd) -> None:
    """Take on an account for good.

    Raises:
        OSError: only root can.
    """
    if os.geteuid() == account.pw_uid:
        return
    os.initgroups(account.pw_name, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def _attempt(path: Path, account: pwd.struct_passwd) -> tuple[int, bool]:
    """Write a file as the account and take it away; return the error, and whether ACLs work.

    The error is the system's number, 0 if there is none. This ends what the process may do: it
    must be a child of its own.
    """
    os.umask(0o077)
    _become(account)
    target = path / f".doctor-{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(target, flags, 0o600)
    except OSError as err:
        return err.errno or EIO, False
    try:
        os.write(fd, b"\0" * _BYTES)
        os.fsync(fd)
        return 0, allow(fd, 6, account.pw_uid, 4)
    except OSError as err:
        return err.errno or EIO, False
    finally:
        os.close(fd)
        with suppress(OSError):
            target.unlink()


def read_objects(config: Config) -> str | None:
    """Return why the service account cannot write into the object store (empty: it can).

    None: the site has no object store.

    This ends what the process may do: it must be a child of its own.

    Raises:
        CannotTellError: there is no such account, or we cannot become it.
    """
    if not config.object_url:
        return None
    try:
        _become(pwd.getpwnam(config.report_user))
    except KeyError as err:
        raise CannotTellError(f"there is no account {config.report_user}") from err
    except OSError as err:
        raise CannotTellError(f"only root can try as {config.report_user}") from err
    key = f"doctor/{socket.gethostname()}-{os.getpid()}"
    try:
        if objects := object_store(config):
            objects.put(key, b"\0" * _BYTES)
            list(objects.list("doctor"))
            objects.remove([key])
    except InspectorError as err:
        return str(err)
    except OSError as err:
        return f"{err.filename}: {err.strerror}"
    return ""


def read_storage(path: Path, name: str) -> Storage:
    """Return whether an account can write into a directory."""
    file = file_facts(path)
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        missing = CannotTell(f"there is no account {name}")
        return Storage(file, name, None, missing, missing)
    if file.problem:
        return Storage(file, name, account.pw_uid, file.problem, CannotTell(file.problem))
    if os.geteuid() not in (0, account.pw_uid):
        unknown = CannotTell(f"only root can try as {name}")
        return Storage(file, name, account.pw_uid, unknown, unknown)
    tried: Fact[tuple[int, bool]] = gather({"": lambda: _attempt(path, account)}, _WRITE_S)[""]
    if isinstance(tried, CannotTell):
        hangs = f"{path} does not answer ({tried.reason})"
        return Storage(file, name, account.pw_uid, hangs, tried)
    error, has_acl = tried
    problem = os.strerror(error) if error else ""
    acl = CannotTell(problem) if problem else has_acl
    return Storage(file, name, account.pw_uid, problem, acl, error)
