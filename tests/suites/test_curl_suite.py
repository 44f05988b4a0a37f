# SPDX-License-Identifier: BSD-2-Clause
"""curl's own tests: the program that is installed, against the servers of the suite (sws, ftpserver.pl, mqttd, ...)."""
import os
import pwd
import re
import shutil

import pytest

import harness
import sources
import suite

pytestmark = pytest.mark.timeout(1500)

# HTTP, FTP, RTSP, IMAP, POP3, SMTP, MQTT: (numbers), connections that must have moved; two ends each.  Most end too soon.
PART = ([*range(1, 41), *range(100, 105), 567, 568, *range(800, 803), *range(850, 853), *range(900, 903), 1190, 1194], 20)


@pytest.fixture
def tree(tmp_path):
    """A copy for each test: servers and logs lie in it."""
    for name in ("curl", "perl"):
        if not harness.have(name):
            pytest.skip("%s is not installed" % name)
    built = sources.curl()
    for name in ("lib", "src", "docs", "include", "scripts"):
        os.symlink(built / name, tmp_path / name)
    shutil.copytree(built / "tests", tmp_path / "tests", symlinks=True,
                    ignore=shutil.ignore_patterns("log", "*.o", "*.c", "libtest", "unit"))
    return tmp_path / "tests"


def with_curl_alone(tree):
    """The numbers of those that run the program; others run one of their own on the library, which is not built."""
    got = []
    for path in (tree / "data").glob("test*"):
        if path.name[4:].isdigit() and b"<tool>" not in path.read_bytes() and b"unittest" not in path.read_bytes():
            got.append(int(path.name[4:]))
    return sorted(got)


def results(tree, tests, **kw):
    r = suite.run(["perl", "-I.", "runtests.pl", "-a", "-n", "-am", "-c", shutil.which("curl"), *tests], cwd=tree,
                  env={"srcdir": ".", "USER": pwd.getpwuid(os.geteuid()).pw_name}, warm=False, timeout=1200, **kw)
    r.results = {n: word.lower() for word, n in re.findall(r"^(PASS|FAIL): (\d+)", r.out, re.M)}
    return r


def again(tree):
    return lambda some: results(tree, some, fabric=False).results


def test_a_part(tree):
    tests, least = PART
    plain = results(tree, tests, fabric=False).results if suite.ALL else None
    got = results(tree, tests)
    assert len(got.results) > len(tests) - 5, got.out[-3000:]
    suite.judge("curl", again(tree), got, least, plain)


@suite.whole
@pytest.mark.parametrize("part", range(4))
def test_whole(part, tree):
    """All that need the program alone, every fourth at a time."""
    tests = with_curl_alone(tree)[part::4]
    plain = results(tree, tests, fabric=False).results
    got = results(tree, tests)
    assert len(got.results) > 150, got.out[-3000:]
    suite.judge("curl", again(tree), got, 40, plain)
