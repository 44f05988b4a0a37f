# SPDX-License-Identifier: BSD-2-Clause
"""xrdma-run --check promises nothing that would not come true."""
import contextlib
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import tempfile

import pytest

from harness import Proc, find, flows_of, until, xr_stat
from test_tools import HELLO, clean_env, run  # noqa: F401  (run is a fixture)

SERVER = ("import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
          "print(s.getsockname()[1], flush=True); sys.stdin.read()")


@pytest.fixture
def server(run, tmp_path):
    """A server under xrdma; gives HOST:PORT."""
    with contextlib.ExitStack() as stack:
        def go(options=(), preexec=None, **env):
            p = Proc(["/usr/bin/python3", "-c", SERVER], shim=True, options=options, preexec=preexec,
                     env={**clean_env(tmp_path), "XRDMA_CONF": str(run.conf), **env})
            stack.callback(p.stop)
            go.pid = p.pid
            return "127.0.0.1:%s" % p.line()
        yield go


def says(p, reason, *phrases):
    assert p.returncode == 1, p.stdout
    assert "would stay on TCP: %s (" % reason in p.stdout.splitlines()[-1]
    for phrase in phrases:
        assert phrase in p.stdout, p.stdout


@pytest.mark.parametrize("option, reason", [
    ("--enabled=no", "disabled"), ("--fabric=none", "disabled"), ("--max-flows=0", "limit-flows"),
    ("--max-memory=0", "limit-memory"), ("--max-memory=100K", "limit-memory")])
def test_settings_that_keep_everything_on_tcp(run, option, reason):
    name, value = option[2:].replace("-", "_").split("=")
    says(run(option, "--check"), reason, "no    upgrades         switched off: %s = %s\n" % (name, value))


@pytest.mark.parametrize("slots, works", [(8, False), (15, False), (16, True), (4096, True), (4097, False)])
def test_every_size_of_a_ring_that_may_be_set_works(run, slots, works):
    p = run("--ring-slots=%d" % slots, "--check")
    assert (p.returncode, "shared memory once they pay" in p.stdout) == ((0, True) if works else (125, False)), p


def low(**limits):
    def apply():
        for name, n in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), n if isinstance(n, tuple) else (n, n))
    return apply


@pytest.mark.parametrize("limits, reason", [({"NOFILE": 100}, "limit-fds"), ({"FSIZE": 1 << 20}, "limit-memory"),
                                            ({"AS": 40 << 20}, "limit-memory")])
def test_limits(run, tmp_path, limits, reason):
    p = subprocess.run([find("xrdma-run", "tools/xrdma-run"), "--check"], text=True, capture_output=True,
                       env={**clean_env(tmp_path), "XRDMA_CONF": str(run.conf)}, preexec_fn=low(**limits),
                       check=False)
    says(p, reason)
    assert "FSIZE" not in limits or "below RLIMIT_FSIZE: File too large" in p.stdout, p.stdout


# The soft limit, and the hard one: numbers between them are xrdma's.
@pytest.mark.parametrize("soft, hard, carrier", [(64, 64, "tcp"), (64, 72, "shm"), (128, 128, "shm")])
def test_descriptors_above_the_soft_limit_count(run, tmp_path, server, soft, hard, carrier):
    """--check says what a program then finds."""
    tool, env = find("xrdma-run", "tools/xrdma-run"), {**clean_env(tmp_path), "XRDMA_CONF": str(run.conf)}
    code = ("import json, os, socket, subprocess; s = socket.create_server(('127.0.0.1', 0))\n"
            "c = socket.create_connection(s.getsockname()); d = s.accept()[0]\n"
            "for i in range(200): c.send(b'x' * 1000), d.recv(1000), d.send(b'x' * 1000), c.recv(1000)\n"
            "p = subprocess.run(['%s', '-anj', '--pid=%%d' %% os.getpid()], stdout=-1)\n"
            "print(*{f['carrier'] for f in json.loads(p.stdout)['flows'] if f['peer_port']})"
            % find("xr-stat", "tools/xr-stat"))
    def go(*args):
        return subprocess.run([tool, *args], text=True, capture_output=True, env=env, check=False,
                              preexec_fn=low(NOFILE=(soft, hard)))
    assert go("/usr/bin/python3", "-c", code).stdout.split() == [carrier]
    p = go("--check")
    if carrier == "tcp":
        says(p, "limit-fds", "%d, 128 are needed, or a hard limit that is higher" % soft)
    else:
        assert p.returncode == 0, p.stdout
    p = run("--check", server(preexec=low(NOFILE=(soft, hard))))
    assert (p.returncode, "keeps to TCP: limit-fds" in p.stdout) == ((1, True) if carrier == "tcp" else (0, False))


