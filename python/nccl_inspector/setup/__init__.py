# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector setup`: what a host needs, shown first, then done, and undone."""
