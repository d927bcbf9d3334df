# SPDX-License-Identifier: Apache-2.0
"""Where a command finds the files of a job: in the site's directories, or fetched from its store.

What is fetched lies in a temporary directory until the command ends, because large summaries are
read again later.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from getpass import getuser
from pathlib import Path

import click

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.job_objects import (
    REPORTS,
    fetch_attempts,
    fetch_job,
    object_store,
    user_word,
)


def _ours() -> str:
    try:
        return user_word(getuser(), os.getuid())
    except (KeyError, OSError):  # no such account here
        return user_word("", os.getuid())


def _as_allowed(fetch: Callable[[str], None]) -> None:
    """Fetch what there is of a job, or what is ours of it if the store shows us no more.

    Raises:
        InspectorError: the store does not answer, or shows us nothing.
    """
    try:
        try:
            fetch("")
        except PermissionError:
            fetch(_ours())
    except OSError as err:
        raise InspectorError(f"{err.filename}: {err.strerror}") from err


def with_files_of(
    config: Config, job_id: int, attempt: int | None = None, *, stored: bool = False
) -> Config:
    """Return the settings, with directories in which the files of a job can be found.

    `stored`: if there is a stored report of the attempt (None: of any), only the stored reports;
    store_dir then has no index. It must be called in a command of click's.

    Raises:
        InspectorError: the object store cannot be used.
    """
    objects = object_store(config)
    if objects is None:
        return config
    folder = Path(
        click.get_current_context().with_resource(
            tempfile.TemporaryDirectory(prefix="nccl-inspector-")
        )
    )
    report_dir, store_dir = folder / "reports", folder / "store"
    for path in (report_dir, store_dir):
        path.mkdir()
    if stored:
        _as_allowed(lambda user: fetch_job(objects, REPORTS, store_dir, job_id, user))
    wanted = "*.json" if attempt is None else f"{attempt}.json"
    if not any((store_dir / str(job_id)).glob(wanted)):
        _as_allowed(lambda user: fetch_attempts(objects, report_dir, job_id, user))
        if not any(report_dir.iterdir()):
            raise InspectorError(
                f"no report of job {job_id}: nothing of it is in {objects.url}, or it is not yours"
            )
    found = replace(config, report_dir=report_dir)
    return replace(found, store_dir=store_dir) if stored else found
