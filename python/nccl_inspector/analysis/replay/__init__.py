# SPDX-License-Identifier: Apache-2.0
"""Who was late, by how much, and what it cost, by replaying exact records of operations."""
