"""Starts programs bound to processors, and ends them in time."""

import os
import signal
import subprocess
import sys
import time


class Failed(Exception):
    """A peer could not be installed, built or measured; the text says why."""


def say(text):
    """Prints progress to standard error; standard output is for results."""
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
    """Ends a program that `start` has started, and its child processes."""
    # SIGTERM first: mpirun then ends its ranks, which are not in its process group.
    for how, grace_s in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        if process.poll() is None:
            try:
                os.killpg(process.pid, how)
                process.wait(grace_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def output(command, timeout_s, processors=None, environment=None, cwd=None):
    """Returns the output of a program. Raises `Failed`, with its last lines, if it fails or takes too long."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": cwd}
    process = start(command, processors, environment, **pipes)
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} took more than {timeout_s} s") from error
    finally:
        end(process)
    if process.returncode != 0:
        last = "\n".join((errors or out).strip().splitlines()[-12:])
        raise Failed(f"{' '.join(command)} ended with {process.returncode}:\n{last}")
    return out


def wait_until(what, condition, timeout_s):
    """Checks every few milliseconds until the condition is true."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            raise Failed(f"{what}: not within {timeout_s} s")
        time.sleep(0.005)
