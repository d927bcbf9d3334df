# SPDX-License-Identifier: Apache-2.0
"""Counters of links, GPUs and the node, sampled while a job runs there.

They count everything that happened on the hardware in that time, not only what the job did.
"""
