# SPDX-License-Identifier: Apache-2.0
"""Estimate what measuring would cost, before it is switched on."""
