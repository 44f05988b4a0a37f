# SPDX-License-Identifier: BSD-2-Clause
"""Connections whose addresses are translated on their way: what moves to RDMA all the same, and why the rest does not."""
import os
import shutil
import socket

import pytest

import harness
import hosts
import shell
from test_ping import WANTED, listening, make_keys, ping  # noqa: F401
from test_stream import M, as_expected, transfer

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check"),
              pytest.mark.skipif(not shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin"), reason="needs nftables")]

OUTPUT = "type nat hook output priority -100"
ROUTED = "type nat hook prerouting priority -100"
LEAVING = "type nat hook postrouting priority 100"


def translate(host, hook, rule):
    host.run("nft", "add", "table", "ip", "t")
    host.run("nft", "add", "chain", "ip", "t", "c", "{ %s ; }" % hook)
    host.run("nft", "add", "rule", "ip", "t", "c", *rule.split())


def virtual_of(host):
    return "10.99.%s.1" % host.address.split(".")[2]


class Behind(harness.Env):
    """The client knows its server by another address than the server does, and reaches it by a third host."""

    def __init__(self, three, key):
        super().__init__("both", three)
        self.env.update(XRDMA_RDMA_TRUST="key", XRDMA_RDMA_KEY=key)
        self.router = three[2]
        self.virtual = virtual_of(three[0])

    def start(self, role, argv, **kw):
        if role == "client":
            kw["env"] = {"TEST_ADDRESS": self.virtual, **(kw.get("env") or {})}
        return super().start(role, argv, **kw)


class Pair(shell.Pair):
    """The server binds its own address; the client dials the other."""

    def connect(self, *args, **kw):
        own, self.host = self.host, self.env.virtual
        try:
            return super().connect(*args, **kw)
        finally:
            self.host = own


@pytest.fixture(scope="module", name="three")
def make_three():
    """Server, client, and a router in front of the server, which has an address for it."""
    with hosts.Hosts(3, "rxe") as all_three:
        server, client, router = all_three
        virtual = virtual_of(server)
        for name in ("all", "eth0"):
            router.sysctl("ipv4/conf/%s/send_redirects" % name, 0)
            router.sysctl("ipv4/conf/%s/rp_filter" % name, 0)
        router.sysctl("ipv4/ip_forward", 1)
        client.run("ip", "route", "add", virtual + "/32", "via", router.address)
        # what the server answers comes back by the way on which it was translated
        server.run("ip", "route", "add", client.address + "/32", "via", router.address)
        translate(router, ROUTED, "ip daddr %s dnat to %s" % (virtual, server.address))
        yield all_three


@pytest.fixture
def env(three, keys, monkeypatch):
    monkeypatch.setattr(harness, "BRIDGE", True)
    e = Behind(three, keys[0])
    try:
        yield e
    finally:
        e.close()


def test_server_behind_a_router(env, three):
    """Verified both ways, on RDMA at both ends, while the ends do not agree on the address of the server."""
    live = transfer(env, hold=60000, want=as_expected, wait="block", proto="pingpong", turn=3000, c2s=900000, s2c=900000)
    assert as_expected(env, live), live
    assert {f["peer_address"] for f in live} == {env.virtual, three[1].address}, live
    transfer(env, wait="epollet", c2s=2 * M + 17, s2c=2 * M + 5, conns=4)


def test_back_to_tcp_and_again(env):
    """A retreat, forced, goes over the translated connection; so does the way back to RDMA."""
    live = Pair(env).upgrade()
    live.turns(20, 1000)
    child = live.server.fork()
    s = live.s.as_seen_by(child)
    live.s.close()
    for _ in range(5):
        live.turns(20, 1000, live.c, s)
    live.c.sendall(5000)
    assert s.recv(5000, shell.WAITALL).ret == 5000
    child.end()


def test_many_processes_on_one_port(env):
    """SO_REUSEPORT: the process that accepted it is the one that calls, whichever the kernel chose, and each byte comes to it."""
    servers = [shell.Shell(env, "server") for _ in range(3)]
    clients = [shell.Shell(env, "client") for _ in range(2)]
    port, listeners = 0, []
    for sh in servers:
        fd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0)
        sh.ok("setsockopt", fd, socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sh.ok("bind", fd, env.address, port)
        sh.ok("listen", fd, 16)
        port = port or int(sh("getsockname", fd).words[1])
        listeners.append(fd)

    def accept():
        for sh, fd in zip(servers, listeners):
            got = sh("accept", fd, 0)
            if got.ret >= 0:
                return sh, got.ret
        return None

    live = []
    for i in range(8):
        c = clients[i % 2]
        fd = c.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
        c.ok("connect", fd, env.virtual, port)
        sh, sfd = harness.until(accept, 5, "accepted")
        live.append((shell.End(c, fd, 2 * i + 1, 2 * i + 2), shell.End(sh, sfd, 2 * i + 2, 2 * i + 1)))
    assert len({s.sh.pid for _, s in live}) > 1, "all with one process: one in 2000"

    def all_there():
        for c, s in live:
            shell.Pair.turns(None, 20, 1000, c, s)
        return [f["carrier"] for f in env.flows()] == ["rdma"] * 2 * len(live)

    harness.until(all_there, 20, lambda: [(f["role"], f["carrier"], f["reason"]) for f in env.flows()])
    all_there()


def test_another_connection_from_the_same_port(env, three):
    """
    Two connections of the client's host have one local address and port, and one of them is not a program's that moves: that is
    all the client could know a call by, so the other one stays where it is, and both ends say why.
    """
    server, client, _ = three
    p = Pair(env)
    port = p.port_of(p.c)
    with server.inside():
        listener = socket.create_server((server.address, 0))
    with client.inside():
        other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # the first one binds without it: from here on it has it, too
    p.client.ok("setsockopt", p.c.fd, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind((client.address, port))
    other.connect(listener.getsockname())
    for _ in range(10):
        p.turns(40, 1000)
    harness.until(lambda: (p.turns(20, 1000), {f["reason"] for f in p.carriers().values()} == {"translated"})[1], 10,
                  lambda: "translated: %r" % {r: f["reason"] for r, f in p.carriers().items()})
    assert all(f["carrier"] == "tcp" for f in p.carriers().values())
    other.close()
    listener.close()


def test_namespace_that_translates(keys):
    """Where the client's own host translates nobody can tell what else comes from its address; a setting says that nothing does."""
    how = ["-p9000", "-s64", "-W", "15"]
    with hosts.Hosts(2, "rxe") as (a, b):
        group = int(a.address.split(".")[2])
        virtual = "10.77.%d.99" % group
        # the port is another one, too
        translate(a, OUTPUT, "ip daddr %s tcp dport 9000 dnat to %s:7447" % (virtual, b.address))
        with listening(b, keys[0], **WANTED):
            status, o, _ = ping(a, keys[0], virtual, *how, **WANTED)
            assert (status, o["reason"], o["meeting_ms"]) == (1, "translated", None), o
            status, o, _ = ping(a, keys[0], virtual, *how, XRDMA_RDMA_NAT="yes", **WANTED)
            assert (status, o["fabric"], o["reason"]) == (0, "rdma", "none"), o
            assert all(e["lost"] == e["wrong"] == 0 for e in o["round_trips"]), o
            status, o, _ = ping(a, keys[0], virtual, *how, XRDMA_RDMA_NAT="no", **WANTED)
            assert (status, o["reason"]) == (1, "translated"), o
        # the server's word counts, too
        with listening(b, keys[0], XRDMA_RDMA_NAT="no", **WANTED):
            status, o, _ = ping(a, keys[0], virtual, *how, XRDMA_RDMA_NAT="yes", **WANTED)
            assert (status, o["upgrade"]) == (1, False), o
        # a network that is trusted is trusted for the addresses that it has
        with listening(b, "/none", XRDMA_RDMA_TRUST="fabric", **WANTED):
            status, o, _ = ping(a, "/none", virtual, *how, XRDMA_RDMA_TRUST="fabric", XRDMA_RDMA_NAT="yes", **WANTED)
            assert (status, o["upgrade"]) == (1, False), o


def test_client_translated(keys):
    """The server calls where the connection seems to come from: it stays on TCP, for a reason, and nobody takes harm."""
    with hosts.Hosts(2, "rxe") as (a, b):
        group = int(a.address.split(".")[2])
        a.run("ip", "addr", "add", "10.77.%d.98/24" % group, "dev", "eth0")
        translate(a, LEAVING, "ip daddr %s tcp dport 7447 snat to 10.77.%d.98" % (b.address, group))
        with listening(b, keys[0], **WANTED):
            status, o, _ = ping(a, keys[0], b.address, "-s64", "-W", "15", XRDMA_RDMA_NAT="yes", **WANTED)
            assert (status, o["upgrade"], o["meeting_ms"]) == (1, False, None), o
            assert o["reason"] in ("peer-not-xrdma", "rdma-unreachable"), o
            a.run("nft", "delete", "table", "ip", "t")
            status, o, _ = ping(a, keys[0], b.address, **WANTED)
            assert (status, o["reason"]) == (0, "none"), o
