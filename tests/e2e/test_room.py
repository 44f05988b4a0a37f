# SPDX-License-Identifier: BSD-2-Clause
"""What a program may send that nobody reads: bounded when it bounded the socket buffers of both ends."""
import socket

import pytest

SMALL, K = 8192, 1024
SOL, SND, RCV = socket.SOL_SOCKET, socket.SO_SNDBUF, socket.SO_RCVBUF

pytestmark = pytest.mark.timeout(60)


def check(c, s, least, most):
    n = c.fill()
    assert least <= n <= most, n
    got = 0
    while got < n:
        got += s.recv(n - got).ret
    assert got == n


def bounded(pair):
    pair.server.ok("setsockopt", pair.lfd, SOL, RCV, SMALL)
    c, s = pair.connect(before=lambda sh, fd: sh.ok("setsockopt", fd, SOL, SND, SMALL))
    pair.turns(1, 100, c, s)
    return c, s


def test_bounded_from_the_start(pair):
    c, s = bounded(pair)
    pair.upgrade(c, s)
    for _ in range(3):
        check(c, s, 4 * K, 256 * K)


def test_bounded_while_it_lives(live):
    """The reader's end first: what it says counts when the writer bounds its own."""
    check(live.c, live.s, 400 * K, 64 << 20)
    live.s.sh.ok("setsockopt", live.s.fd, SOL, RCV, SMALL)
    live.c.sh.ok("setsockopt", live.c.fd, SOL, SND, SMALL)
    if live.mode == "both":  # elsewhere the window that the kernel has once offered stays
        check(live.c, live.s, 4 * K, 256 * K)


@pytest.mark.parametrize("which", [SND, RCV])
def test_bounded_at_one_end(pair, which):
    """The kernel lets the other end's buffer grow: hundreds of KiB go at least."""
    if which == RCV:
        pair.server.ok("setsockopt", pair.lfd, SOL, RCV, SMALL)
        c, s = pair.connect()
    else:
        c, s = pair.connect(before=lambda sh, fd: sh.ok("setsockopt", fd, SOL, SND, SMALL))
    pair.upgrade(c, s)
    check(c, s, 32 * K, 64 << 20)


def test_bounded_and_back(pair):
    """A bounded window carries any amount."""
    c, s = bounded(pair)
    pair.upgrade(c, s)
    sent = c.sh.bg("sendall", c.fd, 5 << 20, 0, c.tx_key, c.tx)
    got = 0
    while got < 5 << 20:
        got += s.recv(100 * K).ret
    assert sent.result(20).ret == 5 << 20
