# SPDX-License-Identifier: Apache-2.0
"""The commands of nccl-inspector, a file for each."""
