# SPDX-License-Identifier: Apache-2.0
"""Read the box of a process (plugin/box/box.h), which its user may have filled with anything."""
