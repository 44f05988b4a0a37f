# SPDX-License-Identifier: BSD-2-Clause
"""Side-by-side measurements of unmodified programs on kernel TCP and on xrdma."""
