# SPDX-License-Identifier: BSD-2-Clause
"""The verbs fabric: the unit tests that run over any device, on rxe, and the examples between two hosts."""
import os
import random
import subprocess
import time

import pytest

import harness
import hosts

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]

MODULE = os.path.dirname(harness.find(".libs/libxrdma-verbs.so"))


@pytest.mark.parametrize("name", [
    "test_shm_device", "test_shm_errors", "test_shm_cm", "test_shm_sleep", "test_traps", "test_channel",
    "test_channel_write", "test_rendezvous",
    "test_channel_calls", "test_rest", "test_qpcache", "test_verbs", "test_verbs_way", "test_windows", "test_meet",
    "test_meet_ways"])
def test_unit(name):
    """The same programs as on the host, over a device that talks to itself."""
    with hosts.Hosts(1, "rxe") as (a,), a.inside():
        p = subprocess.run([harness.find("tests/unit/" + name)], capture_output=True, text=True, check=False, timeout=140,
                           env=dict(os.environ, XRDMA_TEST_FABRIC="verbs:" + a.address, XRDMA_TEST_LINK=a.link,
                                    XRDMA_MODULE_DIR=MODULE))
    print(p.stdout)
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]


def test_detection():
    """How long a host that is gone stays unnoticed is a setting."""
    with hosts.Hosts(2, "rxe") as (a, b), a.inside():
        p = subprocess.run([harness.find("tests/unit/test_verbs")], capture_output=True, text=True, check=False, timeout=60,
                           env=dict(os.environ, XRDMA_TEST_FABRIC="verbs:" + a.address, XRDMA_TEST_LINK=a.link,
                                    XRDMA_TEST_FAR="/run/netns/" + b.name, XRDMA_TEST_ONLY="detection",
                                    XRDMA_MODULE_DIR=MODULE))
    print(p.stdout)
    assert p.returncode == 0 and "seen after" in p.stdout, p.stdout + p.stderr


def echo(host, *argv):
    with host.inside():
        return subprocess.run([harness.find("examples/echo-client"), *argv], capture_output=True, text=True, timeout=20,
                              check=False, env=dict(os.environ, XRDMA_MODULE_DIR=MODULE))


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_echo(mtu):
    """The examples between two hosts, over IPv4 and IPv6; a server that is gone is told."""
    with hosts.Hosts(2, "rxe", mtu) as (a, b):
        for address in ("%s:7000" % a.address, "[%s]:7000" % a.address6):
            with a.inside():
                server = subprocess.Popen([harness.find("examples/echo-server"), address, "verbs"],
                                          env=dict(os.environ, XRDMA_MODULE_DIR=MODULE))
            try:
                end = time.monotonic() + 10
                while (r := echo(b, address, "hello", "verbs")).stdout != "hello\n":
                    assert server.poll() is None and time.monotonic() < end, r
                    time.sleep(0.05)
                for n in (1, 4096, 4097, 100000):
                    text = "".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=n))
                    r = echo(b, address, text, "verbs")
                    assert (r.returncode, r.stdout) == (0, text + "\n"), r.stderr
            finally:
                server.kill()
                server.wait()
            assert "Connection refused" in echo(b, address, "hello", "verbs").stderr


def start(host, *argv):
    with host.inside():
        return subprocess.Popen([harness.find("examples/" + argv[0]), *argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=dict(os.environ, XRDMA_MODULE_DIR=MODULE))


def test_standby():
    """A log is pulled by READ from another host; its primary is killed, and nothing that was acknowledged is lost."""
    with hosts.Hosts(2, "rxe") as (a, b):
        names = ["%s:7000" % h.address for h in (a, b)]
        primary = start(a, "log-store", names[0], "verbs")
        try:
            end = time.monotonic() + 10
            while True:
                standby = start(b, "log-store", names[1], "verbs", names[0])
                line = standby.stderr.readline()
                if line == b"log-store: standby\n":
                    break
                assert primary.poll() is None and time.monotonic() < end, line
                time.sleep(0.05)
            text = b"".join(b"record %d %s\n" % (i, b"x" * (i % 300)) for i in range(500))
            primary.stdin.write(text)
            primary.stdin.flush()
            said = b"".join(primary.stdout.readline() for _ in range(300))
            primary.kill()
            killed = time.monotonic()
            line = standby.stderr.readline()
            print("taken over after %.0f ms" % (1000 * (time.monotonic() - killed)))
            log = standby.stdout.read(int(line.split()[3]))
            assert text.startswith(log) and log.startswith(said + primary.stdout.read())
        finally:
            for p in (primary, standby):
                p.kill()
                p.communicate()


def test_replicas():
    """Blocks on three replicas of another host, written and read by the device alone."""
    with hosts.Hosts(2, "rxe") as (a, b):
        names = ["%s:%d" % (a.address, 7001 + i) for i in range(3)]
        replicas = [start(a, "block-replica", n, "verbs") for n in names]
        try:
            for size, count in ((4096, 200), (1 << 20, 5)):
                end = time.monotonic() + 10
                while True:
                    out, err = start(b, "block-client", str(size), str(count), "verbs", *names).communicate(timeout=60)
                    # one that does not listen yet: with one less the client goes on, with two it does not
                    if b"refused" not in err:
                        break
                    assert time.monotonic() < end, err
                assert out.splitlines()[-1] == b"%d blocks of %d bytes on 3 replicas" % (count, size), err
        finally:
            for p in replicas:
                p.kill()
                p.communicate()


def test_iwarp_is_refused():
    """iWARP has the ports of TCP: no half support."""
    with hosts.Hosts(2, "siw") as (a, b):
        r = echo(b, "%s:7000" % a.address, "hello", "verbs")
        assert r.returncode == 1 and r.stdout == ""


def test_without_the_module(tmp_path):
    """No module, or one whose libraries are missing: there is no such device, and shm works on."""
    with hosts.Hosts(1, "rxe") as (a,), a.inside():
        for where in (str(tmp_path), MODULE):
            env = dict(os.environ, XRDMA_MODULE_DIR=where)
            if where == str(tmp_path):
                (tmp_path / "libxrdma-verbs.so").write_bytes(b"not an object")
            p = subprocess.run([harness.find("examples/echo-client"), a.address + ":7", "x", "verbs"], env=env, timeout=20,
                               capture_output=True, text=True, check=False)
            assert p.returncode == 1 and ("Connection refused" in p.stderr) == (where == MODULE), p
            p = subprocess.run([harness.find("examples/echo-client"), "nobody", "x"], env=env, timeout=20,
                               capture_output=True, text=True, check=False)
            assert "Connection refused" in p.stderr, p
