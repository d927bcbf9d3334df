# SPDX-License-Identifier: Apache-2.0
"""The doctor on a machine of the sandbox cluster."""

import json

from tests.sandbox.layout import REPO
from tests.sandbox.machine import Machine
from tests.support.command_line import COMMAND

ENV = {"PYTHONPATH": str(REPO / "python")}


def command(machine: Machine) -> list[str]:
    """The command nccl-inspector of this working tree."""
    return [str(machine.layout.own_program)] if machine.layout.tree else [*COMMAND]


def doctor(machine: Machine, *words: str) -> tuple[int, str]:
    """Its exit status and what it printed, one blank between two words."""
    done = machine.run([*command(machine), "doctor", *words], env=ENV)
    assert not done.stderr, done.stderr
    return done.returncode, " ".join(done.stdout.split())


def found(machine: Machine, *words: str) -> dict[str, str]:
    """What it does not find well: the evidence by the check's id."""
    done = machine.run([*command(machine), "doctor", "--json", *words], env=ENV)
    assert not done.stderr, done.stderr
    checks = json.loads(done.stdout)["checks"]
    return {one["id"]: one["evidence"] for one in checks if one["outcome"] != "well"}
