# SPDX-License-Identifier: BSD-2-Clause
"""
Connections that take the way of those to other hosts, over the device that needs none: a channel between the helper
threads of both programs. Other tests take it with --bridge.
"""
import os

import pytest

import harness
import shell
from test_stream import K, M, long_lived, transfer

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(
    not os.path.exists(os.path.join(harness.build_dir(), ".libs/libxrdma-rdma.so")), reason="built without nettle")]


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(harness, "BRIDGE", True)
    e = harness.Env("both")
    try:
        yield e
    finally:
        e.close()


@pytest.mark.parametrize("io", ["send", "iov", "peek"])
def test_both_ways_at_once(far, io):
    transfer(far, io=io, wait="threads", c2s=8 * M + 17, s2c=8 * M + 5)


@pytest.mark.parametrize("wait", ["block", "poll", "epollet"])
def test_turns(far, wait):
    long_lived(far, 30000, wait=wait, proto="pingpong", turn=3000, c2s=600000, s2c=600000)


def test_half_close(far):
    transfer(far, wait="poll", proto="halfclose", c2s=700 * K, s2c=2 * M)


def test_shown(far):
    """The carrier is that of connections between hosts; the descriptors that the program sees are its own."""
    live = shell.Pair(far).upgrade()
    flows = far.flows()
    assert [f["carrier"] for f in flows] == ["rdma", "rdma"]
    for end in (live.client, live.server):
        assert max(n for n in harness.fds(end.pid) if n < 1000) < 20
