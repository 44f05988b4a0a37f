# SPDX-License-Identifier: BSD-2-Clause
"""The Erlang machine's own sockets: one-shot events, re-armed by other threads than those that wait."""
import os

import pytest

import app

pytestmark = pytest.mark.timeout(90)


def test_erlang(env):
    escript = app.need("escript")
    source = os.path.join(app.HERE, "echo.erl")
    s = env.start("server", [escript, source, "server"])
    port = int(s.line(30))
    p = env.start("client", [escript, source, "client", port])
    assert p.line(30) == "warm", p.describe()
    # Active sockets are in a second epoll set besides.
    app.check_live(env, port, share=0.9)
    p.say("go\n")
    assert app.finish(p) == b"ok\n" and p.returncode == 0, p.describe()
