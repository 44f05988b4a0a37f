# SPDX-License-Identifier: BSD-2-Clause
"""A JVM that selects, and one of many threads that block."""
import os
import subprocess

import pytest

import app

pytestmark = pytest.mark.timeout(120)


def test_nio(env):
    java = app.need("java")
    modules = subprocess.run([java, "--list-modules"], stdout=subprocess.PIPE, text=True, check=False).stdout
    if "jdk.compiler" not in modules:
        pytest.skip("this Java has no compiler")
    source = os.path.join(app.HERE, "Nio.java")
    s = env.start("server", [java, "-Xmx128m", source, "server"])
    port = int(s.line(60))
    assert app.run(env, [java, "-Xmx128m", source, "client", port], timeout=90) == b"ok\n"
    if env.mode == "both":
        assert env.counters(s.pid)[0]["flows_upgraded"] >= 8
