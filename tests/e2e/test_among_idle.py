# SPDX-License-Identifier: BSD-2-Clause
"""A channel among a thousand idle ones of its context. Counted by valgrind: what is stepped through instruction by
instruction takes so long that looks at the clock are due each time, and these are of all channels."""
import re
import subprocess

import pytest

import harness

pytestmark = [pytest.mark.timeout(120),
              pytest.mark.skipif(harness.PERTURBED, reason="counts what a perturbed build does besides")]
ROUNDS, WARM = 20000, 20000   # WARM: of xr-cost


def executed(tmp_path, idle):
    (tmp_path / "conf").write_text("")
    p = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=%s" % (tmp_path / "out"),
                        "--toggle-collect=api_turns", harness.find("bench/xr-cost"), "api", str(ROUNDS), str(idle)], capture_output=True, text=True,
                       check=True, timeout=60, env={"XRDMA_CONF": str(tmp_path / "conf"), "XRDMA_STATS_DIR": str(tmp_path),
                                                    "PATH": "/usr/bin:/bin"})
    return int(re.findall(r"Collected : (\d+)", p.stderr)[-1]) / (ROUNDS + WARM)


def test_full_speed(tmp_path):
    """A round trip takes as many instructions as it takes alone, within a fiftieth."""
    alone, among = executed(tmp_path, 0), executed(tmp_path, 1000)
    print("alone %.0f, among 1000 idle ones %.0f instructions per round trip" % (alone, among))
    assert 1000 < alone < 10000
    assert 0 < among < 1.02 * alone, (alone, among)
