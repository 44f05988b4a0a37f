# SPDX-License-Identifier: BSD-2-Clause
"""How the ends of a connection find each other where calls are many: small sends without a pause are over before the peer
has read the first of them, and those who will never be found are not to be looked for all the time."""
import os
import signal
import time

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


ECHO = """
import socket, sys, threading
l = socket.create_server((sys.argv[1], 0))
print(l.getsockname()[1], flush=True)
def serve(c):
    while data := c.recv(100):
        c.sendall(data)
while True:
    threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
"""
ASK = """
import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
end, n = time.monotonic() + float(sys.argv[3]), 0
while time.monotonic() < end:
    c.sendall(b"?")
    c.recv(1)
    n += 1
print(n, flush=True)
sys.stdin.read()
"""


@pytest.mark.modes("both")
def test_plain_clients_beside_others(env):
    """A server that has met xrdma peers looks for those of its other connections ever more rarely."""
    server = env.start("server", ["/usr/bin/python3", "-c", ECHO, env.address])
    port = server.line()
    moved = env.start("client", ["/usr/bin/python3", "-c", ASK, env.address, port, 0.3])
    moved.line(30)
    harness.until(lambda: all(f["carrier"] == env.fabric for f in env.flows()), 5, "a link")
    plain = env.start(None, ["/usr/bin/python3", "-c", ASK, env.address, port, 10])
    turns = int(plain.line(50))
    got = [f for f in env.flows(server.pid) if f["carrier"] == "tcp"]
    assert len(got) == 1 and got[0]["upgrade_attempts"] < 40 + turns / 500, (turns, got)


@pytest.mark.modes("client")
@pytest.mark.skipif(not harness.have("strace"), reason="no strace")
def test_a_plain_server_is_left_alone(env, tmp_path):
    """A client looks for a caller ever more rarely, and not again where the server answered all the while."""
    server = env.start("server", ["/usr/bin/python3", "-c", ECHO, env.address])
    trace = tmp_path / "trace"
    client = env.start("client", ["/usr/bin/python3", "-c", ASK, env.address, server.line(), 2],
                       wrap=("strace", "-f", "-qq", "-o", str(trace), "-e", "trace=ppoll"))
    turns = 2 * int(client.line(50))
    assert turns > 1000
    got = [f for f in env.flows() if f["role"] == "client"]
    assert [(f["reason"], f["upgrade_attempts"]) for f in got] == [("peer-not-xrdma", 1)], got
    assert trace.read_text().count("ppoll(") < 100


@pytest.mark.modes("both")
@pytest.mark.parametrize("late", [20, 100, 400])
def test_a_host_that_listens_late(env, late):
    """The calls of the accepting end are no farther apart than the other end listens for."""
    server = env.start("server", ["/usr/bin/python3", "-c", ECHO, env.address], env={"XRDMA_UPGRADE_TURNS": "1"})
    client = env.start("client", ["/usr/bin/python3", "-c", ASK, env.address, server.line(), 2],
                       env={"XRDMA_UPGRADE_TURNS": str(late), "XRDMA_UPGRADE_BYTES": "1G"})
    client.line(50)
    assert {f["carrier"] for f in env.flows()} == {env.fabric}, env.flows()


# It calls late, at half a MiB; before that it sends more turns than the other end listens for, and stands still.
STOPS = """
import os, signal, socket, sys
l = socket.create_server((sys.argv[1], 0))
print(l.getsockname()[1], flush=True)
c = l.accept()[0]
c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
c.recv(1)
c.sendall(bytes(80 * 4096))
print("stops", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
while data := c.recv(4096):
    c.sendall(data)
"""
GOES_ON = """
import select, socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
c.sendall(b"!")
sys.stdin.readline()
def turn(n):
    c.sendall(bytes(n))
    assert len(c.recv(4096, socket.MSG_WAITALL)) == 4096
for _ in range(80):
    turn(64)
print("read", flush=True)
c.sendall(bytes(4096 - 80 * 64 % 4096))
c.recv(80 * 64 + 4096 - 80 * 64 % 4096, socket.MSG_WAITALL)
while not select.select([0], [], [], 0)[0]:
    turn(4096)
c.close()
"""


@pytest.mark.modes("both")
def test_a_peer_that_was_stopped_calls_yet(env):
    """What lay in the socket makes turns without it: it is not given up for those, however long they took."""
    server = env.start("server", ["/usr/bin/python3", "-c", STOPS, env.address],
                       env={"XRDMA_UPGRADE_TURNS": "1000000", "XRDMA_UPGRADE_BYTES": "512K"})
    client = env.start("client", ["/usr/bin/python3", "-c", GOES_ON, env.address, server.line()])
    assert server.line() == "stops"
    harness.until(lambda: harness.state(server.pid) == "T", 5, "the server stopped")
    client.say("go\n")
    assert client.line() == "read"
    time.sleep(0.3)
    os.kill(server.pid, signal.SIGCONT)
    harness.until(lambda: {f["carrier"] for f in env.flows()} == {env.fabric}, 10,
                  lambda: "a connection that has moved: %r" % env.flows())
    client.say("enough\n")
    assert client.wait() == 0
