# SPDX-License-Identifier: BSD-2-Clause
"""Mistakes in what xrdma was told: each is one line, all of them are told, and by one process only."""
import os
import re
import subprocess

import pytest

from harness import find
from test_tools import clean_env, run  # noqa: F401  (run is a fixture)

TEN = "".join("nonsense%d = 1\n" % i for i in range(10))


def told(text, prefix="xrdma: "):
    assert all(line.startswith(prefix) for line in text.splitlines()), text
    return re.findall(r"nonsense\d", text)


ALL = ["nonsense%d" % i for i in range(10)]


def test_all_mistakes_are_told(run):
    run.conf.write_text(TEN)
    assert told(run("true").stderr) == ALL


@pytest.mark.parametrize("how", ["fork", "exec", "elsewhere"])
def test_children_do_not_repeat_them(run, tmp_path, how):
    run.conf.write_text(TEN)
    inner = {"fork": "/bin/true; env true; (exec true)", "exec": "exec sh -c 'exec true'",
             "elsewhere": "cd / && setsid sh -c 'sleep 0; true'"}[how]
    assert told(run("sh", "-c", inner).stderr) == ALL


def test_new_mistakes_are_told(run):
    run.conf.write_text(TEN)
    p = run("sh", "-c", "XRDMA_SPIIN=1us /bin/true; true")
    assert told(p.stderr) == ALL + ALL and p.stderr.count("SPIIN") == 1
    tool = find("xrdma-run", "tools/xrdma-run")
    assert told(run("sh", "-c", "%s true" % tool).stderr) == ALL + ALL


def test_without_the_wrapper_the_first_one_tells(run, tmp_path):
    run.conf.write_text(TEN)
    p = subprocess.run(["/bin/sh", "-c", "/bin/true; env true"], text=True, capture_output=True, check=True,
                       env={**clean_env(tmp_path), "XRDMA_CONF": str(run.conf),
                            "LD_PRELOAD": find(".libs/libxrdma_preload.so")})
    assert told(p.stderr) == ALL


def test_all_mistakes_go_to_the_log(run, tmp_path):
    run.conf.write_text(TEN)
    log = tmp_path / "log"
    assert run("--log-file=%s" % log, "sh", "-c", "/bin/true; true").stderr == ""
    assert re.findall(r"nonsense\d", log.read_text()) == ALL
    assert len(re.findall(r"^[\dT:.-]{23}Z xrdma \S+\[\d+\]: ", log.read_text(), re.M)) == 10


@pytest.mark.parametrize("where, why", [("/nonexistent/dir/log", "does not exist"), ("/proc", "is a directory"),
                                        ("/dev/null/x", "a part of the path is no directory")])
def test_a_log_file_that_cannot_be_written_is_told(run, where, why):
    line = "log_file: '%s' cannot be written: %s; lines go to standard error\n" % (where, why)
    # by the name that it was given by, and the program does not repeat it
    p = run("--log-file=%s" % where, "sh", "-c", "/bin/true; echo ran")
    assert (p.returncode, p.stdout, p.stderr) == (0, "ran\n", "xrdma: --log-file: " + line)
    assert run("--log-file=%s" % where, "--show-config").stderr == "xrdma-run: --log-file: " + line
    assert run("true", XRDMA_LOG_FILE=where).stderr == "xrdma: XRDMA_LOG_FILE: " + line
    # and they do
    run.conf.write_text("log_file = %s\nnonsense1 = 2\n" % where)
    p = run("true")
    assert "xrdma.conf:1: log_file:" in p.stderr and told(p.stderr) == ["nonsense1"]
    assert "xrdma.conf:1: log_file:" in run("--show-config").stderr


