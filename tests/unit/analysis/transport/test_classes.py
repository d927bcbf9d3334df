# SPDX-License-Identifier: Apache-2.0
"""What a communicator's operations go over, and when nobody can tell."""

import pytest

from nccl_inspector.analysis.transport.classes import GpuSeen, classify, gpus_of
from nccl_inspector.counters.node_counters import Change, DeviceCounters, Level, NodeCounters

H100 = GpuSeen("NVIDIA H100 80GB HBM3", 18)
GB200 = GpuSeen("NVIDIA GB200", 18)
PCIE = GpuSeen("NVIDIA A100-PCIE-40GB", 12)


def class_of(nranks: int, nnodes: int, nodes: str, gpu: GpuSeen | None = None) -> str:
    places = nodes.split()
    return classify(nranks, nnodes, places, [gpu] * len(places)).transport


@pytest.mark.parametrize(
    ("nranks", "nnodes", "nodes", "gpu", "wanted"),
    [
        (4, 4, "n1 n2 n3 n4", None, "net"),
        (4, 4, "n1", None, "net"),  # most ranks were not seen: NCCL has said it
        (4, 2, "n1 n1 n2 n2", H100, "mixed"),
        (2, 1, "n1 n1", H100, "nvlink"),
        (8, 1, "n1 n1 n1 n1 n2 n2 n2 n2", GB200, "nvlink"),  # a rack is one domain
        (2, 2, "n1 n1", H100, "net"),  # one node of Slurm, two of NCCL's
        (1, 1, "n1", H100, "unknown"),
        (2, 1, "n1 n1", None, "unknown"),
        (2, 1, "n1 n1", GpuSeen("NVIDIA L40S"), "host"),
        (2, 1, "n1 n1", GpuSeen("NVIDIA H100 PCIe", 0), "host"),
        (2, 1, "n1 n1", GpuSeen("NVIDIA H100 PCIe"), "unknown"),
        (2, 1, "n1 n1", PCIE, "nvlink"),
        (4, 1, "n1 n1 n1 n1", PCIE, "unknown"),  # bridges join pairs
        (4, 1, "n1 n1 n1 n1", GpuSeen("NVIDIA H100 NVL", 6), "unknown"),
        (4, 1, "n1 n1 n1 n1", GpuSeen("", 18), "unknown"),
        (8, 1, "n1", GpuSeen("NVIDIA A100-SXM4-80GB"), "nvlink"),
        (2, 0, "n1 n2", H100, "net"),  # NCCL before 2.27
        (4, 0, "n1 n1 n2 n2", H100, "mixed"),
        (2, 0, "n1 n1", H100, "nvlink"),
        (2, 0, "n1 n2", GB200, "unknown"),
        (4, 0, "n1 n2", H100, "unknown"),
        (0, 0, "n1 n2", H100, "unknown"),
    ],
)
def test_a_class_needs_evidence(
    nranks: int, nnodes: int, nodes: str, gpu: GpuSeen | None, wanted: str
) -> None:
    assert class_of(nranks, nnodes, nodes, gpu) == wanted


def test_links_that_are_up_on_some_gpus_only_prove_nothing() -> None:
    gpus = [GpuSeen("", 12), GpuSeen("", 0)]
    assert classify(2, 1, ["n1", "n1"], gpus).transport == "unknown"


def test_a_gpu_is_found_by_the_name_that_its_processes_have() -> None:
    levels = {"nvlinks_active": Level(17, 18, 35, 2)}
    gpu = DeviceCounters("gpu", "GPU3", {}, levels, {"model": (Change(1, "NVIDIA B200"),)})
    port = DeviceCounters("port", "mlx5_0/1", {}, {}, {})
    assert gpus_of(NodeCounters(devices=(gpu, port))) == {"GPU3": GpuSeen("NVIDIA B200", 18)}
    assert gpus_of(None) == {}


def test_a_gpu_without_any_nvlink_is_known_by_its_number_of_links() -> None:
    gpu = DeviceCounters("gpu", "GPU0", {}, {"nvlinks": Level(0, 0, 0, 2)}, {})
    assert gpus_of(NodeCounters(devices=(gpu,))) == {"GPU0": GpuSeen("", 0)}
