# SPDX-License-Identifier: Apache-2.0
"""Times of a job that were slower than others, by its time lines and its own figure."""
