# SPDX-License-Identifier: Apache-2.0
"""Which ranks come late, and how long their peers wait."""
