# SPDX-License-Identifier: BSD-2-Clause
"""Many connections between two programs, opened at once: all of them move, and soon."""
import collections
import resource
import socket
import sys
import time

import pytest

import harness
import shell

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(120)]


def room():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 30000), hard))


def move(env, n, rounds, limit=room, first=0):
    """One turn on each of n fresh connections, then on each once more ...: in how many rounds, and what
    processor time of both programs, all are on shm. The first ones are used before the others are there."""
    p = shell.Pair(env, server=shell.Shell(env, "server", preexec=limit),
                   client=shell.Shell(env, "client", preexec=limit))
    p.server.bg("answer", p.lfd)
    if first:
        p.client.ok("dial", first, p.port, 20)
    assert p.client.ok("dial", n - first, p.port, 1, timeout=60) == n
    used = [harness.cpu_s(x.pid) for x in (p.server, p.client)]
    begun, seen = time.monotonic(), []
    for i in range(1, rounds + 1):
        assert p.client.ok("crowd", 1, timeout=60) == n
        if i % 2 and i != rounds:
            continue
        flows = env.flows()
        seen.append(sum(f["carrier"] == env.fabric for f in flows))
        if seen[-1] == 2 * n:
            break
    took = time.monotonic() - begun
    used = [harness.cpu_s(x.pid) - u for x, u in zip((p.server, p.client), used)]
    print("%d connections: %d rounds, %.2f s, %.2f and %.2f s of CPU; on shm %r" % (n, i, took, *used, seen))
    assert seen[-1] == 2 * n, collections.Counter((f["role"], f["state"], f["reason"]) for f in flows
                                                  if f["carrier"] != env.fabric)
    return p


@pytest.mark.modes("both")
def test_a_thousand(env):
    """Within 24 turns of each. One handshake at a time, or a few, would take hundreds."""
    move(env, 1000, 24)


@pytest.mark.modes("both")
def test_two_processes_behind_one_port(env):
    """What was offered to one in vain, being the other's, does not keep its own on TCP for ever."""
    servers = [shell.Shell(env, "server", preexec=room) for _ in range(2)]
    client = shell.Shell(env, "client", preexec=room)
    port = total = 0

    def dial(sh, n, turns):
        """n more, all to this one."""
        nonlocal port, total
        fd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
        assert sh("setsockopt", fd, socket.SOL_SOCKET, socket.SO_REUSEPORT, 1).ret == 0
        sh.ok("bind", fd, env.address, port)
        sh.ok("listen", fd, 4096)
        port = port or int(sh("getsockname", fd).words[1])
        sh.bg("answer", fd)
        total += n
        assert client.ok("dial", n, port, turns, timeout=60) == total
        if turns == 0:
            time.sleep(0.2)     # all are accepted
        assert sh("shutdown", fd, socket.SHUT_RDWR).ret == 0

    for sh in servers:
        dial(sh, 10, 20)
    for sh in servers:
        dial(sh, 600, 0)
    for i in range(20):
        assert client.ok("crowd", 1, timeout=60) == total
        on = [sum(f["carrier"] == env.fabric for f in env.flows(sh.pid)) for sh in servers]
        if on == [610, 610]:
            break
    else:
        pytest.fail("on shm after %d turns of each: %r" % (i + 1, on))


LIMIT = 1600


def low():
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


