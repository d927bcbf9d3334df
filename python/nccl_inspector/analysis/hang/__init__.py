# SPDX-License-Identifier: Apache-2.0
"""Jobs that stand still: who did not come, and who waits for whom."""
