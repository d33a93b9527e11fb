"""Compares Farside's TCP fabric with libfabric's tcp provider, between two processes over the loopback device, in
rounds that measure both. Prints the figures of both and their ratios."""

import argparse
import json
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from . import build, machine
from .peers import free_port, is_listening
from .processes import Failed, end, output, say, start, wait_until

HOST = "127.0.0.1"
TIMEOUT_S = 120
SIZES = (8, 64, 1024, 65536, 1 << 20)
WINDOW = 128
LATENCY, RATE = "us", "per second"

# Name of a test, test and measure of `farside bench fabric`, unit of its figures.
TESTS = (
    ("send-latency", "send", "latency", LATENCY),
    ("write-latency", "write", "latency", LATENCY),
    ("read-latency", "read", "latency", LATENCY),
    ("send-stream", "send", "bandwidth", RATE),
    ("write-stream", "write", "bandwidth", RATE),
    ("read-stream", "read", "bandwidth", RATE),
)
# Parties of libfabric: name, provider, endpoint, how the server waits, completions.
THEIRS = (
    ("msg", "tcp", "msg", "polls", "sent"),
    ("msg-delivered", "tcp", "msg", "polls", "delivered"),
    ("rdm", "tcp", "rdm", "polls", "sent"),
)
PINGPONG = "fi_pingpong"
# Farside with relaxed ordering, as perftest and libfabric have it, and with strict ordering. Messages are the
# same in both.
OURS = (("farside", ()), ("farside-strict", ("--strict-ordering",)))
OURS_STRICT = OURS[1][0]


