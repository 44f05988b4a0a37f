# SPDX-License-Identifier: BSD-2-Clause
"""No connection is on TCP in silence: programs that are switched off, connections past a limit, and those
that a call keeps on TCP before an upgrade was thought of, all show in xr-stat with a reason.
"""
import errno
import json
import os
import subprocess
import time

import pytest

from harness import Proc, find, flows_of, xr_stat

# A listener, connections to it, and a datagram socket; then waits.
MANY = """
import socket, sys
s = socket.create_server(("127.0.0.1", 0))
ends = []
for _ in range(int(sys.argv[1])):
    c = socket.create_connection(s.getsockname())
    c.setblocking(False)
    ends += [c, s.accept()[0]]
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect(("127.0.0.1", 9))
exec(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path):
    made = []
    conf = tmp_path / "xrdma.conf"
    conf.write_text("")
    env = {"XRDMA_STATS_DIR": str(tmp_path), "XRDMA_CONF": str(conf)}

    def go(conns, more="", options=(), **variables):
        p = Proc(["/usr/bin/python3", "-c", MANY, conns, more], shim=True, options=options,
                 env={**env, **variables})
        made.append(p)
        while p.line() != "ready":
            pass
        return p
    go.conf, go.env = conf, {**os.environ, **env}
    yield go
    for p in made:
        p.stop()


def process(start, p):
    (got,) = [x for x in json.loads(xr_stat(start.env, "-j"))["processes"] if x["pid"] == p.pid]
    return got


@pytest.mark.parametrize("how", ["file", "variable", "option", "fabric"])
def test_a_program_that_is_switched_off_says_so(start, how):
    if how == "file":
        start.conf.write_text("enabled = no\n")
    p = start(2, options=["--enabled=no"] if how == "option" else [],
              **{"variable": {"XRDMA_ENABLED": "no"}, "fabric": {"XRDMA_FABRIC": "none"}}.get(how, {}))
    got = process(start, p)
    assert got["reason"] == "disabled"
    assert got["reasons"] == {"disabled": 4} and got["unlisted"] == {"disabled": 4}
    assert "keeps to TCP: disabled" in xr_stat(start.env, "-t").splitlines()[0]
    for args in ([], ["-a"]):
        text = xr_stat(start.env, *args)
        assert "1 program keeps to TCP: disabled 1; -t says which\n" in text
        assert ("4 more connections had no place in the list since the programs began: disabled 4; "
                "-t says whose\n") in text
    text = xr_stat(start.env, "--prometheus")
    label = '{pid="%d",program="python3",reason="disabled"}' % p.pid
    assert "xrdma_keeps_to_tcp%s 1\n" % label in text and "xrdma_unlisted_total%s 4\n" % label in text


def test_totals_count_connections(start):
    """What has been opened and is not closed is open now: a listening socket is none, nor is what a child lets go of."""
    p = start(3, "x = socket.socket(); ends.pop().close()\n"
              "import os\n"
              "if not os.fork():\n"
              "    [e.close() for e in ends]; os._exit(0)\n"
              "os.wait()")
    (mine,) = [x for x in json.loads(xr_stat(start.env, "-j"))["processes"] if x["pid"] == p.pid]
    assert (mine["counters"]["flows_opened"], mine["counters"]["flows_closed"]) == (6, 1)


def test_a_server_that_is_switched_off_says_so_before_its_first_client(start):
    assert process(start, start(0, XRDMA_ENABLED="no"))["reason"] == "disabled"


def test_a_program_without_connections_costs_nothing(start, tmp_path):
    subprocess.run([find("xrdma-run", "tools/xrdma-run"), "--enabled=no", "/usr/bin/python3", "-c",
                    "import os, socket; socket.socketpair(); socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
                    ".connect(('127.0.0.1', 9)); print(os.listdir('%s'))" % tmp_path],
                   env=start.env, check=True)
    assert [f.name for f in tmp_path.iterdir()] == ["xrdma.conf"]


def test_a_program_that_is_switched_off_leaves_nothing_behind(start, tmp_path):
    p = start(1, XRDMA_ENABLED="no")
    p.p.stdin.close()
    assert p.wait() == 0
    assert [f.name for f in tmp_path.iterdir()] == ["xrdma.conf"]


def test_connections_past_max_flows(start):
    p = start(3, options=["--max-flows=2"])
    got = process(start, p)
    assert (got["reason"], got["unlisted"]) == ("none", {"limit-flows": 4})
    assert got["reasons"]["limit-flows"] == 4
    assert "4 more connections had no place in the list" in xr_stat(start.env, "-a")


def test_no_flows_at_all(start):
    got = process(start, start(1, options=["--max-flows=0"]))
    assert (got["reason"], got["unlisted"]) == ("limit-flows", {"limit-flows": 2})


def test_no_memory_at_all(start):
    busy = "c, d = ends\nfor _ in range(9): c.send(b'x'), d.recv(1), d.send(b'y'), c.recv(1)"
    p = start(1, busy, options=["--max-memory=0"], XRDMA_UPGRADE_TURNS="1")
    assert process(start, p)["reason"] == "limit-memory"
    got = flows_of(start.env, p.pid)
    assert [f["reason"] for f in got] == ["limit-memory"] * 2


@pytest.mark.parametrize("call, reason", [
    ("ends[0].send(b'x', socket.MSG_OOB)", "oob"),
    ("import fcntl; fcntl.fcntl(ends[0], fcntl.F_SETFL, fcntl.fcntl(ends[0], fcntl.F_GETFL) | 0o20000)",
     "option")])
def test_what_stays_on_tcp_for_a_call_is_listed(start, call, reason):
    p = start(1, call)
    (f,) = flows_of(start.env, p.pid)
    assert (f["reason"], f["carrier"], f["fd"]) == (reason, "tcp", 4)
    assert f["peer_port"] and f["role"] == "client"


def test_what_was_set_before_it_was_connected_is_listed(start):
    # SO_TIMESTAMPING: software stamps of what is sent
    p = start(0, "k = socket.socket(); k.setsockopt(socket.SOL_SOCKET, 37, 2 | 16); k.connect(s.getsockname())")
    (f,) = flows_of(start.env, p.pid)
    assert f["reason"] == "option" and f["peer_port"]


def test_sockets_of_another_making_are_counted(start):
    mptcp = "k = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); k.connect(s.getsockname())"
    try:
        import socket
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close()
    except OSError:
        pytest.skip("no Multipath TCP here")
    assert process(start, start(0, mptcp))["unlisted"] == {"mptcp": 1}


def test_an_inherited_socket_that_connects_is_counted(start):
    again = ("import os; s.set_inheritable(True); k = socket.socket(); k.set_inheritable(True); os.execv('/usr/bin/python3', "
             "['python3', '-c', 'import socket, sys; k = socket.socket(fileno=%d); "
             "k.connect((\"127.0.0.1\", %d)); print(\"ready\", flush=True); sys.stdin.read()' % "
             "(k.fileno(), s.getsockname()[1])])")
    assert process(start, start(0, again))["unlisted"] == {"inherited": 1}


# New connections, one after the other, each with some hundred turns.
BUSY = """
import threading, time
def talk():
    while True:
        with socket.create_connection(s.getsockname()) as c, s.accept()[0] as d:
            for _ in range(400):
                c.sendall(b"ping")
                d.recv(4)
                d.sendall(b"pong")
                c.recv(4)
            time.sleep(0.05)
