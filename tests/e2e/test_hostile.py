# SPDX-License-Identifier: BSD-2-Clause
"""A peer that lies at the rendezvous point, in the handshake and in shared memory.

The program in danger runs under the shim and talks to xrhostile, which echoes on TCP and attacks on
the side. Until the handshake is good, nothing may happen: the flow goes on, on TCP, the refusal is
counted, no descriptor is kept. After it, the peer owns the stream and may spoil it, as it may on
TCP; it must not spoil the process, nor other flows.
"""
import contextlib
import os
import random
import socket

import pytest

import harness
import shell

pytestmark = [pytest.mark.one_host, pytest.mark.timeout(60), pytest.mark.modes("client", "server")]

FIRST = ["call-close", "call-partial", "call-oversize", "call-random", "call-nofd", "call-file",
         "call-other-socket", "call-many-fds", "call-two-fds", "call-magic", "call-version", "call-size",
         "call-type", "call-tuple", "call-flags", "call-nonce"]
SECOND = ["setup-close", "setup-partial", "setup-nofd", "setup-unsealed", "setup-half-sealed", "setup-tiny",
          "setup-odd-size", "setup-huge", "setup-zero", "setup-link", "setup-echo", "setup-file",
          "setup-header", "setup-dir-off", "setup-magic", "setup-version", "setup-type", "setup-size", "setup-flags",
         "setup-tuple"]
# The caller has said these before; of the end that is called they are the first.
SAID_TWICE = ["setup-uuid", "setup-nonce"]
RING = ["ring-noise", "ring-lure", "ring-control", "ring-offers", "ring-close", "ring-retreat", "ring-consumed"]


class Victim:
    """A shell under the shim whose peer is xrhostile."""

    def __init__(self, env):
        self.env = env
        self.role = env.mode
        self.sh = shell.Shell(env, self.role)
        if self.role == "server":
            self.lfd = self.sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
            self.sh.ok("bind", self.lfd, "127.0.0.1", 0)
            self.sh.ok("listen", self.lfd, 16)
            self.port = int(self.sh("getsockname", self.lfd).words[1])
        self.sent = 0

    def meet(self, attack, seed):
        """A new connection to a new liar."""
        argv = [harness.prog("xrhostile"), "caller" if self.role == "client" else "host", attack, seed]
        if self.role == "client":
            peer = self.env.start(None, argv)
            self.fd = self.sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
            self.sh.ok("connect", self.fd, "127.0.0.1", peer.json()["port"])
        else:
            peer = self.env.start(None, [*argv, self.port])
            self.fd = self.sh.ok("accept", self.lfd)
            peer.json()
        self.sent = 0
        return peer

    def turns_bg(self, n, size=500):
        k = self.fd + 1000
        p = self.sh.bg("turns", self.fd, n, size, 1, k, self.sent, k, self.sent)
        self.sent += n * size
        return p

    def turns(self, n, size=500):
        r = self.turns_bg(n, size).result(10)
        assert r.ret == n, r

    def part(self, peer):
        """End the connection; what the liar tells of it."""
        self.sh.ok("close", self.fd)
        said = peer.json(5)
        peer.stop()
        return said

    def flow(self):
        got = [f for f in self.env.flows(self.sh.pid) if f["fd"] == self.fd]
        assert len(got) == 1, got
        return got[0]

    def refused(self):
        counters, _ = self.env.counters(self.sh.pid)
        return counters["handshake_refused"] + counters["upgrade_failed"]


def seeds(n):
    first = int(os.environ.get("XRT_SEED") or random.getrandbits(32))
    return range(first, first + n)


@pytest.fixture
def victim(env):
    v = Victim(env)
    # The process's own standing costs (statistics, netlink) are there before anything is counted.
    peer = v.meet("call-close", 1)
    v.turns(60)
    v.part(peer)
    return v


