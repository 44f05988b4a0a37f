# SPDX-License-Identifier: BSD-2-Clause
"""xr-stat on processes whose statistics are known, and on files that are no statistics."""
import json
import os
import pty
import re
import shutil
import subprocess
import tempfile
import termios
import time

import pytest

from harness import SOURCE, find, prog, until


class Publisher:
    def __init__(self, base, *args):
        self.p = subprocess.Popen([prog("xr-publish"), str(base), *args], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        assert self.p.stdout.readline() == b"ready\n"
        self.pid = self.p.pid

    def end(self):
        self.p.stdin.close()
        self.p.stdout.close()
        assert self.p.wait(10) == 0


@pytest.fixture
def publish(tmp_path):
    made = []

    def go(*args):
        made.append(Publisher(tmp_path, *args))
        return made[-1]
    yield go
    for m in made:
        if m.p.poll() is None:
            m.end()


@pytest.fixture
def stat(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("XRDMA_")}

    def go(*args, status=0, **kw):
        p = subprocess.run([find("xr-stat", "tools/xr-stat"), *map(str, args)], text=True,
                           capture_output=True, timeout=30, check=False,
                           env={**env, "XRDMA_STATS_DIR": str(tmp_path), "LC_ALL": "C", **kw})
        assert p.returncode == status, p.stderr
        return p
    return go


def own(tmp_path):
    return tmp_path / ("xrdma-%d" % os.geteuid())


def rows(text):
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


HEADER = ["State", "Recv-Q", "Send-Q", "Local:Port", "Peer:Port", "Carrier", "Reason", "Win", "Slots"]


def test_nothing_is_a_header_and_where_it_was_looked_for(stat, tmp_path):
    whose = " of yours" if os.geteuid() else ""
    none = "no program%s under xrdma is called nothing*; looked in %s" % (whose, tmp_path)
    for args in ([], ["-a"], ["-l"]):
        assert rows(stat("-n", *args, "--program=nothing*").stdout) == [HEADER, [none]]
    assert stat("-t", "--program=nothing*").stdout == none + "\n"
    assert "looked in %s\n" % tmp_path in stat().stdout or "without statistics in %s:" % tmp_path in stat().stdout
    assert json.loads(stat("-j").stdout) == {"format": 1, "processes": [], "flows": [], "channel_processes": [],
                                                 "channels": []}
    assert list(tmp_path.iterdir()) == []


def test_programs_without_a_connection_are_counted(stat, tmp_path):
    """Those that have published nothing as well: somebody may be looking in the wrong directory."""
    env = {**os.environ, "XRDMA_STATS_DIR": str(tmp_path)}
    name = "x%d" % os.getpid()
    code = ("import socket, sys; open('/proc/self/comm', 'w').write('%s'); print(flush=True); sys.stdin.readline(); "
            "s = socket.create_server(('127.0.0.1', 0)); print(flush=True); sys.stdin.readline()" % name)
    with subprocess.Popen([find("xrdma-run", "tools/xrdma-run"), "/usr/bin/python3", "-c", code], env=env, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        p.stdout.readline()
        assert stat("--program=" + name).stdout.splitlines()[1].startswith(
            "1 program under xrdma, without statistics in %s: " % tmp_path)
        print(file=p.stdin, flush=True)
        p.stdout.readline()
        for args in ([], ["-a"]):
            assert stat(*args).stdout.splitlines()[1:] == [
                "1 program under xrdma, no connections; looked in %s" % tmp_path]
        assert "looked in" not in stat("-ln").stdout
        p.stdin.close()


def test_the_inner_state_fits_a_terminal(stat, publish, tmp_path):
    publish()
    env = {**os.environ, "XRDMA_STATS_DIR": str(tmp_path)}
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 80))
    try:
        subprocess.run([find("xr-stat", "tools/xr-stat"), "-ni"], stdout=its, env=env, timeout=30, check=True)
        text = os.read(ours, 65536).decode().expandtabs()
    finally:
        os.close(ours)
        os.close(its)
    inner = [line for line in text.splitlines() if line.startswith(" ")]
    assert max(map(len, inner)) <= 80 and len(inner) > 2, text
    assert " ".join(text.split()).endswith("probes:0 1 more on TCP: peer-not-xrdma 1; -a lists them")


