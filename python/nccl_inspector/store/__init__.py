# SPDX-License-Identifier: Apache-2.0
"""What the controller service keeps of ended jobs: report files, and an index of them."""
