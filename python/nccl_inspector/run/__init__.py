# SPDX-License-Identifier: Apache-2.0
"""What nccl-inspector run does: measure a command without root and without the SPANK plugin."""
