# SPDX-License-Identifier: Apache-2.0
"""What communicators go over, how fast that should be, and which paths are slow."""
