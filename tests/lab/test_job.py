"""`tailcut lab run`: every host gets the command and its rank, and in the end nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailcut.lab import clean, cpulimit, leftovers, missing_tools, privileges

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "the lab works here"),
]

PATH = os.pathsep.join(entry for entry in sys.path if entry)
LAB = [sys.executable, "-m", "tailcut.lab"]
TIMEOUT_S = 40


def start(*words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": PATH}
    return subprocess.Popen(
        [*LAB, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )


def lab(*words: str) -> tuple[int, str]:
    process = start(*words)
    text = process.communicate(timeout=TIMEOUT_S)[0]
    assert of_process(process.pid) == []
    return process.returncode, text


def of_process(pid: int) -> list[str]:
    return [name for name in leftovers.namespaces() if name.startswith(f"tailcut-{pid}-")]


def scenario(folder: Path, more: str = "") -> str:
    path = folder / "small.toml"
    path.write_text('summary = "A test."\nhosts = 2\n' + more)
    return str(path)


def await_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the lab ended with {process.wait()} and never said {text!r}")


def test_every_rank_gets_its_environment_and_the_others_answer(tmp_path: Path) -> None:
    script = (
        "import os, socket\n"
        "rank, address = os.environ['RANK'], (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "print(*(os.environ[name] for name in ('WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE',"
        " 'GLOO_SOCKET_IFNAME', 'TAILCUT_SOCKET_IFNAME')), [name for _, name in socket.if_nameindex()])\n"
        "if rank == '0':\n"
        "    server = socket.create_server(address)\n"
        "    print('heard', server.accept()[0].recv(9).decode())\n"
        "else:\n"
        "    for _ in range(200):\n"
        "        try: socket.create_connection(address).send(b'rank 1'); break\n"
        "        except ConnectionRefusedError: __import__('time').sleep(0.05)\n"
    )
    status, text = lab("run", scenario(tmp_path), "--", sys.executable, "-c", script)
    assert status == 0, text
    for rank in (0, 1):
        assert f"[{rank}] 2 0 1 eth0 =eth0 ['lo', 'eth0']" in text
    assert "[0] heard rank 1" in text
    assert "cores" in text


def test_the_worst_exit_status_counts_and_signals_are_told_as_shells_do(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    status, text = lab("run", path, "--", "sh", "-c", 'printf "no newline"; exit $((RANK * 7))')
    assert status == 7
    assert "[1] no newline\n" in text and "[lab] rank 1 ended with 7" in text
    status, text = lab("run", path, "--", "sh", "-c", "[ $RANK = 0 ] || kill -TERM $$")
    assert status == 128 + signal.SIGTERM
    status, text = lab("run", path, "--timeout-s", "0.5", "--", "sleep", "60")
    assert status == 124 and "the time was over" in text
    status, text = lab("run", path, "--", "/no/such/command")
    assert status == 127


def test_a_rank_the_scenario_kills_is_excused_and_one_that_comes_back_counts(tmp_path: Path) -> None:
    killed = '[[fault]]\nkind = "kill"\nat_s = 0.3\nhost = 1\n'
    command = ("--", "sh", "-c", "echo start; sleep 1")
    status, text = lab("run", scenario(tmp_path, killed), *command)
    assert status == 0, text
    assert "[lab] host 1: killed" in text
    assert "rank 1 was killed by the scenario; its exit status does not count" in text
    status, text = lab("run", scenario(tmp_path, killed + "for_s = 0.2\n"), *command)
    assert status == 0, text
    assert "[lab] host 1: started again" in text
    assert text.count("[1] start") == 2 and "does not count" not in text


def test_a_paused_rank_and_a_late_one_stand_still_and_go_on(tmp_path: Path) -> None:
    script = (
        "import time; last = start = time.monotonic(); worst = 0\n"
        "while last < start + 1.2:\n"
        "    time.sleep(0.01); now = time.monotonic(); worst = max(worst, now - last); last = now\n"
        "print('worst', round(worst, 1))"
    )
    more = '[[fault]]\nkind = "pause"\nat_s = 0.4\nhost = 1\nfor_s = 0.6\n'
    status, text = lab("run", scenario(tmp_path, more), "--", sys.executable, "-c", script)
    assert status == 0 and "[1] worst 0.6" in text and "[0] worst 0.6" not in text, text
    late = '[stragglers]\ndistribution = "constant"\nlag_ms = 500\nhosts = [0]\nevery_ms = 700\n'
    status, text = lab("run", scenario(tmp_path, late), "--", sys.executable, "-c", script)
    assert status == 0 and "[0] worst 0.5" in text and "[1] worst 0.5" not in text, text


def test_ctrl_c_ends_every_rank_and_the_lab(tmp_path: Path) -> None:
    script = "trap 'echo asked; exit 3' INT; echo up; sleep 60 & wait"
    process = start("run", scenario(tmp_path), "--", "bash", "-c", script)
    await_line(process, "up")
    time.sleep(0.3)  # the other rank's line, too
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=TIMEOUT_S)[0]
    assert process.returncode == 130, text
    assert text.count("asked") == 2 and "interrupted" in text
    assert of_process(process.pid) == []


def test_kill_9_of_the_lab_leaves_only_what_clean_removes(tmp_path: Path) -> None:
    more = "[delay]\nround_trip_ms = 1\n[background]\nmembers = 2\nrate_mbit = 1\n"
    if not cpulimit.problem():
        more += "[[port]]\nhost = 0\ncpu_percent = 50\n"
    process = start("run", scenario(tmp_path, more), "--", "sh", "-c", "setsid sleep 60 & echo up; sleep 60")
    await_line(process, "up")
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    left = of_process(process.pid)
    assert len(left) == 3
    status, text = lab("clean")
    assert status == 0 and all(name in text for name in left)
    assert of_process(process.pid) == []
    assert not [name for name in cpulimit.names() if name.startswith(f"tailcut-{process.pid}-")]
    assert clean() == []


def test_two_labs_at_once_do_not_meet(tmp_path: Path) -> None:
    script = "echo up; sleep 1; echo $MASTER_ADDR"
    first = start("run", scenario(tmp_path), "--", "sh", "-c", script)
    second = start("run", scenario(tmp_path), "--", "sh", "-c", script)
    for process in (first, second):
        await_line(process, "up")
    assert len(of_process(first.pid)) == len(of_process(second.pid)) == 3
    for process in (first, second):
        text = process.communicate(timeout=TIMEOUT_S)[0]
        assert process.returncode == 0 and text.count("10.124.0.1") == 2
        assert of_process(process.pid) == []


def test_list_show_and_wrong_words(tmp_path: Path) -> None:
    status, text = lab("list")
    assert status == 0 and "tail-1.5" in text and "straggler" in text
    status, text = lab("show", "lossy-1")
    assert status == 0 and "percent = 1" in text
    status, text = lab("run", scenario(tmp_path, "[[loss]]\npercent = 200\n"), "--", "true")
    assert status == 2 and "small.toml: loss[0].percent: must be 0 to 100, not 200" in text
    status, text = lab("shell", "0", "--lab", "1")
    assert status == 2 and "no lab is running" in text


def test_a_cpu_limit_limits_or_says_why_not(tmp_path: Path) -> None:
    script = "import time; time.sleep(0.1); start = time.monotonic(), time.process_time()\n"
    script += "while time.monotonic() < start[0] + 1: pass\n"
    script += "print('share', int(10 * (time.process_time() - start[1])))"
    path = scenario(tmp_path, "[[port]]\nhost = 1\ncpu_percent = 20\n")
    status, text = lab("run", path, "--", sys.executable, "-c", script)
    if problem := cpulimit.problem():
        assert status == 2 and problem in text
    else:
        assert status == 0 and ("[1] share 1" in text or "[1] share 2" in text), text


def nobody(script: str) -> subprocess.CompletedProcess[str]:
    """As a user without rights; /root holds nothing but Python there, if Python is in it."""
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": PATH, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
    base = Path(sys.base_prefix)
    if base.is_relative_to("/root"):
        view = "mount --bind $0 /mnt && mount -t tmpfs -o mode=755 view /root && mkdir -p $0"
        view += ' && mount --bind /mnt $0 && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", view, str(base), *words]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, cwd="/")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (Debian: util-linux)")
def test_an_ordinary_user_gets_a_lab_or_the_reason_why_not() -> None:
    python = f"{sys.executable} -m tailcut.lab"
    listed = nobody(f"{python} list")
    if listed.returncode != 0:
        pytest.skip(f"another user may not use this environment: {listed.stderr.strip()[-200:]}")
    before = set(leftovers.namespaces())
    done = nobody(f"{python} run clean --hosts 2 -- sh -c 'echo rank $RANK of $(id -u)'")
    if nobody("unshare --user --net true").returncode == 0:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[0] rank 0 of 0" in done.stdout and "[1] rank 1 of 0" in done.stdout
        assert "[lab] a shell on host 0: nsenter -t " in done.stdout
    else:
        assert done.returncode == 2 and "user namespaces" in done.stderr
    assert set(leftovers.namespaces()) <= before


def test_what_is_missing_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(privileges, "user_namespaces_lacking", lambda: "not permitted")
    with pytest.raises(Exception, match=r"needs? root.*user namespaces, but not here: not permitted.*sudo"):
        privileges.ensure(["true"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(privileges, "_effective_capabilities", lambda: 1 << privileges.CAP_SYS_ADMIN)
    assert "without CAP_NET_ADMIN" in privileges.lacking() and "--privileged" in privileges.lacking()
