# SPDX-License-Identifier: BSD-2-Clause
"""xr-stat --retreat and --return: under sleepers of every kind, to a stopped peer, with bytes on the way;
and what else brings a flow back to TCP and lets it go again.
"""
import json
import os
import re
import select
import signal
import subprocess
import time

import pytest

import harness
import shell

pytestmark = [pytest.mark.fabric, pytest.mark.modes("both"), pytest.mark.timeout(60)]

EAGER_RETURN = {"XRDMA_RETURN_AFTER": "1ms"}


@pytest.fixture
def live(env):
    env.env.update(EAGER_RETURN)
    return shell.Pair(env).upgrade()


def operate(env, *args, status=0):
    p = subprocess.run([harness.find("xr-stat", "tools/xr-stat"), *args], text=True, timeout=20,
                       env={**os.environ, **env.env}, capture_output=True, check=False)
    assert status is None or p.returncode == status, (args, p.stdout, p.stderr)
    return p.stdout


def retreat(pair, end, *more, poke=True, status=0):
    """Ask for it; the program, which sleeps in read(2) of its orders, notices when it next calls."""
    p = subprocess.Popen([harness.find("xr-stat", "tools/xr-stat"), "--retreat",
                          "--pid=%d" % end.sh.pid, *more],
                         env={**os.environ, **pair.env.env}, text=True, stdout=subprocess.PIPE)
    while poke and p.poll() is None:
        end.poll(0)
        time.sleep(0.01)
    said = p.communicate(timeout=20)[0]
    assert status is None or p.returncode == status, said
    return said


def both_on_tcp(pair):
    return [f["carrier"] for f in pair.carriers().values()] == ["tcp", "tcp"]


def until_shm(pair):
    """Between hosts each end looks at times that the other looks at as well, ever more rarely where it was in vain."""
    end = time.monotonic() + (20 if pair.env.fabric == "rdma" else 4)
    while not pair.is_up():
        assert time.monotonic() < end, pair.carriers()
        pair.turns(10, 300)
        time.sleep(0.01)


def back_again(pair, end):
    operate(pair.env, "--return", "--pid=%d" % end.sh.pid)
    until_shm(pair)


@pytest.fixture(params=["server", "client"])
def who(request, live):
    return (live.s, live.c) if request.param == "server" else (live.c, live.s)


def test_idle_connection_goes_and_comes_back(live, who):
    me, peer = who
    for n in range(3):
        said = retreat(live, me)
        assert re.match(r"1 connection of 1 process on TCP", said)
        peer.poll(0)
        harness.until(lambda: both_on_tcp(live), 5, "both ends on TCP")
        mine = [f for f in live.carriers().values() if f["pid"] == me.sh.pid][0]
        assert (mine["reason"], mine["retreats"]) == ("operator", n + 1)
        live.turns(30, 2000)
        assert both_on_tcp(live)
        back_again(live, me)


def test_what_is_asked_back_says_when_it_may(live):
    """The reason is the operator's until then: shown as past, with the time; what is held shows none."""
    # between hosts at a time at which the other end looks as well
    soon = r"(1\d|20)\.\d" if live.env.fabric == "shm" else r"([123]\d|40)\.\d"
    operate(live.env, "--set=return_after=20s")
    retreat(live, live.c)
    live.s.poll(0)
    harness.until(lambda: both_on_tcp(live), 5, "both ends on TCP")
    if live.env.fabric == "rdma":
        # it has the peer's frame to take yet
        live.turns(2, 100)
    table = operate(live.env, "-anp")
    assert re.search(r"tcp +operator  .*\(held\)$", table, re.M), table
    said = operate(live.env, "--return", "--pid=%d" % live.c.sh.pid)
    assert re.fullmatch(r"1 connection of 1 process may leave TCP, 1 of them in %s s\n" % soon, said), said
    table = operate(live.env, "-anpi")
    assert re.search(r"tcp +operator \(again in %ss\) " % soon, table), table
    assert re.search(r" last_reason:operator again:%ss " % soon, table), table
    operate(live.env, "--set=return_after=1ms")


