# SPDX-License-Identifier: Apache-2.0
"""A job whose files are gone, by the series that a Prometheus has kept of it."""
