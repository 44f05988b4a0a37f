# SPDX-License-Identifier: BSD-2-Clause
"""Test programs out of Debian's source packages, built once and kept in a cache outside the tree.

XRDMA_SUITES_CACHE names the cache; it is ~/.cache/xrdma-suites otherwise. Sources come from the
mirror that the machine's own apt uses, through lists of this cache's own.
"""
import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess

import pytest

RECIPE = "1"  # to be raised when a function below builds differently
CACHE = pathlib.Path(os.environ.get("XRDMA_SUITES_CACHE") or
                     os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "xrdma-suites"))


def sh(*argv, cwd=None, timeout=600):
    p = subprocess.run([str(a) for a in argv], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=timeout, check=False,
                       env={**os.environ, "LC_ALL": "C.UTF-8"})
    text = p.stdout.decode(errors="replace")
    if p.returncode:
        raise RuntimeError("%s: exit %d\n%s" % (" ".join(str(a) for a in argv), p.returncode, text[-2000:]))
    return text


@contextlib.contextmanager
def locked(name):
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / (name + ".lock"), "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def apt_options():
    """apt with a deb-src list of ours, and the machine's own lists left alone."""
    apt = CACHE / "apt"
    options = ["-q"]
    for key, path in (("Dir::Etc::SourceList", apt / "sources.list"), ("Dir::Etc::SourceParts", "/dev/null"),
                      ("Dir::State::Lists", apt / "lists"), ("Dir::Cache", apt / "cache"),
                      ("APT::Sandbox::User", "root")):
        options += ["-o", "%s=%s" % (key, path)]
    for d in ("lists/partial", "cache/archives/partial"):
        (apt / d).mkdir(parents=True, exist_ok=True)
    return apt, options


def update_lists():
    apt, options = apt_options()
    text = sh("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)",
              "Created-By: Packages")
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    lines = {}  # in the order of the machine's own
    for line in text.splitlines():
        uri, release, component, origin = line.split(None, 3)
        if origin == "Debian":
            lines["deb-src [signed-by=%s] %s %s %s\n" % (key, uri, release, component)] = 1
    if not lines:
        pytest.skip("apt knows of no Debian mirror")
    want = "".join(lines)
    stamp = apt / "sources.list"
    if not stamp.exists() or stamp.read_text() != want:
        stamp.write_text(want)
        sh("apt-get", *options, "update")
    return options


def installed(package):
    """Its version, or None."""
    p = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], stdout=subprocess.PIPE,
                       stderr=subprocess.DEVNULL, check=False)
    return p.stdout.decode() if p.returncode == 0 else None


def unpack(package, version=None):
    """A fresh source tree of the package, as Debian patched it; of this version, where it matters which."""
    for tool in ("apt-get", "dpkg-source"):
        if not shutil.which(tool):
            pytest.skip("%s is not installed" % tool)
    name = "%s=%s" % (package, version) if version else package
    work = CACHE / ("new-" + package)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with locked("apt"):
        options = update_lists()
        try:
            sh("apt-get", *options, "source", "--download-only", name, cwd=work)
        except RuntimeError:
            # the lists may be older than what the mirror holds
            (CACHE / "apt/sources.list").unlink()
            sh("apt-get", *update_lists(), "source", "--download-only", name, cwd=work)
    dsc, = work.glob("*.dsc")
    sh("dpkg-source", "-x", dsc.name, "src", cwd=work)
    return work / "src"


def built(package, build, version=None):
    """The source tree after build(tree), from the cache; skips where the source is out of reach."""
    with locked(package):
        done = CACHE / ("-".join([package, *([version] if version else []), RECIPE]))
        if not done.exists():
            try:
                tree = unpack(package, version)
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                pytest.skip("no source of %s: %s" % (package, str(e)[-300:]))
            build(tree)
            os.rename(tree, done)
            shutil.rmtree(tree.parent)
            sh("chmod", "-R", "a+rX", done)
        return done


def compile_all(tree, out, files, *flags):
    out.mkdir(exist_ok=True)
    sh("sh", "-c", 'printf "%s\\n" "$@" | xargs -P2 -n8 ' + " ".join(
        ["gcc", "-w", "-O1", "-D_GNU_SOURCE", *flags, "-c"]), "sh", *files, cwd=out)
    return [str(f) for f in sorted(out.glob("*.o"))]


