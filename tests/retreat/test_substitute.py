# SPDX-License-Identifier: BSD-2-Clause
"""Connections with unread bytes that get to code without hooks, while the peer cannot send them again.

Each way there is one of libc's; the program goes on with what it has afterwards.
"""
import fcntl
import os
import signal
import socket
import sys

import pytest

from shell import WAITALL

import harness
import shell

pytestmark = pytest.mark.timeout(60)

N, PART = 300000, 120000


def of_file(end, path, n):
    with open(path, "rb") as f:
        assert f.read() == shell.pattern(end.rx_key, end.rx, n)


def relays(env):
    return harness.left_behind(env, "xrdma-relay")


def by_program(name, *how):
    def read(me, n):
        out = os.path.join(me.sh.env.stats, "got")
        assert me.sh(name, me.fd, n, out, *how).ret == 0
        of_file(me, out, n)
    return read


def by_command(name, form="%s"):
    def read(me, n):
        out = os.path.join(me.sh.env.stats, "got")
        assert me.sh(name, form % ("bash -c 'exec head -c %d <&%d >%s'" % (n, me.fd, out))).ret == 0
        of_file(me, out, n)
    return read


def here(name, *first):
    def read(me, n):
        r = me.sh(name, me.fd, n, *first, me.rx_key, me.rx)
        assert r.ret == n and r.words[0] == "ok", r
    return read


WAYS = {
    "spawn": by_program("pspawn", "inherit"),
    "spawn-dup2": by_program("pspawn", "dup"),
    "system": by_command("system"),
    "popen": by_command("popen"),
    "wordexp": by_command("wordexp", "$(%s)"),
    "fdopen": here("fread"),
    "io_uring": here("ring_recv"),
    "stdin": here("fread0"),
    "splice": here("splice_in", 0),
    "aio_read": here("aio_read"),
    "lio_listio": here("lio_listio"),
    "seccomp": here("seccomp"),
}


def in_set(r):
    return [w.split(":")[1] for w in r.words] == ["77"]


def without_help(live, end):
    """The peer has sent N bytes of which 1000 are read, and will do nothing more for them."""
    me, peer = live.s, live.c
    peer.sendall(N)
    assert me.recv(1000, WAITALL).ret == 1000
    if end == "closed":
        peer.close()
    else:
        peer.sh.proc.kill(signal.SIGSTOP if end == "stopped" else signal.SIGKILL)


@pytest.fixture(params=["stopped", "killed", "closed"])
def end(request):
    return request.param


@pytest.mark.parametrize("how", WAYS)
def test_part_is_read_there_and_the_rest_here(live, how, end):
    me, peer = live.s, live.c
    ep = live.server.ok("epoll_create", 0)
    live.server.ok("epoll_ctl", ep, shell.ADD, me.fd, shell.EV_IN | shell.EV_RDHUP, 77)
    without_help(live, end)
    # what runs in between is a plain program
    live.server.ok("unsetenv", "LD_PRELOAD")
    try:
        WAYS[how](me, PART)
        me.rx += PART
        # it is in the set that it was in
        assert in_set(live.server("epoll_wait", ep, 8, 5000))
        assert me.recv(N - 1000 - PART, WAITALL, timeout=5).ret == N - 1000 - PART
        if end == "stopped":
            assert live.server("epoll_wait", ep, 8, 0).ret == 0
            assert me.send(100000).ret == 100000
        else:
            assert me.recv(1, timeout=5).ret <= 0
    finally:
        if end == "stopped":
            peer.sh.proc.kill(signal.SIGCONT)
    if end == "stopped":
        assert peer.recv(100000, WAITALL).ret == 100000
        w = live.server.bg("epoll_wait", ep, 8, -1)
        peer.sendall(1)
        assert in_set(w.result())
        assert me.recv(1).ret == 1
        live.turns(20, 3000)
        me.sendall(N)
        me.close()
        assert peer.drain() == (N, None)
    else:
        me.close()
    harness.until(lambda: not relays(live.env), 5, "no process left")
    if live.env.mode == "both":
        assert live.env.counters(live.server.pid)[1]["substituted"] == 1


