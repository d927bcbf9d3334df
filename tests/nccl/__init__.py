# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own releases of NCCL call our plugin, on a machine without a GPU."""
