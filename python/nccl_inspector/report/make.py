# SPDX-License-Identifier: Apache-2.0
"""Make a card from everything that this machine knows about a job."""

from nccl_inspector.model.card import Card
from nccl_inspector.model.process import KILLED
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import RequestedInputs, gather
from nccl_inspector.report.kept_logs import kept_logs
from nccl_inspector.report.similar import beside_similar
from nccl_inspector.settings.config import Config
from nccl_inspector.store.place import index_of
from nccl_inspector.summary.attempts import Loaded


def make_card(
    loaded: Loaded,
    config: Config,
    asked: RequestedInputs | None = None,
    *,
    second_process: bool = False,
) -> Card:
    """Return the card of the loaded attempt, with Slurm's record and similar jobs."""
    logs = kept_logs(loaded.summaries)
    unfinished = any(
        one.facts.state == KILLED for summary in loaded.summaries for one in summary.processes
    )
    asked = asked or RequestedInputs()
    given = gather(loaded.head, config, asked, logs, unfinished=unfinished)
    card = build_card(loaded, given, second_process=second_process)
    return beside_similar(card, index_of(config))
