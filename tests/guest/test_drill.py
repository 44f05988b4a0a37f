# SPDX-License-Identifier: BSD-2-Clause
"""
What fails between hosts, under load in both directions: devices, links, peers, limits.  The programs notice nothing but
time; where TCP itself would end they get what TCP gives.
"""
import os
import random
import time

import pytest

import drill
import harness
import hosts

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]
RETREATS = int(os.environ.get("XRT_RDMA_RETREATS") or 24)


@pytest.fixture(scope="module", name="two")
def make_two():
    with hosts.Hosts(2, "rxe") as pair:
        for h in pair:
            h.impair()
        yield pair


@pytest.fixture
def env(two, monkeypatch):
    monkeypatch.setattr(harness, "BRIDGE", True)
    e = harness.Env("both", two)
    try:
        yield e
    finally:
        e.close()


@pytest.mark.timeout(200 + 3 * RETREATS)
@pytest.mark.parametrize("load", ["turns", "streams"])
def test_devices_that_come_and_go(env, two, load):
    """
    Devices are deleted and made again at random instants, and XRT_RDMA_RETREATS times a connection goes to TCP and back.

    Under full load the kernel may need 50 s to delete one ("__rxe_cleanup" in its log): it waits for a queue pair of which
    it has lost count. All that time the module's thread may wait in the kernel for it, and so may connections, if both ends
    are met by it.
    """
    if load == "streams" and RETREATS < 1000:
        pytest.skip("takes minutes: XRT_RDMA_RETREATS=1000")
    env.env["XRDMA_RETURN_AFTER"] = "0"
    before = drill.resources()
    more = {"proto": "pingpong", "turn": 2000, "seg": 1000} if load == "turns" else {}
    load = drill.Load(env, conns=8, wait=("poll", "epollet"), stall=100, **more)
    rng = random.Random(load.seed)
    load.wait_for("rdma")
    held = {k: n for k, n in drill.resources().items() if k not in ("mr", "qp")}
    held["qp"] = 2 + 2 * load.conns
    begun, cycles, slow, longest = time.monotonic(), 0, 0, 0
    while load.counter("retreats") < 2 * RETREATS:
        cycles += 1
        which = [h for h in two if rng.random() < .6] or [two[0]]
        for h in which:
            t = time.monotonic()
            h.delete_device()
            slow += time.monotonic() - t > 20
            time.sleep(rng.choice([0, 0, .01, .05]))
        time.sleep(rng.choice([0, 0, .02, .1]))
        t = time.monotonic()
        for h in which:
            h.add_device()
        # at times before all are back
        if rng.random() < .8:
            load.wait_for("rdma", 40)
            longest = max(longest, time.monotonic() - t)
            drill.wait_resources(held, over=4 * load.conns)
    load.wait_for("rdma", 40)
    load.wait_moving(least=20000)
    n, moved = load.counter("retreats"), load.end()
    print("%d retreats at both ends, %d times devices were deleted, %d of them slowly, %.0f s, %d MB, longest way back %.1f s, "
          "seed %d" % (n, cycles, slow, time.monotonic() - begun, moved >> 20, longest, load.seed))
    drill.wait_resources(before)
