# SPDX-License-Identifier: BSD-2-Clause
"""Processes that are killed at any moment, one after the other: hundreds, after which their peer holds what it held
before. XRT_CHURN=10000 is so many."""
import os
import sys

import pytest

import harness

DEATHS = int(os.environ.get("XRT_CHURN", "300"))
FIRST = 60          # until what is made once is there: links, tables that have grown
pytestmark = [pytest.mark.timeout(60 + DEATHS), pytest.mark.one_host,
              pytest.mark.modes("both"),
              pytest.mark.skipif(harness.PERTURBED, reason="takes a hundred times as long")]

# Answers what it can, and reads no more than half of what comes in large pieces.
SERVER = r"""
import selectors, socket, sys
s, ready = selectors.DefaultSelector(), socket.create_server(("127.0.0.1", 0), backlog=512)
ready.setblocking(False)
s.register(ready, selectors.EVENT_READ)
print('{"port": %d}' % ready.getsockname()[1], flush=True)
while True:
    for key, _ in s.select():
        c = key.fileobj
        if c is ready:
            try:
                c = ready.accept()[0]
            except OSError:
                continue
            c.setblocking(False)
            s.register(c, selectors.EVENT_READ)
            continue
        try:
            data = c.recv(3000)
            if data:
                c.send(data)
                continue
        except BlockingIOError:
            continue
        except OSError:
            pass
        s.unregister(c)
        c.close()
"""

# Each child has four connections, takes turns on them, and kills itself at a random step of them.
CLIENT = r"""
import os, random, signal, socket, sys
port, deaths, seed = map(int, sys.argv[1:])
for i in range(deaths):
    if not os.fork():
        rng = random.Random(seed + i)
        steps = rng.randrange(1, 320)
        def step():
            global steps
            steps -= 1
            if not steps:
                os.kill(os.getpid(), signal.SIGKILL)
        c = []
        for _ in range(4):
            c.append(socket.create_connection(("127.0.0.1", port)))
            step()
        while True:
            for k in c:
                n = rng.choice((1, 64, 3000))
                k.sendall(bytes(n))
                step()
                while n:
                    n -= len(k.recv(n))
                if not rng.randrange(40):
                    k.setblocking(False)
                    try:
                        k.send(bytes(200000))
                    except BlockingIOError:
                        pass
                    os.kill(os.getpid(), signal.SIGKILL)
    assert os.wait()[1] == signal.SIGKILL
print('{"deaths": %d}' % deaths, flush=True)
"""


def test_abrupt_deaths(env):
    if not env.lifts:
        pytest.skip("of connections that moved")
    server = env.start("server", [sys.executable, "-c", SERVER])
    port = server.json()["port"]

    def die(deaths, seed):
        client = env.start("client", [sys.executable, "-c", CLIENT, str(port), str(deaths), str(seed)])
        assert client.json(30 + deaths)["deaths"] == deaths
        client.wait()

    def held():
        return len(harness.fds(server.pid)), harness.shared_maps(server.pid, pool=False)

    at_first = len(harness.fds(server.pid))
    die(FIRST, 1)
    # all connections are gone when the selector, its listener and what the library keeps are left
    harness.until(lambda: not env.flows(server.pid), 5, lambda: "%d connections left" % len(env.flows(server.pid)))
    before, memory = held(), harness.rss(server.pid)
    moved = env.counters(server.pid)[0]["flows_upgraded"]
    die(DEATHS, 1000)
    harness.until(lambda: held() == before, 5, lambda: "descriptors and mappings %r back at %r, at first %d"
                  % (held(), before, at_first))
    moved = env.counters(server.pid)[0]["flows_upgraded"] - moved
    print("%d connections had moved" % moved)
    # how many of the four live long enough is a matter of time, too
    assert moved > DEATHS / 2, moved
    assert harness.rss(server.pid) < memory + (4 << 20)
    left = [n for _, _, names in os.walk(env.stats) for n in names if not n.startswith("%d." % server.pid)]
    assert not left, left