WAYS = ["recv", "poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait2", "drain"]


@pytest.mark.parametrize("how, flags", [*((how, 0) for how in WAYS), ("epoll_wait", shell.EV_ET),
                                        ("epoll_wait", shell.EV_ONESHOT)])
def test_sleepers_are_woken_for_it_and_go_on_sleeping(live, who, how, flags):
    """And what comes then is reported, once where the kernel reports it once."""
    me, peer = who
    sh = me.sh
    if how == "recv":
        w = me.recv_bg(500)
    elif how == "drain":
        w = me.drain_bg()
    elif how in ("poll", "ppoll"):
        w = sh.bg(how, -1, me.fd, select.POLLIN)
    elif how in ("select", "pselect"):
        w = sh.bg(how, -1, me.fd, 1)
    else:
        ep = sh.ok("epoll_create", 0)
        assert sh("epoll_ctl", ep, 1, me.fd, select.EPOLLIN | flags, 7).ret == 0
        w = sh.bg(how, ep, 8, -1)
    sh.asleep()
    retreat(live, me, poke=False)
    harness.until(lambda: both_on_tcp(live) or (peer.poll(0), False)[1], 5, "both on TCP")
    assert not w.done(0.1)
    peer.sendall(500)
    if how == "drain":
        peer.shutdown(1)
        assert me.drained(w) == (500, None)
        return
    got = w.result(5)
    assert got.ret == (500 if how == "recv" else 1), got
    if how == "recv":
        me.rx += 500
    else:
        assert me.recv(500).ret == 500
    back_again(live, me)


def test_a_blocked_sender_goes_on_over_tcp(live, who):
    me, peer = who
    n = me.fill()
    w = me.send_bg(300000)
    me.sh.asleep()
    # the peer does not read: what the kernel's buffers do not take stays owed
    retreat(live, me, "--wait=0.3", poke=False, status=None)
    d = peer.drain_bg()
    me.tx += w.result(10).ret
    me.shutdown(1)
    assert peer.drained(d, 20) == (n + 300000, None)


def test_bytes_on_the_way_both_ways(live, who):
    """Unread bytes stay readable at once, none twice; the retreat is over when they are read."""
    me, peer = who
    for end in who:
        assert end.send(200000).ret == 200000
    # between hosts the kernel has at once what the peer is to have
    retreat(live, me, "--wait=0.3", status=1 if live.env.fabric == "shm" else None)
    for end in who:
        assert end.poll(select.POLLIN, 0 if live.env.fabric == "shm" else 5000) & select.POLLIN
        assert end.recv(200000, shell.WAITALL).ret == 200000
        assert end.poll(select.POLLIN) == 0
    live.turns(20, 100)
    harness.until(lambda: both_on_tcp(live), 5, "both on TCP")
    back_again(live, me)


def test_stopped_peer(live, who):
    """The retreat of one process waits for no other: what is owed to the peer lies in the kernel."""
    me, peer = who
    peer.sh.proc.kill(signal.SIGSTOP)
    try:
        assert me.send(100000).ret == 100000
        began = time.monotonic()
        retreat(live, me)
        assert time.monotonic() - began < 2
        assert me.send(1000).ret == 1000
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.recv(101000, shell.WAITALL).ret == 101000
    back_again(live, me)


def test_nothing_else_waits_for_a_stopped_peer(live, who):
    """With its window full, a sender asleep and its connection on the way to TCP: the others of the process go on."""
    me, peer = who
    other = shell.Pair(live.env, **{"server" if me is live.s else "client": me.sh}).upgrade()
    peer.sh.proc.kill(signal.SIGSTOP)
    try:
        n = me.fill()
        w = me.send_bg(300000)
        p = subprocess.Popen([harness.find("xr-stat", "tools/xr-stat"), "--retreat", "--wait=1",
                              "--pid=%d" % me.sh.pid, "--fd=%d" % me.fd],
                             env={**os.environ, **live.env.env}, stdout=subprocess.DEVNULL)
        end, slowest = time.monotonic() + 0.5, 0
        while p.poll() is None or time.monotonic() < end:
            began = time.monotonic()
            other.turns(1, 1000)
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 0.3
        assert other.is_up() and not w.done()
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    d = peer.drain_bg()
    me.tx += w.result(10).ret
    me.shutdown(1)
    assert peer.drained(d, 20) == (n + 300000, None)


