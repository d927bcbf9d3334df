# SPDX-License-Identifier: Apache-2.0
"""The commands of nccl-inspector, one file for each."""
