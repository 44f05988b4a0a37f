# SPDX-License-Identifier: BSD-2-Clause
"""A Go program makes its system calls itself, also where it is linked with libc: it is left alone at
either end, and whoever talks to it stays on TCP.
"""
import os
import subprocess

import pytest

import app
import harness

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    go = app.need("go")
    d = tmp_path_factory.mktemp("go")
    p = subprocess.run([go, "build", "-o", d / "echo", os.path.join(app.HERE, "echo.go")], capture_output=True,
                       timeout=150, check=False, cwd=d,
                       env={**os.environ, "CGO_ENABLED": "1", "GOCACHE": str(d / "cache"), "GOFLAGS": "-p=2",
                            "GO111MODULE": "off", "HOME": str(d)})
    assert p.returncode == 0, p.stderr
    assert b"libc.so" in (d / "echo").read_bytes(), "not linked with libc: the test shows nothing"
    return d / "echo"


def untouched(env, program):
    """No connection of it is known, and those of its peer stay where they are."""
    flows = env.flows()
    assert all(f["carrier"] == "tcp" for f in flows), flows
    assert all(f["program"] != program.name for f in flows), flows


def test_go_with_go(env, built):
    s = env.start("server", [built, "server"])
    port = int(s.line(20))
    assert app.run(env, [built, "client", port]) == b"ok\n"
    untouched(env, built)


def test_go_server(env, built):
    s = env.start("server", [built, "server"])
    port = int(s.line(20))
    p = env.start("client", [app.PYTHON, os.path.join(app.HERE, "asyncio_echo.py"), "client", port])
    assert p.line(30) == "warm"
    untouched(env, built)
    if env.shim("client"):
        assert harness.until(lambda: env.flows(p.pid), 5, "the client's connections")
    p.say("go\n")
    assert app.finish(p) == b"ok\n" and p.returncode == 0, p.describe()


def test_go_client(env, built):
    _, port = app.serve(env, lambda port: [app.PYTHON, os.path.join(app.HERE, "asyncio_echo.py"), "server", port])
    assert app.run(env, [built, "client", port]) == b"ok\n"
    untouched(env, built)