def test_dprintf(live, end):
    """What it writes comes behind what was sent before; and what the peer has sent is read all the same."""
    me, peer, text = live.s, live.c, "x" * 3000
    peer.sendall(N)
    assert me.recv(1000, WAITALL).ret == 1000
    me.sendall(50000)
    if end == "closed":
        peer.close()
    else:
        peer.sh.proc.kill(signal.SIGSTOP if end == "stopped" else signal.SIGKILL)
    try:
        r = me.sh("dprintf", me.fd, text)
        assert r.ret == len(text) or (end != "stopped" and r.err in ("ECONNRESET", "EPIPE")), r
        got = me.recv(N - 1000, WAITALL, timeout=5)
        # unread bytes at the peer's end: what it had sent may be lost behind the RST, as on TCP
        assert got.ret == N - 1000 or (end != "stopped" and got.ret <= N - 1000), got
    finally:
        if end == "stopped":
            peer.sh.proc.kill(signal.SIGCONT)
    if end == "stopped":
        assert peer.recv(50000, WAITALL).ret == 50000
        out = peer.sh("recv", peer.fd, len(text), WAITALL, 0, 0)
        assert out.ret == len(text)
    me.close()
    harness.until(lambda: not relays(live.env), 5, "no process left")


@pytest.mark.parametrize("keep", [False, True])
def test_passed_by_sendmmsg(env, keep, end):
    a, b = socket.socketpair()
    env.closers += [a.close, b.close]
    p = shell.Pair(env, server=shell.Shell(env, "server", pass_fds=(a.fileno(),))).upgrade()
    other = shell.Shell(env, None, pass_fds=(b.fileno(),))
    without_help(p, end)
    try:
        p.server.ok("sendfd2", a.fileno(), p.s.fd)
        if not keep:
            p.s.close()
        fd = other.ok("recvfd", b.fileno())
        s = p.s.as_seen_by(other, fd)
        assert s.recv(PART, WAITALL).ret == PART
        if keep:
            p.s.rx = s.rx
            s.close()
            s = p.s
        assert s.recv(N - 1000 - PART, WAITALL).ret == N - 1000 - PART
    finally:
        if end == "stopped":
            p.client.proc.kill(signal.SIGCONT)
    p.relayed_to_the_end(s, end)
    harness.until(lambda: not relays(env), 5, "no process left")


def test_a_vfork_child(live, end):
    """It has descriptors of its own, so its parent's connection stays: with a peer that lives the child waits."""
    me, peer = live.s, live.c
    without_help(live, end)
    live.server.ok("unsetenv", "LD_PRELOAD")
    out = os.path.join(live.env.stats, "got")
    w = live.server.bg("vspawn", me.fd, PART, out)
    if end == "stopped":
        w.done(1.5)
        peer.sh.proc.kill(signal.SIGCONT)
        peer.poll(0)
    assert w.result().ret == 0
    of_file(me, out, PART)
    me.rx += PART
    if end == "stopped":
        assert me.recv(N - 1000 - PART, WAITALL, timeout=5).ret == N - 1000 - PART
        live.turns(20, 3000)
    me.close()
    harness.until(lambda: not relays(live.env), 5, "no process left")


