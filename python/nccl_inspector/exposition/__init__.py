# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format: the tables of metrics and labels, and how to write and read it."""
