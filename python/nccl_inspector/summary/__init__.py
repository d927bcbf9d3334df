# SPDX-License-Identifier: Apache-2.0
"""The node summary: what a job's processes did on one node, its packed form and its directory."""
