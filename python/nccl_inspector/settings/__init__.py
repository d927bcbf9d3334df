# SPDX-License-Identifier: Apache-2.0
"""The settings of the site, from one table and one file."""
