# SPDX-License-Identifier: BSD-2-Clause
"""An administrator destroys one end of a connection, as by ss -K (sock_diag(7)): both ends hear of it as on TCP."""
import os
import subprocess

import pytest

from shell import DONTWAIT, EV_ERR, EV_HUP, EV_IN, EV_OUT, EV_RDHUP, NOSIGNAL
import harness

pytestmark = [pytest.mark.timeout(30), pytest.mark.one_host,
              pytest.mark.skipif(os.geteuid() != 0, reason="needs CAP_NET_ADMIN")]

ALL = EV_IN | EV_OUT | EV_RDHUP
GONE = EV_IN | EV_OUT | EV_RDHUP | EV_ERR | EV_HUP


def destroy(p, victim, other):
    ends = "127.0.0.1:%d" % p.port_of(victim), "127.0.0.1:%d" % p.port_of(other)
    r = subprocess.run(["ss", "-K", "-H", "-n", "-t", "src", ends[0], "dst", ends[1]],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not r.stdout.strip():
        pytest.skip("this kernel has no SOCK_DESTROY: %r" % r)


@pytest.fixture(params=["client", "server"])
def ends(request, live):
    """Whose end is destroyed, and the other one."""
    return (live.c, live.s) if request.param == "client" else (live.s, live.c)


def test_idle(live, ends):
    """The destroyed end: ECONNABORTED, once; its peer: ECONNRESET, once."""
    victim, other = ends
    destroy(live, victim, other)
    for end, err in ((victim, "ECONNABORTED"), (other, "ECONNRESET")):
        harness.until(lambda: end.poll(ALL) == GONE, 2, lambda: "end is seen, not %x" % end.poll(ALL))
        assert end.recv(10, DONTWAIT).err == err
        assert end.recv(10, DONTWAIT).ret == 0
        assert end.send(10).err == "EPIPE"


def test_sleeping_readers(live, ends):
    victim, other = ends
    waits = victim.recv_bg(10), other.recv_bg(10)
    live.server.asleep()
    live.client.asleep()
    destroy(live, victim, other)
    assert [w.result(3).err for w in waits] == ["ECONNABORTED", "ECONNRESET"]


def test_unread_bytes(live, ends):
    """What had come before can still be read at both ends, as far as TCP lets it."""
    victim, other = ends
    victim.sendall(3000)
    other.sendall(2000)
    assert victim.poll(EV_IN, 2000) == other.poll(EV_IN, 2000) == EV_IN
    destroy(live, victim, other)
    for end in victim, other:
        harness.until(lambda: end.poll(ALL) == GONE, 2, lambda: "end is seen, not %x" % end.poll(ALL))
    assert victim.recv(5000).ret == 2000
    assert victim.recv(5000).err == "ECONNABORTED"
    assert other.recv(5000).ret == 3000
    assert other.recv(5000).err == "ECONNRESET"


def test_blocked_senders(live, ends):
    victim, other = ends
    for end in ends:
        end.fill()
    waits = [end.send_bg(1 << 20) for end in ends]
    live.server.asleep()
    live.client.asleep()
    destroy(live, victim, other)
    for end, wait, err in zip(ends, waits, ("ECONNABORTED", "ECONNRESET")):
        # a part of it may have found room in the meantime: then the next call tells
        got = wait.result(3)
        assert (got if got.ret < 0 else end.send(1)).err == err
        assert end.send(1, NOSIGNAL).err == "EPIPE"
