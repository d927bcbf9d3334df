# SPDX-License-Identifier: Apache-2.0
"""What the counters of links and GPUs say about a job."""
