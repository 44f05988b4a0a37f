# SPDX-License-Identifier: BSD-2-Clause
"""Process shapes with connections in mid-stream: what was sent arrives, once, in order, whoever reads it."""
import os
import signal
import socket
import time

import pytest

from shell import ADD, DONTWAIT, EV_ET, EV_IN, WAITALL

import harness
import shell

pytestmark = pytest.mark.timeout(60)

M = 1 << 20
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def echo_end(end, back=0):
    """The end that reads what it has itself sent, which comes back from byte `back` on."""
    e = shell.End(end.sh, end.fd, 0, end.tx_key)
    e.rx = back
    return e


# ---- inetd -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("target", ["preloaded", "plain"])
@pytest.mark.parametrize("stream", ["unread", "streaming"])
def test_inetd(live, target, stream):
    """The socket becomes 0, 1 and 2 of cat: with bytes unread, with a peer that sends all the time."""
    n = 6 * M
    me, peer = live.s, live.c
    before = peer.tx
    if target == "plain":
        live.server.ok("unsetenv", "LD_PRELOAD")
    if stream == "unread":
        peer.sendall(100000)
        assert me.poll(EV_IN, 2000) == EV_IN
        assert me.recv(1000, WAITALL).ret == 1000
        before += 1000
        n -= 100000
    w = peer.sh.bg("sendall", peer.fd, n, 0, peer.tx_key, peer.tx)
    if stream == "streaming":
        # the window is full, then moves, and is full again when the hand-over comes
        assert me.recv(M, WAITALL).ret == M
        before += M
    echo = echo_end(peer, before)
    d = echo.drain_bg()
    pid = live.server.ok("inetd", me.fd, "cat")
    me.close()
    assert w.result(20).ret == n
    peer.tx += n
    peer.shutdown(socket.SHUT_WR)
    assert echo.drained(d, 20) == (peer.tx - before, None)
    assert live.server("wait", pid).ints == [0]


@pytest.mark.parametrize("target", ["preloaded", "plain"])
@pytest.mark.parametrize("end", ["stopped", "stopped-midway", "killed", "closed"])
def test_inetd_of_a_peer_that_does_not_help(live, target, end):
    """Unread bytes and one who cannot send them again: the new program gets them all the same, and goes on."""
    me, peer, n = live.s, live.c, 1 * M
    if target == "plain":
        live.server.ok("unsetenv", "LD_PRELOAD")
    start = peer.tx
    peer.sendall(n)
    assert me.recv(1000, WAITALL).ret == 1000
    if end == "stopped-midway":
        # the child has sealed what it read of, and the peer has gone on behind the seal
        child = live.server.fork()
        c = me.as_seen_by(child)
        assert c.recv(1000, WAITALL).ret == 1000
        peer.sendall(1000)
        n += 1000
        sh, left = child, n - 2000
    else:
        sh, left = live.server, n - 1000
    out, script = (os.path.join(live.env.stats, name) for name in ("got", "script"))
    with open(script, "w", encoding="ascii") as f:
        # the peer gets an answer where it is there to get it
        f.write("exec head -c %d | tee %s\n" % (left, out) if end.startswith("stopped") else "exec cat >%s\n" % out)
    if end.startswith("stopped"):
        peer.sh.proc.kill(signal.SIGSTOP)
    elif end == "killed":
        peer.sh.proc.kill(signal.SIGKILL)
    else:
        peer.close()
    try:
        pid = sh.ok("inetd", me.fd, "sh", script)
        harness.until(lambda: os.path.exists(out) and os.path.getsize(out) == left, 10, "the bytes in the file")
    finally:
        if end.startswith("stopped"):
            peer.sh.proc.kill(signal.SIGCONT)
    with open(out, "rb") as f:
        assert f.read() == shell.pattern(peer.tx_key, start + n - left, left)
    if end.startswith("stopped"):
        echo = echo_end(peer, start + n - left)
        assert echo.recv(left, WAITALL).ret == left
    assert sh("wait", pid).ints == [0]


