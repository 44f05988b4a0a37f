# SPDX-License-Identifier: BSD-2-Clause
"""Making a connection: results, errors and addresses as the kernel gives them, and as fast."""
import os
import socket
import statistics
import time

import pytest

from shell import EV_ERR, EV_HUP, EV_IN, EV_OUT, EV_RDHUP
import harness
import shell

pytestmark = pytest.mark.timeout(60)
NONBLOCK, CLOEXEC = socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC
F_GETFD, F_GETFL = 1, 3


def dead_port(pair):
    """A port that was free a moment ago and is bound, not listening, now."""
    fd = pair.server.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    pair.server.ok("bind", fd, pair.host, 0)
    return int(pair.server("getsockname", fd).words[1])


def test_refused(pair):
    fd = pair.client.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    assert pair.client("connect", fd, pair.host, dead_port(pair)).err == "ECONNREFUSED"
    # The socket is as good as new.
    assert pair.client("connect", fd, pair.host, pair.port).ret == 0


def test_refused_nonblocking(pair):
    """EINPROGRESS, then poll says so and SO_ERROR gives the error once."""
    sh = pair.client
    fd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM | NONBLOCK, 0)
    assert sh("connect", fd, pair.host, dead_port(pair)).err in ("EINPROGRESS", "ECONNREFUSED")
    assert sh("poll", 2000, fd, EV_IN | EV_OUT | EV_RDHUP).ints == [
        EV_IN | EV_OUT | EV_RDHUP | EV_ERR | EV_HUP]
    assert sh("getsockopt", fd, socket.SOL_SOCKET, socket.SO_ERROR).ints[0] == 111
    assert sh("getsockopt", fd, socket.SOL_SOCKET, socket.SO_ERROR).ints[0] == 0
    assert sh("send", fd, 1, 0x4000, 0, 0).err in ("EPIPE", "ENOTCONN")


def test_unreachable(pair):
    """A network that does not exist."""
    fd = pair.client.ok("socket", socket.AF_INET, socket.SOCK_STREAM | NONBLOCK, 0)
    r = pair.client("connect", fd, "240.0.0.1", 9)
    with pair.env.on("client"):
        plain = socket.socket()
    plain.setblocking(False)
    assert (r.errno if r.ret < 0 else 0) == plain.connect_ex(("240.0.0.1", 9))
    plain.close()


def test_nonblocking_connect(pair):
    sh = pair.client
    fd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM | NONBLOCK, 0)
    r = sh("connect", fd, pair.host, pair.port)
    assert r.err == "EINPROGRESS" or r.ret == 0
    assert sh("poll", 2000, fd, EV_OUT).ints == [EV_OUT]
    assert sh("getsockopt", fd, socket.SOL_SOCKET, socket.SO_ERROR).ints[0] == 0
    assert sh("connect", fd, pair.host, pair.port).err in ("EISCONN", None)
    assert sh("connect", fd, pair.host, pair.port).err == "EISCONN"
    s = pair.server.ok("accept", pair.lfd)
    c, s = shell.End(sh, fd, 1, 2), shell.End(pair.server, s, 2, 1)
    c.nonblock(False)
    pair.turns(c=c, s=s)


def test_not_connected(pair):
    sh = pair.client
    fd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    assert sh("recv", fd, 1, 0, 0, 0).err == "ENOTCONN"
    assert sh("send", fd, 1, 0x4000, 0, 0).err == "EPIPE"
    assert sh("getpeername", fd).err == "ENOTCONN"
    assert sh("poll", 0, fd, EV_IN | EV_OUT).ints == [EV_OUT | EV_HUP]
    assert sh("shutdown", fd, 2).err == "ENOTCONN"
    assert sh("accept", fd).err == "EINVAL"
    assert sh("listen", pair.c.fd, 1).err == "EINVAL"


def test_connect_twice(live):
    assert live.client("connect", live.c.fd, live.host, live.port).err == "EISCONN"


@pytest.mark.parametrize("flags", [0, NONBLOCK, CLOEXEC, NONBLOCK | CLOEXEC])
def test_accept4_flags(pair, flags):
    """The flags that were asked for, and only those."""
    fd = pair.client.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    pair.client.ok("connect", fd, pair.host, pair.port)
    s = pair.server.ok("accept", pair.lfd, flags)
    assert bool(pair.server("fcntl", s, F_GETFL, 0).ret & os.O_NONBLOCK) == bool(flags & NONBLOCK)
    assert pair.server("fcntl", s, F_GETFD, 0).ret == (1 if flags & CLOEXEC else 0)


