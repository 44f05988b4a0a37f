# SPDX-License-Identifier: BSD-2-Clause
"""kill -9 of either end at a random point of an upgrade or a retreat: the survivor sees an ending that TCP
could have given, no byte that is not of the stream, and holds in the end what it held before.
"""
import os
import random
import socket
import time

import pytest

import harness

KILLS = int(os.environ.get("XRT_KILLS") or 2000)
AT_ONCE = 5


def end_of(env, me, seed, n, forced=True):
    """n processes come, are talked to in either direction of connect, and are killed."""
    rng = random.Random(seed)
    for _ in range(0, n, AT_ONCE):
        # the names of descriptors are the survivor's business alone: victims need no pipe
        crowd = [env.start("client", [harness.prog_in("retreat", "xrmourn")]) for _ in range(AT_ONCE)]
        for v in crowd:
            key = rng.getrandbits(60)
            port = v.json()["port"]
            if rng.random() < 0.5:
                me.say("connect %d %d\n" % (port, key))
            else:
                v.say("connect %d %d\n" % (me.port, key))
        for v in crowd:
            time.sleep(rng.choice([0.001, 0.004, 0.012, 0.04]) * rng.random())
            v.kill()
        for v in crowd:
            env.procs.remove(v)
            v.stop()


def has_magic(folder, name):
    if name.endswith(".bell"):
        return True
    with open(os.path.join(folder, name), "rb") as f:
        return any(f.read(8))


def status(me):
    me.say("status\n")
    return me.json(10)


def holds(env, me):
    """
    Descriptors and mappings when no memory is shared with anybody. What was shared with the last ones, whom the
    survivor left before it heard of their death, is kept for five seconds, and goes with its next call for a socket.
    """
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))

        def alone():
            me.say("connect %d 1\n" % nobody.getsockname()[1])   # refused
            return status(me)["open"] == 0 and not env.counters(me.pid)[0]["peer_processes"]
        if env.mode == "both":
            harness.until(alone, 12, lambda: "alone: %r" % harness.fds(me.pid), 0.25)
    return len(harness.fds(me.pid)), harness.shared_maps(me.pid)[0]


@pytest.mark.one_host   # each program listens and connects, all at one address
@pytest.mark.modes("plain", "both")
@pytest.mark.timeout(300 + KILLS // 10)
@pytest.mark.parametrize("part", range(2))
def test_killed_at_a_random_point(env, part):
    env.env["XRDMA_RETURN_AFTER"] = "0"
    seed = int(os.environ.get("XRT_SEED") or random.getrandbits(40))
    kills = KILLS // 2 if env.mode == "both" else 50
    me = env.start("server", [harness.prog_in("retreat", "xrmourn")])
    me.port = me.json()["port"]
    force = env.start(None, [harness.find("tests/retreat/xrforce"), env.stats, str(seed), "400"])
    note = "seed %d" % seed
    end_of(env, me, seed, 20)
    harness.until(lambda: status(me)["open"] == 0, 5, note)
    held, rss = holds(env, me), harness.rss(me.pid)
    end_of(env, me, seed + 1, kills)
    # an ending within a second
    harness.until(lambda: status(me)["open"] == 0, 1.5, note)
    s = status(me)
    assert s["wrong"] == 0 and s["other"] == 0, (note, s)
    assert s["eof"] + s["reset"] + s["broken"] > kills // 2, (note, s)
    force.p.stdin.close()
    done = force.json(10)
    print(note, s, done)
    if env.mode == "both":
        assert done["upgrades"] > kills // 10 and done["retreats"] > kills // 50, (note, done)
    now = holds(env, me)
    assert now[0] <= held[0] and now[1] <= held[1] + 2, (note, held, now, harness.fds(me.pid))
    assert harness.rss(me.pid) < rss + (16 << 20), (note, rss)
    if env.mode == "both":
        env.flows()     # xr-stat removes what the dead have left
        # but not, for a minute, what was killed before it had a name in it
        left = [f for d, _, names in os.walk(env.stats) for f in names if has_magic(d, f)]
        assert {f.split(".")[0] for f in left} <= {str(me.pid)}, left
