# SPDX-License-Identifier: BSD-2-Clause
"""What tracing costs while nobody traces, in instructions, line by line of the source."""
import collections
import os
import re
import subprocess

import pytest

import harness

pytestmark = [pytest.mark.timeout(120),
              pytest.mark.skipif(harness.PERTURBED, reason="counts what a perturbed build does besides")]
ROUNDS = 20000


def executed(what, tmp_path, env):
    """Instructions by (file, function, line), of round trips of 64 bytes."""
    out = tmp_path / "callgrind.out"
    (tmp_path / "conf").write_text("")
    env = {"XRDMA_CONF": str(tmp_path / "conf"), "XRDMA_STATS_DIR": str(tmp_path), **env}
    if what == "tcp":
        env["LD_PRELOAD"] = harness.find(".libs/libxrdma_preload.so")
    # env: valgrind itself is not to run under the object
    subprocess.run(["valgrind", "--tool=callgrind", "--trace-children=yes", "--trace-children-skip=*/env",
                    "--callgrind-out-file=%s" % out, "env"] + ["%s=%s" % v for v in env.items()] +
                   [harness.find("bench/xr-cost"), what, str(ROUNDS)], check=True, capture_output=True, timeout=100)
    names, cost = {}, collections.Counter()
    where, function, line, inclusive = "", "", 0, False

    def name(kind, text):
        number, known = re.fullmatch(r"(\(\d+\))(?: (.*))?", text).groups()
        return names.setdefault((kind, number), known)
    for row in out.read_text().splitlines():
        key, _, value = row.partition("=")
        if key in ("fl", "fi", "fe"):
            where = name("file", value)
        elif key == "fn":
            function = name("function", value)
        elif key in ("cfi", "cfl"):
            name("file", value)
        elif key == "cfn":
            name("function", value)
        elif key == "calls":
            inclusive = True
        elif re.match(r"[-+*\d]", row):
            at, _, n = row.partition(" ")
            line = line if at == "*" else line + int(at) if at[0] in "+-" else int(at)
            # the row after "calls" is what was called
            if not inclusive:
                cost[where, function, line] += int(n)
            inclusive = False
    return cost


def share(cost):
    """Of all instructions those of lines, or functions, that speak of tracing."""
    sources, spent = {}, collections.Counter()
    for (path, function, line), n in cost.items():
        path = os.path.join(harness.build_dir(), path)
        if path not in sources:
            try:
                with open(path, encoding="utf-8") as f:
                    sources[path] = f.read().splitlines()
            except OSError:
                sources[path] = []
        text = sources[path][line - 1] if 0 < line <= len(sources[path]) else ""
        if "trace" in (text + function).lower():
            spent["%s:%d" % (os.path.basename(path), line)] += n
    return sum(spent.values()) / sum(cost.values()), spent


@pytest.mark.parametrize("what,at_least", [("api", "channel_io.c"), ("tcp", "flow_tx.c")])
def test_off(what, at_least, tmp_path):
    """Less than 1%: a look at a flag where a message is sent, received and acknowledged."""
    off, lines = share(executed(what, tmp_path, {}))
    print(what, "%.3f%%" % (100 * off), lines.most_common(12))
    # the looks are among the lines that were found, once for each message
    assert sum(n for line, n in lines.items() if line.startswith(at_least)) >= 2 * ROUNDS, lines
    assert off < .01, (off, lines)
    # and it would be seen
    on, lines = share(executed(what, tmp_path, {"XRDMA_TRACE_SAMPLE": "1"}))
    print(what, "all are traced: %.1f%%" % (100 * on))
    assert on > .05, (on, lines)