def test_accepted_does_not_inherit_nonblock(pair):
    pair.server.ok("fcntl", pair.lfd, 4, os.O_RDWR | os.O_NONBLOCK)
    assert pair.server("accept", pair.lfd).err == "EAGAIN"
    fd = pair.client.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    pair.client.ok("connect", fd, pair.host, pair.port)
    assert pair.server("poll", 2000, pair.lfd, EV_IN).ints == [EV_IN]
    s = pair.server.ok("accept", pair.lfd)
    assert not pair.server("fcntl", s, F_GETFL, 0).ret & os.O_NONBLOCK


def test_nonblock_set_later(live):
    """O_NONBLOCK by fcntl and by ioctl, on and off, on a flow that is in use."""
    c = live.c
    c.nonblock()
    assert c.recv(1).err == "EAGAIN"
    c.nonblock(False)
    assert not (r := c.recv_bg(1)).done(0.03)
    live.s.send(1)
    assert r.result(2).ret == 1
    live.client.ok("ioctl", c.fd, 0x5421, 1)  # FIONBIO
    assert live.client("recv", c.fd, 1, 0, 0, 0).err == "EAGAIN"
    assert live.client("fcntl", c.fd, F_GETFL, 0).ret & os.O_NONBLOCK


def test_nonblock_through_dup(live):
    """File status flags belong to the open file, not to the number."""
    d = live.client.ok("dup", live.c.fd)
    live.c.as_seen_by(live.client, d).nonblock()
    assert live.c.recv(1).err == "EAGAIN"


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_names(env, family):
    host = env.address if family == "v4" else env.address6
    p = shell.Pair(env, host)
    p.upgrade()
    for end, other in ((p.c, p.s), (p.s, p.c)):
        mine, theirs = end.sh("getsockname", end.fd), other.sh("getpeername", other.fd)
        assert mine.words == theirs.words
    assert p.c.sh("getpeername", p.c.fd).words[:2] == [host, str(p.port)]


def test_accept_gives_peer(pair):
    fd = pair.client.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    pair.client.ok("connect", fd, pair.host, pair.port)
    r = pair.server("accept", pair.lfd)
    assert r.words == pair.client("getsockname", fd).words


def test_shutdown_wakes_accept(pair):
    r = pair.server.bg("accept", pair.lfd)
    pair.server.asleep()
    assert pair.server("shutdown", pair.lfd, 2).ret == 0
    assert r.result(2).err == "EINVAL"


def test_socket_options_live(live):
    """What a program reads back is what it set; what it did not set is what TCP has."""
    sh, fd = live.client, live.c.fd
    for level, opt, v in ((6, 1, 1), (6, 1, 0), (1, 9, 1), (6, 4, 77), (6, 5, 33), (6, 6, 5), (6, 12, 0)):
        assert sh("setsockopt", fd, level, opt, v).ret == 0
        assert sh("getsockopt", fd, level, opt).ints[0] == v, (level, opt)
    for opt, v in ((socket.SO_TYPE, 1), (socket.SO_DOMAIN, 2), (socket.SO_PROTOCOL, 6),
                   (socket.SO_ACCEPTCONN, 0), (socket.SO_ERROR, 0)):
        assert sh("getsockopt", fd, socket.SOL_SOCKET, opt).ints[0] == v
    assert sh("setsockopt", fd, 6, 9999, 1).err == "ENOPROTOOPT"
    assert sh("tcp_info", fd).ints[0] == 1  # ESTABLISHED
    live.turns()


def test_queue_ioctls(live):
    """FIONREAD tells what can be read; SIOCOUTQ falls to 0 when the peer's side has all."""
    live.c.sendall(1234)
    harness.until(lambda: live.server("ioctl", live.s.fd, 0x541B, 0).ints[0] == 1234, 2, "FIONREAD")
    harness.until(lambda: live.client("ioctl", live.c.fd, 0x5411, 0).ints[0] == 0, 2, "SIOCOUTQ")
    assert live.s.recv(234).ret == 234
    assert live.server("ioctl", live.s.fd, 0x541B, 0).ints[0] == 1000
    assert live.s.recv(1000).ret == 1000
    assert live.server("ioctl", live.s.fd, 0x541B, 0).ints[0] == 0


