# SPDX-License-Identifier: Apache-2.0
"""slurm-nccl-inspector: publish, collect and judge what the NCCL profiler plugin measures."""

from nccl_inspector.marking import mark

__all__ = ["mark"]
__version__ = "0.1.0"
