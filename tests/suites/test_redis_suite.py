# SPDX-License-Identifier: BSD-2-Clause
"""Redis' own tests in Tcl; the programs are those that are installed."""
import re
import shutil

import pytest

import deviations
import harness
import sources
import suite

pytestmark = pytest.mark.timeout(1500)

# id: units, connections that must have moved
DEFAULT = {
    "client": (["unit/protocol", "unit/auth", "unit/quit", "unit/networking", "unit/querybuf", "unit/pubsub",
                "integration/redis-benchmark"], 20),
    "state": (["unit/multi", "unit/tracking", "unit/limits", "unit/replybufsize", "unit/pendingquerybuf"], 10),
    "replication": (["integration/block-repl", "integration/replication-2", "integration/failover",
                     "unit/wait"], 10),
}
REST = ("unit/other unit/introspection unit/introspection-2 unit/obuf-limits unit/pause unit/scan unit/pubsubshard "
        "unit/type/list unit/type/string unit/type/stream unit/info unit/client-eviction unit/shutdown unit/maxmemory "
        "unit/cluster/misc unit/cluster/links integration/replication integration/replication-3 "
        "integration/replication-4 integration/replication-psync integration/replication-buffer "
        "integration/shutdown integration/redis-cli integration/psync2 integration/psync2-reg "
        "integration/psync2-pingoff integration/psync2-master-restart integration/aof integration/logging "
        "integration/dismiss-mem").split()


@pytest.fixture
def tree(tmp_path):
    """A copy for each test: its servers write where it lies."""
    for name in ("redis-server", "redis-benchmark", "tclsh"):
        if not harness.have(name):
            pytest.skip("%s is not installed" % name)
    built = sources.redis()
    work = tmp_path / "redis"
    work.mkdir()
    for name in ("src", "tests", "utils"):
        shutil.copytree(built / name, work / name, symlinks=True,
                        ignore=shutil.ignore_patterns("*.c", "*.h", "tmp") if name == "src" else None)
    for name in ("redis.conf", "sentinel.conf"):
        shutil.copy(built / name, work)
    (work / "tests/tmp").mkdir(exist_ok=True)
    return work


def results(tree, units, **kw):
    argv = ["tclsh", "tests/test_helper.tcl", "--durable", "--no-latency", "--clients", "2"]
    for u in units:
        argv += ["--single", u]
    for test in deviations.left_out("redis"):
        argv += ["--skiptest", test]
    r = suite.run(argv, cwd=tree, timeout=1200, **kw)
    text = re.sub(r"\x1b\[[0-9;]*m", "", r.out)
    r.results = {}
    for word, name in re.findall(r"^\[(ok|err|exception|skip|timeout|ignore)\]: (.*?)(?: \(\d+ ms\))?$", text, re.M):
        name = re.sub(r" in tests/\S+\.tcl$", "", name)
        # figures of this very run; psync2 draws its layouts by lot, in as many turns as there is time for
        name = re.sub(r"\d{4,}|(?<=#)\d+|(?<=CYCLE )\d+", "N", name)
        got = "pass" if word == "ok" else "skip" if word in ("skip", "ignore") else "fail"
        r.results[name] = "fail" if r.results.get(name) == "fail" else got
    r.whole = "All tests passed" in text or "tests failed" in text or "The End" in text
    return r


def compare(tree, units, least, **kw):
    plain = results(tree, units, fabric=False).results if suite.ALL else None
    got = results(tree, units, **kw)
    assert got.whole, got.out[-3000:]
    suite.judge("redis", lambda _: results(tree, units, fabric=False).results, got, least, plain)


@pytest.mark.parametrize("group", DEFAULT)
def test_redis(group, tree):
    units, least = DEFAULT[group]
    compare(tree, units, least)


@pytest.mark.parametrize("end", suite.ENDS)
def test_one_end(end, tree):
    """The servers alone are under xrdma, or all but them."""
    units, seen = ["unit/protocol", "unit/auth", "unit/querybuf", "unit/pubsub"], 20
    suite.one_end(end, "redis-server", tree / "src/redis-server")
    got = results(tree, units, fabric=end == "client")
    assert got.whole, got.out[-3000:]
    suite.judge_one_end("redis", lambda _: results(tree, units, fabric=False).results, got, seen)


@suite.whole
@pytest.mark.parametrize("unit", REST)
def test_unit(unit, tree):
    compare(tree, [unit], 2)
