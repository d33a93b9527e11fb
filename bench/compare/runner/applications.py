"""Compares Farside's applications in one-sided memory with their peers, in rounds that measure all of them. Prints the
times of both and their ratios."""

import argparse
import json
import os
import sys
import tempfile
from subprocess import DEVNULL
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from . import build, machine
from .processes import Failed, end, output, say, start, wait_until

TIMEOUT_S = 600
PACKAGES = ("polars", "duckdb")
TESTS = ("hashtable", "log", "partition", "join")
BEST, MEDIAN = "best_ns", "median_ns"


@dataclass(frozen=True)
class Target:
    """The time of one of our figures, at most `factor` times that of the fastest of the peers."""

    test: str
    sentence: str
    ours: str
    peers: tuple
    factor: float


TARGETS = (
    Target("hashtable", "one get, against Redis 64 deep", "get, place known", ("redis: get, 64 together",), 0.2),
    Target("hashtable", "64 gets together, against DashMap", "get, 64 together", ("dashmap: get",), 1.0),
    Target("log", "append of 64 B, against a ring", "fastest append", ("ring",), 2.0),
    Target("partition", "16 parts of 256 MB, against Polars", "shuffle", ("polars",), 0.33),
    Target("join", "2 executors, against DuckDB and Polars", "join", ("duckdb", "polars"), 0.5),
)


class Redis:
    """The package that measuring Redis needs."""

    name = "redis"
    packages = ("redis-server",)
    tools = ("redis-server",)


