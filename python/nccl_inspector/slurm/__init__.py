# SPDX-License-Identifier: Apache-2.0
"""Slurm's record of a job, and where its nodes are in the network."""
