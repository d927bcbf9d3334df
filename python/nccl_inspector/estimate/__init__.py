# SPDX-License-Identifier: Apache-2.0
"""What measuring would cost, before it is switched on."""