def test_the_table(stat, publish):
    p = publish()
    shm = ["ESTAB", "22", "11", "127.0.0.1:40001", "127.0.0.1:80", "shm", "-", "4M", "62/64"]
    tcp = ["ESTAB", "0", "0", "[::1]:443", "[2001:db8::2]:40002", "tcp", "peer-not-xrdma", "-", "-"]
    got = rows(stat("-n").stdout)
    assert got[1:] == [shm, ["1 more on TCP: peer-not-xrdma 1; -a lists them"]]
    assert sorted(rows(stat("-an").stdout)[1:]) == sorted([shm, tcp])
    got = rows(stat("-anp").stdout)
    assert got[0][-1] == "Process" and got[1][-1] == 'pub"lish[%d] fd=7' % p.pid
    assert rows(stat("-a").stdout)[1][4] == "127.0.0.1:http"
    # every column begins, or ends, at one place
    lines = stat("-an").stdout.splitlines()
    assert len({line.index("127.0.0.1:40001") for line in lines if "40001" in line} |
               {lines[0].index("Local")}) == 1
    assert lines[0].index("Recv-Q") + 6 == lines[1].index("22") + 2


def test_the_inner_state(stat, publish):
    publish()
    line = stat("-ni").stdout.splitlines()[2]
    for word in ("ino:4711", "role:client", "peer_pid:4242", "bytes_shm:1000/2000", "msgs:1/1",
                 "slots:64/0", "credits:62/0", "turns:0"):
        assert word in line.split(), line


def test_queue_pairs(stat, publish):
    """A name that another process chose comes fit for a terminal; nothing is said of what never was on RDMA."""
    publish("rdma")
    line = stat("-ni").stdout.splitlines()[2]
    assert line.split()[-3:] == ["qpn:17/4000000000", "gid:fe80::1", "device:?[2Jrxe?0"], line
    once, never = json.loads(stat("-j").stdout)["flows"]
    assert once["rdma"] == {"device": "?[2Jrxe?0", "gid": "fe80::1", "qpn": 17, "peer_qpn": 4000000000}
    assert never["rdma"] is None
    assert "qpn" not in stat("-ani").stdout.split("[::1]:443")[1]


def test_totals_join_open_and_closed_connections(stat, publish):
    p = publish()
    text = stat("-t").stdout
    assert text.startswith('pub"lish[%d]  uid %d' % (p.pid, os.geteuid()))
    assert re.search(r"^  bytes_tx_shm +11000$", text, re.M)
    assert re.search(r"^  bytes_tx_tcp +5$", text, re.M)
    assert re.search(r"^  upgrade_attempts +3$", text, re.M)
    assert re.search(r"^  flows_now_shm +1$", text, re.M)
    assert re.search(r"^  reason peer-not-xrdma +1$", text, re.M)
    assert "retreats" not in text


def test_json(stat, publish):
    p = publish()
    got = json.loads(stat("-j").stdout)
    (proc,) = got["processes"]
    assert (proc["pid"], proc["program"], proc["life"]) == (p.pid, 'pub"lish', "live")
    assert proc["counters"]["bytes_tx_shm"] == 11000 and proc["reasons"] == {"peer-not-xrdma": 1}
    shm, tcp = got["flows"]
    assert (shm["pid"], shm["carrier"], shm["reason"]) == (p.pid, "shm", "none")
    assert (shm["local_address"], shm["local_port"]) == ("127.0.0.1", 40001)
    assert shm["tx"]["bytes"] == {"tcp": 0, "shm": 1000, "rdma": 0}
    assert shm["rx"]["queue"] == 22 and shm["upgraded_ns"] >= shm["opened_ns"] > 0
    assert (tcp["peer_address"], tcp["peer_port"], tcp["role"]) == ("2001:db8::2", 40002, "server")


def test_each_member_of_the_json_is_in_the_page(stat, publish):
    publish()
    got = json.loads(stat("-j").stdout)
    with open(os.path.join(SOURCE, "man", "xr-stat.1"), encoding="utf-8") as f:
        page = f.read().split(".Ss JSON")[1].split(".Sh ENVIRONMENT")[0]
    named = {w for line in page.splitlines() if line.startswith(".Va ") for w in re.findall(r"\w+", line[4:])}
    flow = got["flows"][0]
    assert {*got, *got["processes"][0], *flow, *flow["tx"]} - named == set()


