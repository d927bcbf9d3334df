# SPDX-License-Identifier: Apache-2.0
"""Slurm's record of a job, and the places of its nodes in the network."""
