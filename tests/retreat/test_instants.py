# SPDX-License-Identifier: BSD-2-Clause
"""Instants between two steps of a call that a busy machine alone meets, made long: strace(1) holds the
program up where it enters or leaves the kernel.
"""
import pytest

import harness
import shell

pytestmark = [pytest.mark.timeout(60),
              pytest.mark.skipif(not harness.have("strace"), reason="no strace")]


def held_up(env, role, call, **delays_ms):
    """A shell each of whose calls to `call` is held up, by so much at its entry and its exit."""
    inject = ":".join("delay_%s=%d" % (at, ms * 1000) for at, ms in delays_ms.items())
    return shell.Shell(env, role, wrap=("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call,
                                        "-e", "inject=%s:%s" % (call, inject)))


@pytest.mark.parametrize("who", ["server", "client"])
def test_an_end_that_meets_the_upgrade(env, who):
    """shutdown() has found its connection on TCP, and before it takes effect other threads would move it.

    The peer then met a FIN in the place of the fabric's END, and took it for a death.
    """
    me = held_up(env, who, "shutdown", enter=500, exit=300)
    p = shell.Pair(env, **{who: me})
    end, peer = (p.s, p.c) if who == "server" else (p.c, p.s)
    w = me.bg("shutdown", end.fd, 1)
    for _ in range(15):
        p.turns(4, 1000)
    assert not w.done()
    # what this end has not read when its FIN comes
    peer.sendall(2000)
    got = peer.recv(1, timeout=5)
    assert (got.ret, got.err) == (0, None)
    assert w.result().ret == 0
    assert peer.send(3000).ret == 3000
    assert end.recv(5000, shell.WAITALL).ret == 5000
    peer.close()
    assert end.drain() == (0, None)
