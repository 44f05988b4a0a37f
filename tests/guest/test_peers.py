# SPDX-License-Identifier: BSD-2-Clause
"""
Peers that compute and call nothing, and peers that are killed at any moment, their connections on RDMA.

XRT_COMPUTE=60 is the time that they compute in seconds, XRT_RDMA_DEATHS=1000 the number of those that die.
"""
import contextlib
import os
import random
import time

import pytest

import drill
import harness
import hosts
import shell
from test_drill import without_rdma

COMPUTE = float(os.environ.get("XRT_COMPUTE") or 9)     # longer than a keepalive of 2 s with three misses
DEATHS = int(os.environ.get("XRT_RDMA_DEATHS") or 12)
FIRST = 6           # until what is made once is there: links, tables that have grown
SENT = 50000        # is READ from who has sent it
pytestmark = [pytest.mark.timeout(150 + 10 * COMPUTE + 3 * DEATHS),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]


@pytest.fixture(scope="module", name="two")
def make_two():
    with hosts.Hosts(2, "rxe") as pair:
        yield pair


@pytest.fixture
def env(two, monkeypatch):
    monkeypatch.setattr(harness, "BRIDGE", True)
    e = harness.Env("both", two)
    try:
        yield e
    finally:
        e.close()


class Away:
    """The programs of these ends send, and then compute: their only thread calls nothing."""

    def __init__(self, *ends, send=SENT):
        sent = [e.sh.later("sendall", e.fd, send, shell.NOSIGNAL, e.tx_key, e.tx) for e in ends]
        self.calls = [e.sh.later("spin", int(COMPUTE * 1000)) for e in ends]
        for e, r in zip(ends, sent):
            assert r.result().ret == send
            e.tx += send

    def still(self):
        assert not any(c.done() for c in self.calls), "it has come back too early"

    def over(self):
        for c in self.calls:
            assert c.result(COMPUTE + 20).ret == 0


def queue_pairs(two):
    """Those that carry something; others are kept for the next connection."""
    lines = hosts.call("rdma", "res", "show", "qp").splitlines()
    return sum("type RC state RTS" in line and any("link %s/" % h.device in line for h in two) for line in lines)


def retreats(*pairs):
    return [f["retreats"] for p in pairs for f in p.carriers().values()]


def test_a_program_computes(env, two):
    """
    What it had sent is READ, what comes is taken in, as far as its window goes, and nobody holds it for dead: not its peer,
    that is idle beside it, nor the two that compute at both ends.
    """
    server, client, both = (shell.Pair(env).upgrade() for _ in range(3))
    held = queue_pairs(two)
    assert held == 6
    was = retreats(server, client, both)
    begun = time.monotonic()
    away = Away(server.s, client.c, both.s, both.c)
    for peer in (server.c, client.s):
        assert peer.recv(SENT, shell.WAITALL).ret == SENT
        peer.sendall(SENT)
    away.still()
    time.sleep(max(0, begun + COMPUTE - 1 - time.monotonic()))
    away.still()
    assert queue_pairs(two) == held
    away.over()
    for end in (server.s, client.c, both.s, both.c):
        assert end.recv(SENT, shell.WAITALL).ret == SENT
    for p in (server, client, both):
        p.turns(20, 3000)
        assert p.is_up(), p.carriers()
    assert retreats(server, client, both) == was


def test_its_peer_is_lost_meanwhile(env, two):
    """Who computes probes its peer: the queue pairs are gone long before anybody calls, and no byte is lost."""
    p = shell.Pair(env).upgrade()
    assert queue_pairs(two) == 2
    away = Away(p.s, p.c, send=100)
    time.sleep(1)       # that goes over: nothing is on its way that could be missed
    with without_rdma(two[0]):
        harness.until(lambda: not queue_pairs(two), COMPUTE / harness.PATIENCE,
                      lambda: hosts.call("rdma", "res", "show", "qp"), 0.05)
        away.still()
        away.over()
        for end in (p.s, p.c):
            assert end.recv(100, shell.WAITALL).ret == 100
        p.turns(20, 3000)
        both = p.carriers()
        assert [f["carrier"] for f in both.values()] == ["tcp", "tcp"], both
        assert "fabric-lost" in [f["last_reason"] for f in both.values()], both


def helper_fds(pid):
    """Of all threads: the module's has a table of its own."""
    n = {}
    for task in os.listdir("/proc/%d/task" % pid):
        with contextlib.suppress(FileNotFoundError):
            n[task] = len(os.listdir("/proc/%d/task/%s/fd" % (pid, task)))
    return sorted(n.values())


@pytest.mark.parametrize("victim", ["client", "server"])
def test_abrupt_deaths(env, two, victim):
    """Before a connection moves, while it does, when it has and is idle, full or being READ: nothing of it is left."""
    me = shell.Shell(env, "server" if victim == "client" else "client")
    rng = random.Random()

    def die(phase):
        p = shell.Pair(env, **({"server": me} if victim == "client" else {"client": me}))
        mine, other = (p.s, p.c) if victim == "client" else (p.c, p.s)
        if phase == 0:
            p.turns(3, 500)
        elif phase == 1:
            # it moves after the first of these; how long that takes is a matter of the machine
            p.turns(20, 1000)
            time.sleep(rng.uniform(0, .2))
        else:
            p.upgrade()
        if phase == 3:
            mine.fill()
        elif phase == 4:
            other.sendall(SENT)
        elif phase == 5:
            mine.sendall(SENT)
            other.sendall(SENT)
            time.sleep(rng.uniform(0, .02))
        other.sh.proc.reap()
        harness.until(lambda: mine.poll(shell.EV_IN | shell.EV_HUP) & (shell.EV_IN | shell.EV_HUP), 5, "the end")
        mine.drain()
        mine.close()
        if victim == "client":
            me.ok("close", p.lfd)
        return phase > 1

    def held():
        """Of the survivor, and of the devices; queue pairs that are kept come and go, and memory with the load."""
        res = drill.resources(two)
        return (len(harness.fds(me.pid)), helper_fds(me.pid), harness.shared_maps(me.pid, pool=False),
                queue_pairs(two), [res[k] for k in ("pd", "cq", "ctx", "cm_id")])

    def at_rest(want=None):
        harness.until(lambda: not env.flows(me.pid) and not queue_pairs(two) and not drill.resources(two)["cm_id"] and
                      want in (None, held()), 5, lambda: "%r back at %r, %s" % (
                          held(), want, hosts.call("rdma", "res", "show", "qp")), 0.05)
        return held(), drill.resources(two)["qp"]

    for i in range(FIRST):
        die(i % 6)
    before, kept = at_rest()
    moved = sum(die(i % 6) for i in range(DEATHS))
    after = at_rest(before)[1]
    # as many are kept as were in use at once, or in quarantine; one of each death would be dozens
    assert after <= kept + 4, (after, kept)
    print("%d processes died, %d of them with a connection on RDMA for certain" % (DEATHS, moved))