def arguments(words):
    parser = argparse.ArgumentParser(prog="bench/compare/fabrics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=0.2, help="time of each figure and round (default 0.2)")
    parser.add_argument("--test", action="append", choices=[test[0] for test in TESTS], help="only these")
    parser.add_argument("--bytes", type=int, action="append", help="only these sizes")
    parser.add_argument("--farside", metavar="PROGRAM", help="a farside command that is already built")
    parser.add_argument("--unbound", action="store_true", help="bind no process to a processor")
    parser.add_argument("--no-install", action="store_true", help="install nothing; say what is missing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args(words)
    asked.tests = [test for test in TESTS if not asked.test or test[0] in asked.test]
    asked.sizes = tuple(asked.bytes or SIZES)
    return asked


class Libfabric:
    """The packages that measuring libfabric needs."""

    name = "libfabric"
    packages = ("libfabric-dev", "libfabric-bin", "gcc")
    tools = ("fi_pingpong", "gcc")


def build_pair(folders, where):
    program = os.path.join(where, "pair")
    source = str(folders.compare / "libfabric" / "pair.c")
    output(["gcc", "-O2", "-std=gnu11", "-Wall", "-o", program, source, "-lfabric"], TIMEOUT_S)
    return program


class Sides:
    """The processors of the measuring and of the serving process."""

    def __init__(self, unbound):
        both = machine.processors()
        self.client, self.server = (None, None) if unbound or both is None else ({both[0]}, {both[1]})


def served(server, port, what, measure):
    """Runs `measure` while a server listens, then ends the server."""
    try:
        wait_until(what, lambda: is_listening(port) or server.poll() is not None, 10)
        return measure()
    finally:
        end(server)


QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def ours(program, ordering, asked, sides):
    """Measures Farside in one round; returns the typical and mean figure by test and size."""
    port = free_port()
    at = f"{HOST}:{port}"
    bench = [program, "bench", "fabric", "--fabric", "tcp", "--json", *ordering]
    server = start([*bench, "--listen", at], sides.server, **QUIET)
    sizes = ",".join(map(str, asked.sizes))
    flow = ["-t", str(WINDOW), "-Q", "1", "-l", "1", "-D", str(asked.seconds), "-s", sizes]

    def measure():
        found = {}
        for name, test, measure, unit in asked.tests:
            if ordering and test == "send":
                continue
            command = [*bench, at, "--test", test, "--measure", measure, *flow]
            if measure == "latency":
                del command[command.index("-t") : command.index("-D")]
            result = json.loads(output(command, TIMEOUT_S, sides.client))
            for line in result[measure]:
                found[name, line["bytes"]] = figure_of(line, unit)
        return found

    return served(server, port, "farside bench fabric --listen", measure)


def figure_of(line, unit):
    if unit == LATENCY:
        return {"typical": line["typical_us"], "mean": line["average_us"]}
    rate = line["average_mib_per_second"] * 2**20 / line["bytes"]
    return {"typical": rate, "mean": rate}


def theirs(program, how, asked, sides):
    port = str(free_port())
    server = start([program, "serve", port, HOST, *how], sides.server, **QUIET)
    tests = [f"{test[0]}:{size}" for test in asked.tests for size in asked.sizes]
    command = [program, "measure", port, HOST, *how, str(asked.seconds), *tests]

    def measure():
        found = {}
        for line in output(command, TIMEOUT_S, sides.client).splitlines():
            entry = json.loads(line)
            if "median_us" in entry:
                figure = {"typical": entry["median_us"], "mean": entry["mean_us"]}
            elif "per_second" in entry:
                figure = {"typical": entry["per_second"], "mean": entry["per_second"]}
            else:
                continue
            found[entry["test"], entry["bytes"]] = figure
        return found

    return served(server, int(port), "pair serve", measure)


def pingpong(endpoint, asked, sides):
    """Measures with fi_pingpong, which reports the mean."""
    found = {}
    if not any(test[0] == "send-latency" for test in asked.tests):
        return found
    for size in asked.sizes:
        port = free_port()
        count = int(asked.seconds * 1e6 / (15 + size / 2000))
        both = [PINGPONG, "-p", "tcp", "-e", endpoint, "-I", str(count), "-S", str(size)]
        server = start([*both, "-B", str(port)], sides.server, **QUIET)
        client = [*both, "-P", str(port), HOST]
        text = served(server, port, PINGPONG, lambda: output(client, TIMEOUT_S, sides.client))
        mean = mean_of_pingpong(text)
        found["send-latency", size] = {"typical": mean, "mean": mean}
    return found


def mean_of_pingpong(text):
    """Parses the column `usec/xfer` of the last line."""
    cells = text.strip().splitlines()[-1].split()
    if len(cells) != 8 or not re.fullmatch(r"[0-9.]+", cells[6]):
        raise Failed(f"fi_pingpong printed {text!r}")
    return float(cells[6])


def merged(rounds, measure):
    """Median, minimum and maximum of a measure over the rounds."""
    numbers = [each[measure] for each in rounds]
    return median(numbers), min(numbers), max(numbers)


def table(found, asked):
    """Lines with the figures of both and their ratios; above 1 Farside is faster."""
    lines = []
    others = [OURS_STRICT] + [how[0] for how in THEIRS] + [f"{PINGPONG}-msg", f"{PINGPONG}-rdm"]
    for name, _, _, unit in asked.tests:
        lines.append(f"\n{name}, {'us: median of rounds (best)' if unit == LATENCY else 'requests a second: median of rounds (best)'}")
        for measure in ("typical", "mean") if unit == LATENCY else ("mean",):
            for size in asked.sizes:
                mine = found.get(("farside", name, size))
                if not mine:
                    continue
                cells = [f"{size:>8} B {measure:8}", f"farside {shown(merged(mine, measure), unit)}"]
                for party in others:
                    rounds = found.get((party, name, size))
                    if rounds and not (party.startswith(PINGPONG) and measure == "typical"):
                        other = merged(rounds, measure)
                        cells.append(f"{party} {shown(other, unit)} x{ratio(merged(mine, measure), other, unit):.2f}")
                lines.append("  ".join(cells))
    return "\n".join(lines)


def shown(spread, unit):
    middle, low, high = spread
    if unit == LATENCY:
        return f"{middle:.2f} ({low:.2f})"
    return f"{middle:.0f} ({high:.0f})"


def ratio(mine, other, unit):
    """The factor by which Farside is faster, by the medians of rounds."""
    return other[0] / mine[0] if unit == LATENCY else mine[0] / other[0]


def main(words):
    asked = arguments(words)
    folders = build.Folders(Path(__file__).resolve().parent.parent)
    sides = Sides(asked.unbound)
    try:
        build.install(Libfabric, not asked.no_install)
        program = asked.farside or build.cargo(folders.project, "farside-cli", "farside")
        with tempfile.TemporaryDirectory(prefix="farside-compare-") as where:
            pair = build_pair(folders, where)
            found = measure_all(program, pair, asked, sides)
        versions = {
            "farside": output([program, "--version"], 10).strip(),
            "libfabric": output(["fi_info", "--version"], 10).split("\n")[1].strip(),
            "kernel": platform.release(),
            "congestion": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        }
    except Failed as error:
        say(f"FAILED: {error}")
        return 1
    if asked.json:
        figures = [
            {"party": party, "test": test, "bytes": size, "rounds": rounds}
            for (party, test, size), rounds in found.items()
        ]
        print(json.dumps({"versions": versions, "figures": figures}))
    else:
        print(f"{machine.model()}, {os.cpu_count()} processors; " + ", ".join(f"{k} {v}" for k, v in versions.items()))
        print(f"ratios: above 1 Farside is faster; {asked.rounds} rounds of {asked.seconds} s a figure")
        print(table(found, asked))
    return 0


def measure_all(program, pair, asked, sides):
    """Measures in rounds, each of which begins with a different party."""
    parties = [
        (name, lambda ordering=ordering: ours(program, ordering, asked, sides))
        for name, ordering in OURS
    ]
    parties += [(how[0], lambda how=how: theirs(pair, how[1:], asked, sides)) for how in THEIRS]
    parties += [
        (f"{PINGPONG}-{kind}", lambda kind=kind: pingpong(kind, asked, sides)) for kind in ("msg", "rdm")
    ]
    found = {}
    for number in range(asked.rounds):
        for at in range(len(parties)):
            name, measure = parties[(at + number) % len(parties)]
            say(f"round {number + 1} of {asked.rounds}: {name}")
            for (test, size), figure in measure().items():
                found.setdefault((name, test, size), []).append(figure)
    return found
