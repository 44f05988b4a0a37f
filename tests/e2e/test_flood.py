# SPDX-License-Identifier: BSD-2-Clause
"""Small sends without a pause: thousands of calls are over before the peer has read the first of them."""
import pytest

import harness

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(60)]

# after the greeting the reader is away for a while, and reads at its own pace from then on
SERVER = """
import os, socket, sys, time
l = socket.create_server((sys.argv[1], 0))
print(l.getsockname()[1], flush=True)
c = l.accept()[0]
time.sleep(float(sys.argv[2]))
n, bad = 0, 0
while data := c.recv(65536):
    if n == 0:
        first = data[:64]
    bad += data[:1] != first[n % 64:n % 64 + 1]
    n += len(data)
print(n, bad, flush=True)
"""
CLIENT = """
import socket, sys, select
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
piece, n = bytes(range(64)), 0
while n % 1000 or not select.select([0], [], [], 0)[0]:
    c.sendall(piece)
    n += 1
c.close()
print(n * 64, flush=True)
"""


@pytest.mark.parametrize("away", [0, 0.05, 0.5])
def test_a_flood_moves(env, away):
    server = env.start("server", ["/usr/bin/python3", "-c", SERVER, env.address, away])
    client = env.start("client", ["/usr/bin/python3", "-c", CLIENT, env.address, server.line()])
    if env.lifts:
        harness.until(lambda: [f["carrier"] for f in env.flows() if f["pid"] == client.pid] in
                      ([env.fabric], ["shm/tcp"]), 20, lambda: "a connection that has moved: %r" % env.flows())
    client.say("enough")
    assert server.line(20) == "%s 0" % client.line()
