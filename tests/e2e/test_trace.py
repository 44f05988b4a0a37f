# SPDX-License-Identifier: BSD-2-Clause
"""xr-trace shows where the time of messages between unmodified programs went."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness import EAGER, Proc, build_dir, find, flows_of, until, xr_stat

pytestmark = pytest.mark.timeout(60)

# One answers with as many bytes, the other asks: N times 100 bytes at each word of its input.
SERVER = """
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
c = s.accept()[0]
while (data := c.recv(65536)):
    c.sendall(data)
print("end", flush=True)
input()
"""
CLIENT = """
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for word in sys.stdin:
    for _ in range(int(word)):
        c.sendall(b"x" * 100)
        got = 0
        while got < 100:
            got += len(c.recv(100 - got))
    print("done", flush=True)
"""
STAGES = ["queued", "posted", "sent", "received", "delivered", "acked"]
PARTS = ["wait", "post", "travel", "deliver", "ack", "whole"]


class Pair:
    def __init__(self, folder, **env):
        self.dir = str(folder)
        self.env = {**EAGER, "XRDMA_STATS_DIR": self.dir, "XRDMA_TRACE_SAMPLE": "1", **env}
        self.all = {**os.environ, **self.env}
        self.server = Proc(["/usr/bin/python3", "-c", SERVER], shim=True, env=self.env)
        self.client = Proc(["/usr/bin/python3", "-c", CLIENT, self.server.line()], shim=True, env=self.env)
        until(self.moved, what="both ends on shm")

    def moved(self):
        self.ask(5)
        return [f["carrier"] for f in flows_of(self.all)] == ["shm", "shm"]

    def ask(self, n):
        self.client.say("%d\n" % n)
        assert self.client.line() == "done"

    def trace(self, *args, status=0):
        p = subprocess.run([find("xr-trace", "tools/xr-trace"), *args], env=self.all, text=True,
                           capture_output=True, timeout=20, check=False)
        assert p.returncode == status, p
        return p.stdout

    def messages(self, *args):
        return json.loads(self.trace("-j", *args))["messages"]

    def stop(self):
        self.client.stop()
        self.server.stop()


@pytest.fixture
def pair(tmp_path):
    made = []

    def go(**env):
        made.append(Pair(tmp_path, **env))
        return made[-1]
    yield go
    for p in made:
        p.stop()


def test_all_stages_of_both_directions(pair):
    p = pair()
    p.ask(100)
    whole = [m for m in p.messages() if len(m["stages"]) == 6]
    pids = {m["sender"]["pid"]: m["receiver"]["pid"] for m in whole}
    assert pids == {p.client.pid: p.server.pid, p.server.pid: p.client.pid}
    assert len(whole) >= 190
    assert len({m["span_id"] for m in whole}) == len({m["trace_id"] for m in whole}) == len(whole)
    for m in whole:
        at = m["stages"]
        assert m["bytes"] == 100 and m["carrier"] == "shm"
        assert m["sender"]["local"] == m["receiver"]["peer"] and m["sender"]["peer"] == m["receiver"]["local"]
        assert at["queued"] <= at["posted"] <= at["received"] <= at["delivered"] <= at["acked"]
        assert at["posted"] <= at["sent"]
        # the same kernel: one clock
        assert m["offset_ns"] == 0 and m["offset_error_ns"] == 0
        assert m["parts"]["whole"] == at["delivered"] - at["queued"] and sorted(m["parts"]) == sorted(PARTS)
    # an answer is not sent before the question was read
    whole.sort(key=lambda m: m["stages"]["queued"])
    for a, b in zip(whole, whole[1:]):
        assert a["stages"]["delivered"] <= b["stages"]["queued"]


def test_what_people_see(pair):
    p = pair()
    p.ask(50)
    out = p.trace().splitlines()
    assert [line.split()[0] for line in out[1:7]] == PARTS
    assert all(int(line.split()[1]) > 50 for line in out[1:7])
    assert out[7].endswith(" of 2 processes") or " of 2 processes;" in out[7]
    rows = p.trace("-c").splitlines()[1:-1]
    assert len(rows) == 2 and all("python3" in r and "127.0.0.1:" in r and "?" not in r for r in rows), rows
    picture = p.trace("-W", "-n", "1")
    assert picture.count("|") == 10 and "travel" in picture
    one = p.trace("-m", "-n", "3").splitlines()
    assert len(one) == 6
    trace_id = one[0].split("-")[0]
    assert len(p.messages("--id=" + trace_id[:20])) == 1
    assert p.messages("--pid=1") == [] and p.messages("--program=nobody") == []
    assert len(p.messages("--program=python3*")) == len(p.messages())


def test_nothing_traced_says_how_to_turn_it_on(tmp_path):
    env = {**os.environ, "XRDMA_STATS_DIR": str(tmp_path)}
    for args in ([], ["-c"], ["-m"], ["-W"]):
        p = subprocess.run([find("xr-trace", "tools/xr-trace"), *args], env=env, text=True, capture_output=True,
                           timeout=20, check=True)
        assert "no records in %s: " % tmp_path in p.stdout and '"xr-stat --set=trace_sample=' in p.stdout, p.stdout


def test_nothing_that_was_asked_for_says_so(pair):
    p = pair()
    p.ask(50)
    assert re.match(r"no message that was asked for among the records of \d process", p.trace("-m", "--pid=1"))


def test_messages_under_way_are_not_shown_by_halves(pair):
    """One end's records are read after the other's, and the programs go on meanwhile: the latest messages are whole."""
    # one in 50: 4096 records are those of a good while then, however long the reader is kept from its core
    p = pair(XRDMA_TRACE_SAMPLE="50")
    whole = shown = 0
    for _ in range(10):
        p.client.say("40000\n")
        time.sleep(0.05)
        lines = p.trace("-m", "-n", "10").splitlines()[::2]
        assert p.client.line() == "done"
        shown += len(lines)
        whole += sum("?" not in line for line in lines)
    # the one that is under way at that moment can miss an end
    assert shown >= 80 and whole >= 0.85 * shown, (whole, shown)


def test_a_process_that_is_not_there(tmp_path):
    env = {**os.environ, "XRDMA_STATS_DIR": str(tmp_path)}
    for args in ([], ["-m"], ["-j"]):
        p = subprocess.run([find("xr-trace", "tools/xr-trace"), "--pid=%d" % (2 ** 22 + 1), *args], env=env, text=True,
                           capture_output=True, timeout=20, check=False)
        assert p.returncode == 1 and p.stderr == "xr-trace: no process %d, and no records of it in %s\n" % (
            2 ** 22 + 1, tmp_path), p


def test_spans_for_opentelemetry(pair):
    p = pair()
    p.ask(50)
    got = json.loads(p.trace("--otlp"))["resourceSpans"]
    spans = {}
    for resource in got:
        keys = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
        assert "python3" in keys["service.name"]["stringValue"]
        assert keys["process.pid"]["intValue"] in (str(p.client.pid), str(p.server.pid))
        for scope in resource["scopeSpans"]:
            assert scope["scope"]["name"] == "xrdma"
            for s in scope["spans"]:
                assert len(s["traceId"]) == 32 and len(s["spanId"]) == 16 and int(s["spanId"], 16)
                assert int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"])
                assert s["spanId"] not in spans
                spans[s["spanId"]] = s
    assert len(got) == 2 and len(spans) > 500
    # the receiver's span is the child of the sender's, and parts are children of theirs
    kinds = {1: 0, 4: 0, 5: 0}
    for s in spans.values():
        kinds[s["kind"]] += 1
        if s["parentSpanId"]:
            parent = spans[s["parentSpanId"]]
            assert parent["traceId"] == s["traceId"]
            assert int(parent["startTimeUnixNano"]) <= int(s["startTimeUnixNano"])
    assert min(kinds.values()) > 80


def test_it_is_switched_on_and_off_while_programs_run(pair):
    p = pair(XRDMA_TRACE_SAMPLE="0")
    p.ask(200)
    assert p.messages() == []
    assert not [f for _, _, files in os.walk(p.dir) for f in files if f.endswith(".trace")]
    assert xr_stat(p.all, "--set=trace_sample=4") == "set in 2 processes\n"
    p.ask(400)
    n = len(p.messages())
    # a quarter of 800, at random; a few are not traced, for another one was under way
    assert 120 <= n <= 280, n
    xr_stat(p.all, "--set=trace_sample=0")
    p.ask(20)
    n = len(p.messages())
    p.ask(200)
    assert len(p.messages()) == n


def test_of_one_end_alone(pair):
    """The receiver tells what it heard of the sender's times."""
    p = pair()
    p.ask(50)
    p.client.kill(signal.SIGKILL)
    p.client.wait()
    p.server.line()
    mine = [m for m in p.messages() if m["receiver"]]
    assert {m["sender"] for m in mine} == {None} and len(mine) > 40
    assert all(sorted(m["stages"]) == ["delivered", "posted", "queued", "received"] for m in mine)


