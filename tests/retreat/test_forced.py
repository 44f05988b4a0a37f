# SPDX-License-Identifier: BSD-2-Clause
"""Connections are taken to TCP and let go at random instants, thousands of times: by an operator (of processes, devices and
connections), by links that break, by forked children that use them, by calls and processes that keep them there for good, and
with an end that is stopped. No byte is lost, repeated or misplaced, nothing hangs. The load is one of the end-to-end tests', in
many I/O styles.
"""
import collections
import os
import random
import time

import pytest

import harness
from test_fabric import cut

M = 1 << 20
PARTS = 8
TOTAL = int(os.environ.get("XRT_RETREATS") or 10000)
# (server, client): how each end waits for its turn
STYLES = [("epollet", "epoll"), ("poll", "select"), ("threads", "threads"), ("epoll", "epollet"),
          ("oneshot", "poll"), ("threads", "epollet"), ("select", "epollet"), ("epoll", "oneshot"),
          ("epoll", "threads"), ("ppoll", "epoll_pwait2")]
BACK_AT_ONCE = {"XRDMA_RETURN_AFTER": "0"}


def run_once(env, seed, style):
    rng = random.Random(seed)
    # two threads per connection at each end: few connections, each with much to carry
    conns, size, mean = (5, 16 * M, 1500) if "threads" in style else rng.choice(
        [(100, M, 3000), (30, 3 * M, 1000), (4, 20 * M, 500)])
    seg = rng.choice([700, 5000, 65536, 200000])
    args = ["--seed=%d" % seed, "--conns=%d" % conns, "--c2s=%d" % size, "--s2c=%d" % size,
            "--seg=%d" % seg, "--proto=duplex",
            "--io=%s" % rng.choice(["send", "iov", "msg", "rw", "peek"])]
    # in another the programs themselves upset their connections as well, some hundred times: that takes a process each
    if seed % 3 == 1:
        args += ["--upset=%d" % (conns * size // (seg // 4) // 100)]
    s = env.start("server", [harness.prog("xrt"), "server", "--wait=" + style[0], *args])
    c = env.start("client", [harness.prog("xrt"), "client", "--wait=" + style[1],
                             "--port=%d" % s.json()["port"], *args])
    force = env.start(None, [harness.find("tests/retreat/xrforce"), env.stats, str(seed), str(mean),
                             "stop:%d" % s.pid, "stop:%d" % c.pid])
    cuts = 0
    try:
        # in one run of three the link between the two breaks again and again as well
        while seed % 3 == 0 and c.poll() is None:
            cuts += cut((s, c)[cuts % 2].pid)
            time.sleep(0.1 * rng.random())
        rc, rs = c.json(60), s.json(60)
    finally:
        # also what it has stopped goes on
        force.p.stdin.close()
        done = force.json(10)
        force.wait()
    note = "seed %d, styles %s, %d cuts\nserver: %s\nclient: %s\n%s\n%s" % (
        seed, style, cuts, rs, rc, s.describe(), c.describe())
    assert rs["op"] is None and rc["op"] is None, note
    assert (s.wait(), c.wait()) == (0, 0), note
    assert rs["tx_sum"] == rc["rx_sum"] and rs["rx_sum"] == rc["tx_sum"], note
    for p in (s, c, force):
        p.stop()
    # both ends count theirs
    upsets = collections.Counter(rs.get("upsets")) + collections.Counter(rc.get("upsets"))
    return done["retreats"] // 2, cuts, upsets


@pytest.mark.fabric
@pytest.mark.modes("both")
@pytest.mark.timeout(300 + TOTAL // 20)
@pytest.mark.parametrize("part", range(PARTS))
def test_forced_retreats(env, part):
    """An eighth of ten thousand; XRT_RETREATS asks for another number, XRT_SEED for one seed."""
    env.env.update(BACK_AT_ONCE)
    base = int(os.environ.get("XRT_SEED") or random.getrandbits(40))
    n, i, cuts, upsets = 0, 0, 0, collections.Counter()
    while n < TOTAL // PARTS:
        done = run_once(env, base + i, STYLES[(i + 3 * part) % len(STYLES)])
        n += done[0]
        cuts += done[1]
        upsets += done[2]
        i += 1
    print("%d retreats, %d cuts of links, first seed %d, %d runs; upsets: %s" % (n, cuts, base, i, dict(upsets)))
