# SPDX-License-Identifier: BSD-2-Clause
"""CPython's own tests of sockets and of what stands on them."""
import os
import xml.etree.ElementTree as ET

import pytest

import suite

pytestmark = pytest.mark.timeout(1200)

# Hangs where a hypervisor's sockets are half there, whatever runs it.
VSOCK = ("-i", "ThreadedVSOCKSocketStreamTest")
# 27 s of waiting for time-outs of its own
SLOW_RPC = ("-i", "MultiPathServerTestCase")


def part(name):
    return ("-m", "test.test_asyncio.%s.*" % name)


# id: (module, options, connections that must have moved; two ends each)
DEFAULT = {
    "socket": ("test_socket", VSOCK, 200),
    "select": ("test_select", (), 0),
    "epoll": ("test_epoll", (), 2),
    "ssl": ("test_ssl", (), 100),
    "socketserver": ("test_socketserver", ("-u", "network"), 2),
    "asyncio-events": ("test_asyncio", part("test_events"), 20),
    "asyncio-streams": ("test_asyncio", part("test_streams"), 4),
    "asyncio-sendfile": ("test_asyncio", part("test_sendfile"), 20),
    "asyncio-sock": ("test_asyncio", part("test_sock_lowlevel"), 4),
    "asyncio-sslproto": ("test_asyncio", part("test_sslproto"), 4),
    "httplib": ("test_httplib", (), 20),
    "httpservers": ("test_httpservers", (), 20),
    "urllib2": ("test_urllib2_localnet", (), 10),
    "ftplib": ("test_ftplib", (), 20),
    "smtplib": ("test_smtplib", (), 4),
    "poplib": ("test_poplib", (), 20),
    "telnetlib": ("test_telnetlib", (), 1),
    "xmlrpc": ("test_xmlrpc", SLOW_RPC, 20),
    "asyncore": ("test_asyncore", (), 20),
    "asynchat": ("test_asynchat", (), 10),
    "fork1": ("test_fork1", (), 0),
}
REST = {
    "selectors": ("test_selectors", (), 0),
    "poll": ("test_poll", (), 0),
    "asyncio": ("test_asyncio", (), 200),
    "imaplib": ("test_imaplib", (), 50),
    "nntplib": ("test_nntplib", (), 1),
    "xmlrpc-whole": ("test_xmlrpc", (), 20),
    "docxmlrpc": ("test_docxmlrpc", (), 4),
    "logging": ("test_logging", (), 4),
    "wsgiref": ("test_wsgiref", (), 1),
    "robotparser": ("test_robotparser", (), 1),
    "subprocess": ("test_subprocess", (), 0),
    "signal": ("test_signal", (), 0),
    "os": ("test_os", (), 2),
    "multiprocessing-fork": ("test_multiprocessing_fork", (), 2),
    "multiprocessing-spawn": ("test_multiprocessing_spawn", (), 2),
}
CASES = {**DEFAULT, **REST} if suite.ALL else DEFAULT


@pytest.fixture(scope="module")
def installed():
    if not os.path.exists("/usr/lib/python3.11/test/test_socket.py"):
        pytest.skip("libpython3.11-testsuite is not installed")


def results(path):
    got = {}
    for t in ET.parse(path).iter("testcase"):
        kind = {e.tag for e in t}
        bad = kind & {"failure", "error"} or t.get("result") not in (None, "completed", "skipped")
        got[t.get("name")] = "fail" if bad else "skip" if "skipped" in kind else "pass"
    return got


def regrtest(tmp, module, options, **kw):
    report = tmp / ("%s.xml" % module)
    if report.exists():
        report.unlink()
    r = suite.run([suite.PYTHON, "-m", "test", "-v", "--junit-xml", report, *options, module], cwd=tmp, timeout=600,
                  env={"TMPDIR": str(tmp)}, **kw)
    r.results = results(report) if report.exists() and report.stat().st_size else {}
    return r


@pytest.mark.parametrize("case", CASES)
def test_regrtest(case, installed, tmp_path):
    module, options, least = CASES[case]

    def again(tests):
        only = [x for t in tests for x in ("-m", t)]
        return regrtest(tmp_path, module, (*options, *only), fabric=False).results
    plain = regrtest(tmp_path, module, options, fabric=False).results if suite.ALL else None
    got = regrtest(tmp_path, module, options)
    suite.judge("python", again, got, least, plain)


@suite.whole
@pytest.mark.parametrize("case", DEFAULT)
def test_moves_while_it_runs(case, installed, tmp_path):
    """Without warm.c: connections move, or not, at whatever moment their first bytes bring about."""
    module, options, _ = CASES[case]

    def again(tests):
        only = [x for t in tests for x in ("-m", t)]
        return regrtest(tmp_path, module, (*options, *only), fabric=False).results
    suite.judge("python", again, regrtest(tmp_path, module, options, warm=False), 0)
