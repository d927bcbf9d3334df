# SPDX-License-Identifier: Apache-2.0
"""From node summaries to a report card: what was slow, who, since when, why, what to do."""
