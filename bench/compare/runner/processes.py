"""Starting programs, bound to processors and ended in time."""

import os
import signal
import subprocess
import sys
import time


class Failed(Exception):
    """A peer could not be installed, built or measured; the text says what to look at."""


def say(text):
    """Progress, for people: standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def start(command, processors=None, environment=None, **options):
    """Starts a program in a session of its own, bound to these processors."""
    bind = (lambda: os.sched_setaffinity(0, processors)) if processors else None
    try:
        return subprocess.Popen(
            command,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=bind,
            env=os.environ | (environment or {}),
            **options,
        )
    except OSError as error:
        raise Failed(f"{command[0]}: {error}") from error


def end(process):
    """Ends a program that `start` has started, with all that it started in turn."""
    # First the polite way: mpirun then ends its ranks, which are not of its group.
    for how, patience_s in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        if process.poll() is None:
            try:
                os.killpg(process.pid, how)
                process.wait(patience_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def output(command, timeout_s, processors=None, environment=None, cwd=None):
    """What a program prints; `Failed` with its last words if it fails or takes too long."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": cwd}
    process = start(command, processors, environment, **pipes)
    try:
        out, words = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} took more than {timeout_s} s") from error
    finally:
        end(process)
    if process.returncode != 0:
        last = "\n".join((words or out).strip().splitlines()[-12:])
        raise Failed(f"{' '.join(command)} ended with {process.returncode}:\n{last}")
    return out


def wait_until(what, condition, timeout_s):
    """Looks every few milliseconds whether something has happened."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            raise Failed(f"{what}: not within {timeout_s} s")
        time.sleep(0.005)
