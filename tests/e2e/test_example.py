# SPDX-License-Identifier: BSD-2-Clause
"""The examples, as a user would run them."""
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest

import harness


@pytest.fixture(autouse=True)
def own_statistics(monkeypatch, tmp_path):
    """Programs that are killed leave theirs behind."""
    monkeypatch.setenv("XRDMA_STATS_DIR", str(tmp_path))


def echo(name, text):
    return subprocess.run([harness.find("examples/echo-client"), name, text], capture_output=True, timeout=20)


@pytest.mark.parametrize("name", ["echo-server", "echo-client", "log-store", "block-replica", "block-client"])
def test_without_arguments_it_says_which_it_needs(name):
    p = subprocess.run([harness.find("examples/" + name)], capture_output=True, timeout=20, text=True, check=False)
    assert p.returncode in (1, 2) and p.stdout == "" and "usage: %s " % name in p.stderr, p
    what = p.stderr.split("usage: ")[1].strip().split(" ", 1)[1]
    assert "`%s`" % what in open(harness.SOURCE + "/examples/README.md", encoding="utf-8").read()


def test_echo():
    """The server answers a short text, one that is READ, and several clients, one after the other."""
    name = "example.%d.%d" % (os.getpid(), time.monotonic_ns())
    server = subprocess.Popen([harness.find("examples/echo-server"), name])
    try:
        end = time.monotonic() + 10
        while (r := echo(name, "hello")).stdout != b"hello\n":  # until it listens
            assert server.poll() is None and time.monotonic() < end, r
            time.sleep(0.05)
        for n in (1, 4096, 4097, 100000):
            text = "".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=n))
            r = echo(name, text)
            assert (r.returncode, r.stdout.decode()) == (0, text + "\n")
        used = harness.cpu_s(server.pid)
        time.sleep(0.5)  # the measurement: a server without clients sleeps
        assert harness.cpu_s(server.pid) - used <= 0.05
    finally:
        server.kill()
        server.wait()
    r = echo(name, "hello")
    assert (r.returncode, r.stdout) == (1, b"") and b"echo-client: Connection refused" in r.stderr


def compiled(source, to):
    """A program of a user: the public header and the library, nothing else of ours."""
    build = harness.build_dir()
    lib = os.path.join(build, ".libs" if os.path.exists(os.path.join(build, ".libs", "libxrdma.so")) else "")
    include = to.parent / "include"
    include.mkdir(exist_ok=True)
    shutil.copy(os.path.join(harness.SOURCE, "core", "xrdma.h"), include)
    subprocess.run(["cc", "-Wall", "-Werror", "-o", to, source, "-I", include, "-L", lib, "-lxrdma", "-Wl,-rpath," + lib],
                   check=True, timeout=60)
    return to


needs_cc = pytest.mark.skipif(not shutil.which("cc") or harness.IN_GUEST, reason="no compiler")


@needs_cc
@pytest.mark.skipif(not shutil.which("mandoc"), reason="no mandoc")
def test_the_program_of_the_page_works_as_it_is_printed(tmp_path):
    page = subprocess.run(["mandoc", "-Tascii", os.path.join(harness.SOURCE, "man", "xrdma_context.3")], text=True,
                          capture_output=True, check=True, timeout=20).stdout
    text = re.sub(r".\x08", "", page).split("\nEXAMPLES\n")[1].split("It is built")[0]
    (tmp_path / "hello.c").write_text(text[text.index("#include"):])
    hello = compiled(tmp_path / "hello.c", tmp_path / "hello")
    name = "example.%d.%d" % (os.getpid(), time.monotonic_ns())
    r = subprocess.run([hello, name, "text"], text=True, capture_output=True, timeout=20)
    assert (r.stdout, r.stderr) == ("", "Connection refused\n")
    server = subprocess.Popen([hello, name])
    try:
        end = time.monotonic() + 10
        while (r := subprocess.run([hello, name, "text"], text=True, capture_output=True, timeout=20)).stdout != "text\n":
            assert server.poll() is None and time.monotonic() < end, r
            time.sleep(0.05)
        assert r.returncode == 0
    finally:
        server.kill()
        server.wait()


@needs_cc
@pytest.mark.skipif(not os.path.exists(os.path.join(harness.build_dir(), "Makefile")), reason="no build directory")
def test_they_are_installed(tmp_path):
    subprocess.run(["make", "-s", "-C", harness.build_dir(), "install-exampleDATA", "DESTDIR=%s" % tmp_path,
                    "docdir=/doc"], check=True, timeout=60, stdout=subprocess.DEVNULL)
    got = sorted(os.listdir(tmp_path / "doc" / "examples"))
    assert got == sorted(os.listdir(os.path.join(harness.SOURCE, "examples")))
    compiled(tmp_path / "doc" / "examples" / "echo-server.c", tmp_path / "echo-server")


