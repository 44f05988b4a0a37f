# SPDX-License-Identifier: BSD-2-Clause
"""
What fails between hosts, under load in both directions: devices, links, peers, limits.  The programs notice nothing but
time; where TCP itself would end they get what TCP gives.
"""
import contextlib
import os
import random
import resource
import signal
import time

import pytest

import drill
import harness
import hosts
import shell

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]
# little on its way at a time; else what goes through a socket and two emulated devices takes all there is
TURNS = {"proto": "pingpong", "turn": 2000, "seg": 1000}
DOWN = float(os.environ.get("XRT_LINK_DOWN") or 1)
RETREATS = int(os.environ.get("XRT_RDMA_RETREATS") or 16)


@pytest.fixture(scope="module", name="two")
def make_two():
    with hosts.Hosts(2, "rxe") as pair:
        for h in pair:
            h.impair()
        yield pair


@pytest.fixture
def env(two, monkeypatch):
    monkeypatch.setattr(harness, "BRIDGE", True)
    e = harness.Env("both", two)
    try:
        yield e
    finally:
        e.close()


@pytest.mark.timeout(200 + 3 * RETREATS)
def test_devices_that_come_and_go(env, two):
    """
    Devices are deleted and made again at random instants, and XRT_RDMA_RETREATS times a connection goes to TCP and back.

    The load is light. Under a full one the kernel may need 50 s to delete a device ("__rxe_cleanup" in its log): it waits
    for a queue pair of which it has lost count. All that time the module's thread may wait in the kernel for it, and so
    may connections, if both ends are met by it.
    """
    env.env["XRDMA_RETURN_AFTER"] = "0"
    before = drill.resources(two)
    load = drill.Load(env, conns=8, wait=("poll", "epollet"), stall=100, **TURNS)
    rng = random.Random(load.seed)
    load.wait_for("rdma")
    held = {k: n for k, n in drill.resources(two).items() if k not in ("mr", "qp")}
    held["qp"] = 2 + 2 * load.conns
    begun, cycles, slow, longest = time.monotonic(), 0, 0, 0
    while load.counter("retreats") < 2 * RETREATS:
        cycles += 1
        which = [h for h in two if rng.random() < .6] or [two[0]]
        for h in which:
            t = time.monotonic()
            h.delete_device()
            slow += time.monotonic() - t > 20
            time.sleep(rng.choice([0, 0, .01, .05]))
        time.sleep(rng.choice([0, 0, .02, .1]))
        t = time.monotonic()
        for h in which:
            h.add_device()
        # at times before all are back
        if rng.random() < .8:
            load.wait_for("rdma", 40)
            longest = max(longest, time.monotonic() - t)
            drill.wait_resources(two, held, over=4 * load.conns)
    load.wait_for("rdma", 40)
    load.wait_moving(least=20000)
    n, moved = load.counter("retreats"), load.end()
    print("%d retreats at both ends, %d times devices were deleted, %d of them slowly, %.0f s, %d MB, longest way back %.1f s, "
          "seed %d" % (n, cycles, slow, time.monotonic() - begun, moved >> 20, longest, load.seed))
    drill.wait_resources(two, before)


# ---- links

NO_WAY = ("ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH")


def test_loss(env, two):
    """One packet in twenty is lost."""
    load = drill.Load(env, conns=2, wait=("poll", "oneshot"), stall=60, **TURNS)
    load.wait_for("rdma")
    try:
        for h in two:
            h.impair("loss", "5%")
        for _ in range(3):
            load.wait_moving(20, 20000)
    finally:
        for h in two:
            h.impair()
    load.wait_moving(least=20000)
    load.wait_for("rdma", 40)
    load.end()


@pytest.mark.parametrize("who", [0, 1])
def test_address(env, two, who):
    """A host's address goes, and its GID with it; it comes back in another place of the table."""
    load = drill.Load(env, conns=2, wait=("poll", "epollet"), stall=60, **TURNS)
    load.wait_for("rdma")
    was = {gid: i for i, gid in two[who].gids().items()}
    two[who].take_address()
    try:
        load.wait_for("tcp", 20)
    finally:
        two[who].give_address()
    load.wait_moving(20, 20000)
    load.wait_for("rdma", 40)
    load.wait_moving(least=20000)
    assert set(was) == set(two[who].gids().values())
    load.end()


@pytest.mark.parametrize("who", [0, 1])
def test_link_down(env, two, who):
    """For XRT_LINK_DOWN seconds."""
    load = drill.Load(env, conns=2, wait=("poll", "epollet"), stall=60 + DOWN, **TURNS)
    load.wait_for("rdma")
    two[who].take_link()
    try:
        time.sleep(DOWN)
        load.wait_for("tcp", 20)
    finally:
        two[who].give_link()
    load.wait_moving(20 + DOWN, 20000)
    load.wait_for("rdma", 40 + DOWN)
    load.wait_moving(least=20000)
    load.end()


