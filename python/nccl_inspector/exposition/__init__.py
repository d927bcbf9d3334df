# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text: the tables of metrics and labels, writing and reading it."""
