# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's own Inspector plugin writes in place of ours."""
