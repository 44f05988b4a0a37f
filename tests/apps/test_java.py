# SPDX-License-Identifier: BSD-2-Clause
"""A JVM that selects, that blocks in many threads, and that leaves waiting to its completion handlers."""
import os
import subprocess

import pytest

import app

pytestmark = pytest.mark.timeout(120)

ALL = os.environ.get("XRDMA_SUITES") == "all"


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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiled once: each start of a JVM that compiles takes a second of processor time more."""
    d = tmp_path_factory.mktemp("java")
    javac = app.need("javac")
    p = subprocess.run([javac, "-d", d, os.path.join(app.HERE, "NioMore.java")], capture_output=True, text=True,
                       timeout=100, check=False)
    assert p.returncode == 0, p.stderr
    return d


@pytest.mark.modes(*(("plain", "server", "client", "both") if ALL else ("plain", "both")))
@pytest.mark.parametrize("kind", ["blocking", "selector", "async"])
def test_kinds(env, kind, compiled):
    """A hundred connections at once."""
    command = [app.need("java"), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", compiled, "NioMore"]
    s = env.start("server", [*command, "server", kind])
    port = int(s.line(60))
    assert app.run(env, [*command, "client", kind, port], timeout=90) == b"ok\n"
    if env.lifts:
        # EPOLLONESHOT keeps its connection on TCP while it is armed; see xrdma(7)
        least = 1 if kind == "async" else 50
        assert env.counters(s.pid)[0]["flows_upgraded"] >= least, env.counters(s.pid)
