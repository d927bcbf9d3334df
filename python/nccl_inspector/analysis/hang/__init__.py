# SPDX-License-Identifier: Apache-2.0
"""Jobs that stand still: which ranks did not come to an operation, and who waits for whom."""