def test_a_program_that_sleeps_elsewhere(live, who):
    """
    It cannot be asked before it calls; the other end leaves alone, and from then on all goes over TCP. Between hosts
    it has a thread that is told of it.
    """
    me, peer = who
    me.sh.asleep()              # in read(2) of its orders
    w = peer.sh.bg("poll", -1, peer.fd, select.POLLIN)
    peer.sh.asleep()

    def carrier(end):
        return [f["carrier"] for f in live.env.flows(end.sh.pid)]
    if live.env.fabric == "shm":
        assert operate(live.env, "--retreat", "--wait=0.3", status=1).startswith("1 of 2 connections not on TCP yet")
        assert (carrier(me), carrier(peer)) == (["shm"], ["tcp"])
    else:
        assert operate(live.env, "--retreat", "--wait=5") == "2 connections of 2 processes on TCP\n"
    before = live.env.flows(peer.sh.pid)[0]["tx"]["bytes"]
    peer.sendall(100000)
    after = live.env.flows(peer.sh.pid)[0]["tx"]["bytes"]
    assert (after["tcp"] - before["tcp"], after["shm"] - before["shm"]) == (100000, 0)
    # the first call of its own does it
    assert me.recv(100000, shell.WAITALL).ret == 100000
    assert (carrier(me), carrier(peer)) == (["tcp"], ["tcp"])
    me.sendall(1)
    assert w.result().ints == [select.POLLIN]
    assert peer.recv(1).ret == 1
    live.turns(20, 100)


def test_one_connection_of_many(live):
    c2, s2 = live.connect()
    live.upgrade(c2, s2)
    retreat(live, live.s, "--fd=%d" % s2.fd)
    live.turns(10, 100)
    assert live.is_up()
    assert not live.is_up(c2)
    operate(live.env, "--retreat", "--pid=%d" % live.s.sh.pid, "--fd=999", status=1)


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "unnoticed"])
def test_a_wish_for_what_the_peer_took_along(live, who, noticed):
    """
    It is held from then on by this operator's wish, and by no other: the peer has asked, and asks no more. Unnoticed:
    the wish is what this process first hears of, by a call on another connection.
    """
    me, peer = who
    c2, s2 = live.connect()
    live.upgrade(c2, s2)
    retreat(live, me, "--fd=%d" % me.fd)

    def mine():
        (f,) = [f for f in live.env.flows(peer.sh.pid) if f["fd"] == peer.fd]
        return f["reason"], f["held"]
    if noticed:
        peer.poll(0)
        harness.until(lambda: both_on_tcp(live), 5, "both ends on TCP")
        assert mine() == ("retreat-requested", False)
    other = c2 if peer is live.c else s2
    p = subprocess.Popen([harness.find("xr-stat", "tools/xr-stat"), "--retreat", "--pid=%d" % peer.sh.pid],
                         env={**os.environ, **live.env.env}, stdout=subprocess.DEVNULL)
    while p.poll() is None:
        other.poll(0)
        time.sleep(0.01)
    assert p.returncode == 0
    if noticed or live.env.fabric != "shm":
        live.turns(30, 2000)
    assert mine() == ("operator", True)
    operate(live.env, "--return", "--pid=%d" % me.sh.pid, "--fd=%d" % me.fd)
    live.turns(30, 2000)
    assert both_on_tcp(live)
    back_again(live, peer)


