# SPDX-License-Identifier: Apache-2.0
"""What carries a communicator's operations, how fast that should be, and which paths are slow."""
