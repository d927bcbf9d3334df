# SPDX-License-Identifier: Apache-2.0
"""Operating system access made safe: files of users, child processes, locks and text."""
