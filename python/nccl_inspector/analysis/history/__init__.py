# SPDX-License-Identifier: Apache-2.0
"""Compare a job with earlier ones, and find nodes on which jobs are slow again and again."""
