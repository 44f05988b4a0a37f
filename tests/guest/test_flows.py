# SPDX-License-Identifier: BSD-2-Clause
"""Connections between hosts on RDMA: bytes arrive once, in order and unchanged, whatever becomes of the devices."""
import ipaddress
import os

import pytest

import harness
import hosts
import shell
from test_stream import M, long_lived, transfer

pytestmark = [pytest.mark.timeout(150),
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


@pytest.mark.parametrize("wait", ["threads", "epollet"])
def test_both_ways_at_once(env, wait):
    transfer(env, wait=wait, c2s=4 * M + 17, s2c=4 * M + 5)


def test_turns(env):
    long_lived(env, 60000, wait="block", proto="pingpong", turn=3000, c2s=900000, s2c=900000)


def test_shown(env, two):
    """Each end names its queue pair and the peer's, and its own device with its address."""
    live = shell.Pair(env).upgrade()
    both = live.carriers()
    a, b = both["client"]["rdma"], both["server"]["rdma"]
    assert a["qpn"] > 0 and b["qpn"] > 0 and (a["qpn"], a["peer_qpn"]) == (b["peer_qpn"], b["qpn"]), (a, b)
    for end, host in ((a, two[1]), (b, two[0])):
        assert end["device"] == host.device
        assert ipaddress.ip_address(end["gid"]) != ipaddress.ip_address("::"), end
    assert a["gid"] != b["gid"]


def test_device_deleted(env, two):
    """The flow goes on over TCP, with what was under way."""
    live = shell.Pair(env).upgrade()
    live.c.sendall(50000)
    two[0].delete_device()
    try:
        assert live.s.recv(50000, shell.WAITALL).ret == 50000
        live.turns(20, 1000)
        assert all(f["carrier"] == "tcp" for f in live.carriers().values())
    finally:
        two[0].add_device()


def test_a_killed_peer_is_told_of_once(env):
    """Whoever was writing to it has the error from the socket: a read has none to add."""
    for _ in range(6):
        live = shell.Pair(env).upgrade()
        me = live.c
        me.fill()
        w = me.send_bg(1 << 20)
        me.sh.asleep()
        live.server.proc.reap()
        got = [w.result(5)] + [me.send(1) for _ in range(6)] + [me.recv(100) for _ in range(2)]
        errors = [r.err for r in got]
        assert errors[5:] == ["EPIPE", "EPIPE", None, None], errors
        # EPIPE where its end had come first; what follows the error is that, too
        assert errors.count("ECONNRESET") <= 1 and errors.index("ECONNRESET" if "ECONNRESET" in errors else "EPIPE") < 2, errors
        assert "ECONNRESET" not in errors[1:] or errors[0] is None, errors
