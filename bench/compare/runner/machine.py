"""The machine of the measurements: its processors, and their use by other processes."""

import os
import time
from pathlib import Path


def processors():
    """Two processors that this process may use, of different cores if possible; or None."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return None
    first = allowed[0]
    others = [other for other in allowed[1:] if other not in siblings(first)]
    return first, (others or allowed[1:])[0]


def allows(which):
    """Whether this process may use all of these processors."""
    return set(which) <= os.sched_getaffinity(0)


def siblings(processor):
    """The processors of this processor's core, including itself."""
    path = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    try:
        text = path.read_text()
    except OSError:
        return {processor}
    found = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def busy_share(which, seconds=1.0):
    """The share of these processors' time that other processes use while this one sleeps."""
    before = ticks(which)
    time.sleep(seconds)
    after = ticks(which)
    busy, total = (late - early for early, late in zip(before, after))
    return busy / total if total else 0.0


def ticks(which):
    """Busy and total ticks of these processors since boot."""
    names = {f"cpu{number}" for number in which}
    busy = total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name in names:
            numbers = [int(number) for number in numbers[:8]]
            total += sum(numbers)
            busy += sum(numbers) - numbers[3] - numbers[4]
    return busy, total


def model():
    """The processor's name, or "unknown" if the system does not report it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