def arguments(words):
    parser = argparse.ArgumentParser(prog="bench/compare/applications", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--rows", type=int, default=16_000_000, help="rows of partition and join (default 16000000)")
    parser.add_argument("--test", action="append", choices=TESTS, help="only these")
    parser.add_argument("--farside", metavar="PROGRAM", help="a farside command that is already built")
    parser.add_argument("--no-install", action="store_true", help="install nothing; say what is missing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args(words)
    asked.tests = [test for test in TESTS if not asked.test or test in asked.test]
    return asked


def python(folders, allowed):
    """Returns a Python that has the engines, which are installed from PyPI below the target folder."""
    folder = folders.project / "target" / "tmp" / "engines"
    program = str(folder / "bin" / "python")
    try:
        output([program, "-c", f"import {', '.join(PACKAGES)}"], TIMEOUT_S)
        return program
    except Failed:
        if not allowed:
            raise Failed(f"missing Python packages: {', '.join(PACKAGES)}") from None
    say(f"installing {', '.join(PACKAGES)} from PyPI")
    output([sys.executable, "-m", "venv", "--clear", str(folder)], TIMEOUT_S)
    output([program, "-m", "pip", "install", "--quiet", *PACKAGES], TIMEOUT_S)
    return program


class Parties:
    """The programs that are measured."""

    def __init__(self, asked):
        folders = build.Folders(Path(__file__).resolve().parent.parent)
        allowed = not asked.no_install
        self.processors = machine.processors()
        if self.processors is None:
            raise Failed("two processors are needed")
        self.rows = asked.rows
        self.farside = asked.farside or build.cargo(folders.project, "farside-cli", "farside")
        self.compare = self.python = None
        if "hashtable" in asked.tests:
            build.install(Redis, allowed)
            self.compare = build.cargo(folders.compare, "farside-compare", "farside-compare")
        if {"partition", "join"} & set(asked.tests):
            self.python = python(folders, allowed)
        self.engines = str(folders.compare / "runner" / "engines.py")

    def bench(self, *words):
        return json.loads(output([self.farside, "bench", *words, "--json"], TIMEOUT_S))

    def engine(self, engine, test):
        """Runs an engine once, after a run that is not counted."""
        times = output([self.python, self.engines, engine, test, str(self.rows), "1"], TIMEOUT_S)
        return spread(json.loads(times))

    def hashtable(self):
        names = ("get, place known", "get, 64 together")
        found = {one["operation"]: pick(one) for one in self.bench("hashtable") if one["operation"] in names}
        with tempfile.TemporaryDirectory(prefix="farside-compare-") as folder:
            socket = os.path.join(folder, "redis")
            options = ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
            server = start(["redis-server", *options], {self.processors[0]}, stdout=DEVNULL, stderr=DEVNULL)
            try:
                wait_until("redis-server", lambda: os.path.exists(socket), 10)
                lines = output([self.compare, "redis", "50", socket], TIMEOUT_S, {self.processors[1]})
            finally:
                end(server)
        lines += output([self.compare, "dashmap", "50"], TIMEOUT_S)
        for line in lines.splitlines():
            one = json.loads(line)
            found[f"{one['party']}: {one['operation']}"] = pick(one)
        return found

    def log(self):
        appends = [one for one in self.bench("log") if one["operation"] == "append"]
        fastest = min(appends, key=lambda one: one["record_ns"])
        scale = fastest["record_ns"] / fastest[MEDIAN]
        ours = {name: fastest[name] * scale for name in (BEST, MEDIAN)}
        ring = fastest["record_ns"] / fastest["ratio"]
        return {"fastest append": ours, "ring": {BEST: ring, MEDIAN: ring}}

    def partition(self):
        words = ("shuffle", "--rows", str(self.rows), "--receivers", "16", "--senders", "2", "--runs", "2")
        ours = self.bench(*words, "--batch-rows", "64")
        fastest = min((one for one in ours if one["way"] == "stage"), key=lambda one: one[BEST])
        found = {name: fastest[name] * self.rows for name in (BEST, MEDIAN)}
        return {"shuffle": found} | {name: self.engine(name, "partition") for name in PACKAGES}

    def join(self):
        ours = self.bench("join", "--rows", str(self.rows), "--executors", "2", "--runs", "2")
        fastest = min((one for one in ours if one["way"] == "join"), key=lambda one: one[BEST])
        return {"join": pick(fastest)} | {name: self.engine(name, "join") for name in PACKAGES}


def pick(entry):
    return {name: entry[name] for name in (BEST, MEDIAN)}


def spread(times):
    return {BEST: min(times), MEDIAN: median(times)}


def judge(target, figures):
    """Compares the best of all rounds, and the medians of the rounds."""
    best = {name: min(one[BEST] for one in rounds) for name, rounds in figures.items()}
    usual = {name: median(one[MEDIAN] for one in rounds) for name, rounds in figures.items()}
    peer = min(target.peers, key=best.get)
    ratio = best[target.ours] / best[peer]
    return {
        "target": target.sentence,
        "ours_best_ns": best[target.ours],
        "peer": peer,
        "peer_best_ns": best[peer],
        "ratio": ratio,
        "ratio_of_medians": usual[target.ours] / usual[peer],
        "bound": target.factor,
        "met": ratio <= target.factor,
    }


def shown(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def main(words):
    asked = arguments(words)
    try:
        parties = Parties(asked)
        busy = machine.busy_share(sorted(os.sched_getaffinity(0)))
        figures = {test: {} for test in asked.tests}
        for number in range(asked.rounds):
            for test in asked.tests:
                say(f"round {number + 1} of {asked.rounds}: {test}")
                for name, figure in getattr(parties, test)().items():
                    figures[test].setdefault(name, []).append(figure)
    except Failed as error:
        say(f"bench/compare/applications: {error}")
        return 1
    results = [judge(target, figures[target.test]) for target in TARGETS if target.test in figures]
    if asked.json:
        print(json.dumps({"busy_before": busy, "figures": figures, "targets": results}, indent=1))
        return 0
    print(f"other processes used {busy:.0%} of the processors before; {asked.rounds} rounds; best of all rounds")
    for test, of_test in figures.items():
        for name, rounds in of_test.items():
            print(f"{test:10} {name:26} {shown(min(one[BEST] for one in rounds)):>8}")
    for one in results:
        verdict = "met" if one["met"] else "MISSED"
        ratio = f"{one['ratio']:.2f} (medians {one['ratio_of_medians']:.2f})"
        print(f"{one['target']:42} {one['peer']:24} {ratio:22} <= {one['bound']:<4} {verdict}")
    return 0
