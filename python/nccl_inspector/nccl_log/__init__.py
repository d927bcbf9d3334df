# SPDX-License-Identifier: Apache-2.0
"""Read what NCCL, RCCL and PyTorch's watchdog write to their logs, and say what it means."""
