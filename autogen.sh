#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Make ./configure from a clean checkout. Needs autoconf, automake, libtool and pkg-config.
set -e
cd "$(dirname "$0")"
mkdir -p m4
autoreconf --force --install "$@"
# The checks of configure remove a possible core dump; here, core is a folder, and each check would say so.
sed -i 's/rm -f core conftest/rm -f conftest/; s/rm -f core \*\.core/rm -f *.core/' configure
