# SPDX-License-Identifier: BSD-2-Clause
"""libuv's own tests, each with the servers that it wants."""
import re
import shutil

import pytest

import sources
import suite

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The program and the files that its tests read, where nobody may write: it refuses to be root."""
    built = sources.libuv()
    work = tmp_path_factory.mktemp("libuv")
    shutil.copytree(built / "test", work / "test")
    shutil.copy(built / "uv_run_tests", work)
    for p in (work, *work.rglob("*")):
        p.chmod(0o777 if p.is_dir() or p.name == "uv_run_tests" else 0o666)
    for p in (work.parent, work.parent.parent):
        p.chmod(p.stat().st_mode | 0o111)
    return work


# What has to do with streams, in groups of about the same length.
GROUPS = {
    "tcp-a": r"tcp_[a-n]",
    "tcp-o": r"tcp_[o-z]",
    "stream": r"callback_stack|connect|delayed_accept|multiple_listen|ping_pong|pipe_ping|shutdown|watcher_cross|"
              r"getsockname_tcp|socket_buffer|emfile|not_(read|writ)able|eof|closed_fd|async",
    "ipc": r"ipc_|fork_(signal|socketpair|tcp|threadpool)|spawn_(std|detached|preserve|inherit)",
    "poll": r"poll_|loop_(handles|configure|stop)|read_",
}


def results(tree, tests, **kw):
    """Each by itself: the program runs one, or all."""
    loop = 'for t; do ./uv_run_tests $t $t >out.$$ 2>&1; printf "\n== %s %s\n" $t $?; cat out.$$; done; rm -f out.$$'
    r = suite.run(["sh", "-c", loop, "sh", *tests], cwd=tree, nobody=True, timeout=600,
                  env={"HOME": "/tmp", "UV_TEST_TIMEOUT_MULTIPLIER": "4"}, **kw)
    word = {"0": "pass", "7": "skip"}
    r.results = {t: word.get(rc, "fail") for t, rc in re.findall(r"^== (\S+) (\d+)$", r.out, re.M)}
    return r


def listed(tree):
    text = (tree / "test/test-list.h").read_text()
    return re.findall(r"^  TEST_ENTRY(?:_CUSTOM)? *\((\w+)", text, re.M)


@pytest.mark.parametrize("group", [*GROUPS, *(["rest"] if suite.ALL else [])])
def test_libuv(group, tree):
    names = listed(tree)
    rest = [n for n in names if not any(re.match(p, n) for p in GROUPS.values())]
    tests = rest if group == "rest" else [n for n in names if re.match(GROUPS[group], n)]
    plain = results(tree, tests, fabric=False).results if suite.ALL else None
    got = results(tree, tests)
    assert set(got.results) == set(tests)
    suite.judge("libuv", lambda some: results(tree, some, fabric=False).results, got, 0 if group in ("rest", "ipc") else 1, plain)
