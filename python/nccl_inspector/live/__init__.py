# SPDX-License-Identifier: Apache-2.0
"""What jobs do now: looks at the boxes of a node, questions to a Prometheus, and the table."""
