# SPDX-License-Identifier: BSD-2-Clause
"""Several hosts in one: network namespaces that are joined by Ethernet, with an RDMA device each.

    with hosts.Hosts(2, "rxe") as (a, b):
        with a.inside():
            server = subprocess.Popen(["rping", "-s", "-a", a.address])
        b.run("rping", "-c", "-a", a.address, "-C", "10")

"rxe" and "siw" devices need the guest's kernel; with "none" root is enough. See README.md.
"""
import contextlib
import ctypes
import os
import subprocess
import time

DEVICES = ("rxe", "siw", "none")
_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


class Failed(Exception):
    pass


def call(*argv, text=None, timeout=30):
    """Run a tool to its end; what it printed."""
    p = subprocess.run([str(a) for a in argv], input=text, text=True, capture_output=True, timeout=timeout, check=False)
    if p.returncode:
        raise Failed("%s: %d\n%s%s%s" % (" ".join(map(str, argv)), p.returncode, text or "", p.stdout, p.stderr))
    return p.stdout


def batch(lines, netns=None):
    """Many lines for ip in one process: starting one is dear in the guest."""
    call("ip", *(["-n", netns] if netns else []), "-batch", "-", text="\n".join(lines) + "\n")


class Host:
    """One of them. Everything that it is, is the name of its namespace and numbers."""

    def __init__(self, group, number, device, cpus):
        self.name = "host%d-%d" % (group, number)
        self.number = number
        self.link = "eth0"
        self.device = None if device == "none" else "%s%d_%d" % (device, group, number)
        self.mac = "02:00:00:00:%02x:%02x" % (group, number)
        self.address = "10.77.%d.%d" % (group, number)
        self.address6 = "fd77:%x::%x" % (group, number)
        self.cpus = cpus
        self.known = []    # lines for ip: what it knows of the others, and loses with its link

    @contextlib.contextmanager
    def inside(self):
        """For the calling thread, and what it starts: this host's network and, when it has its own, its
        processors. Sockets belong to the host in which they were made."""
        cpus = os.sched_getaffinity(0)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = os.open("/run/netns/" + self.name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._enter(there)
            finally:
                os.close(there)
            try:
                if self.cpus:
                    os.sched_setaffinity(0, self.cpus)
                yield self
            finally:
                self._enter(home)
                os.sched_setaffinity(0, cpus)
        finally:
            os.close(home)

    def _enter(self, fd):
        if _libc.setns(fd, _CLONE_NEWNET):
            e = ctypes.get_errno()
            raise OSError(e, "%s: setns: %s" % (self.name, os.strerror(e)))

    def run(self, *argv, text=None, timeout=30):
        with self.inside():
            return call(*argv, text=text, timeout=timeout)

    def sysctl(self, name, value):
        """net.* of this host: what it was"""
        with self.inside(), open("/proc/sys/net/" + name, "r+") as f:
            was = f.read().strip()
            f.seek(0)
            f.write(str(value))
        return was

    def gids(self):
        """The device's GID table: {index: GID as IPv6 text without zeros at the end}, empty entries left out."""
        got = {}
        folder = "/sys/class/infiniband/%s/ports/1/gids/" % self.device
        for name in os.listdir(folder):
            with contextlib.suppress(OSError), open(folder + name) as f:
                text = f.read().strip()
                if text.strip("0:"):
                    got[int(name)] = text
        return got

    def add_device(self):
        """Make the RDMA device, and wait until it can be used under the host's addresses."""
        kind = self.device.rstrip("0123456789_")
        self.run("rdma", "link", "add", self.device, "type", kind, "netdev", self.link)
        self.wait_device()

    def wait_device(self, timeout=10.0):
        import ipaddress
        want = {ipaddress.IPv6Address("::ffff:" + self.address), ipaddress.IPv6Address(self.address6)}
        end = time.monotonic() + timeout
        while True:
            with open("/sys/class/infiniband/%s/ports/1/state" % self.device) as f:
                state = f.read().strip()
            gids = self.gids()
            # The one GID of iWARP is made of the hardware address.
            if state.endswith("ACTIVE") and (self.device.startswith("siw") and gids or want <= {
                    ipaddress.IPv6Address(g) for g in gids.values()}):
                return
            if time.monotonic() > end:
                raise Failed("%s is not ready: %s, %r" % (self.device, state, gids))
            time.sleep(0.01)

    def take_link(self):
        batch(["link set %s down" % self.link], self.name)

    def give_link(self):
        batch(["link set %s up" % self.link] + self.known, self.name)

    def take_address(self):
        batch(["addr del %s/24 dev %s" % (self.address, self.link)], self.name)

    def give_address(self):
        batch(["addr add %s/24 dev %s" % (self.address, self.link)] + self.known, self.name)

    def impair(self, *what):
        """What netem does to all that the host sends: "loss", "5%". Always with some delay: without any, what is sent is the
        sender's until the peer has worked on it, and a deleted rxe device waits for its packets, for a minute at a time."""
        self.run("tc", "qdisc", "replace", "dev", self.link, "root", "netem", "limit", "100000", "delay", "1us", *what)

    def delete_device(self):
        # rxe waits for what is on its way, at times for 50 s
        self.run("rdma", "link", "del", self.device, timeout=120)


class Hosts:
    """n hosts in one Ethernet. Two are joined by a cable, more by a bridge."""

    def __init__(self, n=2, device="rxe", mtu=9000, pin=True):
        if device not in DEVICES:
            raise ValueError("device %r is none of %s" % (device, ", ".join(DEVICES)))
        self.n, self.kind, self.mtu, self.pin = n, device, mtu, pin
        self.all, self.bridge = [], None

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        return iter(self.all)

    def __getitem__(self, i):
        return self.all[i]

    def __len__(self):
        return len(self.all)

    def _make(self):
        cpus = sorted(os.sched_getaffinity(0))
        group = self._take_number()
        for i in range(1, self.n + 1):
            own = {cpus[(i - 1) % len(cpus)]} if self.pin and len(cpus) > 1 else None
            self.all.append(Host(group, i, self.kind, own))
        batch("netns add " + h.name for h in self.all[1:])
        for h in self.all:
            # Addresses are good at once. The guest's own checks for duplicates take a second.
            h.sysctl("ipv6/conf/default/accept_dad", 0)
            h.sysctl("ipv6/conf/default/dad_transmits", 0)
        self._cable(group)
        for h in self.all:
            lines = ["link set lo up", "link set %s address %s mtu %d up" % (h.link, h.mac, self.mtu),
                     "addr add %s/24 dev %s" % (h.address, h.link),
                     "addr add %s/64 dev %s nodad" % (h.address6, h.link)]
            # The first connection of rdma_cm waits 2 s when the neighbour is not known yet: over veth, the
            # answer is there before the asker sleeps.
            h.known = ["addr replace %s/64 dev %s nodad" % (h.address6, h.link)]
            h.known += ["neigh replace %s lladdr %s dev %s nud permanent" % (a, o.mac, h.link)
                        for o in self.all if o is not h for a in (o.address, o.address6)]
            batch(lines + h.known, h.name)
        for h in self.all:
            self._wait_carrier(h)
            if h.device:
                h.add_device()

    def _take_number(self):
        """A number for this group of hosts: that of the first namespace whose name is free."""
        for group in range(1, 250):
            h = Host(group, 1, self.kind, None)
            if not os.path.exists("/run/netns/" + h.name):
                try:
                    call("ip", "netns", "add", h.name)
                    return group
                except Failed as e:
                    if "File exists" not in str(e):
                        raise
        raise Failed("no number is free")

    def _cable(self, group):
        if self.n == 2:
            batch(["link add %s type veth peer name %s netns %s" % (
                self.all[0].link, self.all[1].link, self.all[1].name)], self.all[0].name)
        elif self.n > 2:
            self.bridge = "host%d-bridge" % group
            batch(["netns add " + self.bridge])
            batch(["link add br0 type bridge", "link set br0 mtu %d up" % self.mtu] + [
                line for h in self.all for line in (
                    "link add port%d type veth peer name %s netns %s" % (h.number, h.link, h.name),
                    "link set port%d mtu %d master br0 up" % (h.number, self.mtu))], self.bridge)
        else:
            batch(["link add %s type dummy" % self.all[0].link], self.all[0].name)

    def _wait_carrier(self, h):
        end = time.monotonic() + 10
        while '"LOWER_UP"' not in call("ip", "-n", h.name, "-j", "link", "show", h.link):
            if time.monotonic() > end:
                raise Failed("%s: no carrier" % h.name)
            time.sleep(0.01)

    def close(self):
        """Take them down. Programs that still run there keep running, without network."""
        for h in self.all:
            if h.device and os.path.exists("/sys/class/infiniband/" + h.device):
                with contextlib.suppress(Failed):
                    call("rdma", "link", "del", h.device)
        names = [h.name for h in self.all] + ([self.bridge] if self.bridge else [])
        names = [n for n in names if os.path.exists("/run/netns/" + n)]
        self.all, self.bridge = [], None
        if names:
            batch("netns del " + n for n in names)
