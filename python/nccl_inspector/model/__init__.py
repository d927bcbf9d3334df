# SPDX-License-Identifier: Apache-2.0
"""What everybody talks about: processes and their operations, the report card, and words."""
