# SPDX-License-Identifier: BSD-2-Clause
"""Connections that do nothing cost nothing."""
import collections
import time

import pytest

from shell import EV_IN, WAITALL
import harness
import shell

pytestmark = pytest.mark.timeout(90)
FLOWS = 1000


def on_fabric(env, port):
    """Client ports of the connections that both ends have on the fabric."""
    ends = [f["local_port"] + f["peer_port"] - port for f in env.flows() if f["carrier"] == env.fabric]
    return {k for k, n in collections.Counter(ends).items() if n == 2}


@pytest.mark.modes("plain", "both")  # one-sided flows are plain flows
def test_thousand_idle_flows(env, record_property):
    """1000 flows between two processes that sleep in epoll_wait: under 1% of a core over 5 s."""
    p = shell.Pair(env)
    before = [harness.rss(x.pid) for x in (p.server, p.client)]
    ends = [p.connect() for _ in range(FLOWS)]
    for c, s in ends:
        p.turns(6, 1000, c, s)
    if env.lifts:
        ports = {p.port_of(c): (c, s) for c, s in ends}
        for _ in range(30):  # the laggards go on until they are upgraded
            late = set(ports) - on_fabric(env, p.port)
            for k in late:
                p.turns(10, 1000, *ports[k])
            if not late:
                break
        assert not late, collections.Counter((f["role"], f["state"], f["reason"], f["upgrade_attempts"])
                                             for f in env.flows() if f["carrier"] != env.fabric)
    waits = []
    for sh, i in ((p.client, 0), (p.server, 1)):
        ep = sh.ok("epoll_create", 0)
        for pair in ends:
            sh.ok("epoll_ctl", ep, 1, pair[i].fd, EV_IN, pair[i].fd)
        waits.append(sh.bg("epoll_wait", ep, 64, -1))
    for sh in (p.client, p.server):
        sh.asleep()
    used = [harness.cpu_s(x.pid) for x in (p.server, p.client)]
    time.sleep(5)  # the measurement itself
    used = [harness.cpu_s(x.pid) - u for x, u in zip((p.server, p.client), used)]
    grown = [harness.rss(x.pid) - b for x, b in zip((p.server, p.client), before)]
    record_property("bytes_per_idle_flow", [g // FLOWS for g in grown])
    print("1000 idle flows: %.3f and %.3f s of CPU in 5 s; %d and %d bytes resident per flow" % (
        *used, *(g // FLOWS for g in grown)))
    assert all(u < 0.05 for u in used), used
    # They slept, and are not dead: the last one still answers.
    c, s = ends[-1]
    s.sendall(10)
    assert waits[0].result(2).ret == 1
    assert c.recv(10, WAITALL).ret == 10


def test_idle_flow_wakes_nobody(live):
    """One upgraded flow, both programs asleep in recv and poll: no CPU at all."""
    a = live.c.recv_bg(10)
    b = live.server.bg("poll", -1, live.s.fd, EV_IN)
    for sh in (live.client, live.server):
        sh.asleep()
    used = [harness.cpu_s(sh.pid) for sh in (live.client, live.server)]
    time.sleep(1)
    used = [harness.cpu_s(sh.pid) - u for sh, u in zip((live.client, live.server), used)]
    assert all(u <= 0.02 for u in used), used
    live.s.sendall(10)
    live.c.sendall(10)
    assert a.result(2).ret == 10 and b.result(2).ret == 1
