# SPDX-License-Identifier: BSD-2-Clause
"""MSG_ZEROCOPY: the error queue tells of each send as on kernel TCP over loopback, on a fabric, too."""
import errno
import json
import os
import select
import socket
import struct
import subprocess

import pytest

import harness

pytestmark = pytest.mark.timeout(60)

SERVER = """
import socket, sys
l = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(l.getsockname()[1], flush=True)
s, _ = l.accept()
while data := s.recv(1 << 20):
    s.sendall(data)
"""

# Obeys lines: a name and a number; each answer is a line of JSON.
CLIENT = """
import json, select, socket, sys
ZEROCOPY, ERRQUEUE = 0x4000000, 0x2000
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
level, edge = select.epoll(), select.epoll()
level.register(s, select.EPOLLIN)
edge.register(s, select.EPOLLIN | select.EPOLLET)
def echoed(n):
    while n:
        n -= len(s.recv(n))
def send(n, flags=ZEROCOPY):
    got = s.send(bytes(n), flags)
    echoed(got)
    return got
def turns(n):
    for _ in range(n):
        send(100, 0)
def on(v):
    s.setsockopt(socket.SOL_SOCKET, 60, v)
def looks(_):
    p = select.poll()
    p.register(s, 0)
    return [[m for _, m in p.poll(0)], [m & select.EPOLLERR for _, m in level.poll(0)]]
def news(_):
    return [m & select.EPOLLERR for _, m in edge.poll(0)]
def errors(room):
    data, control, flags, _ = s.recvmsg(10, room, ERRQUEUE)
    return [len(data), flags, [[l, t, d.hex()] for l, t, d in control]]
for line in sys.stdin:
    name, n = line.split()
    try:
        print(json.dumps(globals()[name](int(n))), flush=True)
    except OSError as e:
        print(json.dumps({"errno": e.errno}), flush=True)
"""

ERRQUEUE, CTRUNC = 0x2000, 0x8


class Client:
    def __init__(self, env, address=None):
        self.env = env
        if env.address != "127.0.0.1":
            pytest.skip("between hosts the kernel need not copy, and tells of it otherwise")
        address = address or env.address
        server = env.start("server", ["/usr/bin/python3", "-c", SERVER, address])
        self.port = int(server.line())
        self.proc = env.start("client", ["/usr/bin/python3", "-c", CLIENT, address, str(self.port)])

    def __call__(self, name, n=0):
        self.proc.say("%s %d\n" % (name, n))
        return json.loads(self.proc.line())

    def flow(self):
        f, = self.env.flows(self.proc.pid)
        return f

    def move(self):
        if self.env.lifts:
            def moved():
                self("turns", 20)
                return self.flow()["carrier"] == self.env.fabric
            harness.until(moved, 5, "the connection has moved")

    def stat(self, *args):
        subprocess.run([harness.find("xr-stat", "tools/xr-stat"), *args, "--pid=%d" % self.proc.pid],
                       env={**os.environ, **self.env.env}, check=False, stdout=subprocess.DEVNULL)


def notice(first, last, room=512):
    """What recvmsg says of a range of sends that were copied."""
    ee = struct.pack("=IBBBBII", 0, 5, 0, 1, 0, first, last)
    return [0, ERRQUEUE, [[socket.SOL_IP, 11, (ee + bytes(16)).hex()]]]


NOTHING = {"errno": errno.EAGAIN}


@pytest.fixture
def client(env):
    return Client(env)


