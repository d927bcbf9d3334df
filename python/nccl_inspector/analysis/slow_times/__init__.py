# SPDX-License-Identifier: Apache-2.0
"""Times in which a job was slower than at others, from its time lines and its own throughput."""