@pytest.mark.modes("both")
def test_more_than_half_of_the_descriptors(env):
    """Numbers in the upper half of a hard limit are the program's alone: a handshake over a link needs none."""
    p = move(env, 1000, 24, low, 10)
    for sh in (p.client, p.server):
        got = [int(fd) for fd in harness.fds(sh.pid)]
        assert len([fd for fd in got if fd >= LIMIT // 2]) > 100, sorted(got)[-20:]


@pytest.mark.modes("both")
def test_descriptors_that_come_free(env):
    """A connection of a time when there were none for us moves when there are."""
    p = shell.Pair(env, client=shell.Shell(env, "client", preexec=low))
    taken = [p.client.ok("dup", 0) for _ in range(LIMIT // 2 + 50)]
    c, s = p.connect()

    def stays():
        p.turns(4, 100, c, s)
        return [(f["carrier"], f["reason"]) for f in env.flows(p.client.pid)] == [("tcp", "limit-fds")]
    harness.until(stays, 5, "no descriptor for us")
    for fd in taken:
        p.client.ok("close", fd)
    p.upgrade(c, s)


# Both ends of each connection, in one thread: the program is its own peer.
ALONE = """
import os, socket, sys
address, n = sys.argv[1], int(sys.argv[2])

def memory():
    kib = 0
    for line in open("/proc/self/smaps_rollup"):
        kib += int(line.split()[1]) if line.startswith(("Pss_Anon:", "Pss_Shmem:")) else 0
    return kib

l = socket.create_server((address, 0), backlog=128)
ends = []
for i in range(n):
    c = socket.create_connection(l.getsockname())
    ends.append((c, l.accept()[0]))
begun = memory(), len(os.listdir("/proc/self/fd"))
for line in sys.stdin:
    for r in range(int(line)):
        for i, (c, s) in enumerate(ends):
            said = b"%031d" % (i * 1000 + r)
            for a, b in ((c, s), (s, c)):
                a.sendall(said)
                assert b.recv(31, socket.MSG_WAITALL) == said
    print(memory() - begun[0], len(os.listdir("/proc/self/fd")) - begun[1], flush=True)
"""


@pytest.mark.modes("both")
def test_both_ends_in_one_process(env):
    """Ten thousand, where the limit allows twice as many descriptors (xrdma(7), LIMITATIONS); what an idle one costs, and
    that none costs a descriptor."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    flows = min(2000 if harness.PERTURBED else 10000, hard * 9 // 20)
    p = env.start("server", [sys.executable, "-c", ALONE, env.address, flows // 2], preexec=room)
    # those whose answer took too long try again
    for rounds in (30, 30, 60, 120):
        p.say("%d\n" % rounds)
        kib, fds = map(int, p.line(60).split())
        got = collections.Counter((f["carrier"], f["reason"]) for f in env.flows())
        if set(got) == {(env.fabric, "none")}:
            break
    print("%d flows in one process: %.1f KiB of memory for each, %d descriptors for all" % (flows, kib / flows, fds))
    assert got == {(env.fabric, "none"): flows}, got
    # two ends of a link, a doorbell each way, what proves and what is asked by operators; a slow machine makes more links
    links = env.counters(p.pid)[0]["links_made"]
    assert fds <= 8 * max(links, 2), (fds, links)
    assert links < 40 and kib / flows < 24


@pytest.mark.modes("both")
def test_refused_by_a_server_that_carries_others(env):
    """The connections that it has no place for do not stay `young' for ever."""
    env.env["XRDMA_MAX_FLOWS"] = "2"
    server = shell.Shell(env, "server")
    del env.env["XRDMA_MAX_FLOWS"]
    p = shell.Pair(env, server=server)
    p.upgrade()
    ends = [p.connect() for _ in range(3)]

    def reasons():
        for c, s in ends:
            p.turns(60, 100, c, s)
        return {f["reason"] for f in env.flows(p.client.pid) if f["carrier"] == "tcp"} == {"peer-not-xrdma"}
    harness.until(reasons, 15, "a reason")


@pytest.mark.modes("both")
@pytest.mark.skipif(harness.PERTURBED, reason="turns take as long as the patience that is tried")
def test_a_crowd_that_is_slow_shares_its_link(env):
    """The link to the other process is about to be made by one of them, and the answer takes longer than others wait:
    one of these makes another link, not each of them its own."""
    p = shell.Pair(env)
    ends = [(p.c, p.s)] + [p.connect() for _ in range(11)]
    for _ in range(24):
        for c, _ in ends:
            assert c.send(64).ret == 64
        for c, s in ends:
            assert s.recv(64).ret == 64 and s.send(64).ret == 64
        for c, _ in ends:
            assert c.recv(64).ret == 64
        time.sleep(0.01)    # longer than one waits for the link of another, whose peer does nothing meanwhile
    assert all(p.is_up(c) for c, _ in ends)
    for pid in (p.client.pid, p.server.pid):
        assert env.counters(pid)[0]["links_made"] <= len(ends) // 2, env.counters(pid)
