# SPDX-License-Identifier: BSD-2-Clause
"""xrdma-run: what it starts, what it refuses and how; its settings; the man pages beside the source."""
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile

import pytest

from harness import SOURCE, build_dir, find

HELLO = b"#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n"


def clean_env(tmp_path, **extra):
    """An environment in which nothing but the test sets anything."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("XRDMA_") and k != "LD_PRELOAD"}
    return {**env, "XRDMA_CONF": "/dev/null/none" if "XRDMA_CONF" not in extra else "",
            "XRDMA_STATS_DIR": str(tmp_path), "LC_ALL": "C", **extra}


@pytest.fixture
def run(tmp_path):
    """xrdma-run with an empty configuration; returns a CompletedProcess with text."""
    conf = tmp_path / "xrdma.conf"
    conf.write_text("")
    tool = find("xrdma-run", "tools/xrdma-run")

    def go(*args, **env):
        env = clean_env(tmp_path, **{"XRDMA_CONF": str(conf), **env})
        return subprocess.run([tool, *map(str, args)], text=True, capture_output=True, timeout=30,
                              check=False, env={k: v for k, v in env.items() if v is not None})
    go.conf = conf
    return go


def script(path, text, mode=0o755):
    path.write_text(text)
    path.chmod(mode)
    return path


def one_line(p):
    assert p.stderr.count("\n") == 1 and p.stderr.startswith("xrdma-run: "), p.stderr
    return p.stderr


def patched_elf(path, offset, value):
    """A copy of /bin/true with some bytes of its header replaced."""
    data = bytearray(open("/bin/true", "rb").read())
    data[offset:offset + len(value)] = value
    path.write_bytes(data)
    path.chmod(0o755)
    return path


# ---- starting programs ---------------------------------------------------------------------------

def test_status_and_output_are_the_programs(run):
    p = run("sh", "-c", "echo out; echo err >&2; exit 42")
    assert (p.returncode, p.stdout, p.stderr) == (42, "out\n", "err\n")
    assert run("sh", "-c", "kill -9 $$").returncode == -signal.SIGKILL


def test_options_end_at_the_program(run):
    p = run("--spin=1us", "echo", "--spin=2us", "--help", "-x")
    assert p.stdout == "--spin=2us --help -x\n"
    assert run("--", "echo", "x").stdout == "x\n"


def test_a_missing_program_is_127(run, tmp_path):
    for name in ("no-such-program-here", "/no/such/file", "./nothing", "", "/bin/true/x"):
        p = run(name)
        assert p.returncode == 127, name
        assert "'%s'" % name in one_line(p)
    dangling = tmp_path / "dangling"
    dangling.symlink_to("/nowhere")
    assert run(dangling).returncode == 127


def test_what_cannot_be_run_is_126(run, tmp_path):
    assert run(script(tmp_path / "plain", "#!/bin/sh\n", 0o644)).returncode == 126
    assert run(tmp_path).returncode == 126
    p = run("tool", PATH=str(tmp_path))     # found on PATH, not executable
    assert p.returncode == 127
    script(tmp_path / "tool", "x", 0o644)
    p = run("tool", PATH=str(tmp_path))
    assert p.returncode == 126 and "Permission denied" in one_line(p)


def test_a_missing_interpreter_is_named(run, tmp_path):
    """The kernel finds it missing: ENOENT from execve, as for env(1), which leaves one guessing what is not there."""
    bad = script(tmp_path / "bad", "#! /no/such/interpreter -x\n")
    script(tmp_path / "noexec", "x", 0o644)
    for path, status, said in (
            (bad, 127, "needs '/no/such/interpreter' to run: No such file"),
            (script(tmp_path / "of-bad", "#!%s\n" % bad), 127, "needs '/no/such/interpreter' to run: No such file"),
            (script(tmp_path / "dos", "#!/bin/sh\r\n"), 127, "needs '/bin/sh' and a carriage return (DOS line ends)"),
            (script(tmp_path / "no", "#!%s\n" % (tmp_path / "noexec")), 126, "noexec' to run: Permission denied")):
        p = run(path)
        assert p.returncode == status and "'%s' " % path in one_line(p) and said in p.stderr, p
    with open("/bin/true", "rb") as f:
        (tmp_path / "elf").write_bytes(f.read().replace(b"/ld-linux", b"/no-linux"))
    (tmp_path / "elf").chmod(0o755)
    p = run(tmp_path / "elf")
    assert p.returncode == 127 and "/no-linux" in one_line(p), p


def test_path_search_goes_on_after_what_cannot_be_run(run, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir(), b.mkdir()
    script(a / "tool", "x", 0o644)
    script(b / "tool", "#!/bin/sh\necho right\n")
    assert run("tool", PATH="%s:%s" % (a, b)).stdout == "right\n"


def test_a_key_is_made_once_and_for_its_owner(run, tmp_path):
    key = tmp_path / "key"
    p = run("--make-key=%s" % key)
    assert (p.returncode, p.stdout, p.stderr) == (0, "", "")
    assert key.stat().st_mode & 0o7777 == 0o600
    text = key.read_text()
    assert re.fullmatch("xrdma-key-1 [0-9a-f]{64}\n", text)
    p = run("--make-key=%s" % key)
    assert p.returncode == 125 and "exists" in one_line(p)
    assert key.read_text() == text
    p = run("--make-key=%s" % (tmp_path / "no" / "key"))
    assert p.returncode == 125 and "No such file" in one_line(p)


def test_no_program_and_unknown_options_are_125(run):
    assert run().returncode == 125
    assert run("--no-such-option", "true").returncode == 125
    assert run("--spin=fast", "true").returncode == 125
    p = run("--fabric=smh", "true")
    assert p.returncode == 125 and "did you mean 'shm'?" in one_line(p)


def preloads(p):
    return p.stdout.strip().split(":")


def test_the_object_comes_first_and_once(run, tmp_path):
    show = ("sh", "-c", "echo $LD_PRELOAD")
    alone = preloads(run(*show))
    assert len(alone) == 1 and alone[0].startswith("/") and alone[0].endswith("/libxrdma_preload.so")
    other = tmp_path / "libother.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", other, "-x", "c", "-"], input=b"int xr_other;\n",
                   check=True)
    assert preloads(run(*show, LD_PRELOAD=str(other))) == alone + [str(other)]
    again = "%s libxrdma_preload.so:%s" % (other, alone[0])
    assert preloads(run(*show, LD_PRELOAD=again)) == alone + [str(other)]
    tool = find("xrdma-run", "tools/xrdma-run")
    assert preloads(run(tool, *show, LD_PRELOAD=str(other))) == alone + [str(other)]


def test_scripts_run_with_or_without_an_interpreter_line(run, tmp_path):
    body = "case $LD_PRELOAD in */libxrdma_preload.so) echo under $1;; esac\n"
    assert run(script(tmp_path / "with", "#!/bin/sh\n" + body), "x").stdout == "under x\n"
    assert run(script(tmp_path / "without", body), "y").stdout == "under y\n"


def refused(run, target, phrase):
    p = run(target)
    assert p.returncode == 126
    assert phrase in one_line(p) and "--or-plain" in p.stderr, p.stderr


def test_static_programs_are_refused(run, tmp_path):
    static = tmp_path / "static"
    built = subprocess.run(["gcc", "-static", "-o", static, "-x", "c", "-"], input=HELLO,
                           capture_output=True, check=False)
    if built.returncode:
        pytest.skip("no static C library")
    refused(run, static, "statically linked")
    pie = tmp_path / "static-pie"
    subprocess.run(["gcc", "-static-pie", "-o", pie, "-x", "c", "-"], input=HELLO, check=True)
    refused(run, pie, "statically linked")
    s = script(tmp_path / "script", "#!%s\n" % static)
    refused(run, s, "a script for %s, which is statically linked" % static)
    p = run("--or-plain", static)
    assert (p.returncode, p.stdout, p.stderr) == (0, "hello\n", "")
    assert "LD_PRELOAD" not in run("--or-plain", static, LD_PRELOAD="").stdout


def test_other_machines_word_sizes_and_libraries_are_refused(run, tmp_path):
    refused(run, patched_elf(tmp_path / "narrow", 4, b"\x01"), "32-bit")
    refused(run, patched_elf(tmp_path / "foreign", 18, b"\x02\x00"), "another machine")
    refused(run, patched_elf(tmp_path / "broken", 54, b"\x01\x00"), "make no sense")
    data = open("/bin/true", "rb").read()
    m = re.search(rb"/lib[^\0]*/ld-linux[^\0]*", data)
    musl = tmp_path / "musl"
    musl.write_bytes(data[:m.start()] + b"/lib/ld-musl-x86_64.so.1".ljust(m.end() - m.start(), b"\0") +
                     data[m.end():])
    musl.chmod(0o755)
    refused(run, musl, "musl")


def test_the_loader_as_a_program_is_accepted(run):
    data = open("/bin/true", "rb").read()
    loader = re.search(rb"/lib[^\0]*/ld-linux[^\0]*", data).group().decode()
    p = run(loader, "/bin/sh", "-c", "echo $LD_PRELOAD")
    assert p.stdout.strip().endswith("/libxrdma_preload.so"), p.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a set-user-ID program of another")
def test_programs_that_gain_privileges_are_refused(run, tmp_path):
    copy = tmp_path / "setuid"
    shutil.copy("/bin/true", copy)
    os.chown(copy, 65534, -1)
    copy.chmod(0o4755)
    if os.statvfs(copy).f_flag & os.ST_NOSUID:
        assert run(copy).returncode == 0
        return
    refused(run, copy, "set-user-ID")
    assert run("--or-plain", copy).returncode == 0
    os.chown(copy, 0, 65534)
    copy.chmod(0o2755)
    refused(run, copy, "set-group-ID")
    # the capability of binding low ports, as setcap(8) writes it; root has it anyway
    os.chown(copy, 0, 0)
    copy.chmod(0o755)
    os.setxattr(copy, "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    with tempfile.TemporaryDirectory() as d:    # pytest's is not everybody's
        os.chmod(d, 0o755)
        p = subprocess.run([find("xrdma-run", "tools/xrdma-run"), shutil.copy2(copy, d)], text=True,
                           capture_output=True, user=65534, env=clean_env(tmp_path, XRDMA_STATS="no"), check=False)
    assert p.returncode == 126 and "setuid' is privileged by file capabilities: " in one_line(p)
    os.removexattr(copy, "security.capability")
    # what the kernel would not honour is no obstacle: root's own set-user-ID program, for root
    os.chown(copy, 0, 0)
    copy.chmod(0o4755)
    assert run(copy).returncode == 0


def test_a_missing_or_wrong_object_is_125(run, tmp_path):
    p = run("--preload=%s" % (tmp_path / "none.so"), "true")
    assert p.returncode == 125 and "none.so" in one_line(p)
    junk = tmp_path / "junk.so"
    junk.write_text("no ELF")
    assert "not a shared object" in one_line(run("true", XRDMA_PRELOAD=str(junk)))
    blank = tmp_path / "a b.so"
    shutil.copy(find(".libs/libxrdma_preload.so"), blank)
    assert "blank" in one_line(run("--preload=%s" % blank, "true"))
    assert run("--or-plain", "--preload=%s" % junk, "true").returncode == 0


# ---- settings ------------------------------------------------------------------------------------

def settings(p):
    """name -> (value, origin) of --show-config."""
    return {m[1]: (m[2].strip(), m[3]) for m in
            re.finditer(r"^(\w+) = (.*?) *# (.*)$", p.stdout, re.M)}


def test_precedence(run):
    run.conf.write_text("[thresholds]\nspin = 1us\nupgrade_turns = 11\n[global]\nfabric = shm\n")
    got = settings(run("--spin=3us", "--show-config", XRDMA_SPIN="2us", XRDMA_UPGRADE_TURNS="12"))
    assert got["spin"] == ("3us", "--spin")
    assert got["upgrade_turns"] == ("12", "XRDMA_UPGRADE_TURNS")
    assert got["fabric"] == ("shm", "%s:5" % run.conf)
    assert got["max_memory"] == ("1G", "default")


def test_what_is_shown_can_be_read_back(run):
    run.conf.write_text("[limits]\nflow_window = 3M\n[rule]\nprogram = a*\naddress = 10.0.0.0/8, ::1\n"
                        "port = 1-2, 80\nrole = server\naction = tcp\n[rule]\naction = shm\n")
    first = run("--show-config")
    assert first.returncode == 0 and first.stderr == ""
    run.conf.write_text(first.stdout)
    second = run("--show-config")
    assert second.stderr == ""
    def strip(text):
        return re.sub(r" *#.*", "", text)
    assert strip(first.stdout) == strip(second.stdout)
    assert "address = 10.0.0.0/8, ::1/128\nport = 1-2, 80\n" in second.stdout


def test_options_reach_the_program_as_variables(run):
    p = run("--upgrade-turns=9", "--log-level=none", "sh", "-c", "env | grep ^XRDMA_ | sort")
    assert "XRDMA_LOG_LEVEL=none\n" in p.stdout and "XRDMA_UPGRADE_TURNS=9\n" in p.stdout


def test_a_mistake_is_one_line_and_the_program_runs(run):
    run.conf.write_text("[thresholds]\nspni = 1us\n")
    warning = "%s:2: unknown key 'spni'; did you mean 'spin'?\n" % run.conf
    p = run("echo", "ran")
    assert (p.returncode, p.stdout, p.stderr) == (0, "ran\n", "xrdma: " + warning)
    assert run("--show-config").stderr == "xrdma-run: " + warning
    p = run("--log-level=none", "echo", "ran")
    assert (p.stdout, p.stderr) == ("ran\n", "")
    run.conf.write_text("")
    p = run("echo", "ran", XRDMA_SPIIN="1us")
    assert p.stderr == "xrdma: environment: unknown variable XRDMA_SPIIN; did you mean XRDMA_SPIN?\n"


def test_lines_go_to_the_log_file(run, tmp_path):
    run.conf.write_text("nonsense\n")
    log = tmp_path / "log"
    p = run("--log-file=%s" % log, "echo", "ran")
    assert (p.stdout, p.stderr) == ("ran\n", "")
    assert re.fullmatch(r"[\dT:.-]{23}Z xrdma xrdma-run\[\d+\]: .*xrdma.conf:1: 'nonsense' is neither .*\n", log.read_text())


def test_a_configuration_that_cannot_be_read_is_told(run, tmp_path):
    p = run("echo", "ran", XRDMA_CONF=str(tmp_path / "none"))
    assert p.stdout == "ran\n"
    assert p.stderr == "xrdma: %s: not read: does not exist\n" % (tmp_path / "none")
    assert "is not a regular file" in run("--config=%s" % tmp_path, "true").stderr


def test_a_configuration_without_a_name(run):
    assert run("true", XRDMA_CONF="").stderr == run("true", XRDMA_CONF=None).stderr
    p = run("--config=", "true")
    assert (p.returncode, p.stderr) == (125, "xrdma-run: --config: no file is named\n")


# ---- --check -------------------------------------------------------------------------------------

def test_check_says_what_would_happen(run):
    p = run("--check")
    assert p.returncode == 0, p.stdout
    assert "ok    proof            inet_diag\n" in p.stdout
    assert p.stdout.endswith("would move to shared memory once they pay.\n")
    assert run("--check", "sh").returncode == 0
    both = run("--check", "--show-config", "--spin=3us")
    assert "\nspin = 3us" in both.stdout and both.stdout.endswith(run("--check").stdout.splitlines()[-1] + "\n")
    p = run("--fabric=none", "--check")
    assert p.returncode == 1 and "would stay on TCP: disabled" in p.stdout
    p = run("--check", "no-such-program")
    assert p.returncode == 1 and "no-such-program: No such file" in p.stdout


def test_check_looks_at_the_other_end(run):
    with socket.create_server(("127.0.0.1", 0)) as s:
        where = "127.0.0.1:%d" % s.getsockname()[1]
        p = run("--check", where)
        assert p.returncode == 1 and "runs without xrdma" in p.stdout
        assert "to %s would stay on TCP: peer-not-xrdma" % where in p.stdout
        run.conf.write_text("[rule]\nport = %s\naction = tcp\n" % where.split(":")[1])
        assert "the one of line 1 matches: tcp" in run("--check=" + where).stdout
    assert "nobody listens" in run("--check=" + where).stdout
    p = run("--check", "192.0.2.1:80")
    assert p.returncode == 1 and "not-local" in p.stdout
    for bad in ("host", "127.0.0.1:0", "127.0.0.1:65536", ":80", "127.0.0.1:http"):
        assert run("--check=" + bad).returncode == 125, bad


def test_check_recognises_a_server_under_xrdma(run, tmp_path):
    code = ("import socket,sys; s=socket.create_server(('127.0.0.1',0)); "
            "print(s.getsockname()[1],flush=True); sys.stdin.read()")
    with subprocess.Popen([find("xrdma-run", "tools/xrdma-run"), "/usr/bin/python3", "-c", code],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_env(tmp_path)) as p:
        where = "127.0.0.1:%d" % int(p.stdout.readline())
        got = run("--check", where)
        p.stdin.close()
    assert got.returncode == 0 and "runs under xrdma" in got.stdout, got.stdout
    assert got.stdout.endswith("Connections to %s would move to shared memory once they pay.\n" % where)


# ---- the tree ------------------------------------------------------------------------------------

def test_programs_that_are_built_in_the_tree_are_ignored():
    build = build_dir()
    built = [os.path.relpath(os.path.join(where, n), build) for d in ("bench", "examples", "tests", "tools")
             for where, _, names in os.walk(os.path.join(build, d)) if ".libs" not in where
             for n in names if "." not in n and os.access(os.path.join(where, n), os.X_OK)]
    if build == SOURCE or not os.path.exists(os.path.join(SOURCE, ".git")) or not shutil.which("git"):
        pytest.skip("needs a build beside a clone")
    p = subprocess.run(["git", "-c", "safe.directory=*", "check-ignore", "--no-index", "-v", "-n", "--stdin"],
                       input="\n".join(built), text=True, capture_output=True, cwd=SOURCE, check=False)
    assert "tools/xr-stat" in built and p.returncode == 0, p.stderr
    assert [line for line in p.stdout.splitlines() if line.startswith("::")] == []


# ---- the manual ----------------------------------------------------------------------------------

PAGES = ("xrdma-run.1", "xr-stat.1", "xrdma.conf.5", "xrdma.7")


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_sound(page):
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed")
    p = subprocess.run(["mandoc", "-Tlint", "-Wwarning", os.path.join(SOURCE, "man", page)], text=True,
                       capture_output=True, check=False)
    assert p.returncode == 0, p.stdout + p.stderr


def test_pages_have_what_the_source_has():
    p = subprocess.run([os.path.join(SOURCE, "man", "sync"), find("xrdma-run", "tools/xrdma-run"),
                        "--check"], text=True, capture_output=True, check=False)
    assert p.returncode == 0, p.stdout + p.stderr


def page_text(page):
    with open(os.path.join(SOURCE, "man", page), encoding="utf-8") as f:
        return f.read()


@pytest.mark.parametrize("tool", ["xrdma-run", "xr-stat"])
def test_every_option_is_in_its_page(tool):
    text = page_text(tool + ".1")
    out = subprocess.run([find(tool, "tools/" + tool), "--help"], text=True, capture_output=True,
                         check=True).stdout
    options = set(re.findall(r"^ +(?:-\w, |-\?, |   ) *--([\w-]+)", out, re.M))
    assert len(options) > 10
    for o in options:
        assert re.search(r"Fl -%s\b" % o, text), o


def test_every_key_reason_counter_variable_and_call_is_in_a_page(run):
    with open(os.path.join(SOURCE, "core", "config_table.h"), encoding="utf-8") as f:
        keys = re.findall(r"^\tX\(\w+, (\w+), ([A-Z_]+),", f.read(), re.M)
    assert len(keys) > 10 and set(settings(run("--show-config"))) == {k for k, _ in keys}
    for key, name in keys:
        assert ".It Ic %s No" % key in page_text("xrdma.conf.5")
        assert ".It Ev XRDMA_%s\n" % name in page_text("xrdma.7")
    with open(os.path.join(SOURCE, "core", "reason.h"), encoding="utf-8") as f:
        reasons = re.findall(r'^\tX\(\w+, \d+, "([\w-]+)"', f.read(), re.M)
    with open(os.path.join(SOURCE, "core", "stats.h"), encoding="utf-8") as f:
        counters = re.findall(r'^\tX\(\w+, "(\w+)", "', f.read(), re.M)
    assert len(reasons) > 40 and len(counters) > 20
    for word in reasons + counters:
        assert ".It Cm %s\n" % word in page_text("xrdma.7"), word
    with open(os.path.join(SOURCE, "preload", "hooks.def"), encoding="utf-8") as f:
        calls = re.findall(r"^\tX\((\w+),", f.read(), re.M)
    assert len(calls) > 60
    for call in calls:
        assert re.search(r"^\.Fn %s\b" % call, page_text("xrdma.7"), re.M), call


def test_output_that_cannot_be_written_is_told(tmp_path):
    for tool, args, status in (("xrdma-run", ["--show-config"], 125), ("xr-stat", ["-j"], 2)):
        with open("/dev/full", "w", encoding="utf-8") as full:
            p = subprocess.run([find(tool, "tools/" + tool), *args], stdout=full, text=True,
                               stderr=subprocess.PIPE, env=clean_env(tmp_path), check=False)
        assert p.returncode == status and "No space left" in p.stderr