def test_a_program_takes_many_over_from_a_stopped_peer(pair):
    """One wait for all of them, each with its bytes, and no process of ours that is busy."""
    n, size = 20, 60000
    ends = [pair.connect() for _ in range(n)]
    for c, s in ends:
        pair.upgrade(c, s)
    starts = [c.tx for c, s in ends]
    for c, s in ends:
        c.sendall(size)
    script = os.path.join(pair.env.stats, "script")
    with open(script, "w", encoding="ascii") as f:
        for c, s in ends:
            f.write("head -c %d <&%d >%s.%d; echo done >&%d\n" % (size, s.fd, script, s.fd, s.fd))
        f.write("sleep 3\n")
    pair.server.ok("unsetenv", "LD_PRELOAD")
    pair.client.proc.kill(signal.SIGSTOP)
    try:
        began = time.monotonic()
        pid = pair.server.ok("inetd", pair.s.fd, "bash", script)
        last = "%s.%d" % (script, ends[-1][1].fd)
        harness.until(lambda: os.path.exists(last) and os.path.getsize(last) == size, 10, "the bytes")
        assert time.monotonic() - began < 3
        left = harness.left_behind(pair.env, "xrdma-relay")
        assert len(left) == (pair.mode == "both")
        time.sleep(1.5)
        for p in left:
            assert harness.cpu_s(p) < .5
    finally:
        pair.client.proc.kill(signal.SIGCONT)
    for (c, s), start in zip(ends, starts):
        with open("%s.%d" % (script, s.fd), "rb") as f:
            assert f.read() == shell.pattern(c.tx_key, start, size)
        assert c.sh("recv", c.fd, 5, WAITALL, 0, 0).ret == 5
    assert pair.server("wait", pid).ints == [0]
    for c, s in ends:
        s.close()
    harness.until(lambda: not harness.left_behind(pair.env, "xrdma-relay"), 5, "no process left")


# ---- descriptors that change hands -----------------------------------------------------------------

@pytest.mark.parametrize("target", ["preloaded", "plain"])
@pytest.mark.parametrize("keep", [False, True])
def test_pass_to_an_unrelated_process(env, target, keep):
    """SCM_RIGHTS to a program that nobody forked, while the peer sends as fast as it can."""
    a, b = socket.socketpair()
    env.closers += [a.close, b.close]
    p = shell.Pair(env, server=shell.Shell(env, "server", pass_fds=(a.fileno(),))).upgrade()
    other = shell.Shell(env, "server" if target == "preloaded" else None, pass_fds=(b.fileno(),))
    n = 8 * M
    w = p.client.bg("sendall", p.c.fd, n, 0, p.c.tx_key, p.c.tx)
    assert p.s.recv(M, WAITALL).ret == M
    p.server.ok("sendfd", a.fileno(), p.s.fd)
    fd = other.ok("recvfd", b.fileno())
    if not keep:
        p.s.close()
    s = p.s.as_seen_by(other, fd)
    assert s.recv(n - M, WAITALL).ret == n - M
    assert w.result().ret == n
    p.c.tx += n
    p.turns(30, 3000, p.c, s)
    if keep:
        p.s.tx, p.s.rx = s.tx, s.rx
        p.turns(5, 500)
        p.s.close()
        s.tx, s.rx = p.s.tx, p.s.rx
        p.turns(5, 500, p.c, s)
    s.sendall(200000)
    s.close()
    assert p.c.drain() == (200000, None)


@pytest.mark.parametrize("target", ["preloaded", "plain"])
@pytest.mark.parametrize("end", ["stopped", "killed", "closed"])
def test_pass_one_whose_peer_does_not_help(env, target, end):
    """Unread bytes, and a peer that cannot send them again: who gets the descriptor gets the bytes."""
    a, b = socket.socketpair()
    env.closers += [a.close, b.close]
    p = shell.Pair(env, server=shell.Shell(env, "server", pass_fds=(a.fileno(),))).upgrade()
    other = shell.Shell(env, "server" if target == "preloaded" else None, pass_fds=(b.fileno(),))
    p.c.sendall(M)
    assert p.s.recv(1000, WAITALL).ret == 1000
    if end == "closed":
        p.c.close()
    else:
        p.client.proc.kill(signal.SIGSTOP if end == "stopped" else signal.SIGKILL)
    try:
        p.server.ok("sendfd", a.fileno(), p.s.fd)
        p.s.close()
        fd = other.ok("recvfd", b.fileno())
        s = p.s.as_seen_by(other, fd)
        assert s.recv(M - 1000, WAITALL).ret == M - 1000
    finally:
        if end == "stopped":
            p.client.proc.kill(signal.SIGCONT)
    p.relayed_to_the_end(s, end)
    harness.until(lambda: not harness.left_behind(env, "xrdma-relay"), 5, "no process left")


# ---- many connections, and children ----------------------------------------------------------------