def test_link_down_for_good(env, two):
    """Both programs get what TCP gives."""
    was = [h.sysctl("ipv4/tcp_retries2", 4) for h in two]
    try:
        load = drill.Load(env, conns=2, wait=("epoll", "poll"), stall=60, **TURNS)
        load.wait_for("rdma")
        two[0].take_link()
        load.wait_broken(load.client, NO_WAY)
        load.wait_broken(load.server, NO_WAY)
    finally:
        env.close()
        two[0].give_link()
        for h, n in zip(two, was):
            h.sysctl("ipv4/tcp_retries2", n)
            # the kernel has said goodbye for programs that ended: see what is known of rxe
            h.delete_device()
            h.add_device()


@pytest.mark.parametrize("role", ["server", "client"])
def test_queue_pairs_in_error(env, role):
    """Somebody moves all queue pairs of a program to the error state."""
    load = drill.Load(env, conns=3, wait=("poll", "epollet"), **TURNS)
    load.wait_for("rdma")
    retreats = load.counter("retreats")
    assert drill.spoil((load.server if role == "server" else load.client).pid) >= 3
    harness.until(lambda: load.counter("retreats") >= retreats + 6, 20, load.describe, 0.02)
    load.wait_moving(least=20000)
    load.wait_for("rdma", 20)
    load.wait_moving(least=20000)
    load.end()


DROP = """table inet drill {
	chain in {
		type filter hook input priority -1;
		udp dport 4791 drop
	}
}
"""


@contextlib.contextmanager
def without_rdma(host):
    """RDMA packets are dropped where they arrive, TCP goes its way."""
    host.run("nft", "-f", "-", text=DROP)
    try:
        yield
    finally:
        host.run("nft", "delete", "table", "inet", "drill")


@pytest.mark.parametrize("who", [0, 1])
def test_rdma_alone_is_lost(env, two, who):
    """Every queue pair ends in error, for want of answers; the connections go on over TCP, and come back."""
    load = drill.Load(env, conns=3, wait=("epollet", "poll"), **TURNS)
    load.wait_for("rdma")
    with without_rdma(two[who]):
        load.wait_for("tcp", 20)
        load.wait_moving(least=20000)
    load.wait_for("rdma", 30)
    load.wait_moving(least=20000)
    load.end()


@pytest.mark.parametrize("who", [0, 1])
def test_rdma_is_lost_while_nobody_speaks(env, two, who):
    """Only probes can tell. The sleepers sleep on, and their connection is on TCP before it is used again."""
    p = shell.Pair(env).upgrade()
    asleep = [e.recv_bg(100) for e in (p.c, p.s)]
    time.sleep(.5)  # the module's thread may still have something to do
    with without_rdma(two[who]):
        harness.until(lambda: [f["carrier"] for f in p.carriers().values()] == ["tcp", "tcp"], 30, p.carriers, 0.05)
        assert "fabric-lost" in [f["last_reason"] for f in p.carriers().values()]
        assert not any(w.done(0.1) for w in asleep)
        for e, w in zip((p.s, p.c), asleep):
            e.sendall(100)
            assert w.result(5).ret == 100
        p.c.rx += 100
        p.s.rx += 100
        p.turns(50, 3000)
    for _ in range(100):
        p.turns(20, 1000)
        if p.is_up():
            break
        time.sleep(.1)
    else:
        pytest.fail("%r" % p.carriers())


# ---- peers

@pytest.mark.parametrize("who", ["server", "client"])
def test_peer_stopped(env, who):
    load = drill.Load(env, conns=2, wait=("poll", "epollet"))
    load.wait_for("rdma")
    p = load.server if who == "server" else load.client
    p.kill(signal.SIGSTOP)
    time.sleep(3)
    p.kill(signal.SIGCONT)
    load.wait_moving(least=20000)
    load.wait_for("rdma", 20)
    load.end()


@pytest.mark.parametrize("ends", ["plain", "both"])
def test_peer_killed(env, two, ends):
    env.mode = ends
    before = drill.resources(two)
    load = drill.Load(env, conns=2, wait=("poll", "epollet"))
    if ends == "both":
        load.wait_for("rdma")
    else:
        time.sleep(.3)
    load.server.reap()
    load.wait_broken(load.client, ("ECONNRESET", "EPIPE"))
    drill.wait_resources(two, before)


def test_host_gone(monkeypatch):
    """It says no word to anybody: no FIN, no RST, and no answer."""
    monkeypatch.setattr(harness, "BRIDGE", True)
    with hosts.Hosts(3, "rxe") as three:
        three[1].sysctl("ipv4/tcp_retries2", 4)
        env = harness.Env("both", three)
        try:
            load = drill.Load(env, conns=2, wait=("epoll", "poll"), stall=60)
            load.wait_for("rdma")
            load.server.kill(signal.SIGSTOP)
            hosts.batch(["link del " + three[0].link], three[0].name)
            load.server.reap()
            hosts.batch(["netns del " + three[0].name])
            load.wait_broken(load.client, NO_WAY)
        finally:
            env.close()


