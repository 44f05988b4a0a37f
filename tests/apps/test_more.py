# SPDX-License-Identifier: BSD-2-Clause
"""HAProxy between two programs, and an rsync daemon."""
import os

import pytest

import app
from test_http import Nginx

pytestmark = pytest.mark.timeout(90)

ALL = os.environ.get("XRDMA_SUITES") == "all"

PROXY = """
defaults
	mode tcp
	timeout connect 10s
	timeout client 30s
	timeout server 30s
listen front
	bind %s:%d
	server back %s:%d
"""

# what is asked for, and how often the answer was another
LUA = """
local threads = {}
bad = 0
function setup(t) table.insert(threads, t) end
function response(status, headers, body)
	if status ~= 200 or #body ~= 1024 then bad = bad + 1 end
end
function done(summary)
	local sum = 0
	for _, t in ipairs(threads) do sum = sum + t:get("bad") end
	io.write("bad ", sum, " of ", summary.requests, "\\n")
end
"""


def test_haproxy(env, tmp_path):
    """A server, the proxy as client of the one and server of the other, and curl."""
    haproxy = app.need("haproxy")
    data = app.blob(8_000_000)
    (tmp_path / "f").write_bytes(data)
    _, behind = app.serve(env, lambda port: [app.PYTHON, "-m", "http.server", "--bind", env.address, port],
                              cwd=tmp_path)

    def make(port):
        (tmp_path / "cfg").write_text(PROXY % (env.address, port, env.address, behind))
        return [haproxy, "-db", "-f", tmp_path / "cfg"]
    _, port = app.serve(env, make)
    for _ in range(3):
        out = app.run(env, [app.need("curl"), "-sS", "--noproxy", "*", "http://%s:%d/f" % (env.address, port)])
        assert app.sha(out) == app.sha(data)


@pytest.mark.modes(*(("plain", "server", "client", "both") if ALL else ("plain", "both")))
def test_haproxy_before_nginx(env, tmp_path):
    """Kept-alive connections on both sides of the proxy; every answer is looked at, under load."""
    haproxy, wrk = app.need("haproxy"), app.need("wrk")
    n = Nginx(env, tmp_path)

    def make(port):
        (tmp_path / "cfg").write_text(PROXY.replace("mode tcp", "mode http\n\thttp-reuse always") % (env.address, port, env.address, n.port))
        return [haproxy, "-db", "-f", tmp_path / "cfg"]
    p, port = app.serve(env, make)
    url = "http://%s:%d/" % (env.address, port)
    (tmp_path / "check.lua").write_text(LUA)
    load = env.start("client", [wrk, "-t", "2", "-c", "50", "-d", "3", "-s", tmp_path / "check.lua", url + "k"])
    app.check_live(env, port, share=0.3)
    for name, data in n.files.items():
        got = app.run(env, [app.need("curl"), "-sS", "--fail", "--noproxy", "*", url + name])
        assert app.sha(got) == app.sha(data), name
    out = app.finish(load).decode()
    assert load.returncode == 0 and "bad 0 " in out and "Socket errors" not in out, out
    if env.lifts:
        # as the server of the one and the client of the other
        both = {f["role"] for f in env.flows(p.pid) if f["carrier"] == env.fabric}
        assert env.counters(p.pid)[0]["flows_upgraded"] >= 50, both


def test_rsync_daemon(env, tmp_path):
    """A tree up and down again; files of every size, and one that is changed."""
    rsync = app.need("rsync")
    for d in ("src", "store", "back"):
        (tmp_path / d).mkdir()
    for i in range(60):
        (tmp_path / "src" / str(i)).write_bytes(app.blob(i * i * 997, i + 1))

    def make(port):
        (tmp_path / "cfg").write_text(
            "use chroot = no\nport = %d\naddress = %s\nuid = %d\ngid = %d\n[m]\npath = %s\nread only = no\n"
            % (port, env.address, os.geteuid(), os.getegid(), tmp_path / "store"))
        return [rsync, "--daemon", "--no-detach", "--config=%s" % (tmp_path / "cfg")]
    _, port = app.serve(env, make)
    url = "rsync://%s:%d/m/" % (env.address, port)
    app.run(env, [rsync, "-a", "%s/src/" % tmp_path, url])
    with open(tmp_path / "src/50", "r+b") as f:
        f.seek(100_000)
        f.write(b"changed")
    app.run(env, [rsync, "-a", "--checksum", "%s/src/" % tmp_path, url])
    app.run(env, [rsync, "-a", url, "%s/back/" % tmp_path])
    for i in range(60):
        assert (tmp_path / "back" / str(i)).read_bytes() == (tmp_path / "src" / str(i)).read_bytes()