threading.Thread(target=talk, daemon=True).start()
"""


def test_an_operator_sets(start):
    """A setting changes in a program that runs: connections that were not worth an upgrade are, and no more."""
    p = start(0, BUSY, XRDMA_UPGRADE_TURNS="1000000", XRDMA_UPGRADE_BYTES="1G")

    def upgrades(seconds):
        before = process(start, p)["counters"]["flows_upgraded"]
        end = time.monotonic() + seconds
        while time.monotonic() < end and process(start, p)["counters"]["flows_upgraded"] - before < 4:
            time.sleep(0.02)
        return process(start, p)["counters"]["flows_upgraded"] - before

    assert process(start, p)["set"] == {}
    assert upgrades(0.5) == 0
    assert xr_stat(start.env, "--set=spin=20us", "--set=upgrade_turns=4", "--pid=%d" % p.pid) == "set in 1 process\n"
    assert process(start, p)["set"] == {"spin": 20000, "upgrade_turns": 4}
    assert upgrades(10) >= 4
    xr_stat(start.env, "--set=upgrade_turns=1000000")
    time.sleep(0.2)
    assert upgrades(0.5) == 0
    assert not process(start, p)["held"]


def test_a_program_changes_its_own_settings(start):
    """xrdma_set_flag() of the library does within the process what xr-stat --set does from outside."""
    more = ("import ctypes; ends[0].send(b'x'); lib = ctypes.CDLL(%r); "
            "print(lib.xrdma_set_flag(None, b'spin', b'20us'), lib.xrdma_set_flag(None, b'spin', b'2h'))"
            % find(".libs/libxrdma.so"))
    p = start(1, more)
    assert p.seen[0] == "0 -%d" % errno.ERANGE
    assert process(start, p)["set"] == {"spin": 20000}


@pytest.mark.parametrize("what,said", [
    ("max_flows=7", "is not NAME=VALUE of"), ("spin", "is not NAME=VALUE of"), ("=1", "is not NAME=VALUE of"),
    ("spin=fast", "spin"), ("spin=2h", "spin"), ("upgrade_turns=-1", "upgrade_turns")])
def test_what_an_operator_cannot_set(start, what, said):
    p = start(0)
    r = subprocess.run([find("xr-stat", "tools/xr-stat"), "--set=" + what], env=start.env, text=True,
                       capture_output=True, timeout=10, check=False)
    assert (r.returncode, r.stdout) == (2, "") and said in r.stderr
    assert process(start, p)["set"] == {}


def test_who_is_held_by_an_operator_is_seen(start):
    p = start(1, "ends[0].send(b'x', socket.MSG_OOB)")
    assert not process(start, p)["held"]
    xr_stat(start.env, "--retreat")
    got = process(start, p)
    assert (got["held"], got["reason"]) == (True, "operator")
    assert flows_of(start.env, p.pid)[0]["held"]
    assert "fd=4 (held)" in xr_stat(start.env, "-anp")
    assert "1 program keeps to TCP: operator 1" in xr_stat(start.env)
    xr_stat(start.env, "--return")
    got = process(start, p)
    assert (got["held"], got["reason"]) == (False, "none")
    xr_stat(start.env, "--retreat", "--pid=%d" % p.pid, "--fd=4")
    assert flows_of(start.env, p.pid)[0]["held"] and not process(start, p)["held"]


def test_what_a_shell_connects_is_listed(start):
    """bash puts the connection on descriptor 1 for each echo; a child may have met it before."""
    more = ("import threading; threading.Thread(target=lambda: [ends.append(s.accept()[0]) for _ in '12'], "
            "daemon=True).start(); print(s.getsockname()[1], flush=True)")
    port = start(0, more).seen[-2]
    for fork in ("", "x=$(/bin/true);"):
        code = "exec 3<>/dev/tcp/127.0.0.1/%s; %s echo hello >&3; echo ready; read x" % (port, fork)
        b = Proc(["/bin/bash", "-c", code], shim=True, env={k: v for k, v in start.env.items() if "XRDMA" in k})
        try:
            assert b.line() == "ready"
            (f,) = flows_of(start.env, b.pid)
            assert (f["carrier"], f["fd"], f["tx"]["bytes"]["tcp"]) == ("tcp", 3, 6)
            assert f["reason"] in ("retreat-unsupported-call", "exec"), f
        finally:
            b.stop()
