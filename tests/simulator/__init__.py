# SPDX-License-Identifier: Apache-2.0
"""Simulated training jobs whose ranks play through the real plugin, to examine the verdict."""