@pytest.mark.modes("plain", "client", "both")
def test_notices_are_those_of_tcp(client):
    """One range for what came together, POLLERR until it is read, one edge for each that comes."""
    client("on", 1)
    client.move()
    assert client("looks") == [[], []] and client("errors", 512) == NOTHING
    client("news")
    assert client("send", 20000) == 20000
    assert client("looks") == [[select.POLLERR], [select.EPOLLERR]]
    assert select.EPOLLERR in client("news") and select.EPOLLERR not in client("news")
    assert client("errors", 512) == notice(0, 0)
    assert client("looks") == [[], []] and client("errors", 512) == NOTHING
    for n in (1, 5000, 100000):
        assert client("send", n) <= n
    assert client("errors", 512) == notice(1, 3)
    # an edge each time, although the one before was read without a look
    for i in (4, 5):
        assert client("send", 3000) == 3000
        assert select.EPOLLERR in client("news")
        assert client("errors", 512) == notice(i, i)
    if client.env.lifts:
        assert client.flow()["carrier"] == client.env.fabric


@pytest.mark.modes("plain", "both")
def test_without_the_option_the_flag_means_nothing(client):
    client.move()
    assert client("send", 20000) == 20000
    assert client("looks") == [[], []] and client("errors", 512) == NOTHING
    client("on", 1)
    assert client("send", 20000) == 20000
    assert client("errors", 512) == notice(0, 0)
    client("on", 0)
    assert client("send", 20000) == 20000
    assert client("errors", 512) == NOTHING


@pytest.mark.modes("plain", "both")
def test_little_room_for_the_notice(client):
    client("on", 1)
    client.move()
    assert client("send", 5000) == 5000
    assert client("errors", 0) == [0, ERRQUEUE | CTRUNC, []]
    assert client("errors", 512) == NOTHING
    assert client("send", 5000) == 5000
    got = client("errors", socket.CMSG_LEN(20))
    assert got == [0, ERRQUEUE | CTRUNC, [[socket.SOL_IP, 11, notice(1, 1)[2][0][2][:40]]]]


@pytest.mark.modes("plain", "both")
def test_numbers_go_on_across_carriers(client):
    """TCP, fabric, TCP, fabric: what the program counts is what it is told."""
    lifts = client.env.lifts
    client.env.env["XRDMA_RETURN_AFTER"] = "1ms"
    client("on", 1)
    for i in (0, 1):
        assert client("send", 3000) == 3000
        assert client("errors", 512) == notice(i, i)
    client.move()
    for i in (2, 3):
        assert client("send", 3000) == 3000
        assert client("errors", 512) == notice(i, i)
    # unread when the operator calls it back: it is shown all the same
    assert client("send", 3000) == 3000
    client.stat("--retreat", "--wait=0.2")
    client("turns", 3)
    assert client("looks") == [[select.POLLERR], [select.EPOLLERR]]
    assert client("errors", 512) == notice(4, 4)
    if lifts:
        harness.until(lambda: client("turns", 1) is None and client.flow()["carrier"] == "tcp", 5, "on TCP")
    for i in (5, 6):
        assert client("send", 3000) == 3000
        assert client("errors", 512) == notice(i, i)
    assert client("looks") == [[], []] and client("errors", 512) == NOTHING
    client.stat("--return")
    client.move()
    assert client("send", 3000) == 3000
    assert client("errors", 512) == notice(7, 7)
    assert client("looks") == [[], []]


@pytest.mark.modes("plain", "both")
def test_ipv6(env):
    client = Client(env, env.address6)
    client("on", 1)
    client.move()
    assert client("send", 3000) == 3000
    ee = bytes.fromhex(notice(0, 0)[2][0][2])[:16]
    assert client("errors", 512) == [0, ERRQUEUE, [[41, 25, (ee + bytes(28)).hex()]]]


@pytest.mark.modes("both")
def test_a_connection_waits_on_tcp_for_its_program(client):
    """What the kernel has to tell is read before the connection moves."""
    client("on", 1)
    assert client("send", 3000) == 3000
    client("turns", 300)
    assert client.flow()["carrier"] == "tcp"
    assert client("errors", 512) == notice(0, 0)
    client.move()
    if client.env.lifts:
        assert client.flow()["carrier"] == client.env.fabric
    assert client("send", 3000) == 3000
    assert client("errors", 512) == notice(1, 1)
