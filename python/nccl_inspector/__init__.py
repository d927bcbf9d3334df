# SPDX-License-Identifier: Apache-2.0
"""slurm-nccl-inspector: publish, collect and judge what the NCCL profiler plugin measures."""

__version__ = "0.1.0"
