# SPDX-License-Identifier: Apache-2.0
"""The report card of a job: what was slow, who, since when, why, and what to do."""
