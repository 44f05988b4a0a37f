# SPDX-License-Identifier: BSD-2-Clause
"""Several threads on one connection, one epoll instance, one process."""
import socket
import time

import pytest

from shell import EV_ET, EV_EXCLUSIVE, EV_IN, EV_ONESHOT, WAITALL
import harness
import shell

pytestmark = [pytest.mark.timeout(60), pytest.mark.tsan]


def test_first_call_race(env):
    """64 threads make the process's first socket calls at the same instant."""
    server = shell.Shell(env, "server")
    lfd = server.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    server.ok("bind", lfd, env.address, 0)
    server.ok("listen", lfd, 128)
    port = int(server("getsockname", lfd).words[1])
    n = 64
    served = server.bg("accept_echo", lfd, n)
    client = shell.Shell(env, "client", "race", str(n), str(port))
    assert client.collect(0, 20), client.proc.describe()
    assert client.results[0].ret == n
    assert served.result().ret == n


def test_first_connections_of_many_programs(env):
    """Each begins with eight threads: who of them makes the link between the two programs, and with which of its
    directions, makes no difference to what comes back."""
    server = shell.Shell(env, "server")
    lfd = server.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    server.ok("bind", lfd, env.address, 0)
    server.ok("listen", lfd, 128)
    port = int(server("getsockname", lfd).words[1])
    rounds, n = 6, 8
    served = server.bg("accept_echo", lfd, rounds * n)
    clients = []
    for _ in range(rounds):
        client = shell.Shell(env, "client", "race", str(n), str(port), "300")
        clients.append(client)
        assert client.collect(0, 40), client.proc.describe()
        assert client.results[0].ret == n
    assert served.result().ret == rounds * n
    if env.lifts:
        # a short life under load may be over before the move
        assert env.counters(server.pid)[0]["flows_upgraded"] >= rounds


