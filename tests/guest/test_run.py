# SPDX-License-Identifier: BSD-2-Clause
"""The runner: what a command in the guest says, writes and ends with; and what is left when it ends."""
import hashlib
import os
import re
import signal
import subprocess
import time

import pytest

pytestmark = [pytest.mark.timeout(60),
              pytest.mark.skipif("GUEST" in os.environ, reason="a guest in a guest")]
RUN = os.path.join(os.path.dirname(os.path.realpath(__file__)), "run")


def run(*argv, **kw):
    kw = {"capture_output": True, "text": True, "timeout": 50, "check": False, **kw}
    return subprocess.run([RUN, "-t", "40", *argv], **kw)


def control_dir(p):
    """That of the guest that this runner has started; it is in the guest's command line."""
    end = time.monotonic() + 20
    while True:
        with open("/proc/%d/task/%d/children" % (p.pid, p.pid)) as f:
            children = f.read().split()
        for pid in children:
            try:
                with open("/proc/%s/cmdline" % pid) as f:
                    found = re.search("guest.ctl=([^\\0]*)", f.read())
            except (FileNotFoundError, ProcessLookupError):    # what else it starts ends
                continue
            if found:
                return found.group(1)
        assert time.monotonic() < end, "no guest"
        time.sleep(0.01)


def processes_of(folder):
    got = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid) as f:
                if folder in f.read():
                    got.append(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return got


def test_status_and_streams():
    p = run("--", "sh", "-c", "echo out; echo err >&2; echo \"$A\"; pwd; exit 7", env={**os.environ, "A": "a 'b'\nc"},
            cwd="/usr/share")
    assert (p.returncode, p.stdout, p.stderr) == (7, "out\na 'b'\nc\n/usr/share\n", "err\n")


@pytest.mark.parametrize("cpus", ["1", "2"])
def test_output_is_whole(cpus):
    """Two million bytes, also to a reader that sleeps first, and through a pipe that does not block."""
    want = hashlib.md5("".join("%d\n" % i for i in range(1, 300001)).encode()).hexdigest()
    r, w = os.pipe()
    os.set_blocking(w, False)
    with subprocess.Popen([RUN, "-t", "40", "-s", cpus, "seq", "300000"], stdout=w) as p:
        os.close(w)
        time.sleep(2)
        with os.fdopen(r, "rb") as f:
            assert hashlib.md5(f.read()).hexdigest() == want
        assert p.wait(40) == 0


def test_what_is_written(tmp_path):
    """Gone with the guest, but for the directory that was named."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "old").write_text("old")
    p = run("-w", str(inside), "sh", "-c", "echo new >in/a; cat out/old; echo new >out/old; echo new >out/b; cat out/old",
            cwd=tmp_path)
    assert (p.returncode, p.stdout) == (0, "oldnew\n"), p
    assert (inside / "a").read_text() == "new\n"
    assert (outside / "old").read_text() == "old" and os.listdir(outside) == ["old"]


def test_a_guest_it_is():
    """Root, with name spaces of every kind, devices and no way back to the host's."""
    p = run("sh", "-c", "id -u; hostname; unshare -rnm true && rdma link add r type rxe netdev lo && rdma link")
    assert p.stdout.startswith("0\nguest\nlink r/1 "), p


@pytest.mark.parametrize("how", ["time", "term", "kill"])
def test_nothing_is_left(how):
    """Time is out, or the runner is told to end, or is killed: the guest ends with it."""
    p = subprocess.Popen([RUN, "-t", "5" if how == "time" else "40", "sh", "-c", "echo there; sleep 100"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with p:
        mine = control_dir(p)
        assert processes_of(mine)
        if how != "time":
            assert p.stdout.readline() == "there\n"
            p.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
        assert p.wait(30) == {"time": 124, "term": 143, "kill": -9}[how]
    end = time.monotonic() + 5
    while processes_of(mine):
        assert time.monotonic() < end, processes_of(mine)
        time.sleep(0.05)
    if how == "kill":   # the next run removes it, when it is a minute old
        os.utime(mine, (0, 0))
        assert run("true").returncode == 0
    assert not os.path.exists(mine)


QEMU = """#!/bin/sh
for a; do case $a in *guest.ctl=*) ctl=${a#*guest.ctl=}; ctl=${ctl%%%% *} ;; esac; done
[ -e "$ctl/begun" ] && exit 1
echo "$a" >>%s/asked
echo 7 >"$ctl/status"
sleep 10
"""


@pytest.mark.parametrize("kernel, options, status, qemu", [
    ("/bin/false", (), 7, True), ("/bin/false", ("-b", "um"), 125, False), (None, ("-b", "qemu"), 7, True), (None, (), 0, False)])
def test_qemu_where_the_other_does_not_start(tmp_path, kernel, options, status, qemu):
    """That, or because it was asked for; never because of what the command did."""
    build = [os.path.join(os.path.dirname(RUN), "build"), "--path"]
    real = subprocess.run(build, capture_output=True, text=True, check=True).stdout.strip()
    cache = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    os.makedirs(subprocess.run([*build, "--stock"], capture_output=True, text=True, check=True, env=cache).stdout.strip())
    (tmp_path / "qemu-system-x86_64").write_text(QEMU % tmp_path)
    (tmp_path / "qemu-system-x86_64").chmod(0o755)
    p = run(*options, "sh", "-c", "kill $$; exit 0" if status else "true",
            env={**cache, "PATH": "%s:%s" % (tmp_path, os.environ["PATH"]), "GUEST_KERNEL": kernel or real})
    assert p.returncode == status, p
    assert os.path.exists(tmp_path / "asked") == qemu
    if not options:
        assert ("taking QEMU" in p.stderr) == qemu


CHOSEN = """
. %s/tests/lib.sh
export PATH=/usr/bin:$PATH
work=$1 source=$1 pytest_jobs=0
shift
pytest_arguments=("$@")
run_pytest one "$@" test_one.py >log 2>&1
run_pytest two "$@" test_two.py >log 2>&1
summary
"""


@pytest.mark.parametrize("args, last, status", [
    ((), "2 passed, 0 failed, 0 skipped", 0), (("-k", "two"), "1 passed, 0 failed, 0 skipped", 0),
    (("-k", "three"), "0 passed, 0 failed, 0 skipped", 1)])
def test_what_was_chosen(tmp_path, args, last, status):
    """A layer without a test that was asked for has not failed; a run without any has."""
    for name in ("one", "two"):
        (tmp_path / ("test_%s.py" % name)).write_text("def test_%s():\n    pass\n" % name)
    top = os.path.dirname(os.path.dirname(os.path.dirname(RUN)))
    p = subprocess.run(["bash", "-c", "top=%s\n" % top + CHOSEN % top, "-", str(tmp_path), *args], cwd=tmp_path, text=True,
                       capture_output=True, timeout=50, check=False)
    assert (p.stdout.splitlines()[-1], p.returncode) == (last, status), p
