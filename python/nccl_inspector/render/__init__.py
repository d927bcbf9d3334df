# SPDX-License-Identifier: Apache-2.0
"""A report card as text, page, JSON, mail or comment."""
