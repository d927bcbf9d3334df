# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector doctor`: find what keeps jobs from being measured, and say what to do about it.

Readers (`read_*.py`) gather facts, each in a child process with a deadline. Checks (`checks_*.py`)
judge them, and are pure functions. `examine.py` brings both together.
"""