def test_a_device_is_taken_out_of_use(live):
    """All connections that it carries, of all programs, and new ones; by a wish of its own."""
    c2, s2 = live.connect()
    live.upgrade(c2, s2)

    def all_on(carrier):
        live.turns(8, 300)
        live.turns(8, 300, c2, s2)
        return [f["carrier"] for f in live.env.flows()] == [carrier] * 4
    p = subprocess.Popen([harness.find("xr-stat", "tools/xr-stat"), "--retreat", "--device=shm"], text=True,
                         env={**os.environ, **live.env.env}, stdout=subprocess.PIPE)
    harness.until(lambda: all_on("tcp"), 10, "all on TCP")
    assert p.communicate(timeout=10)[0] == "4 connections of 2 processes on TCP\n" and p.returncode == 0
    assert {(f["reason"], f["held"]) for f in live.env.flows()} == {("operator", True)}
    told = json.loads(harness.xr_stat({**os.environ, **live.env.env}, "-j"))["processes"]
    assert [(q["held"], q["held_devices"]) for q in told] == [(False, ["shm"])] * 2
    # neither wish undoes the other
    operate(live.env, "--return")
    c3, s3 = live.connect()
    for _ in range(10):
        live.turns(20, 1000, c3, s3)
    assert all(f["carrier"] == "tcp" and f["reason"] == "operator" for f in live.carriers(c3).values())
    c3.close()
    s3.close()
    operate(live.env, "--retreat", "--pid=%d" % live.s.sh.pid)
    assert operate(live.env, "--return", "--device=shm") == \
        "2 connections of 2 processes may leave TCP, 2 are still held by another --retreat\n"
    assert all_on("tcp")
    operate(live.env, "--return")
    harness.until(lambda: all_on(live.env.fabric), 10, "all on the fabric")


@pytest.mark.parametrize("args, said", [
    (("--retreat", "--device=no-such"), "neither shm nor"), (("--retreat", "--device=../../../tmp"), "neither"),
    (("--retreat", "--device="), "neither"), (("--device=shm",), "goes with"),
    (("--retreat", "--device=shm", "--pid=1", "--fd=3"), "not with --fd")])
def test_a_device_that_there_is_not(env, args, said):
    p = subprocess.run([harness.find("xr-stat", "tools/xr-stat"), *args], text=True, timeout=20,
                       env={**os.environ, **env.env}, capture_output=True, check=False)
    assert p.returncode == 2 and said in p.stderr


@pytest.mark.parametrize("who, seconds", [("server", 0.1), ("client", 0.1), ("client", 9)])
def test_new_connections_stay_on_tcp_meanwhile(live, who, seconds):
    """However often the other end, which is not told, looks for this one in vain."""
    held = {"client": live.c, "server": live.s}[who]
    retreat(live, held)
    c2, s2 = live.connect()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        live.turns(20, 1000, c2, s2)
    flow = live.carriers(c2)[who]
    assert (flow["carrier"], flow["reason"]) == ("tcp", "operator")
    if seconds > 5:
        assert live.carriers(c2)["server"]["reason"] == "peer-not-xrdma"
    operate(live.env, "--return", "--pid=%d" % held.sh.pid)
    # who has listened in vain listens again when the connection has lived twice as long (upgrade_begin.c)
    end = time.monotonic() + 20
    while not live.is_up(c2):
        assert time.monotonic() < end, live.carriers(c2)
        live.turns(20, 1000, c2, s2)


@pytest.mark.parametrize("asked", ["before the fork", "after the fork"])
@pytest.mark.parametrize("what", [[], ["--device=shm"]])
def test_children_are_held_as_their_parent_is(live, asked, what):
    """Servers that fork for each connection, or before: --retreat holds what is opened later, --return lets all go."""
    child = live.server.fork() if asked == "after the fork" else None
    retreat(live, live.s, *what)
    child = child or live.server.fork()
    # of the child alone, which has published nothing yet
    c, s = live.connect(server=child)
    for _ in range(10):
        live.turns(20, 1000, c, s)

    def mine():
        return [(f["carrier"], f["reason"], f["held"]) for f in live.env.flows(child.pid)]
    assert mine() == [("tcp", "operator", True)]
    assert "may leave TCP" in operate(live.env, "--return", *what)
    assert [f["held"] for f in live.env.flows()] == [False] * 4
    live.upgrade(c, s)