@pytest.mark.parametrize("attack", FIRST + SECOND + SAID_TWICE)
def test_refused(victim, attack):
    """Refused, counted, forgotten; the flow goes on, on TCP, and a reason is given."""
    if attack in SAID_TWICE and victim.role == "server":
        return
    refused = victim.refused()
    for i, seed in enumerate(seeds(3)):
        peer = victim.meet(attack, seed)
        for _ in range(6):
            victim.turns(20)
        flow = victim.flow()
        assert flow["carrier"] == "tcp" and flow["reason"] not in ("none", "unknown", "internal"), flow
        # who was called by a stranger goes on waiting for the other end to call
        if attack.endswith("-version") and (attack, victim.role) != ("call-version", "client"):
            assert flow["reason"] == "version-mismatch", flow
        said = victim.part(peer)
        assert said["attacked"] == 1, (attack, seed, said)
        assert said["echoed"] == 6 * 20 * 500
        if i == 0:
            level = len(harness.fds(victim.sh.pid)), harness.shared_maps(victim.sh.pid)
    assert victim.refused() >= refused + 3, attack
    assert (len(harness.fds(victim.sh.pid)), harness.shared_maps(victim.sh.pid)) == level


@pytest.mark.parametrize("attack", ["call-silent", "setup-silent"])
def test_silent(victim, attack):
    """A caller that says nothing more holds up nothing."""
    victim.env.env["XRDMA_RENDEZVOUS_TIMEOUT"] = "100ms"
    peer = victim.meet(attack, 1)
    for _ in range(10):
        victim.turns(20)
    assert victim.flow()["carrier"] == "tcp"
    assert victim.part(peer)["echoed"] == 10 * 20 * 500


@pytest.mark.parametrize("attack", ["call-flip", "setup-flip", "setup-header", "setup-dir-off"])
def test_fuzz(victim, attack):
    """Bits flipped anywhere: at worst the liar is believed in something harmless, never a crash."""
    for seed in seeds(25):
        peer = victim.meet(attack, seed)
        p = victim.turns_bg(60)
        # A flip that hurts nothing (its own cookie, its own name) lets the upgrade go through, and
        # then a liar that knows only TCP leaves the program waiting, as any silent peer does.
        if not p.done(1.0):
            peer.stop()
            assert p.result(2).ret in (-1, 60), "seed %d" % seed
            victim.sh.ok("close", victim.fd)
            continue
        assert p.result().ret == 60, "seed %d" % seed
        victim.sh.ok("close", victim.fd)
        peer.stop()
    healthy(victim)


@pytest.mark.parametrize("attack", RING)
def test_lies_in_shared_memory(victim, attack):
    """Garbage in rings, indices, completion entries, control messages: the process stands, and its
    other flows do not notice."""
    reached = 0
    for seed in seeds(12):
        peer = victim.meet(attack, seed)
        p = victim.turns_bg(200)
        p.done(0.4)
        with contextlib.suppress(harness.Timeout):
            reached += peer.json(0.1) == {"stage": "ring"}
        peer.stop()
        r = p.result(3)
        assert r.ret in (-1, 200), (seed, r)
        victim.sh.ok("close", victim.fd)
        assert victim.sh.proc.poll() is None, "seed %d: %s" % (seed, victim.sh.proc.describe())
    assert reached >= 9, "the handshake went through only %d times of 12" % reached
    healthy(victim)
    used = harness.cpu_s(victim.sh.pid)
    assert not victim.sh.bg("poll", 300, -1, 1).done(0.25)
    assert harness.cpu_s(victim.sh.pid) - used < 0.1, "burns its core"


@pytest.mark.parametrize("attack", ["ring-nonsense", "ring-consumed"])
def test_nonsense_is_a_reset_and_counted(victim, attack):
    """What a broken TCP peer would get: the connection is reset, and the reason says who is to blame."""
    def counted():
        return victim.env.counters(victim.sh.pid)[1].get("segment-corrupt", 0)

    before, resets = counted(), 0
    for seed in seeds(8):
        peer = victim.meet(attack, seed)
        p = victim.turns_bg(400)
        blamed = p.done(4.0)
        if not blamed:     # it waits for what the liar said was still to come over TCP, and ends with the liar
            peer.stop()
        r = p.result(3)
        assert r.ret in (-1, 400), (seed, r)
        resets += blamed and r.err == "ECONNRESET"
        victim.sh.ok("close", victim.fd)
        peer.stop()
    print("%d resets, %d counted" % (resets, counted() - before))
    assert resets >= 3 and counted() - before >= resets, (resets, before, counted())
    healthy(victim)


def healthy(victim):
    """The process answers, and an honest new connection works and is upgraded."""
    assert victim.sh.proc.poll() is None, victim.sh.proc.describe()
    assert victim.sh("spin", 0, timeout=3).ret == 0
    env = victim.env
    env.mode = "both"
    other = shell.Shell(env, "server" if victim.role == "client" else "client")
    p = shell.Pair(env, **{victim.role: victim.sh, ("server" if victim.role == "client" else "client"): other})
    p.upgrade()
    p.c.close()
    assert p.s.drain() == (0, None)


