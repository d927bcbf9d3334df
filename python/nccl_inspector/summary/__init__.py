# SPDX-License-Identifier: Apache-2.0
"""The node summary: what the processes of a job did on one node, packed, and its directory."""