def test_after_a_crash(pair):
    p = pair()
    p.ask(50)
    p.client.kill(signal.SIGKILL)
    p.client.wait()
    files = sorted(os.listdir(os.path.join(p.dir, "xrdma-%d" % os.geteuid())))
    (mine,) = [f for f in files if f.startswith("%d." % p.client.pid) and f.endswith(".trace")]
    dead = json.loads(p.trace("-j", "--dead"))
    assert [x["life"] for x in dead["processes"] if x["pid"] == p.client.pid] == ["dead"]
    assert len([m for m in dead["messages"] if len(m["stages"]) == 6]) > 90
    # copied elsewhere it can be read for ever
    kept = shutil.copy(os.path.join(p.dir, "xrdma-%d" % os.geteuid(), mine), os.path.join(p.dir, mine))
    assert len(p.messages("--pid=%d" % p.client.pid)) == 0
    assert not os.path.exists(os.path.join(p.dir, "xrdma-%d" % os.geteuid(), mine))
    assert len(json.loads(p.trace("-j", kept))["messages"]) > 90
    with open(kept, "r+b") as f:
        f.truncate(5000)
    assert "shorter than its header says" in subprocess.run(
        [find("xr-trace", "tools/xr-trace"), kept], env=p.all, text=True, capture_output=True, timeout=20,
        check=False).stderr
    p.trace(kept, status=1)


