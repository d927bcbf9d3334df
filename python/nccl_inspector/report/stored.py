# SPDX-License-Identifier: Apache-2.0
"""Find the report card of a job: the stored one, else one that is made now."""

import re
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.card import Card
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.render.json import BYTES_MAX, card_from_json
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import load_summaries

_ATTEMPT = re.compile(rf"({JOB_ID.pattern})(?:\.([0-9]{{1,9}}))?")
_STORED = re.compile(r"[0-9]{1,9}\.json")


def stored_card(job_id: int, attempt: int | None, store_dir: Path) -> Card | None:
    """Return a job's stored card, or None; `attempt` None: the latest.

    Raises:
        InspectorError: it cannot be read.
    """
    path = _stored(store_dir / str(job_id), attempt)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return card_from_json(file.read(BYTES_MAX + 1))
    except OSError as err:
        raise InspectorError(f"{path}: {err.strerror}") from err
    except RefusedError as err:
        raise InspectorError(f"{path}: {err}") from err


def parse_attempt(words: str) -> tuple[int, int | None]:
    """Return job id and attempt of `48213` (the latest: None) or `48213.1`.

    Raises:
        InspectorError: it is neither.
    """
    match = _ATTEMPT.fullmatch(words)
    if match is None:
        raise InspectorError(f"{words!a:.40} is not a job id such as 48213 or 48213.1")
    return int(match[1]), None if match[2] is None else int(match[2])


def find_card(words: str, report_dir: Path, store_dir: Path) -> Card:
    """Return a job's stored card, else one made from its node summaries now.

    `words`: `48213` (the latest attempt) or `48213.1`.

    Raises:
        InspectorError: it is not a job's number, or nothing readable exists for it.
    """
    job_id, attempt = parse_attempt(words)
    card = stored_card(job_id, attempt, store_dir)
    return card or build_card(load_summaries(job_id, report_dir, attempt))


def _stored(folder: Path, attempt: int | None) -> Path | None:
    try:
        found = [path for path in folder.iterdir() if _STORED.fullmatch(path.name)]
    except OSError:
        return None
    wanted = (path for path in found if attempt is None or int(path.stem) == attempt)
    return max(wanted, key=lambda path: int(path.stem), default=None)
