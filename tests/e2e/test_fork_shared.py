# SPDX-License-Identifier: BSD-2-Clause
"""One epoll file, and a parent and a child that both wait in it and change it: as the kernel has it, one set for both."""
import pytest

from shell import ADD, DEL, DONTWAIT, EV_ET, EV_IN, EV_ONESHOT, EV_OUT, MOD, WAITALL
import harness
from test_fork_epoll import arrived, events

pytestmark = [pytest.mark.timeout(60), pytest.mark.tsan]


class Shared:
    """A parent and its child, and an epoll file of both; `live.s` is in it, or is not."""

    def __init__(self, live, flags=EV_IN, registered=True):
        self.live, self.sh, self.s = live, live.server, live.s
        self.ep = self.sh.ok("epoll_create", 0)
        if registered:
            self.ctl(self.sh, ADD, flags, 7)
        self.child = self.sh.fork()

    def ctl(self, who, op, flags=0, data=0, fd=None):
        r = who("epoll_ctl", self.ep, op, self.s.fd if fd is None else fd, flags, data)
        return r.err

    def told(self, who, ms=0):
        return events(who, self.ep, ms)


def moved(live, c, s):
    """A connection as busy as one that moves; in a set that two processes use none does."""
    live.turns(100, 1000, c, s)
    if live.env.lifts:
        assert live.carriers(c)["server"]["reason"] == "inherited"


def taken(live, c):
    """A child has come to the set that the connection is in, and the parent has heard of it."""
    if live.env.lifts:
        harness.until(lambda: live.carriers(c)["server"]["reason"] == "inherited", 5, lambda: "%r" % live.carriers(c))


@pytest.mark.parametrize("waits", ["asleep", "at once"])
def test_the_parent_hears_of_what_it_adds(live, waits):
    """However often, and whoever the kernel wakes first."""
    k = Shared(live)
    w = k.child.bg("epoll_wait", k.ep, 8, 30)
    w.result()
    c, s = live.connect()
    assert k.ctl(k.sh, ADD, EV_IN, 8, s.fd) is None
    moved(live, c, s)
    late = []
    for i in range(60):
        p = k.sh.bg("epoll_wait", k.ep, 8, 3000)
        if waits == "asleep":
            k.sh.asleep()
        w = k.child.bg("epoll_wait", k.ep, 8, 5)
        c.sendall(100)
        r = p.result()
        assert r.words == ["%d:8" % EV_IN], (i, r)
        late.append(int(r.us))
        w.result()
        assert s.recv(100, WAITALL).ret == 100
    assert sum(t > 500000 for t in late) == 0, late


def test_both_hear_of_what_the_parent_adds(live):
    """A descriptor that the child has not got is told to it as well: the set is the same one."""
    k = Shared(live)
    assert k.told(k.child) == {}
    c, s = live.connect()
    assert k.ctl(k.sh, ADD, EV_IN, 8, s.fd) is None
    moved(live, c, s)
    p, w = k.sh.bg("epoll_wait", k.ep, 8, 5000), k.child.bg("epoll_wait", k.ep, 8, 5000)
    c.sendall(100)
    assert p.result().words == ["%d:8" % EV_IN]
    assert w.result().words == ["%d:8" % EV_IN]
    assert s.recv(100, WAITALL).ret == 100
    assert k.told(k.child) == {} and k.told(k.sh) == {}


def test_both_hear_of_what_was_added_before_the_child_came(live):
    k = Shared(live)
    c, s = live.connect()
    assert k.ctl(k.sh, ADD, EV_IN, 8, s.fd) is None
    live.upgrade(c, s)
    p = k.sh.bg("epoll_wait", k.ep, 8, 8000)
    k.sh.asleep()
    w = k.child.bg("epoll_wait", k.ep, 8, 5000)
    k.child.asleep()
    taken(live, c)
    c.sendall(100)
    r, q = p.result(), w.result()
    assert r.words == q.words == ["%d:8" % EV_IN]
    assert max(r.us, q.us) < 3e6, (r, q)


@pytest.mark.parametrize("adds, changes, unread", [
    ("child", "child", 0), ("child", "child", 1000), ("child", "parent", 0),
    ("parent", "parent", 0), ("parent", "parent", 1000), ("parent", "child", 0)])