def test_within_one_process(env):
    """Two threads of one process talk to each other."""
    sh = shell.Shell(env, "client")
    p = shell.Pair(env, "127.0.0.1", server=sh, client=sh)
    for _ in range(10):
        p.turns(20, 1000)
    p.c.sendall(300000 // 3)
    assert p.s.recv(100000, WAITALL).ret == 100000
    p.c.close()
    assert p.s.drain() == (0, None)


def test_close_while_other_thread_reads(live):
    """Linux: the reader keeps its reference and reads on; the number is free at once."""
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.c.close()
    assert not r.done(0.05)
    assert live.client("recv", live.c.fd, 1, 0, 0, 0).err == "EBADF"
    live.s.sendall(10)
    got = r.result(2)
    assert got.ret == 10 and got.words == ["ok"]
    assert live.s.drain() == (0, None)


def test_two_readers(live):
    """Two threads in recv: between them they get each byte once."""
    a, b = live.c.recv_bg(1), live.c.recv_bg(1)
    live.client.asleep()
    live.s.send(1)
    harness.until(lambda: a.done(0.01) or b.done(0.01), 2, "one reader awake")
    first, second = (a, b) if a.done() else (b, a)
    assert first.result().ret == 1
    assert not second.done(0.03)
    live.s.send(1)
    assert second.result(2).ret == 1


def test_reader_and_poller(live):
    """One thread in poll and one in recv on one socket: both wake."""
    p = live.client.bg("poll", -1, live.c.fd, EV_IN)
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.s.sendall(10)
    assert r.result(2).ret == 10
    # The poller may have looked after the reader took all; on TCP too. More data settles it.
    live.s.sendall(10)
    assert p.result(2).ints == [EV_IN]


def test_many_writers(live):
    """Four threads send at once: a send of this size is not torn apart."""
    n = 8
    keys = [live.c.tx_key + 7 * i + 1 for i in range(4)]
    sends = []
    for _ in range(n):
        for k in keys:
            sends.append(live.client.bg("send", live.c.fd, 512, 0x4000, k, 0))
    for s in sends:
        assert s.result().ret == 512
    left = {k: n for k in keys}
    for _ in range(4 * n):
        for k in keys:
            r = live.server("recv", live.s.fd, 512, WAITALL | 2, k, 0)
            if r.words[0] == "ok":
                left[k] -= 1
                break
        else:
            raise AssertionError("a message is torn")
        assert live.server("recv", live.s.fd, 512, WAITALL, k, 0).ret == 512
    assert set(left.values()) == {0}


def test_blocked_writer_and_reader(live):
    """A thread stuck in send does not keep another from reading the same socket."""
    n = live.c.fill()
    w = live.c.send_bg(1 << 20)
    live.client.asleep()
    live.s.sendall(100)
    assert live.c.recv(100, WAITALL).ret == 100
    assert not w.done()
    got = 0
    while got < n:
        got += live.s.recv(min(n - got, 1 << 20), WAITALL).ret
    d = live.s.drain_bg()
    live.c.tx += w.result().ret
    live.c.shutdown(socket.SHUT_WR)
    assert live.s.drained(d) == (1 << 20, None)


def test_shutdown_by_other_thread_ends_both(live):
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.c.shutdown(socket.SHUT_RDWR)
    assert r.result(2).ret == 0
    live.c.close()
    assert live.s.drain() == (0, None)


def test_many_threads_on_one_epfd(pair):
    """Eight threads share one set under ONESHOT; 12 connections in use at once."""
    ends = [pair.connect() for _ in range(12)]
    ep = pair.server.ok("epoll_create", 0)
    for _, s in ends:
        pair.server.ok("epoll_ctl", ep, 1, s.fd, EV_IN | EV_ONESHOT, s.fd)
    pair.server.ok("serve", ep, 8)
    # The echo returns what was sent: the client reads with the key it wrote with.
    running = [pair.client.bg("turns", c.fd, 300, 700, 1, c.tx_key, 0, c.tx_key, 0) for c, _ in ends]
    for r in running:
        assert r.result(30).ret == 300
    for c, _ in ends:
        c.shutdown(socket.SHUT_WR)
        assert c.drain() == (0, None)


def test_threads_open_and_close(pair):
    """Connections made, used and closed by many threads while one flow lives on."""
    pair.upgrade()
    served = pair.server.bg("accepts", 120, pair.lfd, 500)
    pair.client.ok("connects", 40, pair.port, 500)
    more = [pair.client.bg("connects", 40, pair.port, 500) for _ in range(2)]
    more.append(served)
    for m in more:
        assert m.result(20).ret > 0
    pair.turns()


def test_accept_by_many_threads(pair):
    """Each connection is given to one of those that sleep in accept."""
    n = 8
    waiting = [pair.server.bg("accept", pair.lfd, 0) for _ in range(n)]
    pair.server.asleep()
    fds, ends = [], []
    for _ in range(n):
        fd = pair.client.ok("socket", pair.family, socket.SOCK_STREAM, 0)
        pair.client.ok("connect", fd, pair.host, pair.port)
        ends.append(fd)
    fds = [w.result(5).ret for w in waiting]
    assert len(set(fds)) == n and min(fds) > 0
    by_port = {pair.server("getpeername", fd).words[1]: fd for fd in fds}
    assert len(by_port) == n
    for i, fd in enumerate(ends):
        s = by_port[pair.client("getsockname", fd).words[1]]
        c, e = shell.End(pair.client, fd, i, i + n), shell.End(pair.server, s, i + n, i)
        pair.turns(30, 500, c, e)


def test_exclusive_threads(pair):
    """A thread each with an epoll set of its own, all with the listener: every connection is taken."""
    n, sets = 4, []
    pair.server.ok("fcntl", pair.lfd, 4, 0x800)
    for _ in range(n):
        ep = pair.server.ok("epoll_create", 0)
        pair.server.ok("epoll_ctl", ep, 1, pair.lfd, EV_IN | EV_EXCLUSIVE, 1)
        sets.append(ep)
    for i in range(3):
        waiting = [pair.server.bg("epoll_wait", ep, 8, 3000) for ep in sets]
        pair.server.asleep()
        fd = pair.client.ok("socket", pair.family, socket.SOCK_STREAM, 0)
        pair.client.ok("connect", fd, pair.host, pair.port)
        harness.until(lambda w=waiting: any(p.done(0.001) for p in w), 2, "one of them awake")
        s = pair.server.ok("accept", pair.lfd, 0)
        c, e = shell.End(pair.client, fd, i, i + 9), shell.End(pair.server, s, i + 9, i)
        pair.turns(40, 500, c, e)
        # the others sleep on, or woke in vain: a second connection shows that none is lost
        fd2 = pair.client.ok("socket", pair.family, socket.SOCK_STREAM, 0)
        pair.client.ok("connect", fd2, pair.host, pair.port)
        harness.until(lambda w=waiting: sum(p.done(0.001) for p in w) >= 2, 4, "another one awake")
        pair.server.ok("accept", pair.lfd, 0)
        for w in waiting:
            assert w.result(5).ret >= 0


def test_exclusive_on_one_epfd(pair):
    """Threads that sleep on one set with EPOLLEXCLUSIVE: an edge wakes one, and each finds one."""
    n, rounds = 6, 30
    ends = [pair.connect() for _ in range(3)]
    ep = pair.server.ok("epoll_create", 0)
    for i, (_, s) in enumerate(ends):
        pair.server.ok("epoll_ctl", ep, 1, s.fd, EV_IN | EV_ET | EV_EXCLUSIVE, i)
    for c, s in ends:
        pair.upgrade(c, s)
    while pair.server("epoll_wait", ep, 8, 20).ret:  # edges of the turns
        pass
    waiting = [pair.server.bg("epoll_wait", ep, 8, 20000) for _ in range(n)]
    for i in range(rounds):
        pair.server.asleep()
        c, s = ends[i % 3]
        c.sendall(10)
        harness.until(lambda: any(w.done(0.001) for w in waiting), 3, "one of them awake")
        time.sleep(0.005)
        woken = [w for w in waiting if w.done()]
        assert [w.result().words for w in woken] == [["1:%d" % (i % 3)]]
        assert s.recv(10, WAITALL).ret == 10
        waiting[waiting.index(woken[0])] = pair.server.bg("epoll_wait", ep, 8, 20000)
    # edges that come at once, to one thread or to several: none is lost
    pair.server.asleep()
    told = {}

    def look():
        told.update({w: w.result().words for w in waiting if w not in told and w.done(0.001)})
        return sum(told.values(), [])
    for c, _ in ends:
        c.sendall(10)
    harness.until(lambda: sorted(look()) == ["1:0", "1:1", "1:2"], 3, "all three told")
    for c, s in ends:
        assert s.recv(10, WAITALL).ret == 10
    while len(told) < n:  # whoever still sleeps can be woken
        asleep = n - len(told)
        ends[0][0].sendall(1)
        harness.until(lambda k=asleep: look() and n - len(told) < k, 3, "another one awake")
        assert ends[0][1].recv(1, WAITALL).ret == 1


def test_pairs_within_one_process(env):
    """Both ends of several connections in one process, in one epoll set, used in turn."""
    sh = shell.Shell(env, "client")
    p = shell.Pair(env, server=sh, client=sh)
    pairs = [(p.c, p.s)] + [p.connect() for _ in range(3)]
    ep = sh.ok("epoll_create", 0)
    for c, s in pairs:
        p.turns(60, 700, c, s)
        for e in (c, s):
            sh.ok("epoll_ctl", ep, 1, e.fd, EV_IN, e.fd)
    for _ in range(5):
        for c, s in pairs:
            for a, b in ((c, s), (s, c)):
                w = sh.bg("epoll_wait", ep, 16, 3000)
                a.sendall(100)
                assert w.result(5).words == ["1:%d" % b.fd]
                assert b.recv(100, WAITALL).ret == 100
                assert sh("epoll_wait", ep, 16, 0).ret == 0
    for c, s in pairs:
        c.close()
        w = sh("epoll_wait", ep, 16, 3000)
        assert w.ret == 1 and s.drain() == (0, None)
        s.close()


# Echoes to so many connections, a thread for each; the other end plays so many rounds on each, a thread for each.
THREADS = """
import socket, sys, threading
role, address, port, n = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
go = threading.Barrier(n)

def serve(c):
    go.wait()
    while True:
        data = c.recv(64)
        if not data:
            return
        c.sendall(data)

def play(c):
    for line in iter(rounds[c].get, None):
        for i in range(line):
            c.sendall(b"%064d" % i)
            assert c.recv(64, socket.MSG_WAITALL) == b"%064d" % i
        done.put(1)

if role == "server":
    l = socket.create_server((address, 0), backlog=n)
    print(l.getsockname()[1], flush=True)
    for c in [l.accept()[0] for _ in range(n)]:
        threading.Thread(target=serve, args=(c,), daemon=True).start()
    sys.stdin.read()
else:
    import queue
    done = queue.Queue()
    conns = [socket.create_connection((address, port)) for _ in range(n)]
    rounds = {c: queue.Queue() for c in conns}
    for c in conns:
        threading.Thread(target=play, args=(c,), daemon=True).start()
    for line in sys.stdin:
        for q in rounds.values():
            q.put(int(line))
        for _ in conns:
            done.get()
        print("ok", flush=True)
"""


def test_many_move_at_the_same_time(env):
    """Handshakes of many threads are proved one after the other, and none fails for meeting another."""
    if not env.lifts:
        pytest.skip("nothing moves")
    if harness.TSAN:
        pytest.skip("its programs are Python's")
    n = 16
    server = env.start("server", ["/usr/bin/python3", "-c", THREADS, "server", env.address, 0, n])
    port = server.line()
    clients = [env.start("client", ["/usr/bin/python3", "-c", THREADS, "client", env.address, port, n // 4]) for _ in range(4)]
    for _ in range(3):
        for c in clients:
            c.say("100\n")
        for c in clients:
            assert c.line(30) == "ok"
    for f in env.flows(server.pid):
        assert env.settled(f), f
