# SPDX-License-Identifier: Apache-2.0
"""A job beside earlier ones, and nodes on which jobs are slow again and again."""
