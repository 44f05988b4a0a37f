# SPDX-License-Identifier: BSD-2-Clause
"""nginx with curl, wrk and ab; python's http.server; node."""
import collections
import os
import re
import signal
import time

import pytest

import app
import harness

pytestmark = pytest.mark.timeout(90)

CONF = """
daemon off;
{user}
worker_processes {workers};
pid {dir}/nginx.pid;
error_log stderr warn;
events {{ worker_connections {limit}; }}
http {{
  access_log off;
  sendfile {sendfile};
  keepalive_requests 1000000;
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
  uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  upstream self {{ server {address}:{port}; keepalive 8; }}
  server {{
    listen {address}:{port};
    root {dir}/www;
    location /small {{ return 200 "0123456789abcdef"; }}
    location /proxy/ {{ proxy_pass http://self/; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


class Nginx:
    def __init__(self, env, path, sendfile="on", workers=2, limit=512):
        nginx = app.need("nginx")
        self.env = env
        www = path / "www"
        www.mkdir()
        os.chmod(path, 0o755)
        self.files = {"k": app.blob(1024), "m": app.blob(1 << 20, 2), "big": app.blob(50_000_000, 3),
                      "empty": b"", "one": b"x"}
        for name, data in self.files.items():
            (www / name).write_bytes(data)

        def make(port):
            (path / "nginx.conf").write_text(CONF.format(
                dir=path, address=env.address, port=port, sendfile=sendfile, workers=workers, limit=limit,
                user="user root;" if os.geteuid() == 0 else ""))
            return [nginx, "-c", path / "nginx.conf", "-p", path]
        self.proc, self.port = app.serve(env, make)

    def url(self, name):
        return "http://%s:%d/%s" % (self.env.address, self.port, name)


@pytest.fixture
def nginx(env, tmp_path):
    return Nginx(env, tmp_path)


def curl(env, *args, **kw):
    return app.run(env, [app.need("curl"), "-sS", "--fail", *args], **kw)


@pytest.mark.parametrize("sendfile", ["on", "off"])
def test_nginx_curl(env, tmp_path, sendfile):
    """Every file comes out as it lies on the disk, also several on one connection."""
    n = Nginx(env, tmp_path, sendfile)
    for name, data in n.files.items():
        assert app.sha(curl(env, n.url(name))) == app.sha(data), name
    out = curl(env, *[n.url(x) for x in ("k", "m", "one", "k", "empty", "m", "big", "k")])
    f = n.files
    assert app.sha(out) == app.sha(f["k"] + f["m"] + f["one"] + f["k"] + f["m"] + f["big"] + f["k"])


def test_nginx_proxy(nginx):
    """nginx talks to itself over kept-alive connections."""
    out = curl(nginx.env, *[nginx.url("proxy/" + x) for x in ("k", "m", "big", "k", "m")])
    f = nginx.files
    assert app.sha(out) == app.sha(f["k"] + f["m"] + f["big"] + f["k"] + f["m"])


def test_nginx_slow_reader(nginx):
    """A client that reads 50 MB slower than the server writes."""
    out = curl(nginx.env, "--limit-rate", "30M", nginx.url("big"))
    assert app.sha(out) == app.sha(nginx.files["big"])


def wrk(nginx, name, seconds, conns=20):
    """For so many seconds at least, and until judge() ends it: on a loaded machine the test may be late."""
    p = nginx.env.start("client", [app.need("wrk"), "-t1", "-c%d" % conns, "-d%ds" % (seconds + 60),
                                   "--timeout", "30s", nginx.url(name)])
    p.until = time.monotonic() + seconds
    return p


def judge(p, closed=0, timeout=40):
    """No request failed; at most so many connections were closed under wrk after an answer."""
    time.sleep(max(0, p.until - time.monotonic()))
    p.kill(signal.SIGINT)
    while p.poll(0.2) is None:  # the thread that took the first one may not be the one that sleeps
        assert time.monotonic() < p.until + timeout, p.describe()
        p.kill(signal.SIGINT)
    text = app.finish(p, timeout).decode()
    assert p.returncode == 0 and "Non-2xx" not in text, text
    m = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    connect, read, write, timeout = map(int, m.groups()) if m else (0, 0, 0, 0)
    assert (connect, write, timeout) == (0, 0, 0) and read <= closed, text
    assert int(re.search(r"(\d+) requests in", text).group(1)) > app.load(100), text


@pytest.mark.parametrize("name", ["k", "small", "m"])
def test_nginx_wrk(nginx, name):
    """No request fails under load."""
    p = wrk(nginx, name, 1)
    app.check_live(nginx.env, nginx.port)
    judge(p)


def test_nginx_reload_under_load(nginx):
    """New workers take over while requests are in flight; old ones finish what they have."""
    p = wrk(nginx, "k", 2)
    app.check_live(nginx.env, nginx.port)
    for _ in range(3):
        old = set(harness.children(nginx.proc.pid))
        nginx.proc.kill(signal.SIGHUP)
        harness.until(lambda o=old: o.isdisjoint(harness.children(nginx.proc.pid)), 10, "new workers", 0.02)
        time.sleep(0.15)  # load on the new workers
    # A worker that leaves closes each kept-alive connection once; wrk counts that as a read error.
    judge(p, closed=3 * 20)
    assert app.sha(curl(nginx.env, nginx.url("m"))) == app.sha(nginx.files["m"])


@pytest.mark.timeout(150)
def test_nginx_reloaded_every_two_seconds(nginx):
    """A minute of it, or ten seconds where nothing moves. wrk and a client that checks what it gets."""
    seconds = int(os.environ.get("XRT_RELOAD_SECONDS") or (60 if nginx.env.mode == "both" else 10))
    p = wrk(nginx, "k", seconds)
    app.check_live(nginx.env, nginx.port)
    end, reloads = time.monotonic() + seconds - 1, 0
    while time.monotonic() < end:
        nginx.proc.kill(signal.SIGHUP)
        reloads += 1
        again = time.monotonic() + 2
        while time.monotonic() < min(again, end):
            assert app.sha(curl(nginx.env, nginx.url("m"), nginx.url("k"))) == \
                app.sha(nginx.files["m"] + nginx.files["k"])
            nginx.env.procs.pop().stop()    # there will be many
            time.sleep(0.1)
    # as in test_nginx_reload_under_load
    judge(p, closed=reloads * 20, timeout=seconds + 40)
    harness.until(lambda: len(harness.children(nginx.proc.pid)) == 2, 10, "old workers gone")


def test_nginx_quit_drains(nginx):
    """SIGQUIT in the middle of a download: it is finished first."""
    p = nginx.env.start("client", [app.need("curl"), "-sS", "--fail", "--limit-rate", "60M", nginx.url("big")])
    harness.until(lambda: len(p.buf) or harness.select.select([p.p.stdout], [], [], 0)[0], 5, "first bytes")
    nginx.proc.kill(signal.SIGQUIT)
    assert app.sha(app.finish(p)) == app.sha(nginx.files["big"])
    assert nginx.proc.wait(10) == 0


def test_nginx_daemon(env, tmp_path):
    """daemon on: the program that was started is gone; what serves is its grandchild."""
    nginx_path = app.need("nginx")
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "m").write_bytes(app.blob(1 << 20))
    os.chmod(tmp_path, 0o755)
    port = app.free_port(env)
    text = CONF.format(dir=tmp_path, address=env.address, port=port, sendfile="on", workers=1, limit=512,
                       user="user root;" if os.geteuid() == 0 else "").replace("daemon off", "daemon on")
    (tmp_path / "nginx.conf").write_text(text)
    p = env.start("server", [nginx_path, "-c", tmp_path / "nginx.conf", "-p", tmp_path])
    assert p.wait() == 0, p.describe()
    harness.until(lambda: (tmp_path / "nginx.pid").exists() and (tmp_path / "nginx.pid").read_text().strip(),
                  5, "pid file")
    pid = int((tmp_path / "nginx.pid").read_text())
    try:
        assert app.sha(curl(env, "http://%s:%d/m" % (env.address, port))) == app.sha(app.blob(1 << 20))
    finally:
        os.kill(pid, signal.SIGTERM)
        harness.until(lambda: not os.path.exists("/proc/%d" % pid), 5, "nginx gone")


def test_ab_one_connection_per_request(nginx):
    out = app.run(nginx.env, [app.need("ab"), "-q", "-n", "3000", "-c", "10", nginx.url("k")]).decode()
    assert re.search(r"Complete requests:\s+3000\n", out) and re.search(r"Failed requests:\s+0\n", out), out


def test_python_http_server(env, tmp_path):
    data = app.blob(8 << 20)
    (tmp_path / "f").write_bytes(data)
    _, port = app.serve(env, lambda port: [app.PYTHON, "-m", "http.server", port, "--bind", env.address,
                                           "--directory", tmp_path])
    for _ in range(3):
        assert app.sha(curl(env, "http://%s:%d/f" % (env.address, port))) == app.sha(data)


def test_node(env):
    """A keep-alive agent: big bodies both ways, then many small requests, each checked."""
    node = app.need("node")
    _, port = app.serve(env, lambda port: [node, os.path.join(app.HERE, "http_server.js"), port])
    p = env.start("client", [node, os.path.join(app.HERE, "http_client.js"), port])
    assert p.line(30) == "warm"
    app.check_live(env, port)
    p.say("go\n")
    assert app.finish(p) == b"ok\n"
    assert p.returncode == 0, p.describe()


@pytest.mark.one_host     # the client listens, too
def test_node_net(env):
    """Half-open ends, backpressure both ways, corked writes, resets, time-outs."""
    node = app.need("node")
    s = env.start("server", [node, os.path.join(app.HERE, "net.js"), "server"])
    port = int(s.line(30))
    assert app.run(env, [node, os.path.join(app.HERE, "net.js"), "client", port]) == b"ok\n"
    if env.lifts:
        assert env.counters(s.pid)[0]["flows_upgraded"] >= 20


@pytest.mark.modes("plain", "both")
def test_a_thousand_connections(env, tmp_path):
    """ab and wrk keep a thousand open at once, and no request fails."""
    n = Nginx(env, tmp_path, limit=2100)
    out = app.run(env, [app.need("ab"), "-q", "-k", "-n", "20000", "-c", "1000", n.url("k")]).decode()
    assert re.search(r"Complete requests:\s+20000\n", out) and re.search(r"Failed requests:\s+0\n", out), out
    p = wrk(n, "k", 6, 1000)
    if env.lifts:
        # a dozen requests on each are enough for all of them, where the machine is free to serve them
        def told():
            seen.clear()
            seen.update((f["pid"], f["carrier"], f["reason"]) for f in env.flows())
            return sum(n for f, n in seen.items() if f[1] == env.fabric) >= 1000
        seen = collections.Counter()
        harness.until(told, 20, lambda: "1000 on shm, but %r" % seen, 0.1)
    judge(p)
