# SPDX-License-Identifier: BSD-2-Clause
"""HAProxy between two programs, and an rsync daemon."""
import os

import pytest

import app

pytestmark = pytest.mark.timeout(90)

PROXY = """
defaults
	mode tcp
	timeout connect 10s
	timeout client 30s
	timeout server 30s
listen front
	bind 127.0.0.1:%d
	server back 127.0.0.1:%d
"""


def test_haproxy(env, tmp_path):
    """A server, the proxy as client of the one and server of the other, and curl."""
    haproxy = app.need("haproxy")
    data = app.blob(8_000_000)
    (tmp_path / "f").write_bytes(data)
    _, behind = app.serve(env, lambda port: [app.PYTHON, "-m", "http.server", "--bind", "127.0.0.1", port],
                              cwd=tmp_path)

    def make(port):
        (tmp_path / "cfg").write_text(PROXY % (port, behind))
        return [haproxy, "-db", "-f", tmp_path / "cfg"]
    _, port = app.serve(env, make)
    for _ in range(3):
        out = app.run(env, [app.need("curl"), "-sS", "--noproxy", "*", "http://127.0.0.1:%d/f" % port])
        assert app.sha(out) == app.sha(data)


def test_rsync_daemon(env, tmp_path):
    """A tree up and down again; files of every size, and one that is changed."""
    rsync = app.need("rsync")
    for d in ("src", "store", "back"):
        (tmp_path / d).mkdir()
    for i in range(60):
        (tmp_path / "src" / str(i)).write_bytes(app.blob(i * i * 997, i + 1))

    def make(port):
        (tmp_path / "cfg").write_text(
            "use chroot = no\nport = %d\naddress = 127.0.0.1\nuid = %d\ngid = %d\n[m]\npath = %s\nread only = no\n"
            % (port, os.geteuid(), os.getegid(), tmp_path / "store"))
        return [rsync, "--daemon", "--no-detach", "--config=%s" % (tmp_path / "cfg")]
    _, port = app.serve(env, make)
    url = "rsync://127.0.0.1:%d/m/" % port
    app.run(env, [rsync, "-a", "%s/src/" % tmp_path, url])
    with open(tmp_path / "src/50", "r+b") as f:
        f.seek(100_000)
        f.write(b"changed")
    app.run(env, [rsync, "-a", "--checksum", "%s/src/" % tmp_path, url])
    app.run(env, [rsync, "-a", url, "%s/back/" % tmp_path])
    for i in range(60):
        assert (tmp_path / "back" / str(i)).read_bytes() == (tmp_path / "src" / str(i)).read_bytes()