def test_who_adds_and_who_changes(live, adds, changes, unread):
    k = Shared(live, registered=False)
    if unread:
        live.c.sendall(unread)
        arrived(live.s, unread)
    who = {"child": k.child, "parent": k.sh}
    a, b = who[adds], who[changes]
    assert k.told(a) == {} and k.told(b) == {}
    assert k.ctl(a, ADD, EV_IN, 7) is None
    assert k.ctl(b, ADD, EV_IN, 7) == "EEXIST"
    assert k.ctl(b, MOD, EV_IN | EV_OUT, 8) is None
    for w in (a, b):
        harness.until(lambda: k.told(w) == {8: EV_OUT | (EV_IN if unread else 0)}, 3, lambda: "%r" % k.told(w))
    assert k.ctl(b, DEL) is None
    assert k.ctl(a, DEL) == "ENOENT" and k.ctl(a, MOD, EV_IN, 9) == "ENOENT"
    assert k.told(a) == {} and k.told(b) == {}
    assert k.ctl(a, ADD, EV_OUT, 5) is None
    assert k.told(a) == {5: EV_OUT} and k.told(b) == {5: EV_OUT}


@pytest.mark.parametrize("unread", [0, 1000])
def test_changed_by_the_parent_before_the_child_came(live, unread):
    """What the child finds is what the set has now, not what it had at the fork."""
    k = Shared(live)
    assert k.ctl(k.sh, MOD, EV_IN | EV_OUT, 8) is None
    if unread:
        live.c.sendall(unread)
        arrived(live.s, unread)
    want = {8: EV_OUT | (EV_IN if unread else 0)}
    harness.until(lambda: k.told(k.child) == want, 3, lambda: "%r" % k.told(k.child))
    assert k.told(k.sh) == want and k.told(k.child) == want


@pytest.mark.parametrize("unread", [0, 1000])
def test_taken_out_by_the_parent_before_the_child_came(live, unread):
    k = Shared(live)
    assert k.ctl(k.sh, DEL) is None
    if unread:
        live.c.sendall(unread)
        arrived(live.s, unread)
    assert k.told(k.child) == {}
    live.c.sendall(10)
    assert k.told(k.child, 300) == {} and k.told(k.sh) == {}
    assert k.ctl(k.sh, DEL) == "ENOENT" and k.ctl(k.child, DEL) == "ENOENT"


def test_threads_of_the_parent_that_sleep_when_the_child_comes(live):
    """Each of them hears as it would have, and so does the child."""
    k = Shared(live)
    c, s = live.connect()
    assert k.ctl(k.sh, ADD, EV_IN, 8, s.fd) is None
    live.upgrade(c, s)
    p = [k.sh.bg("epoll_wait", k.ep, 8, 8000) for _ in range(3)]
    k.sh.asleep()
    w = k.child.bg("epoll_wait", k.ep, 8, 8000)
    k.child.asleep()
    taken(live, c)
    c.sendall(100)
    for r in [q.result() for q in (*p, w)]:
        assert r.words == ["%d:8" % EV_IN] and r.us < 3e6, r
    assert s.recv(100, WAITALL).ret == 100
    assert k.told(k.sh) == {} and k.told(k.child) == {}


def test_a_child_takes_up_every_file_but_one(live):
    """What is in a file that no child uses stays where it is, however many others one does."""
    sh = live.server
    eps = [sh.ok("epoll_create", 0) for _ in range(400)]
    child = sh.fork()
    c, s = live.connect()
    left, rest = eps[0], eps[1:]
    assert sh("epoll_ctl", left, ADD, s.fd, EV_IN, 7).ret == 0
    live.upgrade(c, s)
    for ep in rest:
        assert events(child, ep) == {}
    for _ in range(3):
        c.sendall(100)
        assert events(sh, left, 3000) == {7: EV_IN}
        assert s.recv(100, WAITALL).ret == 100
    assert events(sh, left) == {}
    # what comes later moves, too
    d, t = live.connect()
    assert sh("epoll_ctl", left, ADD, t.fd, EV_IN, 8).ret == 0
    live.upgrade(d, t)
    if live.env.lifts:
        assert live.is_up(c) and live.is_up(d), (live.carriers(c), live.carriers(d))


