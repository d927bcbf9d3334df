# SPDX-License-Identifier: Apache-2.0
"""Choose the functions with which the controller service makes cards and their forms."""

from datetime import UTC, datetime

from nccl_inspector.controller.report_child import Makers
from nccl_inspector.model.card import Card
from nccl_inspector.render.comment import make_comment
from nccl_inspector.render.html import render_html
from nccl_inspector.render.json import to_json
from nccl_inspector.report.job_context import RequestedInputs
from nccl_inspector.report.make import make_card
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.attempts import Loaded


def usual_makers(config: Config) -> Makers:
    """Return the makers that the service is started with."""

    def make(loaded: Loaded) -> Card:
        return make_card(loaded, config)

    def make_within(loaded: Loaded, output_s: float) -> Card:
        return make_card(loaded, config, RequestedInputs(output_cpu_s=output_s))

    return Makers(
        card=make,
        card_within=make_within,
        json=lambda card: to_json(card, datetime.now(UTC)).encode("ascii"),
        html=lambda card: render_html(card, datetime.now(UTC)).encode("utf-8", "replace"),
        comment=make_comment,
    )
