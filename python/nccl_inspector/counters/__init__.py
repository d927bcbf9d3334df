# SPDX-License-Identifier: Apache-2.0
"""Counters of links, GPUs and nodes: their table, their readings, and the record of a job."""