def test_two_children_take_up_two_files_at_once(live):
    """Each finds in its own what only the parent has, and its parent's other files are nobody's."""
    sh = live.server
    eps = [sh.ok("epoll_create", 0) for _ in range(131)]
    children = [sh.fork(), sh.fork()]
    ends = [live.connect() for _ in range(3)]
    used = eps[0], eps[65], eps[130]
    for i, (ep, (c, s)) in enumerate(zip(used, ends)):
        assert sh("epoll_ctl", ep, ADD, s.fd, EV_IN, i).ret == 0
        live.upgrade(c, s)
    p = [sh.bg("epoll_wait", ep, 8, 8000) for ep in used[:2]]
    sh.asleep()
    w = [k.bg("epoll_wait", ep, 8, 8000) for k, ep in zip(children, used)]
    for k in children:
        k.asleep()
    for c, s in ends[:2]:
        taken(live, c)
    for i, (c, s) in enumerate(ends):
        c.sendall(100)
        for who, r in zip(("parent", "child"), [q.result() for q in (p[i], w[i])] if i < 2 else []):
            assert r.words == ["%d:%d" % (EV_IN, i)] and r.us < 3e6, (who, i, r)
    assert events(sh, used[2], 3000) == {2: EV_IN}
    for c, s in ends:
        assert s.recv(100, WAITALL).ret == 100
    assert all(events(k, ep) == {} for k, ep in zip(children, used))
    if live.env.lifts:
        assert [live.carriers(c)["server"]["reason"] for c, s in ends[:2]] == ["inherited"] * 2
        assert live.is_up(ends[2][0]), live.carriers(ends[2][0])


def unread_of_both(live, flags=EV_IN, registered=True):
    """Bytes lie unread in the segment, and the peer makes no call: so they stay there."""
    k = Shared(live, flags, registered)
    live.c.sendall(1000)
    arrived(live.s, 1000)
    want = {7: flags} if registered and flags else {}
    assert k.told(k.child) == want and k.told(k.sh) == want
    return k


def soon(k, who, want):
    harness.until(lambda: k.told(who) == want, 3, lambda: "%r, not %r" % (k.told(who), want))


@pytest.mark.parametrize("changes", ["child", "parent"])
@pytest.mark.parametrize("end", ["stays", "taken out"])
def test_changed_while_bytes_lie_unread(live, changes, end):
    """The set is one, wherever the bytes are: what one makes of a registration holds for the other."""
    k = unread_of_both(live)
    a, b = (k.child, k.sh) if changes == "child" else (k.sh, k.child)
    assert k.ctl(a, MOD, EV_IN | EV_OUT, 8) is None
    assert k.told(b) == k.told(a) == {8: EV_IN | EV_OUT}
    assert k.ctl(b, MOD, EV_IN, 9) is None
    assert k.told(a) == k.told(b) == {9: EV_IN}
    assert k.ctl(a, DEL) is None
    assert k.told(b) == k.told(a) == {}
    assert k.ctl(b, DEL) == "ENOENT" and k.ctl(b, MOD, EV_IN, 1) == "ENOENT"
    assert k.ctl(b, ADD, EV_IN, 10) is None
    assert k.ctl(a, ADD, EV_IN, 11) == "EEXIST"
    assert k.told(a) == k.told(b) == {10: EV_IN}
    if end == "taken out":
        assert k.ctl(a, DEL) is None
    assert live.s.recv(1000, WAITALL).ret == 1000
    assert k.told(a) == k.told(b) == {}
    live.c.sendall(10)
    want = {} if end == "taken out" else {10: EV_IN}
    soon(k, a, want)
    soon(k, b, want)
    assert k.ctl(b, DEL) == ("ENOENT" if end == "taken out" else None)
    assert k.ctl(a, ADD, EV_IN, 12) is None
    soon(k, a, {12: EV_IN})
    soon(k, b, {12: EV_IN})