def test_lines_of_code():
    """Server and client together stay under 50 lines, without comments and blank lines."""
    total = 0
    for name in ("echo-server.c", "echo-client.c"):
        with open(os.path.join(harness.SOURCE, "examples", name)) as f:
            text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
        total += sum(1 for line in text.splitlines() if line.strip())
    assert total < 50, total


def start(*argv, **more):
    return subprocess.Popen([harness.find("examples/" + argv[0]), *argv[1:]], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def feed(program, first, stop):
    """Records, numbered, as fast as they are taken; until the program is gone."""
    def run():
        n = first
        try:
            while not stop.is_set():
                program.stdin.write(b"".join(b"record %d %s\n" % (i, b"x" * (i % 300)) for i in range(n, n + 20)))
                program.stdin.flush()
                n += 20
                time.sleep(0.001)
        except BrokenPipeError:
            pass
    t = threading.Thread(target=run)
    t.start()
    return t


def test_standby():
    """A primary is killed under load, five times: no record that it acknowledged is lost, and its standby takes over."""
    name = "example.%d.%d" % (os.getpid(), time.monotonic_ns())
    primary, took, known, stop = start("log-store", name), [], b"", threading.Event()
    running = [primary]
    try:
        for turn in range(5):
            end = time.monotonic() + 10
            while True:  # until the primary listens
                standby = start("log-store", name, "shm", name)
                running.append(standby)
                line = standby.stderr.readline()
                if line == b"log-store: standby\n":
                    break
                assert b"refused" in line and time.monotonic() < end, line
                time.sleep(0.05)
            feeder = feed(primary, 1000000 * turn, stop)
            said = [primary.stdout.readline() for _ in range(300)]
            os.kill(primary.pid, signal.SIGKILL)
            killed = time.monotonic()
            line = standby.stderr.readline()
            took.append(time.monotonic() - killed)
            assert line.startswith(b"log-store: primary with "), line
            said += primary.stdout.read().splitlines(True)
            if not said[-1].endswith(b"\n"):
                said.pop()
            feeder.join()
            # it begins with what it holds, which is all that was acknowledged, in whole records
            log, known = standby.stdout.read(int(line.split()[3])), known + b"".join(said)
            assert log.startswith(known) and log.endswith(b"\n"), (len(log), len(known))
            primary, known = standby, log
        assert sorted(took)[2] < 0.2, took
    finally:
        stop.set()
        for p in running:
            p.kill()
            p.communicate()


@pytest.mark.parametrize("size,count", [(4096, 4000), (1 << 20, 100)])
def test_replicas(size, count):
    """Blocks on three replicas, each read back from each; one replica that dies in between is left out."""
    names = ["example.%d.%d.%d" % (os.getpid(), time.monotonic_ns(), i) for i in range(3)]
    replicas = [start("block-replica", n) for n in names]
    try:
        # a client that finds two of them does without the third
        end = time.monotonic() + 10
        while True:
            with open("/proc/net/unix", encoding="ascii") as f:
                listen = {line.split()[-1] for line in f}
            if {"@xrdma." + n for n in names} <= listen:
                break
            assert time.monotonic() < end
            time.sleep(0.01)
        for kill in (False, True):
            end = time.monotonic() + 10
            while True:
                client = start("block-client", str(size), str(count), "shm", *names)
                first = client.stdout.readline()
                if first == b"0\n":
                    break
                assert b"refused" in client.communicate()[1] and time.monotonic() < end
                time.sleep(0.05)
            if kill:
                os.kill(replicas[1].pid, signal.SIGKILL)
            out, err = client.communicate(timeout=30)
            assert client.returncode == 0, err
            assert out.splitlines()[-1] == b"%d blocks of %d bytes on %d replicas" % (count, size, 2 if kill else 3)
            assert (b"replica 1 is lost" in err) == kill
        # two that are lost are too many
        os.kill(replicas[2].pid, signal.SIGKILL)
        replicas[2].wait()
        client = start("block-client", str(size), str(count), "shm", *names)
        assert b"too few replicas" in client.communicate(timeout=30)[1] and client.returncode == 1
    finally:
        for p in replicas:
            p.kill()
            p.communicate()