def crowd(env, n):
    """A client with n connections to a server that answers."""
    p = shell.Pair(env)
    p.server.bg("answer", p.lfd)
    assert p.client.ok("dial", n, p.port, 6, timeout=40) == n
    return p


def of_crowd(p, pid=None):
    return [f for f in p.env.flows(pid or p.client.pid) if f["peer_port"] == p.port]


def on_fabric(p):
    return sum(f["carrier"] == p.env.fabric for f in of_crowd(p))


# What the helper may take of memory is enough for half of them.
def a_thousand(env):
    return 300 if env.fabric == "rdma" else 1000


def test_children_of_a_program_with_a_thousand_connections(env):
    n = a_thousand(env)
    p = crowd(env, n)
    if env.lifts:
        harness.until(lambda: p.client.ok("crowd", 2, timeout=20) == n and on_fabric(p) == n, 30)
    held = len(harness.fds(p.client.pid))
    for _ in range(5):
        assert p.client("system", "exit 3").ret == 3 << 8
        r = p.client("popen", "echo hello")
        assert (r.ret, r.words) == (0, ["hello"])
        assert p.client.ok("forks", 2) == 2
        assert p.client.ok("crowd", 1, timeout=20) == n
    # a connection that one of the commands might have meant (exit 3) may be on TCP, no other
    if env.lifts:
        assert on_fabric(p) >= n - 2
    assert len(harness.fds(p.client.pid)) == held


def test_subprocess_of_python(env):
    """The module of that name: vfork and exec, with and without closing what is open, and with pipes."""
    p = shell.Pair(env)
    p.server.bg("answer", p.lfd)
    c = env.start("client", ["/usr/bin/python3", os.path.join(os.path.dirname(__file__), "crowd.py"),
                             str(p.port), str(a_thousand(env))])
    assert c.line(40) == "sound"
    if env.lifts:
        assert sum(f["carrier"] == p.env.fabric for f in of_crowd(p, c.pid)) > a_thousand(env) / 2
    c.say("go\n")
    assert c.line(40) == "sound"
    assert c.wait() == 0


@pytest.mark.parametrize("n", [100, 300000, pytest.param(3 * M, marks=pytest.mark.fabric)])  # TCP holds less
def test_child_reads_what_a_silent_peer_has_sent(live, n):
    """The peer makes no call any more; what it sent is the child's all the same, and what it sends later."""
    live.c.sendall(n)
    assert live.s.recv(50, WAITALL).ret == 50
    child = live.server.fork()
    live.s.close()
    s = live.s.as_seen_by(child)
    assert s.recv(n - 50, WAITALL, timeout=5).ret == n - 50
    live.c.sendall(70000)
    assert s.recv(70000, WAITALL, timeout=5).ret == 70000
    live.turns(20, 1000, live.c, s)
    child.end()
    assert live.c.drain(timeout=5) == (0, None)


def test_child_starts_a_program_after_reading_some(live):
    """A part of what was unread goes to the child, the rest to cat."""
    echo = echo_end(live.c, live.c.tx + 30000)
    live.c.sendall(100000)
    child = live.server.fork()
    live.s.close()
    s = live.s.as_seen_by(child)
    assert s.recv(30000, WAITALL).ret == 30000
    w = live.client.bg("sendall", live.c.fd, M, 0, live.c.tx_key, live.c.tx)
    d = echo.drain_bg()
    pid = child.ok("inetd", s.fd, "cat")
    s.close()
    assert w.result().ret == M
    live.c.tx += M
    live.c.shutdown(socket.SHUT_WR)
    assert echo.drained(d) == (M + 70000, None)
    assert child("wait", pid).ints == [0]


def test_double_fork(live):
    """Daemons of old: the child of a child serves, whose parents are gone."""
    n = 12 * M
    w = live.client.bg("sendall", live.c.fd, n, 0, live.c.tx_key, live.c.tx)
    assert live.s.recv(M, WAITALL).ret == M
    child = live.server.fork()
    grandchild = child.fork()
    child.end()
    assert live.server("wait", child.pid).ret == child.pid
    live.s.close()
    s = live.s.as_seen_by(grandchild)
    assert s.recv(n - M, WAITALL).ret == n - M
    assert w.result().ret == n
    live.c.tx += n
    live.turns(20, 1000, live.c, s)
    grandchild.end()
    assert live.c.drain() == (0, None)


