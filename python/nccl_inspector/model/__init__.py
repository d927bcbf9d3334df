# SPDX-License-Identifier: Apache-2.0
"""Data that all rooms share: processes and operations, the report card, findings, words."""
