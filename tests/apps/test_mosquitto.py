# SPDX-License-Identifier: BSD-2-Clause
"""An MQTT broker with many clients: who has subscribed gets every message, in order."""
import pytest

import app
import harness

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("qos", [0, 1])
def test_mosquitto(env, tmp_path, qos):
    broker, sub, pub = (app.need(x) for x in ("mosquitto", "mosquitto_sub", "mosquitto_pub"))
    n, clients = 300, 12

    def make(port):
        (tmp_path / "conf").write_text("listener %d %s\nallow_anonymous true\nuser root\nmax_queued_messages 0\n"
                                       "log_dest stderr\nlog_type all\n" % (port, env.address))
        return [broker, "-c", tmp_path / "conf"]
    p, port = app.serve(env, make)
    at = ["-h", env.address, "-p", port, "-t", "a/topic", "-q", qos]
    subs = [env.start("client", [sub, *at, "-C", n]) for _ in range(clients)]
    harness.until(lambda: p.stderr().count("Sending SUBACK") >= clients, 20, "all have subscribed")
    lines = b"".join(b"%d %s\n" % (i, app.sha(b"%d" % i).encode() * (1 + i % 40)) for i in range(n))
    app.run(env, [pub, *at, "-l"], stdin=lines)
    for s in subs:
        assert app.sha(app.finish(s)) == app.sha(lines)
        assert s.returncode == 0, s.describe()
    # between hosts it takes some time until they have met, which few messages do not last for
    if env.fabric == "shm" and env.lifts:
        assert env.counters(p.pid)[0]["flows_upgraded"] >= clients
