# SPDX-License-Identifier: Apache-2.0
"""Who comes late, and how long its peers wait."""