def test_children_let_go_of_one_and_of_all(live):
    """What a child closes is its parent's alone again; what it holds when it ends, too."""
    c2, s2 = live.connect()
    live.upgrade(c2, s2)
    child = live.server.fork()
    other = live.server.fork()
    live.s.as_seen_by(child).close()
    live.s.as_seen_by(other).close()
    live.s.close()
    assert live.c.drain(timeout=2) == (0, None)
    live.turns(10, 500, c2, s2)
    grandchild = child.fork()
    child.end()
    other.end()
    for pid in (child.pid, other.pid):
        assert live.server("wait", pid).ret == pid
    s2.close()
    assert c2.recv(1, DONTWAIT).err == "EAGAIN"
    live.turns(10, 500, c2, s2.as_seen_by(grandchild))
    grandchild.end()
    assert c2.drain(timeout=5) == (0, None)


def test_a_crowd_of_children(live):
    """More than have a place of their own in the parent's account."""
    children = [live.server.fork() for _ in range(70)]
    live.turns()
    live.s.as_seen_by(children[3]).close()
    for i in (0, 40, 69):
        s = live.s.as_seen_by(children[i])
        live.turns(4, 300, live.c, s)
        live.s.tx, live.s.rx = s.tx, s.rx
    live.s.close()
    for child in children[:-1]:
        child.end()
        assert live.server("wait", child.pid).ret == child.pid
    assert live.c.recv(1, DONTWAIT).err == "EAGAIN"
    live.turns(4, 300, live.c, live.s.as_seen_by(children[-1]))
    children[-1].end()
    assert live.c.drain(timeout=5) == (0, None)


@pytest.mark.parametrize("piece", [100, 30000])
def test_parent_and_child_write_at_once(live, piece):
    """No byte of either is lost or repeated; those of each come in order."""
    n = 200 * 1000 if piece == 100 else 6 * M
    live.c.tx_key = 0
    keys = 1234567, 7654321
    r = live.client.bg("decipher", live.c.fd, n, *keys)
    child = live.server.fork()
    a = live.server.bg("scribble", live.s.fd, n, 0, keys[0], piece)
    b = child.bg("scribble", live.s.fd, n, 1, keys[1], piece)
    assert a.result(20).ret == n
    assert b.result(20).ret == n
    live.s.close()
    child.end()
    assert r.result(10).ints == [n, n, 0]


@pytest.mark.parametrize("events", [EV_IN, EV_IN | EV_ET])
def test_children_of_a_handler(live, events):
    """A child of a signal handler returns into whatever the handler interrupted, and ends there in peace."""
    me, peer = live.c, live.s
    ep = me.sh.ok("epoll_create", 0)
    others = [live.connect() for _ in range(3)]
    for c, s in others:
        live.upgrade(c, s)
        me.sh.ok("epoll_ctl", ep, ADD, c.fd, EV_IN, 1)
    me.sh.ok("epoll_ctl", ep, ADD, me.fd, events, 7)
    echo = peer.sh.bg("echo", peer.fd)
    r = me.sh("fork_in_handler", ep, me.fd, 150, me.tx_key, me.tx, timeout=40)
    assert r.ret >= 1000 and r.ints == [0, 0], r
    # none of them has waited for its parent, which waits for it
    assert r.us < 15e6, r
    me.shutdown(socket.SHUT_WR)
    assert echo.result().ret >= 0
    for c, s in others:
        live.turns(5, 300, c, s)


# ---- the last write --------------------------------------------------------------------------------

