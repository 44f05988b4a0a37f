# SPDX-License-Identifier: BSD-2-Clause
"""A static program with the preload object in its environment: nothing of it is there, at either end."""
import os
import subprocess

import pytest

import app
import harness

pytestmark = pytest.mark.timeout(60)

ECHO = r"""
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1])) };
	int l = socket(AF_INET, SOCK_STREAM, 0), s;
	char b[65536];
	ssize_t n;

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(l, (struct sockaddr *)&a, sizeof(a)) || listen(l, 5))
		return 1;
	signal(SIGCHLD, SIG_IGN);
	while ((s = accept(l, 0, 0)) >= 0) {
		if (!fork()) {
			while ((n = read(s, b, sizeof(b))) > 0)
				if (write(s, b, n) != n)
					return 2;
			return 0;
		}
		close(s);
	}
	return 3;
}
"""


@pytest.mark.modes("plain", "client")
def test_static_server(env, tmp_path):
    program = tmp_path / "static"
    built = subprocess.run(["gcc", "-static", "-o", program, "-x", "c", "-"], input=ECHO, text=True, check=False)
    if built.returncode:
        pytest.skip("no static C library")
    preload = harness.find(".libs/libxrdma_preload.so", "libxrdma_preload.so")
    _, port = app.serve(env, lambda port: ["env", "LD_PRELOAD=" + preload, program, port])
    p = env.start("client", [app.PYTHON, os.path.join(app.HERE, "asyncio_echo.py"), "client", port])
    assert p.line(30) == "warm"
    if env.mode == "client":
        flows = [f for f in env.flows() if f["peer_port"] == port]
        assert flows and {f["carrier"] for f in flows} == {"tcp"}
        # also of those that had to wait in a listener's queue: "not-local" would be for good
        assert {f["reason"] for f in flows} <= {"peer-not-xrdma", "young"}
        assert all(f["program"] != "static" for f in env.flows())
    p.say("go\n")
    assert app.finish(p) == b"ok\n" and p.returncode == 0, p.describe()
