# SPDX-License-Identifier: Apache-2.0
"""From node summaries to figures and verdicts; nothing in here reads files or prints."""
