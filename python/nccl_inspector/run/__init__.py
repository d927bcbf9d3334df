# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector run`: measure a command without root and without the SPANK plugin."""
