# SPDX-License-Identifier: Apache-2.0
"""Counters of links, GPUs and the node, sampled while a job runs there.

They are the hardware's: of all that happened on the node in that time, not of the job alone.
"""