def test_a_child_of_a_child_takes_the_wish_over(live):
    retreat(live, live.s)
    middle = live.server.fork()
    child = middle.fork()
    ends = live.connect(server=child)
    for _ in range(6):
        live.turns(20, 1000, *ends)
    assert [(f["carrier"], f["reason"]) for f in live.env.flows(child.pid)] == [("tcp", "operator")]
    operate(live.env, "--return")
    live.upgrade(*ends)


def test_return_says_what_is_held_still(live):
    """By a wish of another kind, which it does not undo."""
    c2, s2 = live.connect()
    live.upgrade(c2, s2)
    retreat(live, live.s, "--fd=%d" % s2.fd)
    assert operate(live.env, "--return", "--pid=%d" % live.s.sh.pid) == \
        "1 connection of 1 process may leave TCP, 1 is still held by another --retreat\n"
    assert operate(live.env, "--return", "--pid=%d" % live.s.sh.pid, "--fd=%d" % s2.fd) == \
        "1 connection of 1 process may leave TCP\n"


def test_a_program_that_spins_obeys(live):
    """Never asleep: the hooks of a busy ping-pong see the wish by themselves."""
    a = live.s.sh.bg("echo", live.s.fd)
    time.sleep(0.05)
    assert "1 process on TCP" in retreat(live, live.s, poke=False)
    live.c.shutdown(1)
    a.result(5)


def test_usage(env):
    for args in (["--retreat", "--return"], ["--fd=3", "--retreat"], ["--fd=x", "--pid=1", "--retreat"]):
        operate(env, *args, status=2)
    operate(env, "--retreat", status=1)


def test_after_a_child_touched_it_the_parent_has_it_back(live):
    me, peer = live.s, live.c
    child = me.sh.fork()
    c = me.as_seen_by(child)
    peer.sendall(100)
    assert c.recv(100).ret == 100
    me.rx += 100
    live.turns(20, 100)
    assert not live.is_up()
    child.end()
    until_shm(live)


def test_a_killed_child_holds_nothing(live):
    me = live.s
    child = me.sh.fork()
    os.kill(child.pid, signal.SIGKILL)
    assert me.sh("wait", child.pid).ret == child.pid
    retreat(live, me)
    live.c.poll(0)
    harness.until(lambda: both_on_tcp(live), 5, "both ends on TCP")
    back_again(live, me)


def test_hysteresis(env):
    """Each return to TCP doubles the stay there."""
    env.env["XRDMA_RETURN_AFTER"] = "150ms"
    p = shell.Pair(env).upgrade()
    stays = []
    for _ in range(3):
        retreat(p, p.s)
        p.turns(4, 100)
        began = time.monotonic()
        operate(p.env, "--return", "--pid=%d" % p.s.sh.pid)
        while not p.is_up():
            p.turns(10, 100)
            assert time.monotonic() - began < 10
        stays.append(time.monotonic() - began)
    assert stays[0] > 0.1
    assert stays[1] > 0.25 and stays[2] > 0.5, stays


def test_the_whole_host_under_load(env):
    """Maintenance: all connections of all programs go, and come back, under a verified load."""
    env.env.update(EAGER_RETURN)
    args = ["--seed=%d" % int.from_bytes(os.urandom(4), "little"), "--conns=8", "--c2s=40m", "--s2c=40m",
            "--proto=duplex"]
    s = env.start("server", [harness.prog("xrt"), "server", "--wait=epoll", *args])
    c = env.start("client", [harness.prog("xrt"), "client", "--wait=epollet",
                             "--port=%d" % s.json()["port"], *args])

    def carriers():
        return {f["carrier"] for f in env.flows()}

    rounds = 0
    while c.poll() is None:
        harness.until(lambda: carriers() == {env.fabric} or c.poll() is not None, 20, "all on shm")
        if c.poll() is not None:
            break
        operate(env, "--retreat", "--wait=20", status=None)     # they may just have ended
        assert carriers() <= {"tcp"}
        operate(env, "--return", status=None)
        rounds += 1
    assert rounds
    assert c.json(30)["op"] is None and s.json(30)["op"] is None
    assert (s.wait(), c.wait()) == (0, 0)