def test_squatted_name(env):
    """Another process sits on the rendezvous name: a reason, and TCP."""
    if env.mode == "server":
        return  # the accepting end opens no name
    sh = shell.Shell(env, "client")
    listener = socket.create_server(("127.0.0.1", 0))
    fd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    sh.ok("connect", fd, "127.0.0.1", listener.getsockname()[1])
    conn, peer = listener.accept()
    squat = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    squat.bind("\0" + name_of(peer, listener.getsockname()))
    squat.listen(4)
    for i in range(60):
        assert sh("send", fd, 300, 0, 5, i * 300).ret == 300
        data = b""
        while len(data) < 300:
            data += conn.recv(300)
        conn.sendall(data)
        assert sh("recv", fd, 300, 0x100, 5, i * 300).words == ["ok"]
    got = [f for f in env.flows(sh.pid) if f["fd"] == fd]
    assert [f["carrier"] for f in got] == ["tcp"]
    assert got[0]["reason"] == "rendezvous-busy", got
    for s in (squat, conn, listener):
        s.close()


def test_a_peer_that_hangs_up_has_declined(env):
    """It was there and said no: that is what the reason says."""
    if env.mode == "client":
        return  # the connecting end is called, it does not call
    sh = shell.Shell(env, "server")
    lfd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    sh.ok("bind", lfd, "127.0.0.1", 0)
    sh.ok("listen", lfd, 16)
    where = ("127.0.0.1", int(sh("getsockname", lfd).words[1]))
    with socket.create_connection(where) as conn, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as name:
        fd = sh.ok("accept", lfd)
        name.bind("\0" + name_of(conn.getsockname(), where))
        name.listen(8)
        name.settimeout(0)
        called = 0
        for i in range(400):
            conn.sendall(bytes(100))
            assert sh("recv", fd, 100, 0x100, 5, 0).ret == 100
            assert sh("send", fd, 100, 0, 5, i * 100).ret == 100
            assert len(conn.recv(100, socket.MSG_WAITALL)) == 100
            with contextlib.suppress(BlockingIOError):
                name.accept()[0].close()
                called += 1
        (f,) = [f for f in env.flows(sh.pid) if f["fd"] == fd]
        assert (f["carrier"], f["reason"]) == ("tcp", "peer-refused"), (f, called)
        assert called > 1 and env.counters(sh.pid)[1]["peer-refused"] == 1


# ---- the name, computed here independently: SipHash-2-4 over both endpoints ------------------------

def siphash(k0, k1, data):
    m64 = (1 << 64) - 1

    def rotl(x, b):
        return (x << b | x >> 64 - b) & m64
    v = [k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573]

    def rounds(n):
        for _ in range(n):
            v[0] = v[0] + v[1] & m64
            v[1] = rotl(v[1], 13) ^ v[0]
            v[0] = rotl(v[0], 32)
            v[2] = v[2] + v[3] & m64
            v[3] = rotl(v[3], 16) ^ v[2]
            v[0] = v[0] + v[3] & m64
            v[3] = rotl(v[3], 21) ^ v[0]
            v[2] = v[2] + v[1] & m64
            v[1] = rotl(v[1], 17) ^ v[2]
            v[2] = rotl(v[2], 32)
    data = bytes(data)
    tail = data[len(data) & ~7:]
    words = [int.from_bytes(data[i:i + 8], "little") for i in range(0, len(data) & ~7, 8)]
    words.append(int.from_bytes(tail, "little") | (len(data) & 255) << 56)
    for w in words:
        v[3] ^= w
        rounds(2)
        v[0] ^= w
    v[2] ^= 0xff
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def name_of(connecting, accepting):
    def half(addr):
        return socket.inet_aton(addr[0]).ljust(16, b"\0")
    t = half(connecting) + half(accepting) + connecting[1].to_bytes(2, "big") + accepting[1].to_bytes(2, "big")
    t += socket.AF_INET.to_bytes(2, "little")
    k = (0x7872646d612d7264, 0x7a2d706f696e7431)
    return "xrdma/%016x%016x" % (siphash(*k, t + b"\0\0"), siphash(*k, t + b"\1\0"))
