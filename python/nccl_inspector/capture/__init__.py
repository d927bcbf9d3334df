# SPDX-License-Identifier: Apache-2.0
"""JSON lines of a job, ours or NVIDIA's: one record for each operation of each rank."""
