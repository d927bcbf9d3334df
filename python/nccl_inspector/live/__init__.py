# SPDX-License-Identifier: Apache-2.0
"""What jobs do now: looks at the boxes of a node, queries to a Prometheus, and their table."""
