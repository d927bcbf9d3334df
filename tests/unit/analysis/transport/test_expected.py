# SPDX-License-Identifier: Apache-2.0
"""Which bandwidth is expected, of what is known only."""

import pytest

from nccl_inspector.analysis.transport.expected import expected, port_gbps

H100 = "NVIDIA H100 80GB HBM3"
LARGE, SMALL, MEDIUM = 1 << 30, 1 << 20, 16 << 20
EIGHT_400 = [400] * 8


def gbs(
    transport: str = "nvlink", func: str = "AllReduce", algo: str = "RING_SIMPLE",
    ranks: tuple[int, int] = (8, 1), size: int = LARGE, model: str = H100,
    ports: list[int] | None = None,
) -> float | None:  # fmt: skip
    found = expected(transport, func, algo, *ranks, size, model, ports or [], 8)
    return found.gbs if found else None


def test_nvlink_goes_by_platform_and_algorithm() -> None:
    assert gbs() == 370
    assert gbs(algo="NVLS_SIMPLE") == 475
    assert gbs(algo="NVLS_SIMPLE", func="AllGather") == 370
    assert gbs(model="NVIDIA A100-SXM4-80GB") == 200
    assert gbs(model="NVIDIA GB200", ranks=(72, 1), algo="NVLS_SIMPLE") == 577
    assert gbs(model="NVIDIA GB200", ranks=(72, 1), algo="NVLS_SIMPLE", size=8 << 30) == 835


def test_the_network_goes_by_its_ports() -> None:
    assert gbs("net", ranks=(4, 4), ports=EIGHT_400) == 47
    assert gbs("net", ranks=(4, 4), ports=[100, 200]) == 36 / 8
    assert gbs("mixed", ranks=(16, 2), ports=EIGHT_400) == 370
    assert gbs("mixed", ranks=(16, 2), ports=[400] * 4) == 188


def test_ports_limit_a_ring_over_whole_nodes_however_many_gpus_these_have() -> None:
    ports = [100] * 4
    whole = expected("mixed", "AllGather", "RING_SIMPLE", 12, 3, LARGE, H100, ports, 4)
    assert whole is not None
    assert whole.gbs == 48
    # Some GPUs of a node may have any ports of it, and others send over these, too.
    assert expected("mixed", "AllGather", "RING_SIMPLE", 12, 3, LARGE, H100, ports, 8) is None
    # NVLink is hardly wider than eight such ports.
    assert expected("mixed", "AllGather", "RING_SIMPLE", 8, 2, LARGE, H100, EIGHT_400, 4) is None


@pytest.mark.parametrize(
    "wanted",
    [
        gbs(model="NVIDIA H100 PCIe"),
        gbs(model="NVIDIA H200 NVL"),
        gbs(model="NVIDIA L40S"),
        gbs(ranks=(4, 1)),  # of eight GPUs only half: nobody has said how fast these are
        gbs(algo="TREE_SIMPLE"),
        gbs(algo="NVLS_SIMPLE", size=128 << 20),
        gbs(func="Broadcast"),
        gbs(size=SMALL),
        gbs("host"),
        gbs("unknown"),
        gbs("net", ranks=(4, 4)),
        gbs("net", ranks=(4, 4), ports=[400, 800]),
        gbs("mixed", ranks=(16, 2), ports=EIGHT_400, algo="TREE_LL128"),
        gbs("mixed", ranks=(15, 2), ports=EIGHT_400),
    ],
)
def test_of_what_no_source_tells_nothing_is_expected(wanted: float | None) -> None:
    assert wanted is None


def test_a_smaller_message_is_expected_less_firmly_and_every_row_has_a_source() -> None:
    firm = expected("nvlink", "AllReduce", "RING_SIMPLE", 8, 1, LARGE, H100)
    grey = expected("nvlink", "AllReduce", "RING_SIMPLE", 8, 1, MEDIUM, H100)
    assert firm is not None
    assert grey is not None
    assert (firm.firm, grey.firm) == (True, False)
    assert "nccl-tests#212" in firm.source


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("400 Gb/sec (4X NDR)", 400), ("2.5 Gb/sec (1X SDR)", 2), ("fast", None), ("", None)],
)
def test_a_rate_is_read_as_sysfs_writes_it(text: str, wanted: int | None) -> None:
    assert port_gbps(text) == wanted
