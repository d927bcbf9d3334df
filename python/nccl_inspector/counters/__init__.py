# SPDX-License-Identifier: Apache-2.0
"""Counters of links, GPUs and nodes: the table of them, readings, and what a job's record has."""
