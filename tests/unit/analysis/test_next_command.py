# SPDX-License-Identifier: Apache-2.0
"""Nothing that a user's process chose goes into a command that an admin copies."""

import inspect
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from nccl_inspector.analysis import next_command
from nccl_inspector.model.hostlist import is_host

BAD_HOSTS = (
    "-rf", "-oProxyCommand=id", "{{7}}", "n1;id", "n1 id", "n1`id`", "$(id)", "n1\nid", "", ".x",
    "n1,n2", "../n1", "n1/x", "n1:22", "u@n1", "n1#x", "a" * 256, "n\u0661",
)  # fmt: skip
BAD_DEVICES = ("GPU-0; id", "-oProxyCommand=id", "`id`", "$(id)", "x'y", 'x"y', "\n", "a b")
_OWN: dict[str, Any] = {
    "job_id": 7, "pid": 8, "from_s": 1.8e9, "to_s": 1.8e9, "host": True, "gpu": True,
    "command": "id",
}  # fmt: skip


def _makers() -> list[tuple[str, Callable[..., str]]]:
    """Every public function that returns a command for nodes."""
    return [
        (name, one)
        for name, one in vars(next_command).items()
        if name.startswith(("show_", "on_"))
        and {"node", "nodes"} & inspect.signature(one).parameters.keys()
    ]


def _made(make: Callable[..., str], host: str, device: str) -> str:
    words = {
        name: _OWN.get(name, [host] if name == "nodes" else host if name == "node" else device)
        for name in inspect.signature(make).parameters
    }
    return make(**words)


MAKERS = _makers()


def test_there_are_commands_to_look_at() -> None:
    assert len(MAKERS) >= 10


@pytest.mark.parametrize("host", BAD_HOSTS)
@pytest.mark.parametrize(("_", "make"), MAKERS)
def test_a_name_that_is_no_hosts_gives_no_command(
    _: str, make: Callable[..., str], host: str
) -> None:
    assert not is_host(host)
    assert _made(make, host, "mlx5_0") == ""


@pytest.mark.parametrize("device", BAD_DEVICES)
@pytest.mark.parametrize(("_", "make"), MAKERS)
def test_a_device_that_has_no_plain_name_is_not_named(
    _: str, make: Callable[..., str], device: str
) -> None:
    assert _made(make, "n1", device) == _made(make, "n1", "")
    assert shlex.split(_made(make, "n1", device))


def test_the_adapters_of_two_nodes_are_looked_at_only_if_both_are_hosts() -> None:
    assert next_command.show_adapters(["n1", "n2"]).startswith("srun -w n1,n2 ")
    assert next_command.show_adapters(["n1", "n2 --prolog=/tmp/x"]) == ""
    assert next_command.show_adapters([]) == ""
