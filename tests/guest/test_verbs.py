# SPDX-License-Identifier: BSD-2-Clause
"""The guest itself: libibverbs and librdmacm between hosts, over the kernel's own soft devices.

Everything else that is tested on RDMA stands on this.
"""
import os
import re
import subprocess
import sys
import time

import pytest

import hosts

pytestmark = [pytest.mark.timeout(60),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]


def there():
    """The hosts and devices that there are."""
    return set(os.listdir("/run/netns")) | set(os.listdir("/sys/class/infiniband"))


def start(host, *argv):
    with host.inside():
        return subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)


def exchange(server, client, timeout=20):
    """Both end by themselves, and well; what the client said."""
    said, late = [], []
    for p in (client, server):
        try:
            said.append(p.communicate(timeout=timeout)[0])
        except subprocess.TimeoutExpired:
            late.append(p.args)
            p.kill()
            said.append(p.communicate()[0])
            timeout = 1
    assert not late and (client.returncode, server.returncode) == (0, 0), (late, said)
    return said[0]


def listening(host, server):
    """Until an RDMA CM identifier of this program listens."""
    end = time.monotonic() + 20
    while not re.search(r"state LISTEN .*pid %d " % server.pid, host.run("rdma", "res", "show", "cm_id")):
        assert time.monotonic() < end, host.run("rdma", "res", "show")
        time.sleep(0.01)


def rping(a, b, address):
    """Messages with sequence numbers, by SEND, READ and WRITE, compared byte by byte (-V)."""
    server = start(a, "rping", "-s", "-a", address, "-V", "-C", 20, "-S", 1000)
    listening(a, server)
    text = exchange(server, start(b, "rping", "-c", "-a", address, "-V", "-v", "-C", 20, "-S", 1000))
    assert text.count("ping data: rdma-ping-") == 20, text


@pytest.mark.parametrize("device", ["rxe", "siw"])
def test_rping(device):
    """rdma_cm and all three kinds of transfer, IPv4 and IPv6; the devices are gone afterwards."""
    with hosts.Hosts(2, device) as (a, b):
        began = time.monotonic()
        rping(a, b, a.address)
        rping(a, b, a.address6)
        rping(b, a, b.address)
        # A first connection that has to look for its neighbour waits 2 s for nothing.
        assert time.monotonic() - began < 8
        names = {a.name, b.name, a.device, b.device}
        assert names <= there()
    assert not names & there()


def test_three_hosts():
    """Joined by a bridge, each reaches each."""
    with hosts.Hosts(3, "rxe") as group:
        for a, b in ((0, 1), (1, 2), (2, 0)):
            rping(group[a], group[b], group[a].address)


@pytest.mark.parametrize("mtu,path", [(1500, 1024), (9000, 4096)])
def test_perftest(mtu, path):
    """ib_send_lat over rdma_cm: every size arrives, with the path MTU that the link allows."""
    with hosts.Hosts(2, "rxe", mtu) as (a, b):
        args = ["ib_send_lat", "-R", "-n", 200, "-s", 8192, "-p", 18515, "-F"]
        server = start(a, *args)
        listening(a, server)
        text = exchange(server, start(b, *args, a.address))
        # The times are "inf" where the machine is too busy for perftest to find its clock.
        assert re.search(r"^ *8192 +200 +([0-9.]+|inf) ", text, re.M), text
        info = b.run("ibv_devinfo", "-d", b.device)
        assert re.search(r"active_mtu:\s+%d " % path, info), info


def test_gids_and_deletion():
    """GIDs are ready under both addresses; a device that is deleted under load ends it, and comes back."""
    with hosts.Hosts(2, "rxe") as (a, b):
        assert len(a.gids()) >= 3    # link-local, IPv4, IPv6
        server = start(a, "rping", "-s", "-a", a.address)
        listening(a, server)
        client = start(b, "rping", "-c", "-a", a.address)
        time.sleep(0.3)
        assert client.poll() is None
        b.delete_device()
        client.communicate(timeout=20)
        assert client.returncode != 0
        server.kill()
        server.communicate()
        b.add_device()
        rping(a, b, a.address)


def test_command():
    """The command line of hosts tells its command where they are, passes on its status, and takes them down."""
    tool = os.path.join(os.path.dirname(os.path.realpath(__file__)), "hosts")
    script = "rdma link show $HOST2_DEVICE/1; echo $HOST1 $HOST1_DEVICE; echo $HOST1_ADDRESS $HOST2_ADDRESS6; ip -n $HOST1 -o link; exit 7"
    p = subprocess.run([sys.executable, tool, "-d", "siw", "-m", "1500", "sh", "-c", script], capture_output=True,
                       text=True, timeout=30, check=False)
    assert p.returncode == 7, p
    assert re.search(r"link siw\d+_2/1 state ACTIVE", p.stdout) and "mtu 1500" in p.stdout, p
    assert re.search(r"^10\.77\.\d+\.1 fd77:\d+::2$", p.stdout, re.M), p
    names = set(re.search(r"^(host\d+-1) (siw\d+_1)$", p.stdout, re.M).groups())
    assert not names & there()
