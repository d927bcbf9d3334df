# SPDX-License-Identifier: Apache-2.0
"""What the controller service makes cards with, and the forms in which it keeps them."""

from nccl_inspector.card.basic import basic_card
from nccl_inspector.card.model import Card
from nccl_inspector.controller.making import Makers
from nccl_inspector.store.cardfile import card_bytes


def short_comment(card: Card) -> str:
    """Return the deciding fields for AdminComment."""
    verdict = card.verdict
    cause = f"({verdict.cause})" if verdict.cause else ""
    cost = f" cost {verdict.cost_s:.0f}s" if verdict.cost_s else ""
    return f"NCCL {verdict.status}{cause}{cost} {verdict.summary}"


def usual_makers() -> Makers:
    """Return what the service is started with."""
    return Makers(card=basic_card, json=card_bytes, comment=short_comment)
