# SPDX-License-Identifier: BSD-2-Clause
"""What xr-stat counts adds up to what the programs moved, and queues are those of this moment."""
import os
import re
import subprocess

import pytest

import harness
import shell

pytestmark = [pytest.mark.timeout(60)]


def moved(f):
    """Bytes of one end by direction, all carriers."""
    return tuple(sum(f[d]["bytes"].values()) for d in ("tx", "rx"))


def check(pair, c=None, s=None):
    ends = pair.carriers(c)
    want = {"client": c or pair.c, "server": s or pair.s}
    for role, f in ends.items():
        end = want[role]
        assert moved(f) == (end.tx, end.rx), (role, f)
    return ends


@pytest.mark.modes("client", "server", "both")
def test_attempts_that_come_to_nothing_are_counted(env):
    """Each attempt has moved the connection, or failed, once the connection is closed."""
    p = shell.Pair(env)
    for _ in range(20):
        p.turns(20, 1000)
    pids = {role: f["pid"] for role, f in p.carriers().items()}
    p.c.close()
    p.s.close()
    for role, pid in pids.items():
        t, _ = env.counters(pid)
        assert t["upgrade_attempts"] > 0, role
        assert t["upgrade_failed"] == t["upgrade_attempts"] - t["flows_upgraded"], (role, t)
        assert t["flows_upgraded"] == (env.mode == "both"), (role, t)


@pytest.mark.modes("client", "server")
@pytest.mark.parametrize("turns", [8, 20, 40])
def test_each_connection_whose_attempts_failed_has_left_a_reason(env, turns):
    """Also where it was closed before the last attempt was over: xr-stat -t tells why none has moved."""
    p = shell.Pair(env)
    ends = [(p.c, p.s), *(p.connect() for _ in range(4))]
    for c, s in ends:
        for _ in range(turns):
            assert c.send(100).ret == 100 and s.recv(100).ret == 100
            assert s.send(100).ret == 100 and c.recv(100).ret == 100
    tried = [f for f in env.flows() if f["upgrade_attempts"]]
    assert len(tried) == len(ends)
    for c, s in ends:
        c.close()
        s.close()
    totals, reasons = env.counters(tried[0]["pid"])
    assert totals["upgrade_failed"] == totals["upgrade_attempts"], totals
    assert sum(n for why, n in reasons.items() if why in ("peer-not-xrdma", "closed")) == len(ends), (totals, reasons)


@pytest.mark.modes("client", "server", "both")
def test_bytes_add_up(env):
    """From the first byte on, on whatever carrier, and also on TCP for good."""
    p = shell.Pair(env)
    p.turns(2, 700)
    p.turns(60, 1000)
    assert check(p)
    if env.mode == "both":
        p.upgrade()
        assert p.is_up()
        check(p)
    p.turns(300, 500)
    check(p)
    ends = {role: f for role, f in p.carriers().items()}
    totals = {role: env.counters(f["pid"])[0] for role, f in ends.items()}
    for role, end in (("client", p.c), ("server", p.s)):
        if role in totals:
            t = totals[role]
            assert sum(t["bytes_tx_" + c] for c in ("tcp", "shm")) == end.tx
            assert sum(t["bytes_rx_" + c] for c in ("tcp", "shm")) == end.rx
    # and what is over stays in the totals: one that was listed, one that was too short to be
    c2, s2 = p.connect()
    assert c2.send(333).ret == 333 and s2.recv(333).ret == 333
    for end in (c2, s2, p.c, p.s):
        end.close()
    for role, end, more in (("client", p.c, (333, 0)), ("server", p.s, (0, 333))):
        if role in totals:
            t, _ = env.counters(ends[role]["pid"])
            assert t["bytes_tx_tcp"] + t["bytes_tx_shm"] == end.tx + more[0]
            assert t["bytes_rx_tcp"] + t["bytes_rx_shm"] == end.rx + more[1]


@pytest.mark.modes("both")
def test_bytes_that_went_back_to_tcp_count_once(env):
    env.env["XRDMA_RETURN_AFTER"] = "1ms"
    p = shell.Pair(env).upgrade()
    e = {**os.environ, **env.env}
    for end in (p.c, p.s):
        end.sendall(20000)
    subprocess.run([harness.find("xr-stat", "tools/xr-stat"), "--retreat", "--wait=0.1"], env=e, check=False,
                   stdout=subprocess.DEVNULL)
    for end, peer in ((p.c, p.s), (p.s, p.c)):
        end.poll(1)
        assert peer.recv(20000, shell.WAITALL).ret == 20000
        peer.rx = end.tx
    p.turns(20, 300)
    harness.until(lambda: [f["carrier"] for f in p.carriers().values()] == ["tcp", "tcp"], 5, "on TCP")
    check(p)


def queues(pair):
    got = pair.carriers()
    return {role: (f["rx"]["queue"], f["tx"]["queue"]) for role, f in got.items()}


@pytest.mark.modes("both")
def test_queues_are_those_of_this_moment(env):
    p = shell.Pair(env).upgrade()
    assert queues(p) == {"client": (0, 0), "server": (0, 0)}
    p.c.sendall(5000)
    assert queues(p) == {"client": (0, 5000), "server": (5000, 0)}
    assert p.s.recv(2000, shell.WAITALL).ret == 2000
    assert queues(p) == {"client": (0, 3000), "server": (3000, 0)}
    assert p.s.recv(3000, shell.WAITALL).ret == 3000
    p.s.rx = p.c.tx
    assert queues(p) == {"client": (0, 0), "server": (0, 0)}
    # the other end is asked even if only one is looked at
    p.c.sendall(100)
    assert p.s.recv(100, shell.WAITALL).ret == 100
    text = harness.xr_stat({**os.environ, **env.env}, "-n", "--pid=%d" % p.client.pid)
    assert re.search(r"^ESTAB +0 +0 ", text, re.M), text
    # slots of what was read are free
    assert p.carriers()["client"]["tx"]["credits"] == p.carriers()["client"]["tx"]["slots"]


@pytest.mark.modes("both")
def test_peer_processes(env):
    """However many connections and links there are between two processes."""
    p = shell.Pair(env).upgrade()
    for _ in range(3):
        p.upgrade(*p.connect())
    for sh in (p.client, p.server):
        assert env.counters(sh.pid)[0]["peer_processes"] == 1