@pytest.mark.parametrize("reads", [0, 2000])
@pytest.mark.parametrize("ends", ["closes", "shuts"])
def test_the_program_of_a_child_ends_and_the_parent_goes_on(live, reads, ends):
    """Bytes before a seal of the child's and a peer that went on behind it: only a relay can hand them over."""
    me, peer = live.s, live.c
    peer.sendall(1000)
    assert me.poll(shell.EV_IN, 2000) == shell.EV_IN
    child = live.server.fork()
    mine = me.as_seen_by(child)
    mine.sendall(10)
    assert peer.recv(10, WAITALL).ret == 10
    peer.sendall(1000)
    out, script, go = (os.path.join(live.env.stats, name) for name in ("got", "script", "go"))
    with open(script, "w", encoding="ascii") as f:
        f.write("while [ ! -e %s ]; do sleep 0.02; done\nhead -c %d <&%d >%s\n" % (go, reads, me.fd, out))
        if ends == "shuts":
            f.write("%s -c 'import socket as s, time; s.socket(fileno=%d).shutdown(1); time.sleep(.3)'\n" % (
                sys.executable, me.fd))
    child.ok("unsetenv", "LD_PRELOAD")
    child.bg("exec", "sh", script)
    if live.env.mode == "both":
        harness.until(lambda: relays(live.env), 5, "a relay")
    with open(go, "w", encoding="ascii"):
        pass
    assert live.server("wait", child.pid).ints == [0]
    of_file(me, out, reads)
    harness.until(lambda: not relays(live.env), 5, "no process left")
    me.tx = mine.tx
    if ends == "shuts":
        assert peer.recv(1, timeout=5).ret == 0
    else:
        assert peer.recv(1, shell.DONTWAIT).err == "EAGAIN"
    # what the relay had taken of the rest was for the program alone
    left = me.sh("recv", me.fd, 2000 - reads, shell.DONTWAIT, me.rx_key, reads)
    assert live.env.mode == "both" or left.ret == 2000 - reads or left.err == "EAGAIN"
    me.rx = peer.tx
    peer.sendall(1000)
    assert me.recv(1000, WAITALL, timeout=5).ret == 1000
    if ends == "closes":
        live.turns(20, 1000)
        me.sendall(N)
        me.close()
        assert peer.drain() == (N, None)


@pytest.mark.parametrize("how", ["nothing", "fdopen"])
def test_what_stands_in_for_it_is_a_tcp_socket(live, how):
    """Family, type, protocol, what was set, and the other flags are those of the connection."""
    me, peer = live.s, live.c
    tcp = socket.IPPROTO_TCP
    live.server.ok("setsockopt", me.fd, tcp, socket.TCP_NODELAY, 1)
    live.server.ok("setsockopt", me.fd, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    me.nonblock(how == "nothing")
    without_help(live, "stopped")
    try:
        if how == "nothing":
            assert me.sh("pspawn", me.fd, 0, "/dev/null", "dup").ret == 0
        else:
            WAYS[how](me, N - 1000)
        for name, want in (("SO_DOMAIN", live.family), ("SO_TYPE", socket.SOCK_STREAM), ("SO_PROTOCOL", tcp),
                           ("SO_KEEPALIVE", 1), ("SO_ERROR", 0)):
            assert me.sockopt(getattr(socket, name)) == want
        assert me.sockopt(socket.TCP_NODELAY, tcp) == 1
        assert live.server.ok("getsockname", me.fd) == 0
        assert live.server.ok("fcntl", me.fd, fcntl.F_GETFL, 0) & os.O_NONBLOCK == (
            os.O_NONBLOCK if how == "nothing" else 0)
    finally:
        peer.sh.proc.kill(signal.SIGCONT)


@pytest.mark.parametrize("n", [100, 2 << 20])
def test_the_end_comes_after_all_that_was_sent(live, n):
    """A program that never says a word, and has gone when the peer gets to read."""
    me, peer = live.s, live.c
    peer.sh.proc.kill(signal.SIGSTOP)
    try:
        n = me.send(n, shell.NOSIGNAL | shell.DONTWAIT).ret
        live.server.ok("setsockopt", me.fd, socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        live.server.ok("unsetenv", "LD_PRELOAD")
        assert live.server("pspawn", me.fd, 0, "/dev/null", "inherit").ret == 0
        me.close()
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.drain() == (n, None)
    harness.until(lambda: not relays(live.env), 5, "no process left")