@pytest.mark.parametrize("text, access, said", [
    (None, 0, "does not exist"), ("xrdma-key-1 zz\n", 0o600, "is not a key"),
    ("xrdma-key-1 %s\n" % ("5a" * 32), 0o644, "others than its owner and group may use it")])
def test_another_host(run, tmp_path, text, access, said):
    """For the reason that a program there gives, in the order in which it looks; tests/guest/test_far.py has it."""
    key = tmp_path / "key"
    where = "--check=192.0.2.1:80"
    if text:
        key.write_text(text)
        key.chmod(access)
    says(run("--rdma-key=%s" % key, where), "not-local", "no    path             192.0.2.1 is another host: ")
    says(run("--rdma=yes", "--fabric=shm", where), "not-local")
    says(run("--rdma=yes", "--rdma-key=%s" % key, where), "no-key", "no    key              %s: %s" % (key, said))
    p = run("--rdma=yes", "--rdma-trust=fabric", where)
    if os.access("/dev/infiniband/rdma_cm", os.R_OK | os.W_OK):
        assert p.returncode == 0 and "would be tried over RDMA" in p.stdout, p.stdout
    else:
        says(p, "no-verbs")


def test_one_is_not_many(run):
    run.conf.write_text("nonsense\n[rule]\nprogram = a\naction = tcp\n")
    assert "xrdma.conf: 1 rule, 1 warning\n" in run("--check").stdout
    run.conf.write_text("")
    assert "xrdma.conf: 0 rules, 0 warnings\n" in run("--check").stdout


@pytest.mark.parametrize("options, why", [(["--enabled=no"], "disabled"), (["--max-flows=0"], "limit-flows"),
                                          (["--max-memory=0"], "limit-memory")])
def test_a_server_that_keeps_to_tcp(run, server, options, why):
    where = server(options)
    says(run("--check", where), "peer-not-xrdma", "runs under xrdma and keeps to TCP: %s\n" % why)
    # what it publishes need not be there
    where = server([*options, "--stats=no"])
    says(run("--check", where), "peer-not-xrdma", "runs under xrdma and keeps to TCP: %s\n" % why)


def test_a_server_without_descriptors(run, server):
    says(run("--check", server(preexec=low(NOFILE=100))), "peer-not-xrdma", "keeps to TCP: limit-fds\n")


def test_a_server_that_an_operator_holds(run, server, tmp_path):
    where = server()
    env = {**clean_env(tmp_path), "XRDMA_CONF": str(run.conf)}
    assert run("--check", where).returncode == 0
    xr_stat(env, "--retreat", "--pid=%d" % server.pid)
    says(run("--check", where), "peer-not-xrdma", "keeps to TCP: operator\n")
    xr_stat(env, "--return")
    assert run("--check", where).returncode == 0


def test_rules_of_either_end(run, server):
    run.conf.write_text("[rule]\nrole = server\nprogram = python3*\naction = tcp\n")
    where = server()
    says(run("--check", where), "peer-not-xrdma", "no    rule             as its server: the one of line 1 matches: tcp")
    run.conf.write_text("[rule]\nrole = client\nprogram = sh\naction = tcp\n")
    says(run("--check=" + where, "/bin/sh"), "rule", "as its client: the one of line 1 matches: tcp")
    assert run("--check=" + where, "/bin/true").returncode == 0


