# SPDX-License-Identifier: Apache-2.0
"""RAS' diagnostics: which checks found something."""

import json

import pytest
from click.testing import CliRunner

from nccl_inspector.commands.ras import ras
from nccl_inspector.ras.diagnostics import fault_lines, read_checks
from tests.support.ras_service import RasService, recorded, serving

NEW = (2, 32, 3)
DEAD_RANK = recorded("diagnostics-2.32.3", ".txt")
WELL = b"""n1:7 NCCL DIAG === RAS Diagnostics ===
n1:7 NCCL DIAG [OK]   CUDA driver version: 12080 consistent across 1 ranks in comm 0x93a5
n1:7 NCCL DIAG [INFO] ECC: unavailable via NVML across 1 ranks in comm 0x93a5
n1:7 NCCL DIAG RAS diagnostics completed in 17.9 ms across 1 RAS peers
"""


def test_a_rank_that_gives_no_data_is_a_fault_in_what_a_real_service_said() -> None:
    checks = list(read_checks(DEAD_RANK.decode().splitlines()))
    assert len(checks) == 12
    assert {one.check for one in checks if one.is_ok} == {"Xid/SXid"}
    faults = [one for one in checks if one.is_fault]
    assert len(faults) == 10
    assert all("gathered 1/2 ranks" in one.text for one in faults)


def test_a_check_that_is_not_possible_is_no_fault() -> None:
    checks = list(read_checks(WELL.decode().splitlines()))
    assert [(one.check, one.is_ok, one.is_fault) for one in checks] == [
        ("CUDA driver version", True, False),
        ("ECC", False, False),
    ]
    assert list(fault_lines(checks)) == []


@pytest.mark.parametrize("line", ["", "NCCL DIAG [OK", "NCCL DIAG [OK] " + "x" * 100_000, "\ufffd"])
def test_lines_of_another_form_are_passed_over(line: str) -> None:
    assert list(read_checks([line])) == []


def test_the_exit_status_says_whether_a_check_found_something() -> None:
    service = RasService(NEW, [b""])
    with serving(service) as where:
        service.diagnostics = WELL
        well = CliRunner().invoke(ras, ["--address", str(where), "--diagnostics"])
        service.diagnostics = DEAD_RANK
        dead = CliRunner().invoke(ras, ["--address", str(where), "--diagnostics"])
        as_json = CliRunner().invoke(ras, ["--address", str(where), "--diagnostics", "--json"])
    assert well.exit_code == 0
    assert well.output.encode() == WELL
    assert (dead.exit_code, as_json.exit_code) == (1, 1)
    found = dead.output.splitlines()
    assert found[14] == "NCCL's checks found something:"
    assert len(found) == 14 + 1 + 10
    assert len(json.loads(as_json.output)["checks"]) == 12
