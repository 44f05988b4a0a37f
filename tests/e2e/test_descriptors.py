# SPDX-License-Identifier: BSD-2-Clause
"""A program under a limit of open files that nobody may raise gets every number that plain TCP leaves it, by
whatever call it asks, and its connections live on.
"""
import os
import resource

import pytest

from harness import until

pytestmark = pytest.mark.timeout(120)
LIMIT = 256
CLIENTS = 6

# Echoes to its clients; at each line of input it takes all descriptors that there are, and gives them back at the next.
SERVER = """
import ctypes, fcntl, os, select, socket, sys, threading, time
how, waits, limit, clients = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = ctypes.c_void_p
l = socket.create_server(("127.0.0.1", 0), backlog=512)
print(l.getsockname()[1], flush=True)
conns = {}
for _ in range(clients):
    c = l.accept()[0]
    conns[c.fileno()] = c
dev = os.open("/dev", os.O_RDONLY)
ep = select.epoll()
if waits != "threads":
    for fd in conns:
        ep.register(fd, select.EPOLLIN)

def echo(c):
    data = c.recv(64)
    c.sendall(data)
    return data

def thread(c):
    while echo(c):
        pass

def loop(line):
    # with a line to wait for, or for ever
    while True:
        for fd, _ in ep.poll():
            if fd == 0:
                return sys.stdin.readline()
            if not echo(conns[fd]):
                ep.unregister(fd)

if waits == "threads":
    for c in conns.values():
        threading.Thread(target=thread, args=(c,), daemon=True).start()
elif waits == "thread":
    threading.Thread(target=loop, args=(None,), daemon=True).start()
else:
    ep.register(0, select.EPOLLIN)
line = (lambda: loop(0)) if waits == "one" else sys.stdin.readline

def said(r):
    if r == -1:
        raise OSError(ctypes.get_errno(), how)
    return [r]

def holes():
    # libc's own, so that the shim's descriptors count as those of nobody
    return [n for n in range(limit) if libc.fcntl(n, fcntl.F_GETFD) < 0]

def dup2():
    for n in holes():
        return [os.dup2(0, n, False)]
    raise OSError(24, "none")

def fopen():
    if not libc.fopen(b"/dev/null", b"r"):
        raise OSError(ctypes.get_errno(), how)
    return []

take = {
    "open": lambda: [os.open("/dev/null", os.O_RDONLY)],
    "openat": lambda: [os.open("null", os.O_RDONLY, dir_fd=dev)],
    "pipe": lambda: list(os.pipe()),
    "socket": lambda: [socket.socket().detach()],
    "socketpair": lambda: [s.detach() for s in socket.socketpair()],
    "dup": lambda: [os.dup(0)],
    "fcntl": lambda: [fcntl.fcntl(0, fcntl.F_DUPFD, 0)],
    "epoll": lambda: said(libc.epoll_create1(0)),
    "eventfd": lambda: said(libc.eventfd(0, 0)),
    "memfd": lambda: said(libc.memfd_create(b"x", 0)),
    "timerfd": lambda: said(libc.timerfd_create(1, 0)),
    "signalfd": lambda: said(libc.signalfd(-1, ctypes.create_string_buffer(128), 0)),
    "creat": lambda: said(libc.creat(b"/dev/null", 0)),
    "accept": lambda: said(libc.accept(l.fileno(), None, None)),
    "fopen": fopen,
    "dup2": dup2,
}[how]
def fill():
    try:
        while True:
            mine.extend(take())
    except OSError as e:
        return e.errno

line()
mine = []
failed = fill()
# who keeps asking is not kept waiting
since = time.monotonic()
again = {fill() for _ in range(20)}
print(failed, len(holes()), again == {failed}, int(1e3 * (time.monotonic() - since)), flush=True)
line()
for fd in mine:
    os.close(fd)
line()
"""