# both ends in one process, which has left the directory that it was started in
BOTH_ENDS = """import os, socket, sys
os.chdir("/")
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname())
s = l.accept()[0]
print(l.getsockname()[1], flush=True)
for line in sys.stdin:
    for _ in range(50):
        c.send(b"x" * 500), s.recv(500), s.send(b"y" * 500), c.recv(500)
    print(flush=True)
"""


@pytest.fixture
def scripts(tmp_path):
    """A directory, by way of a link to it, with scripts of which each is started in another way."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for name, first in (("plain", "#!/usr/bin/python3"), ("by-env", "#!/usr/bin/env python3"),
                        ("split", "#!/usr/bin/env -S A=1 python3 -u")):
        (tmp_path / "real" / name).write_text(first + "\n" + BOTH_ENDS)
        (tmp_path / "real" / name).chmod(0o755)
    (tmp_path / "real" / "other").symlink_to("plain")
    return tmp_path


@pytest.mark.parametrize("start, rule, holds", [
    ("./plain", "%s/real/plain", True), ("../real/plain", "%s/real/plain", True), ("./plain", "plain", True),
    ("./plain", "%s/real/other", False), ("./other", "%s/real/other", True), ("./plain", "/plain", False),
    ("./plain", "python3*", True), ("./by-env", "by-env", False), ("./by-env", "python3", True),
    ("./split", "%s/real/split", False), ("./split", "/usr/bin/python3", True)])
def test_a_path_in_a_rule_and_a_relative_name(run, scripts, start, rule, holds):
    """Whatever the program was started by, the rule is followed, and --check says beforehand that it will be."""
    rule = rule.replace("%s", str(scripts))
    run.conf.write_text("[rule]\nrole = client\nprogram = %s\naction = tcp\n" % rule)
    env = {**clean_env(scripts), "XRDMA_CONF": str(run.conf), "PATH": "/usr/bin:/bin"}
    p = Proc([start], shim=True, env=env, cwd=scripts / "link")
    try:
        where = "127.0.0.1:" + p.line()

        def settled():
            p.say("\n")
            p.line()
            client = [f for f in flows_of({**os.environ, **env}) if f["role"] == "client"][0]
            return client["reason"] == "rule" if holds else client["carrier"] == "shm"

        until(settled, what="the rule's end")
        got = subprocess.run([find("xrdma-run", "tools/xrdma-run"), "--check=" + where, start], text=True, env=env,
                             cwd=scripts / "link", capture_output=True, timeout=30, check=False)
        assert ("as its client: the one of line 1 matches: tcp" in got.stdout) == holds, got.stdout
    finally:
        p.stop()


def test_a_path_in_a_rule_of_the_server(run, scripts):
    """Its name is read from the process; where that is relative, what it stood for is not known any more."""
    run.conf.write_text("[rule]\nrole = server\nprogram = %s/real/plain\naction = tcp\n" % scripts)
    env = {**clean_env(scripts), "XRDMA_CONF": str(run.conf), "PATH": "/usr/bin:/bin"}
    for start, word in ((str(scripts / "real" / "plain"), "as its server: the one of line 1 matches: tcp"),
                        ("./plain", "by which path it was started cannot be known; the rule of line 1 names one")):
        p = Proc([start], shim=True, env=env, cwd=scripts / "real")
        try:
            assert word in run("--check=127.0.0.1:" + p.line()).stdout
        finally:
            p.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_server_that_cannot_be_looked_at(run, server, tmp_path):
    where = server()
    for d in (tmp_path, *list(tmp_path.parents)[:2]):
        d.chmod(0o755)
    p = subprocess.run([find("xrdma-run", "tools/xrdma-run"), "--check", where], text=True,
                       capture_output=True, user=65534, env={**clean_env(tmp_path), "XRDMA_STATS": "no",
                                                             "XRDMA_CONF": str(run.conf)}, check=False)
    assert "not ours to see" in p.stdout and p.stdout.endswith("if the server runs under xrdma.\n"), p


def test_programs_that_would_not_be_started(run, tmp_path):
    p = run("--check", "nonesuch")
    assert p.returncode == 1
    assert p.stdout.endswith("\n'nonesuch' would not be started: it is not found (exit status 127).\n")
    static = tmp_path / "static"
    built = subprocess.run(["gcc", "-static", "-o", static, "-x", "c", "-"], input=HELLO,
                           capture_output=True, check=False)
    if built.returncode:
        pytest.skip("no static C library")
    refused = [static]
    if os.geteuid() == 0 and not os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        setuid = tmp_path / "setuid"
        shutil.copy("/bin/true", setuid)
        os.chown(setuid, 65534, -1)
        setuid.chmod(0o4755)
        refused.append(setuid)
    for path in refused:
        p = run("--check", path)
        assert p.returncode == 1 and "'%s' would not be started (exit status 126)" % path in p.stdout
        assert run(path).returncode == 126


def test_a_bad_endpoint_is_told_first(run):
    for bad in ("host:0", "127.0.0.1:65536", ":80", "nonesuch.invalid:80"):
        p = run("--check=" + bad)
        assert (p.returncode, p.stdout) == (125, "") and p.stderr.count("\n") == 1, p


def test_an_object_that_cannot_be_named(run, tmp_path):
    blank = tmp_path / "a b.so"
    shutil.copy(find(".libs/libxrdma_preload.so"), blank)
    says(run("--preload=%s" % blank, "--check"), "peer-not-xrdma", "LD_PRELOAD cannot hold")


def test_a_free_port_is_refused(run):
    with socket.create_server(("127.0.0.1", 0)) as s:
        where = "127.0.0.1:%d" % s.getsockname()[1]
    p = run("--check", where)
    assert p.returncode == 1 and p.stdout.endswith("would be refused: nobody listens there.\n")


WIPED = """import ctypes, sys
first, last = [int(n) for n in open("/proc/self/stat").read().rsplit(")", 1)[1].split()[47:49]]
ctypes.memset(first, 0, last - first)
"""


def test_a_server_that_overwrites_its_environment(run, tmp_path):
    """As programs do that set their title: what it was told cannot be known, what it publishes can."""
    for options, why in ([], None), (["--enabled=no"], "disabled"):
        p = Proc(["/usr/bin/python3", "-c", WIPED + SERVER], shim=True, options=options,
                 env={**clean_env(tmp_path), "XRDMA_CONF": str(run.conf)})
        try:
            got = run("--check", "127.0.0.1:%s" % p.line())
        finally:
            p.stop()
        assert "note  listener         its settings cannot be known: " in got.stdout, got.stdout
        if why:
            says(got, "peer-not-xrdma", "keeps to TCP: %s\n" % why)
        else:
            assert got.returncode == 0 and got.stdout.endswith("if the settings of the server allow it.\n"), got.stdout


def test_a_directory_for_other_namespaces(run):
    """tests/e2e/test_netns.py has what becomes of it."""
    with tempfile.TemporaryDirectory(prefix="xrdma-run-") as top:
        look_for_a_directory(run, pathlib.Path(top, "d"))


def look_for_a_directory(run, d):
    where = "--check=192.0.2.1:80"
    stays = "note  run_dir          %s: %%s: connections to other network namespaces stay on TCP\n" % d
    says(run("--run-dir=%s" % d, where), "not-local", stays % "No such file or directory")
    d.mkdir()
    d.chmod(0o777)
    says(run("--run-dir=%s" % d, where), "not-local", stays % "others than root, the user and a group may write there")
    assert stays % "others than root, the user and a group may write there" in run("--run-dir=%s" % d, "--check").stdout
    d.chmod(0o770)
    p = run("--run-dir=%s" % d, where)
    assert p.returncode == 0, p.stdout
    assert "would move to shared memory once they pay, if the other end is on this host and has the directory %s; " \
           "else they would stay on TCP.\n" % d in p.stdout, p.stdout
    says(run("--run-dir=%s" % d, "--fabric=none", where), "disabled")
    assert list(d.iterdir()) == []