def test_a_log_file_that_takes_no_more_is_told_once_and_counted(run, tmp_path):
    """It could be written when the program began."""
    log = tmp_path / "dir" / "log"
    log.parent.mkdir()
    code = ("import os, socket, subprocess, sys; s = socket.create_server(('127.0.0.1', 0)); "
            "os.rename('%s', '%s'); os.environ['X'] = '1'; "
            "c = socket.create_connection(s.getsockname()); d = s.accept()[0]\n"
            "for i in range(9): c.send(b'x'), d.recv(1), d.send(b'x'), c.recv(1)\n"
            "print(subprocess.run(['%s', '-t', '--pid=%%d' %% os.getpid()], stdout=-1, text=True).stdout)"
            % (log.parent, tmp_path / "gone", find("xr-stat", "tools/xr-stat")))
    p = run("--log-level=debug", "--log-file=%s" % log, "--upgrade-turns=1", "/usr/bin/python3", "-c", code)
    lost = re.search(r"log_lines_lost +(\d+)", p.stdout)
    assert lost and int(lost[1]) > 1, p.stdout
    assert re.fullmatch(r"xrdma: \[\d+\] log_file %s: does not exist: lines are lost\n" % log, p.stderr)


def test_a_statistics_directory_that_was_asked_for_and_cannot_be_used_is_told(run):
    code = "import socket; socket.create_server(('127.0.0.1', 0)); socket.create_server(('127.0.0.1', 0))"
    p = run("--stats-dir=/nonexistent", "/usr/bin/python3", "-c", code)
    assert p.stderr == "xrdma: stats_dir /nonexistent: does not exist: xr-stat does not show this process\n"


def test_a_relative_configuration_file_is_found_from_elsewhere(run, tmp_path):
    (tmp_path / "mine.conf").write_text("nonsense1 = 2\n")
    (tmp_path / "sub").mkdir()
    tool = find("xrdma-run", "tools/xrdma-run")
    show = "%s --show-config 2>/dev/null | head -1; echo $XRDMA_CONF" % tool
    for args, more in ((["--config=mine.conf"], {}), (["--config", "./mine.conf"], {}),
                       ([], {"XRDMA_CONF": "mine.conf"})):
        p = subprocess.run([tool, *args, "sh", "-c", "cd sub && /bin/true; " + show], text=True,
                           capture_output=True, check=True, cwd=tmp_path,
                           env=clean_env(tmp_path, **more))
        assert told(p.stderr) == ["nonsense1"], p.stderr
        first, name = p.stdout.splitlines()
        assert os.path.samefile(name, tmp_path / "mine.conf") and name.startswith("/")
        assert first == "# " + name
    p = subprocess.run([tool, "--config=none.conf", "true"], text=True, capture_output=True, check=True,
                       cwd=tmp_path, env=clean_env(tmp_path))
    assert p.stderr == "xrdma: %s/none.conf: not read: does not exist\n" % tmp_path


@pytest.mark.parametrize("line, why", [
    ('program = "redis*"', 'program: "redis*": quotes are not taken off, leave them out'),
    ("program = 'redis'", "program: 'redis': quotes are not taken off, leave them out"),
    ("program = bin/redis", "program: 'bin/redis' is neither a file name nor an absolute path"),
    ("program = ./redis", "program: './redis' is neither a file name nor an absolute path"),
    ("program =", "program: no name; all programs are 'any'"),
    ("spin = 1us", "spin belongs in [thresholds], not [rule]")])
def test_rules_that_could_match_nothing_are_told(run, line, why):
    run.conf.write_text("[rule]\naction = tcp\n%s\n" % line)
    assert run("true").stderr == ("xrdma: {0}:3: {1}\nxrdma: {0}:1: this [rule] is ignored because of its mistakes\n"
                                  .format(run.conf, why))


def test_patterns_that_can_match_are_fine(run):
    run.conf.write_text("".join("[rule]\naction = tcp\nprogram = %s\n" % p for p in (
        "any", "redis*", "/usr/bin/redis", "*/redis", "?bin/x", "[ab]/x", "a'b", "it's")))
    assert run("true").stderr == ""


@pytest.mark.parametrize("value, told", [("1", True), ("1048575", True), ("1M", False), ("0", False)])
def test_too_little_memory_for_anything_is_told(run, value, told):
    """Nothing but a forgotten unit would make anybody ask for it; 0 is a way to say no."""
    shown = "%d" % 1048575 if value == "1048575" else value
    line = "max_memory: %s is less than any segment takes (1M): all connections stay on TCP\n" % shown
    run.conf.write_text("[limits]\n\nmax_memory = %s\n" % value)
    assert run("true").stderr == ("xrdma: %s:3: %s" % (run.conf, line) if told else "")
    run.conf.write_text("")
    assert run("--max-memory=" + value, "true").stderr == ("xrdma: --max-memory: " + line if told else "")