# ---- what the machine does not give

def as_nobody(*limits):
    def change():
        for what, n in limits:
            resource.setrlimit(what, (n, n))
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    return change


def mounted(script):
    """In a place of its own to look at: other tests of this kernel have theirs."""
    return {"wrap": ["unshare", "--mount", "sh", "-c", script + ' && exec "$@"', "-"]}


LIBRARY = "mount --bind /dev/null $(readlink -f /usr/lib/*/%s)"
NOT_GIVEN = {
    "memlock": ({"preexec": as_nobody((resource.RLIMIT_MEMLOCK, 65536))}, "memlock"),
    "not-permitted": (mounted("mount --bind /dev/infiniband /dev/infiniband && "
                              "mount -o remount,bind,nodev /dev/infiniband"), "no-verbs"),
    "no-librdmacm": (mounted(LIBRARY % "librdmacm.so.1"), "no-verbs"),
    "no-libibverbs": (mounted(LIBRARY % "libibverbs.so.1"), "no-verbs"),
}


@pytest.mark.parametrize("what, role", [(what, "server") for what in NOT_GIVEN] + [
    (what, "client") for what in ("memlock", "not-permitted")])
def test_not_given(env, monkeypatch, what, role):
    """The connections of such a program stay on TCP, and say why."""
    more, reason = NOT_GIVEN[what]
    if (what, role) == ("memlock", "client"):
        reason = "peer-not-xrdma"    # it is asked by who calls, and has nothing to answer with
    os.chmod(env.stats, 0o777)
    start = env.start
    monkeypatch.setattr(env, "start", lambda who, argv, **kw: start(who, argv, **kw, **(more if who == role else {})))
    load = drill.Load(env, conns=1, **TURNS)
    load.wait_reason(role, reason)
    load.wait_moving(least=20000)
    load.end()


@pytest.fixture
def share(env, two, monkeypatch):
    """share("hca_handle=0"): the server's share of what its device has, from now on."""
    group = "/sys/fs/cgroup/drill-" + two[0].device

    def write(path, text):
        with open(path, "w") as f:
            f.write(text)

    write("/sys/fs/cgroup/cgroup.subtree_control", "+rdma")
    os.mkdir(group)
    start = env.start
    monkeypatch.setattr(env, "start", lambda who, argv, **kw: start(who, argv, **kw, **({
        "preexec": lambda: write(group + "/cgroup.procs", "0")} if who == "server" else {})))

    def of(text):
        write(group + "/rdma.max", "%s %s" % (two[0].device, text))

    def used():
        with open(group + "/rdma.current") as f:
            got = [line.split()[1:] for line in f if line.startswith(two[0].device + " ")]
        return {k: int(n) for k, n in (w.split("=") for w in (got or [[]])[0])}
    of.used = used
    try:
        yield of
    finally:
        env.close()
        os.rmdir(group)


# the contexts of a device; with a few of the objects some things can be made, and not all that it takes
@pytest.mark.parametrize("limit", ["hca_handle=0", "hca_object=0", "hca_object=3"])
def test_cgroup(env, share, limit):
    """Its share of the device's resources is used up, and then made larger."""
    share(limit)
    load = drill.Load(env, conns=2, wait=("poll", "epollet"), **TURNS)
    harness.until(lambda: [f["reason"] in ("no-verbs", "limit-memory", "memlock") for f in load.ends() if
                           f["role"] == "server"] == [True, True], 20, load.describe, 0.05)
    load.wait_moving(least=20000)
    assert load.is_on("tcp"), load.describe()
    share("hca_handle=max hca_object=max")
    load.wait_for("rdma", 40)
    load.end()


def test_cgroup_under_load(env, share):
    """Nothing more can be made from now on: what there is goes on, new ones stay on TCP, until there is more again."""
    load = drill.Load(env, conns=2, wait=("poll", "epollet"), stall=60)
    load.wait_for("rdma")
    assert share.used()["hca_object"] > 4
    share("hca_object=4")
    load.wait_moving(20, least=200000)
    p = shell.Pair(env)
    for _ in range(10):
        p.turns(20, 1000)
    # a process of its own, in the same group
    assert p.carriers()["server"]["carrier"] == "tcp"
    assert p.carriers()["server"]["reason"] in ("no-verbs", "limit-memory", "memlock", "young"), p.carriers()
    load.wait_moving(20, least=200000)
    share("hca_object=max")
    end = time.monotonic() + 60
    while not p.is_up():
        assert time.monotonic() < end, p.carriers()
        p.turns(20, 1000)
    load.wait_moving(20, least=200000)
    load.end()