CLIENT = """
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
n = 0
for line in sys.stdin:
    for _ in range(int(line)):
        n += 1
        c.sendall(b"%064d" % n)
        got = b""
        while len(got) < 64:
            part = c.recv(64 - len(got))
            assert part
            got += part
        assert got == b"%064d" % n
    print("ok", flush=True)
"""

DIAL = """
import socket, sys
s = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("ok", flush=True)
sys.stdin.read()
"""


def low():
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


@pytest.mark.parametrize("how, waits", [
    *((how, "one") for how in (
        "open", "openat", "creat", "pipe", "socket", "socketpair", "dup", "dup2", "fcntl", "epoll", "eventfd", "memfd",
        "timerfd", "signalfd", "fopen", "accept")),
    *((how, waits) for how in ("open", "socket", "accept") for waits in ("thread", "threads"))])
def test_the_program_has_all_numbers(env, how, waits):
    if env.mode not in ("plain", "both"):
        pytest.skip("one end alone holds none")
    server = env.start("server", ["/usr/bin/python3", "-c", SERVER, how, waits, LIMIT, CLIENTS], preexec=low)
    port = server.line()
    clients = [env.start("client", ["/usr/bin/python3", "-c", CLIENT, port]) for _ in range(CLIENTS)]

    def echo(k):
        for c in clients:
            c.say("%d\n" % k)
        for c in clients:
            assert c.line(30) == "ok"
        return True

    def moved():
        return [f for f in env.flows(server.pid) if f["carrier"] == env.fabric]
    echo(100)
    if env.lifts:
        until(lambda: echo(20) and len(moved()) == CLIENTS, 20, "all connections on the fabric")
        # some of ours are among the numbers that the program could have
        assert [fd for fd in os.listdir("/proc/%d/fd" % server.pid) if LIMIT // 2 <= int(fd) < LIMIT]
    if how == "accept":
        assert env.start(None, ["/usr/bin/python3", "-c", DIAL, port, LIMIT]).line(30) == "ok"
    server.say("take\n")
    failed, holes, again, ms = server.line(30).split()
    assert (failed, again) == ("24", "True")
    assert int(ms) < 1000
    holes = int(holes)
    assert holes <= (how in ("pipe", "socketpair"))
    echo(50)
    if env.lifts:
        assert env.counters(server.pid)[0]["descriptors_spared"] > CLIENTS
        assert {f["reason"] for f in env.flows(server.pid) if f["carrier"] == "tcp" and f["retreats"]} == {"limit-fds"}
    server.say("give back\n")
    echo(50)
    server.say("end\n")
    for c in clients:
        c.p.stdin.close()
    assert server.wait(20) == 0


# Under its limit with a connection that has moved; a thread keeps asking for more, and so does each of many children.
FORKER = """
import os, socket, sys, threading
l = socket.create_server(("127.0.0.1", 0))
print(l.getsockname()[1], flush=True)
c = l.accept()[0]
for _ in range(1000):
    c.sendall(c.recv(64))
print("ready", flush=True)
sys.stdin.readline()

def more():
    try:
        os.open("/dev/null", os.O_RDONLY)
        return True
    except OSError as e:
        assert e.errno == 24
        return False

while more():
    pass

def hammer():
    while True:
        more()
threading.Thread(target=hammer, daemon=True).start()
for _ in range(200):
    pid = os.fork()
    if not pid:
        os._exit(more())
    assert os.waitpid(pid, 0)[1] == 0
print("done", flush=True)
"""


def test_children_at_the_limit(env):
    """What a thread of the parent is at when it forks does not stop the child."""
    if env.mode not in ("plain", "both"):
        pytest.skip("one end alone holds none")
    server = env.start("server", ["/usr/bin/python3", "-c", FORKER], preexec=low)
    client = env.start("client", ["/usr/bin/python3", "-c", CLIENT, server.line()])
    client.say("1000\n")
    assert client.line(30) == "ok" and server.line(30) == "ready"
    if env.lifts:
        assert [f for f in env.flows(server.pid) if f["carrier"] == env.fabric]
    server.say("go\n")
    assert server.line(60) == "done"
