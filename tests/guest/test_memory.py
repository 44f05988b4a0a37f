# SPDX-License-Identifier: BSD-2-Clause
"""
Memory, as valgrind sees it, while both ends of channels are on RDMA: nothing is read or written that is not the program's,
nothing is lost.
"""
import os
import re
import subprocess

import pytest

import harness
import hosts

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]
FAILED = 99
MODULE = os.path.dirname(harness.find(".libs/libxrdma-verbs.so"))


def valgrind(log):
    # the programs are started by others, which exec them; the log of each says what is wrong and nothing else
    return ["valgrind", "-q", "--trace-children=yes", "--error-exitcode=%d" % FAILED, "--leak-check=full",
            "--errors-for-leak-kinds=definite", "--show-leak-kinds=definite", "--log-file=%s" % log]


def clean(folder):
    """How many processes there were; none of them had anything to report."""
    logs = sorted(folder.glob("valgrind.*"))
    # "--PID--" is what valgrind says of itself: that a call of the kernel is not known to it. It also takes files that are
    # mapped for programs, and wants to read their symbols.
    said = "".join(line for f in logs for line in f.read_text().splitlines(True)
                   if line.startswith("==") and not re.search("connection to image|no symbols or debug info", line))
    assert said == "", said[:6000]
    return len(logs)


@pytest.mark.parametrize("name", ["test_meet", "test_channel"])
def test_fabric(tmp_path, name):
    with hosts.Hosts(1, "rxe") as (a,), a.inside():
        p = subprocess.run(valgrind(tmp_path / "valgrind.%p") + [harness.find("tests/unit/" + name)], capture_output=True,
                           text=True, check=False, timeout=140,
                           env=dict(os.environ, XRDMA_TEST_FABRIC="verbs:" + a.address, XRDMA_TEST_LINK=a.link,
                                    XRDMA_MODULE_DIR=MODULE))
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    assert clean(tmp_path) >= 1
