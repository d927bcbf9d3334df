# SPDX-License-Identifier: Apache-2.0
"""The bandwidth of an allocation, measured before its job or read from nccl-tests, and judged."""
