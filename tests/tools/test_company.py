# SPDX-License-Identifier: Apache-2.0
"""The short tests in hostile company: what they see of their machine changes none of them."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import as_root
from tests.support.repository import REPO
from tests.tools.company import COMPANIES, TMP_CHARS, TURKISH, in_company
from tests.tools.turns import Turn

ROOMS = ("unit", "contract")
# What divides its work among processors, or among processes if there are several.
DIVIDING = ("unit/capture", "unit/doctor", "unit/flight", "unit/report", "unit/system")
SHORT = "not long"
MACHINE = """
import json, os, socket, tempfile, time
addresses = open("/proc/net/if_inet6").read() if os.path.exists("/proc/net/if_inet6") else ""
try:
    host = bool(socket.getaddrinfo(socket.gethostname(), 0))
except OSError:
    host = False
print(json.dumps({
    "year": time.gmtime().tm_year,
    "up_s": max(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)),
    "age_s": time.time() - os.stat(tempfile.mkdtemp()).st_mtime,
    "umask": os.umask(0), "tmp": tempfile.gettempdir(), "cpus": len(os.sched_getaffinity(0)),
    "ipv6": bool(addresses), "host": host, "zone": time.tzname, "locale": os.environ.get("LC_ALL"),
}))
"""


def seen_in(name: str) -> dict[str, Any]:
    with in_company(COMPANIES[name]) as before:
        argv = [*before, sys.executable, "-c", MACHINE]
        said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.long
@as_root
def test_a_machine_in_company_is_as_odd_as_it_should_be() -> None:
    booted = seen_in("just-booted")
    assert booted["up_s"] < 60
    assert len(booted["tmp"]) == TMP_CHARS
    assert not Path(booted["tmp"]).exists(), "it is gone"
    assert (booted["umask"], booted["ipv6"], booted["locale"]) == (0o77, False, "C")
    later = seen_in("later-elsewhere")
    assert later["year"] >= 2038
    assert abs(later["age_s"]) < 10, "a new file is new"
    assert (later["host"], later["locale"]) == (False, TURKISH)
    assert later["zone"] == ["+1245", "+1345"]
    assert seen_in("one-cpu")["cpus"] == 1


def files_of(name: str, turn: Turn | None) -> list[Path]:
    """The files with the short tests for a company; of one turn if CI takes turns."""
    rooms = DIVIDING if name == "one-cpu" else ROOMS
    files = sorted(path for room in rooms for path in (REPO / "tests" / room).rglob("test_*.py"))
    found = [path.relative_to(REPO) for path in files]
    return [path for path in found if turn is None or turn.has(str(path))]


@as_root
@pytest.mark.long
@pytest.mark.divides
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", COMPANIES)
def test_the_short_tests_pass_in_hostile_company(
    name: str, pytestconfig: pytest.Config, capfd: pytest.CaptureFixture[str]
) -> None:
    files = files_of(name, pytestconfig.getoption("turn"))
    if not files:
        pytest.skip("nothing of it in this turn")
    seed = random.randrange(10**6)  # noqa: S311
    words = ["-m", SHORT, "-q", "--tb=short", f"--shuffle={seed}", "-o", "timeout=300"]
    words += [] if name == "one-cpu" else ["-n2", "--dist=loadfile"]
    ours = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
    with in_company(COMPANIES[name]) as before:
        done = subprocess.run(
            [*before, sys.executable, "-m", "tests.tools.again", *words, *map(str, files)],
            check=False, cwd=REPO, env=ours, capture_output=True, text=True,
        )  # fmt: skip
    once = re.findall(r"^== FAILED ONCE.*", done.stdout, re.M)
    with capfd.disabled():
        print(
            f"\n{name}, --shuffle={seed}:", *done.stdout.strip().splitlines()[-1:], *once, sep="\n"
        )
    if done.returncode:
        failed = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.M)
        print(done.stdout[-20_000:], done.stderr[-5000:])
        again = f"python -m tests.tools.company {name} python -m pytest --shuffle={seed} FILES"
        pytest.fail("\n".join([f"{len(failed)} tests fail; {again}", *failed]), pytrace=False)