@pytest.mark.parametrize("adds", ["child", "parent"])
def test_added_while_bytes_lie_unread(live, adds):
    k = unread_of_both(live, registered=False)
    a, b = (k.child, k.sh) if adds == "child" else (k.sh, k.child)
    assert k.ctl(a, ADD, EV_IN, 8) is None
    assert k.told(a) == {8: EV_IN}
    assert k.told(b) == {8: EV_IN}
    assert k.ctl(b, ADD, EV_IN, 9) == "EEXIST"
    assert k.ctl(b, MOD, EV_IN, 9) is None
    assert k.told(b) == k.told(a) == {9: EV_IN}
    assert live.s.recv(1000, WAITALL).ret == 1000
    assert k.told(a) == k.told(b) == {}
    assert k.ctl(b, DEL) is None
    live.c.sendall(10)
    assert k.told(a, 200) == k.told(b, 200) == {}
    assert k.ctl(a, DEL) == "ENOENT"


@pytest.mark.parametrize("fires", ["child", "parent"])
def test_one_shot_while_bytes_lie_unread(live, fires):
    """One of the two is told, and the other arms it again for both."""
    k = Shared(live, registered=False)
    live.c.sendall(1000)
    arrived(live.s, 1000)
    a, b = (k.child, k.sh) if fires == "child" else (k.sh, k.child)
    assert k.told(k.child) == k.told(k.sh) == {}
    assert k.ctl(a, ADD, EV_IN | EV_ONESHOT, 7) is None
    assert k.told(a) == {7: EV_IN}
    assert k.told(b) == k.told(a) == {}
    assert k.ctl(b, MOD, EV_IN | EV_ONESHOT, 8) is None
    assert k.told(a) == {8: EV_IN}
    assert k.told(b) == k.told(a) == {}


@pytest.mark.parametrize("changes", ["child", "parent"])
@pytest.mark.parametrize("how", [ADD, MOD])
def test_changed_under_one_that_sleeps(live, changes, how):
    k = unread_of_both(live, 0, registered=how == MOD)
    a, b = (k.child, k.sh) if changes == "child" else (k.sh, k.child)
    for i in range(4):
        w = b.bg("epoll_wait", k.ep, 8, 8000)
        b.asleep()
        assert k.ctl(a, how if not i else MOD, EV_IN, i) is None
        r = w.result()
        assert r.words == ["%d:%d" % (EV_IN, i)] and r.us < 4e6, r
        assert k.ctl(a, MOD, 0, 0) is None and k.told(b) == {}


@pytest.mark.parametrize("reads", ["child", "parent"])
def test_taken_out_when_they_are_read(live, reads):
    """One has come by since they were read, and has taken it out; the other, who comes later, does not bring it back."""
    k = unread_of_both(live)
    a, b = (k.child, k.sh) if reads == "child" else (k.sh, k.child)
    assert k.ctl(a, MOD, EV_IN, 8) is None
    assert k.told(b) == {8: EV_IN}
    assert a("recv", live.s.fd, 1000, WAITALL, live.s.rx_key, live.s.rx).ret == 1000
    assert k.told(a) == {}
    assert k.ctl(a, DEL) is None
    assert k.told(b) == {}
    live.c.sendall(10)
    assert k.told(b, 200) == k.told(a, 200) == {}
    assert k.ctl(b, ADD, EV_IN, 9) is None
    soon(k, a, {9: EV_IN})
    soon(k, b, {9: EV_IN})


@pytest.mark.parametrize("changes", ["child", "parent"])
def test_changed_many_times_before_the_other_comes(live, changes):
    """What holds in the end is what counts, whatever is kept of what was before."""
    k = unread_of_both(live)
    a, b = (k.child, k.sh) if changes == "child" else (k.sh, k.child)
    for i in range(50):
        assert k.ctl(a, MOD, EV_IN | (EV_OUT if i % 2 else 0), 100 + i) is None
    assert k.told(b) == k.told(a) == {149: EV_IN | EV_OUT}
    for i in range(50):
        assert k.ctl(a, DEL) is None and k.ctl(a, ADD, EV_IN, i) is None
    assert k.ctl(a, DEL) is None
    assert k.ctl(b, DEL) == "ENOENT"
    assert k.told(b) == k.told(a) == {}
