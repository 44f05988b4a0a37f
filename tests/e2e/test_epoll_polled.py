# SPDX-License-Identifier: BSD-2-Clause
"""Poll and select on an epoll instance, as by the loop of another library: what its members have shows there."""
import time

import pytest

from shell import EV_ET, EV_IN, WAITALL
from test_epoll import Set, arrived, ep, parse  # noqa: F401

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("how,unit", [("poll", 1), ("ppoll", 1), ("select", 1000), ("pselect", 1000)])
@pytest.mark.parametrize("trigger", ["level", "edge"])
@pytest.mark.parametrize("looks", ["looks", "waits for it alone"])
def test_sleeps_and_wakes(live, ep, how, unit, trigger, looks):
    """A program that polls its epoll instance, among others as a part of a loop of another library."""
    def ready(ms):
        return live.server(how, ms * unit, ep.fd, 1).ret

    ep.add(live.s.fd, EV_IN | (EV_ET if trigger == "edge" else 0), 1)
    for i in range(6):
        if looks == "looks":
            assert ep.wait() == []
        assert ready(0) == 0, i
        w = live.server.bg(how, -1, ep.fd, 1)
        live.server.asleep()
        live.c.sendall(100)
        assert w.result(2).ret == 1, i
        assert ready(0) == 1
        assert ep.wait() == [(1, EV_IN)]
        assert ready(0) == (trigger == "level")
        arrived(live.s, 100)
        assert live.s.recv(100).ret == 100
    assert ready(0) == 0


def test_beside_its_member(live, ep):
    """Both are told, and a thread that waits in epoll_wait takes nothing from the one in poll."""
    ep.add(live.s.fd, EV_IN, 1)
    assert ep.wait() == []
    for i in range(4):
        w = live.server.bg("poll", -1, ep.fd, EV_IN, live.s.fd, EV_IN)
        v = live.server.bg("poll", -1, ep.fd, EV_IN)
        e = ep.wait_bg()
        live.server.asleep()
        live.c.sendall(10)
        assert parse(e.result(2)) == [(1, EV_IN)], i
        assert w.result(2).ret >= 1 and v.result(2).ret == 1, i
        arrived(live.s, 10)
        assert live.server("poll", 0, ep.fd, EV_IN, live.s.fd, EV_IN).ints == [EV_IN, EV_IN]
        assert live.s.recv(10).ret == 10
        assert live.server("poll", 0, ep.fd, EV_IN, live.s.fd, EV_IN).ints == [0, 0]


def test_while_its_member_leaves_tcp(pair):
    """Nothing to be told happens by that."""
    ep = Set(pair.server)
    ep.add(pair.s.fd, EV_IN | EV_ET, 1)
    w = pair.server.bg("poll", -1, ep.fd, EV_IN)
    time.sleep(0.05)
    pair.c.sendall(10)
    assert w.result(2).ints == [EV_IN]
    assert ep.wait() == [(1, EV_IN)]
    assert pair.s.recv(10).ret == 10
    for i in range(20):
        w = pair.server.bg("poll", 3000, ep.fd, EV_IN)
        pair.c.sendall(3000)
        assert w.result(5).ints == [EV_IN], i
        assert ep.wait() == [(1, EV_IN)]
        assert pair.s.recv(3000, WAITALL).ret == 3000
        ep.wait()
        pair.s.sendall(3000)
        assert pair.c.recv(3000, WAITALL).ret == 3000
        assert pair.server("poll", 0, ep.fd, EV_IN).ints == [0], i
