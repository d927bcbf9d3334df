# SPDX-License-Identifier: Apache-2.0
"""What NCCL's RAS service says of a running job."""