def libuv():
    def build(tree):
        unix = ("async core dl fs getaddrinfo getnameinfo loop-watcher loop pipe poll process random-devurandom "
                "signal stream tcp thread tty udp linux-core linux-inotify linux-syscalls procfs-exepath "
                "random-getrandom random-sysctl-linux proctitle epoll").split()
        include = ("-I%s/include" % tree, "-I%s/src" % tree)
        lib = compile_all(tree, tree / "lib", [*(tree / "src").glob("*.c"), *(tree / "src/unix" / (n + ".c") for n in unix)],
                          *include)
        names = ("runner", "runner-unix", "run-tests", "blackhole-server", "echo-server")
        own = compile_all(tree, tree / "obj", [*(tree / "test").glob("test-*.c"),
                                               *(tree / "test" / (n + ".c") for n in names)], *include)
        # two of the tests bring a source of the library with them
        sh("gcc", "-Wl,-z,muldefs", "-o", tree / "uv_run_tests", *own, *lib, "-lpthread", "-ldl", "-lrt", "-lutil")
    return built("libuv1", build)


def libevent():
    def build(tree):
        # the generated files are newer than what they are made from, whatever the patches touched
        never = ["%s=:" % t for t in ("ACLOCAL", "AUTOCONF", "AUTOMAKE", "AUTOHEADER")]
        sh("./configure", "-q", "--disable-openssl", "--disable-samples", "--disable-shared", "CFLAGS=-O1", cwd=tree)
        sh("make", "-s", *never, "include/event2/event-config.h", cwd=tree)
        sh("make", "-s", "-j2", *never, "test/regress", cwd=tree)
    return built("libevent", build)


def memcached():
    """Its Perl tests, for the memcached that is installed."""
    def build(tree):
        sh("gcc", "-w", "-o", "timedrun", "timedrun.c", cwd=tree)
        # without Unix sockets, which the tests would take, and an option that this build has not got
        (tree / "memcached-debug").write_text(
            '#!/bin/bash\n[ "$*" = -h ] && { memcached -h | sed s/unix-socket/path/; exit; }\n'
            'for a; do shift; [ "$a" = relaxed_privileges ] && a=modern; set -- "$@" "$a"; done\n'
            'exec memcached "$@"\n')
        os.chmod(tree / "memcached-debug", 0o755)
    return built("memcached", build)


def redis():
    """Its Tcl tests, for the programs that are installed."""
    def build(tree):
        for name in ("server", "cli", "benchmark", "sentinel", "check-aof", "check-rdb"):
            path = tree / "src" / ("redis-" + name)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            os.symlink(shutil.which("redis-" + name) or "/usr/bin/redis-" + name, path)
    return built("redis", build)


def postgres(major):
    """The regression tests of the server that is installed, and the modules that they load into it."""
    version = installed("postgresql-%s" % major)
    if not version:
        pytest.skip("not Debian's PostgreSQL")

    def build(tree):
        # the server's headers, without the compilers that their package wants installed
        headers = tree / "headers"
        headers.mkdir()
        sh("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download",
           "postgresql-server-dev-%s=%s" % (major, version), cwd=headers)
        deb, = headers.glob("*.deb")
        sh("dpkg-deb", "-x", deb, headers)
        modules = tree / "modules"
        modules.mkdir()
        sh("gcc", "-w", "-O1", "-fPIC", "-shared", "-I%s/usr/include/postgresql/%s/server" % (headers, major),
           "-I/usr/include/postgresql", "-o", modules / "regress.so", tree / "src/test/regress/regress.c")
        for name in ("refint.so", "autoinc.so"):
            shutil.copy("/usr/lib/postgresql/%s/lib/%s" % (major, name), modules)
    return built("postgresql-%s" % major, build, version)


def curl():
    """Its tests and the servers that they talk to, for the curl that is installed."""
    version = installed("curl")
    if not version:
        pytest.skip("not Debian's curl")

    def build(tree):
        without = ["--without-" + w for w in ("zstd", "brotli", "nghttp2", "libidn2", "libpsl", "librtmp")]
        sh("./configure", "-q", "--with-openssl", "--disable-dependency-tracking", "--disable-manual", "--disable-ldap",
           "--disable-shared", *without, cwd=tree)
        sh("make", "-s", "-j2", "-C", "tests/server", cwd=tree)
        # what looks whether a server has come up
        os.symlink("/usr/bin/curl", tree / "src/curl")
    return built("curl", build, version)