SERVER = """
import socket, sys
a = socket.create_server(("127.0.0.1", 0))
b = socket.create_server(("::1", 0), family=socket.AF_INET6)
print(a.getsockname()[1], b.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_listeners_of_programs_under_xrdma(stat, publish, tmp_path):
    publish()
    env = {**os.environ, "XRDMA_STATS_DIR": str(tmp_path)}
    argv = ["/usr/bin/python3", "-c", SERVER]
    with subprocess.Popen([find("xrdma-run", "tools/xrdma-run"), *argv], stdin=subprocess.PIPE, env=env,
                          stdout=subprocess.PIPE, text=True) as p, \
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as plain:
        v4, v6 = map(int, p.stdout.readline().split())
        others = plain.stdout.readline().split()
        table = rows(stat("-lnp").stdout)
        mine = [r for r in table if r[-1].startswith("python3") and "[%d] " % p.pid in r[-1]]
        assert sorted(r[:7] for r in mine) == [
            ["LISTEN", "0", "0", "127.0.0.1:%d" % v4, "*:*", "tcp", "listener"],
            ["LISTEN", "0", "0", "[::1]:%d" % v6, "*:*", "tcp", "listener"]]
        assert not [r for r in table if r[3].split(":")[-1] in others]
        assert not [r for r in table[1:] if r[0] != "LISTEN"]
        states = [r[0] for r in rows(stat("-aln", "--pid=%d" % p.pid).stdout)[1:]]
        assert states == ["LISTEN", "LISTEN"]
        assert "ESTAB" in stat("-aln").stdout and "LISTEN" not in stat("-an").stdout
        (f,) = [f for f in json.loads(stat("-lj").stdout)["flows"] if f["local_port"] == v4]
        assert (f["pid"], f["state"], f["peer_address"]) == (p.pid, "LISTEN", None)
        assert "LISTEN" not in stat("-ln", "--program=nothing*").stdout
        p.stdin.close()
        plain.stdin.close()


def test_prometheus(stat, publish):
    p = publish()
    text = stat("--prometheus").stdout
    labels = 'pid="%d",program="pub\\"lish"' % p.pid
    assert "xrdma_bytes_tx_shm_total{%s} 11000\n" % labels in text
    assert 'xrdma_flows{%s,carrier="shm"} 1\n' % labels in text
    assert 'xrdma_reason_total{%s,reason="peer-not-xrdma"} 1\n' % labels in text
    assert "# TYPE xrdma_peer_processes gauge\n" in text
    named = set()
    for line in text.splitlines():
        m = re.fullmatch(r"# TYPE (\w+) (?:counter|gauge)|# HELP \w+ \S.*|"
                         r"(\w+)\{\w+=\"(?:[^\"\\]|\\.)*\"(?:,\w+=\"(?:[^\"\\]|\\.)*\")*\} \d+", line)
        assert m, line
        if m[1]:
            assert m[1] not in named
            named.add(m[1])
        elif m[2]:
            assert m[2] in named


def test_filters(stat, publish):
    a, b = publish(), publish()
    assert [p["pid"] for p in json.loads(stat("-j").stdout)["processes"]] == sorted((a.pid, b.pid))
    assert {f["pid"] for f in json.loads(stat("-j", "--pid=%d" % a.pid).stdout)["flows"]} == {a.pid}
    assert len(json.loads(stat("-j", "--program=pub*").stdout)["processes"]) == 2
    assert not json.loads(stat("-j", "--program=other").stdout)["processes"]
    assert "no process 1 under xrdma" in stat("--pid=1", status=1).stderr


def test_a_crash_is_cleaned_up_unless_it_is_asked_for(stat, publish, tmp_path):
    publish("crash").end()
    assert len(list(own(tmp_path).iterdir())) == 1
    got = json.loads(stat("-j", "--dead").stdout)
    assert got["processes"][0]["life"] == "dead" and len(got["flows"]) == 2
    assert "(dead)" in stat("-anp", "--dead").stdout
    assert not json.loads(stat("-j").stdout)["processes"]
    assert not own(tmp_path).exists()


def test_an_orderly_end_leaves_nothing(publish, tmp_path):
    publish().end()
    assert not own(tmp_path).exists()


def test_the_living_are_not_cleaned_up(stat, publish, tmp_path):
    publish()
    for _ in range(3):
        stat("-j")
    assert len(list(own(tmp_path).iterdir())) == 1


def spoiled(publish, tmp_path, at, what):
    p = publish()
    (path,) = own(tmp_path).iterdir()
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(what)
    return p, path


def test_another_version_is_one_line(stat, publish, tmp_path):
    p, path = spoiled(publish, tmp_path, 8, b"\x63")
    good = publish()
    out = stat("-j", status=1)
    assert out.stderr == "xr-stat: %s is of another version of xrdma\n" % path
    assert [x["pid"] for x in json.loads(out.stdout)["processes"]] == [good.pid]
    assert path.exists() and p.p.poll() is None


def test_a_segment_of_somebody_else_is_told(stat, publish, tmp_path):
    p = publish()
    (path,) = own(tmp_path).iterdir()
    os.rename(path, path.with_name("%d.%d" % (p.pid + 1, 5)))
    assert "claims another process" in stat("-j", status=1).stderr


def test_junk_is_told_or_passed_over(stat, tmp_path):
    d = own(tmp_path)
    d.mkdir(mode=0o700)
    (d / "1.1").write_bytes(b"x" * 10000)
    (d / "1.2").write_bytes(b"short")
    (d / "1.3").symlink_to("/etc/passwd")
    os.mkfifo(d / "1.4")
    (d / "notes").write_text("no segment by its name")
    (d / "1.5").write_bytes(b"")
    err = stat("-an", status=1).stderr
    assert sorted(re.sub(r".*/", "", line) for line in err.splitlines()) == [
        "1.1 is no statistics segment", "1.2 is too short",
        "1.3 Too many levels of symbolic links", "1.4 is no statistics segment"]
    assert (d / "1.5").exists()     # may be in the making
    old = time.time() - 3600
    os.utime(d / "1.5", (old, old))
    stat("-an", status=1)
    assert not (d / "1.5").exists()


def test_directories_that_others_may_write_to_are_passed_over(stat, publish, tmp_path):
    publish()
    own(tmp_path).chmod(0o770)
    assert not json.loads(stat("-j").stdout)["processes"]
    own(tmp_path).chmod(0o700)
    (tmp_path / "xrdma-").mkdir()
    (tmp_path / "xrdma-0x").mkdir()
    (tmp_path / "xrdma-1").symlink_to(own(tmp_path))
    assert len(json.loads(stat("-j").stdout)["processes"]) == 1


def test_wrong_options_and_places_are_2(stat, tmp_path):
    for bad in (["-w", "0"], ["-w", "x"], ["--pid=0"], ["--pid=x"], ["--nope"], ["word"]):
        stat(*bad, status=2)
    assert "No such file" in stat("--dir=%s" % (tmp_path / "none"), status=2).stderr


def test_watch_goes_on(publish, tmp_path):
    publish()
    with subprocess.Popen([find("xr-stat", "tools/xr-stat"), "-n", "-w", "0.05", "--dir=%s" % tmp_path],
                          stdout=subprocess.PIPE, text=True) as p:
        heads = 0
        for line in p.stdout:
            heads += line.startswith("State")
            if heads == 5:
                break
        assert p.poll() is None
        p.terminate()


def test_requests_that_make_no_sense_are_refused(stat, publish):
    p = publish()
    for bad, why in ((["-j", "--prometheus"], "--json and --prometheus exclude each other"),
                     (["--retreat", "-j"], "print one line"), (["--wait=1"], "--wait goes with --retreat")):
        assert why in stat(*bad, status=2).stderr, bad
    got = stat("--retreat", "--pid=%d" % p.pid, "--fd=99", status=1)
    assert (got.stdout, got.stderr) == ("", "xr-stat: process %d: no connection with that descriptor\n" % p.pid)


def test_each_field_of_the_inner_state_is_explained(stat, publish):
    publish("rdma")
    with open(os.path.join(SOURCE, "man", "xr-stat.1"), encoding="utf-8") as f:
        page = f.read()
    named = re.findall(r"^\.It Cm (\w+): ", page.split("info-begin")[1].split("info-end")[0], re.M)
    shown = [w.split(":")[0] for w in stat("-ni").stdout.splitlines()[2].split()]
    assert len(shown) > 12 and [n for n in named if n in shown] == shown
    assert set(named) - set(shown) <= {"role", "peer_pid", "upgraded", "last_reason", "again"}


def test_help_texts_are_sentences(stat, publish):
    publish()
    for line in stat("--prometheus").stdout.splitlines():
        assert not line.startswith("# HELP") or re.fullmatch(r"# HELP \w+ [A-Z].*[^.]\.", line), line


def test_what_another_version_left(tmp_path):
    """Of a process that is gone: no mistake, and removed; of one that lives it is one."""
    d = tmp_path / ("xrdma-%d" % os.getuid())
    d.mkdir(mode=0o700, parents=True)
    head = (0x3153414d44525858).to_bytes(8, "little") + (999).to_bytes(4, "little")
    with open("/proc/self/stat", encoding="ascii") as f:
        start = int(f.read().rsplit(")", 1)[1].split()[19])
    for name in ("%d.%d" % (os.getpid(), start + 1), "%d.%d" % (os.getpid(), start)):
        (d / name).write_bytes(head.ljust(65536, b"\0"))
        (d / name).chmod(0o600)
    p = subprocess.run([find("xr-stat", "tools/xr-stat")], text=True, capture_output=True, check=False,
                       env={**os.environ, "XRDMA_STATS_DIR": str(tmp_path)})
    assert p.returncode == 1 and p.stderr.count("of another version") == 1, p.stderr
    assert [x.name for x in d.iterdir()] == ["%d.%d" % (os.getpid(), start)]


@pytest.fixture
def channels(tmp_path):
    """log-stores of the examples that are connected: a primary and its standby."""
    env = {**os.environ, "XRDMA_STATS_DIR": str(tmp_path)}
    name = "xr-stat.%d.%d" % (os.getpid(), time.monotonic_ns())
    running = []

    def start(*argv):
        running.append(subprocess.Popen([find("examples/log-store"), *argv], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env))
        return running[-1]
    primary = start(name)
    end = time.monotonic() + 10
    while (line := (standby := start(name + ".2", "shm", name)).stderr.readline()) != b"log-store: standby\n":
        assert b"refused" in line and time.monotonic() < end, line
        time.sleep(0.05)
    yield name, primary, standby
    for p in running:
        p.kill()
        p.communicate()


def test_channels_of_programs_on_the_public_interface(stat, channels, tmp_path):
    name, primary, standby = channels
    primary.stdin.write(b"record\n" * 500)
    primary.stdin.flush()
    assert len([primary.stdout.readline() for _ in range(500)]) == 500  # acknowledged: they went over the channel

    def mine():
        return {c["role"]: c for c in json.loads(stat("-j").stdout)["channels"] if c["state"] == "OPEN"}
    end = time.monotonic() + 10
    while (got := mine()).keys() != {"client", "server"} or not got["server"]["peer_qpn"]:
        assert time.monotonic() < end, got
        time.sleep(0.02)
    assert (got["server"]["pid"], got["client"]["pid"]) == (primary.pid, standby.pid)
    for c in got.values():
        assert (c["program"], c["name"], c["device"], c["carrier"]) == ("log-store", name, "shm", "shm")
        assert c["counters"]["peer_msgs"] > 0 and c["counters"]["peer_bytes"] > 0, c
    assert got["client"]["qpn"] == got["server"]["peer_qpn"] and got["client"]["peer_qpn"] == got["server"]["qpn"]
    assert got["client"]["counters"]["msgs_sent"] + got["server"]["counters"]["msgs_sent"] > 0, got
    # the table, behind that of connections
    lines = stat("-p").stdout.splitlines()
    assert lines[1] == "" and rows(lines[2])[0] == ["State", "Unread", "Unacked", "Channel", "Device", "QP", "Win",
                                                    "Credits", "RTT", "Process"]
    by_pid = {r[-1]: r for r in rows("\n".join(lines[3:]))}
    r = by_pid["log-store[%d]" % primary.pid]
    assert r[0] == "OPEN" and r[3:6] == [name, "shm", str(got["server"]["qpn"])] and r[6] == "8M" and "/" in r[7], r
    assert len(rows(stat("-p", "--pid=%d" % standby.pid).stdout)) == 4
    assert "log-store" not in stat("--program=nothing", "-p").stdout
    assert "Unacked" not in stat("-l").stdout and "Unacked" in stat("-al").stdout
    # each field of -i, and each member of the JSON, stands in the page
    with open(os.path.join(SOURCE, "man", "xr-stat.1"), encoding="utf-8") as f:
        page = f.read()
    info = [line for line in stat("-i").stdout.splitlines() if line.startswith("\t")]
    assert len(info) == 2
    fields = re.findall(r"(\w+):\S+", info[0])
    assert fields == re.findall(r"^\.It Cm (\w+):", page.split(".Ss Channels")[1].split(".Ss ")[0], re.M)
    whole = json.loads(stat("-j").stdout)
    named = {w for line in page.split(".Ss JSON")[1].split(".Sh ENVIRONMENT")[0].splitlines()
             if line.startswith(".Va ") for w in re.findall(r"\w+", line[4:])}
    process = whole["channel_processes"][0]
    members = {*whole, *process, *process["process"], *whole["channels"][0], *process["counters"]}
    assert members - named == set()
    totals = stat("-t").stdout
    assert "log-store[%d]" % primary.pid in totals and "channels_opened" in totals
    text = stat("--prometheus").stdout
    assert '\nxrdma_api_contexts{pid="%d",program="log-store"} 1\n' % primary.pid in text
    assert '\nxrdma_channels_msgs_sent_total{pid="%d",program="log-store"} ' % primary.pid in text
    # killed: still to be read, until somebody looks for what lives
    primary.kill()
    primary.wait()
    dead = json.loads(stat("-j", "--dead").stdout)
    (p,) = [p for p in dead["channel_processes"] if p["pid"] == primary.pid]
    (c,) = [c for c in dead["channels"] if c["pid"] == primary.pid]
    assert p["life"] == "dead" and p["counters"]["msgs_sent"] >= got["server"]["counters"]["msgs_sent"]
    assert c["qpn"] == got["server"]["qpn"]
    assert "log-store[%d] (dead)" % primary.pid in stat("-p", "--dead").stdout
    assert primary.pid not in [p["pid"] for p in json.loads(stat("-j").stdout)["channel_processes"]]
    assert not list(own(tmp_path).glob("%d.*" % primary.pid))


def test_a_program_on_the_public_interface_without_channels(stat, tmp_path):
    """It listens, and nobody has called: a bare header would leave open whether it was seen."""
    p = subprocess.Popen([find("examples/log-store"), "xr-stat.%d" % os.getpid()], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         env={**os.environ, "XRDMA_STATS_DIR": str(tmp_path)})
    try:
        until(lambda: json.loads(stat("-j").stdout)["channel_processes"], what="its statistics")
        for args in ([], ["-a"], ["--pid=%d" % p.pid]):
            said = "1 program on the public interface, no channels; looked in %s\n" % tmp_path
            assert stat(*args).stdout.endswith("\n" + said), args
        # of listening sockets it has none that is under xrdma; other programs of this host may have
        assert stat("-l").stdout.count("\n") > 1
        totals = stat("-t").stdout
        assert totals.startswith("log-store[%d]" % p.pid) and "no channels" not in totals
    finally:
        p.kill()
        p.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("args", [[], ["--retreat"], ["--return"], ["--set=spin=0"]])
def test_a_process_of_somebody_else(args):
    """It is there, and that it is not found is a matter of rights."""
    with tempfile.TemporaryDirectory() as d, subprocess.Popen(["sleep", "60"]) as who:
        os.chmod(d, 0o755)
        shutil.copy(find("xr-stat", "tools/xr-stat"), d)
        for pid, said in ((who.pid, "process %d is another user's: only that user and root see its connections" % who.pid),
                          (2 ** 22 + 1, "under xrdma in %s" % d)):
            p = subprocess.run([d + "/xr-stat", "--dir=" + d, "--pid=%d" % pid, *args], text=True, capture_output=True,
                               timeout=30, check=False, user=65534, group=65534, extra_groups=[])
            assert p.returncode == 1 and p.stderr.rstrip().endswith(said) and p.stderr.count("\n") == 1, p
        who.kill()


def test_a_file_of_channels_that_makes_no_sense(stat, channels, tmp_path):
    _, primary, _ = channels
    (path,) = own(tmp_path).glob("%d.*.channels" % primary.pid)
    whole = path.read_bytes()
    for what in (whole[:64], b"nonsense" + whole[8:], whole[:8] + b"\xff" + whole[9:]):
        with open(path, "r+b") as f:
            f.write(what[:4096])
        p = stat("-j", status=1 if what != whole[:64] else 0)
        if what != whole[:64]:
            assert path.name in p.stderr
            assert primary.pid not in [c["pid"] for c in json.loads(p.stdout)["channels"]]
        with open(path, "r+b") as f:
            f.write(whole[:4096])
    # that of another process under this name
    other = path.with_name("1.%s" % path.name.split(".", 1)[1])
    other.write_bytes(whole)
    assert "claims another process" in stat("-j", status=1).stderr