HOWS = ["exit", "_exit", "quick_exit", "return", "exec"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("reader", ["at once", "later"])
def test_ends_after_its_last_write(live, who, how, reader):
    """Megabytes are on the way when the program ends; all of them arrive, then the end."""
    me, peer = who
    if reader == "later":
        n = me.fill()
        me.sh.order("0 last %d 0 0 0 %s\n" % (me.fd, how))
        me.sh.proc.wait(10)
        d = peer.drain_bg()
    else:
        n = 9 * M + 12345
        me.sh.order("0 last %d %d %d %d %s\n" % (me.fd, n, me.tx_key, me.tx, how))
        time.sleep(0.01)
        d = peer.drain_bg()
        me.sh.proc.wait(20)
    assert peer.drained(d, 20) == (n, None)
    assert me.sh.proc.returncode == 0


@pytest.fixture(params=["server", "client"])
def who(request, live):
    return (live.s, live.c) if request.param == "server" else (live.c, live.s)


# ---- namespaces ------------------------------------------------------------------------------------

def may(env, call, *args):
    """Does a program in this place get that call through?"""
    sh = shell.Shell(env, None)
    r = sh(call, *args)
    if r.ret < 0:
        pytest.skip("%s: %s" % (call, r.err))
    return sh


@pytest.mark.parametrize("flag", [CLONE_NEWNET, CLONE_NEWUSER, CLONE_NEWUSER | CLONE_NEWNET])
def test_unshare(live, who, flag):
    """Connections stay in the namespace that they were made in, and go on, here or on TCP."""
    me, peer = who
    may(live.env, "unshare", flag)
    w = peer.sh.bg("sendall", peer.fd, 2 * M, 0, peer.tx_key, peer.tx)
    assert me.recv(M, WAITALL).ret == M
    # EINVAL for a new user namespace while there is a second thread
    me.sh.ok("unshare", flag)
    assert me.recv(M, WAITALL).ret == M
    assert w.result().ret == 2 * M
    peer.tx += 2 * M
    live.turns(30, 2000)
    # to TCP, from the one end and then from the other
    for end in (me, peer):
        end.sh.ok("setsockopt", end.fd, socket.SOL_SOCKET, 42, 0)
        live.turns(30, 2000)
    me.sendall(300000)
    me.close()
    assert peer.drain() == (300000, None)


def test_setns(live, who):
    """Into the network of another process: new connections are made there, old ones stay."""
    me, peer = who
    there = may(live.env, "unshare", CLONE_NEWNET)
    me.sh.ok("setns", "/proc/%d/ns/net" % there.pid, CLONE_NEWNET)
    live.turns(50, 2000)
    w = peer.sh.bg("sendall", peer.fd, 3 * M, 0, peer.tx_key, peer.tx)
    assert me.recv(3 * M, WAITALL).ret == 3 * M
    assert w.result().ret == 3 * M
    assert me.sh("connect", me.sh.ok("socket", 2, 1, 0), live.host, live.port).err == "ENETUNREACH"
    me.close()
    peer.tx += 3 * M
    assert peer.drain() == (0, None)


# ---- loaded late -----------------------------------------------------------------------------------

def test_late_dlopen_is_refused(env):
    """Hooks that see half of the calls would be wrong: the loader says no, and the program goes on."""
    p = shell.Pair(env)
    path = harness.find(".libs/libxrdma_preload.so", "libxrdma_preload.so")
    r = p.client("dlopen", path)
    if env.shim("client"):
        assert r.ret == 0    # it is there already
    else:
        assert r.ret < 0 and "cannot be dlopen" in " ".join(r.words), r.words
    p.upgrade()
    p.client.ok("system", ":")
    p.c.close()
    assert p.s.drain() == (0, None)


# ---- bells that a child has not got ------------------------------------------------------------------

@pytest.mark.parametrize("how", ["epoll_wait", "poll", "recv"])
def test_sleeper_whose_bell_was_made_after_the_fork(live, how):
    """The child wants bytes sent again by one who sleeps where it cannot ring: found within a second."""
    me, peer, n = live.s, live.c, 100000
    others = [live.connect() for _ in range(3)]
    for c, s in others:
        live.upgrade(c, s)
    live.server.ok("unsetenv", "LD_PRELOAD")
    child = live.server.fork()
    # these sleepers take the bells that were there
    asleep = [(c.recv_bg(1), s) for c, s in others]
    peer.sh.asleep()
    start = peer.tx
    peer.sendall(n)
    if how == "epoll_wait":
        ep = peer.sh.ok("epoll_create", 0)
        peer.sh.ok("epoll_ctl", ep, 1, peer.fd, EV_IN, 7)
        w = peer.sh.bg("epoll_wait", ep, 8, -1)
    elif how == "poll":
        w = peer.sh.bg("poll", -1, peer.fd, EV_IN)
    else:
        echo = echo_end(peer, start)
        w = echo.recv_bg(1)
    time.sleep(.1)
    child.ok("inetd", me.fd, "cat")
    r = w.result(4)
    assert r.ret == 1
    echo = echo_end(peer, start + (how == "recv"))
    left = n - (how == "recv")
    assert echo.recv(left, WAITALL).ret == left
    # between hosts it is the frame on the socket that wakes
    if live.env.lifts and live.env.fabric == "shm":
        assert live.env.counters(live.client.pid)[0]["late_wakes"] >= 1
    for w, s in asleep:
        assert s.send(1).ret == 1
        assert w.result().ret == 1