def measure(pair, nbytes, into):
    """2000 connections of two programs, half of them by libc's own calls at both ends: their times in
    us, (connect, first turn), are added to into, libc's and the program's."""
    for _ in range(10):
        served = pair.server.bg("accepts", 200, pair.lfd, nbytes, 1)
        r = pair.client("connects", 200, pair.port, nbytes, 1)
        assert r.ret == 200 and served.result().ret == 200
        for w in r.words:
            kind, *times = w.split(":")
            into[int(kind)].append(tuple(map(float, times)))
    return [[statistics.median(x[j] for x in kind) for j in (0, 1)] for kind in into]


@pytest.mark.one_host   # where a measurement means something
@pytest.mark.parametrize("nbytes", [0, 100])
def test_connect_is_as_fast(env, nbytes):
    """connect p50 within 3% of plain, the first turn within 10%.

    With the default thresholds: a connection this short is not worth an upgrade. Both kinds of calls are
    made by the same threads, in an order that tells nothing of the one before: load, and the place that a
    process got on the machine, are the same for both, and 2000 connections tell 1%. Where that was not
    enough all are counted, old and new.
    """
    for k in harness.EAGER:
        env.env.pop(k)
    pair, into, tried = shell.Pair(env), ([], []), []
    for _ in range(8):
        plain, shim = measure(pair, nbytes, into)
        tried.append((plain, shim))
        if shim[0] <= plain[0] * 1.03 and (not nbytes or shim[1] <= plain[1] * 1.10):
            return
    raise AssertionError("connect and first turn, libc's against the program's, us: %r" % tried)


@pytest.mark.parametrize("gap", [0, 0.05])
def test_all_closed_and_opened_again(pair, gap):
    """A pool that drops all its connections and makes new ones at once: these are as good as the first."""
    ends = [(pair.c, pair.s)]
    for _ in range(4):
        ends += [pair.connect() for _ in range(3 - len(ends))]
        for c, s in ends:
            pair.upgrade(c, s)
        for c, s in ends:
            c.close()
            assert s.recv(1).ret == 0
            s.close()
        ends = []
        time.sleep(gap)


@pytest.mark.modes("both")
def test_closed_connections_are_not_shown(pair):
    """xr-stat lists what is open; also when nothing happens in either program after the close."""
    c2, s2 = pair.connect()
    pair.upgrade().upgrade(c2, s2)
    for c, s in ((pair.c, pair.s), (c2, s2)):
        c.close()
        assert s.recv(1).ret == 0
        s.close()
    assert [f for f in pair.env.flows() if f["state"] != "CLOSING"] == []


@pytest.mark.fabric
@pytest.mark.modes("both")
def test_a_rule_names_what_was_started(env, tmp_path):
    """A program is known by the link that it was started by, and by the file behind that."""
    link = tmp_path / "known-as"
    link.symlink_to(harness.prog("xrsh"))
    for name, carrier in (("known-as", "tcp"), ("xrsh", "tcp"), ("unknown", env.fabric)):
        conf = tmp_path / "conf"
        conf.write_text("[rule]\nprogram = %s\naction = tcp\n" % name)
        env.env["XRDMA_CONF"] = str(conf)
        s = shell.Shell(env, "server", program=str(link))
        p = shell.Pair(env, server=s)
        for _ in range(10):
            p.turns(20, 500)
        if carrier != "tcp":
            p.upgrade()
        got = p.carriers()["server"]
        assert (got["carrier"], got["program"]) == (carrier, "known-as"), (name, got)


@pytest.mark.one_host
@pytest.mark.modes("both")
@pytest.mark.parametrize("rule, stays", [
    ("port = %d", True), ("port = 1-9, %d-65535", True), ("port = 1-9", False), ("address = 127.0.0.0/8", True),
    ("address = 127.0.0.1, ::1", True), ("address = 10.0.0.0/8, ::/0", False), ("address = 127.0.0.0/8\nport = 1-9", False),
    ("role = server\nport = %d", False)])
def test_a_rule_names_where_it_goes(env, tmp_path, rule, stays):
    """The address and the port are the server's, at the client; the first rule that matches counts."""
    p = shell.Pair(env)
    conf = tmp_path / "conf"
    conf.write_text("[rule]\n%s\naction = tcp\n[rule]\naction = auto\n" % rule.replace("%d", str(p.port)))
    env.env["XRDMA_CONF"] = str(conf)
    p.client = shell.Shell(env, "client")
    p.c, p.s = p.connect()
    for _ in range(10):
        p.turns(20, 500)
    if not stays:
        p.upgrade()
    else:
        assert p.carriers()["client"]["carrier"] == "tcp" and p.carriers()["client"]["reason"] == "rule"