def test_what_a_crash_left_goes_with_its_statistics(pair):
    p = pair()
    p.client.kill(signal.SIGKILL)
    p.client.wait()

    def left():
        return [f for _, _, files in os.walk(p.dir) for f in files if f.startswith("%d." % p.client.pid)]
    xr_stat(p.all, "--dead")
    assert any(f.endswith(".trace") for f in left())
    xr_stat(p.all)
    assert left() == []


def test_channels_of_the_library(tmp_path):
    env = {"XRDMA_STATS_DIR": str(tmp_path), "XRDMA_TRACE_SAMPLE": "20"}
    trace = [find("xr-trace", "tools/xr-trace")]
    p = Proc([find("bench/xr-cost"), "api", 100000000], env=env)
    try:
        def whole():
            out = subprocess.run(trace + ["-j"], env={**os.environ, **env}, text=True, capture_output=True, timeout=20,
                                 check=True).stdout
            return [m for m in json.loads(out)["messages"] if len(m["stages"]) == 6]
        got = until(lambda: whole() if len(whole()) > 100 else None, what="traced messages")
        for m in got:
            assert m["sender"]["kind"] == m["receiver"]["kind"] == "channel" and m["bytes"] == 64
            assert m["sender"]["pid"] == m["receiver"]["pid"] == p.pid and m["offset_ns"] == 0
            at = [m["stages"][s] for s in ("queued", "posted", "received", "delivered", "acked")]
            assert at == sorted(at)
        # both directions are there
        assert len({m["sender"]["flow"] for m in got}) == 2
        out = subprocess.run(trace + ["-c"], env={**os.environ, **env}, text=True, capture_output=True, timeout=20,
                             check=True).stdout
        assert out.count("channel ") >= 2
    finally:
        p.stop()


def test_nothing_is_left_behind(pair):
    p = pair()
    p.client.p.stdin.close()
    assert p.client.wait() == 0
    assert p.server.line() == "end"
    p.server.say("\n")
    assert p.server.wait() == 0
    assert os.listdir(p.dir) == []


def test_probes_are_where_debuggers_find_them():
    lib = os.path.join(build_dir(), ".libs", "libxrdma_preload.so")
    with open(os.path.join(build_dir(), "autoconf.h"), encoding="ascii") as f:
        if "#define HAVE_SYS_SDT_H 1" not in f.read():
            pytest.skip("built without sys/sdt.h")
    notes = subprocess.run(["readelf", "-n", lib], text=True, capture_output=True, check=True).stdout
    for stage in STAGES:
        assert "Name: %s\n" % stage in notes, stage
    assert notes.count("Provider: xrdma\n") == len(STAGES)


@pytest.mark.parametrize("args,said", [
    (["-m", "-j"], "exclude each other"), (["--id=xyz"], "hexadecimal"), (["-n", "-1"], "is not a number"),
    (["-w", "0"], "seconds"), (["--dir=/nowhere"], "No such file")])
def test_mistakes_have_one_clear_line(args, said):
    p = subprocess.run([find("xr-trace", "tools/xr-trace"), *args], text=True, capture_output=True, timeout=20,
                       check=False)
    assert p.returncode == 2 and said in p.stderr
