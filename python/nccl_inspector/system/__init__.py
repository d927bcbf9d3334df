# SPDX-License-Identifier: Apache-2.0
"""Files of users, children, locks and text: what the operating system gives, made safe."""
