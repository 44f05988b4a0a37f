# SPDX-License-Identifier: BSD-2-Clause
"""A child that has used, and so sealed, its parent's connection gives it to code without hooks, in mid-stream.

Rounds are random; a failure names the seed of its round.
"""
import os
import random
import socket
import time

import pytest

from shell import WAITALL

import harness
import shell

pytestmark = pytest.mark.timeout(60)

ROUNDS = 3
WAYS = ("exec", "inetd", "passed", "pspawn", "pspawn-dup", "popen", "stdin")


def whole(path, key, off, n):
    with open(path, "rb") as f:
        got = f.read()
    want = shell.pattern(key, off, n)
    if got != want:
        k = next((i for i in range(min(len(got), n)) if got[i] != want[i]), min(len(got), n))
        raise AssertionError("%d of %d bytes, first wrong at %d" % (len(got), n, k))


@pytest.mark.modes("both")
@pytest.mark.parametrize("how", WAYS)
def test_all_bytes_once(env, how):
    a, b = socket.socketpair()
    env.closers += [a.close, b.close]
    pair = shell.Pair(env, server=shell.Shell(env, "server", pass_fds=(a.fileno(),)))
    other = shell.Shell(env, None, pass_fds=(b.fileno(),))
    pair.upgrade()
    d = env.stats
    for r in range(ROUNDS):
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        c, s = pair.connect()
        pair.upgrade(c, s)
        first = rng.choice((1, 100, 9000, 70000))
        c.sendall(first)
        child = pair.server.fork()
        mine = s.as_seen_by(child)
        n = rng.choice((20000, 300000, 3000000))
        early = rng.random() < .5
        if early:
            w = c.sh.bg("sendall", c.fd, n, 0, c.tx_key, c.tx)
        # what is waited for must come
        k = rng.randrange(0, first + 1)
        if k:
            assert mine.recv(k, WAITALL).ret == k
        for _ in range(rng.randrange(0, 3)):
            mine.sendall(100)
        if rng.random() < .5:
            time.sleep(rng.random() * .005)
        if not early:
            if rng.random() < .7:
                c.sendall(50)
                first += 50
            w = c.sh.bg("sendall", c.fd, n, 0, c.tx_key, c.tx)
        if rng.random() < .5:
            s.close()
            closed = True
        else:
            closed = False
        out, script = (os.path.join(d, "%s%d" % (x, r)) for x in ("got", "script"))
        left = c.tx + n - mine.rx
        child.ok("unsetenv", "LD_PRELOAD")
        try:
            if how == "exec":
                with open(script, "w", encoding="ascii") as f:
                    f.write("exec head -c %d <&%d >%s\n" % (left, mine.fd, out))
                child.bg("exec", "sh", script)
                assert pair.server("wait", child.pid, timeout=20).ints == [0]
                whole(out, mine.rx_key, mine.rx, left)
            elif how == "inetd":
                with open(script, "w", encoding="ascii") as f:
                    f.write("exec head -c %d >%s\n" % (left, out))
                pid = child.ok("inetd", mine.fd, "sh", script)
                if rng.random() < .5:
                    mine.close()
                assert child("wait", pid, timeout=20).ints == [0]
                whole(out, mine.rx_key, mine.rx, left)
            elif how == "passed":
                child.ok("sendfd2", a.fileno(), mine.fd)
                if rng.random() < .5:
                    mine.close()
                fd = other.ok("recvfd", b.fileno())
                o = mine.as_seen_by(other, fd)
                assert o.recv(left, WAITALL, timeout=20).ret == left
                o.close()
            elif how.startswith("pspawn"):
                assert child("pspawn", mine.fd, left, out, "dup" if how.endswith("dup") else "inherit",
                             timeout=20).ret == 0
                whole(out, mine.rx_key, mine.rx, left)
            elif how == "popen":
                assert child("popen", "bash -c 'exec head -c %d <&%d >%s'" % (left, mine.fd, out), timeout=20).ret == 0
                whole(out, mine.rx_key, mine.rx, left)
            else:
                q = child("fread0", mine.fd, left, mine.rx_key, mine.rx, timeout=20)
                assert q.ret == left and q.words[0] == "ok", q
            assert w.result(20).ret == n
        except Exception as e:
            raise AssertionError("round %d seed %d first %d k %d early %s closed %s n %d: %s" % (
                r, seed, first, k, early, closed, n, e)) from e
        if how != "exec":
            child.end()
            pair.server("wait", child.pid)
        c.close()
        if not closed:
            s.close()
        harness.until(lambda: not harness.left_behind(env, "xrdma-relay"), 10, "no process left")
