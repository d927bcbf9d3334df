# SPDX-License-Identifier: Apache-2.0
"""PyTorch's flight recorder: dumps of all ranks, read without executing anything, and matched."""
