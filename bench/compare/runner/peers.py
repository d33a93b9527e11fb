"""The peers: how each is installed and started, and how its output is parsed."""

import glob
import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from . import build
from .figures import BYTES, LATENCY, RATE, fault, spread
from .processes import Failed, end, output, start, wait_until

TIMEOUT_S = 240
PROGRAM = "farside-compare"
SIZES = (8, 64, 1 << 10, 64 << 10)


def lines_of_json(text):
    """Parses the entries that the harnesses of this folder print, one a line."""
    entries = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    for entry in entries:
        wrong = fault(entry)
        if wrong:
            raise Failed(f"a figure {wrong}: {json.dumps(entry)}")
    if not entries:
        raise Failed("no figure was printed")
    return entries


def probe(folders, setup):
    """Returns a function that measures `bare-line` in ns, which shows how the host currently places the
    processors."""
    program = build.cargo(folders.compare, PROGRAM, PROGRAM)

    def ask():
        text = output([program, "probe", "10", *map(str, setup.processors)], TIMEOUT_S)
        return lines_of_json(text)[0][LATENCY]["best"]

    return ask


class Ours:
    """A peer that `farside-compare` measures."""

    packages = ()
    tools = ()

    def __init__(self, name, sentence):
        self.name = name
        self.sentence = sentence
        self._program = None

    def prepare(self, folders):
        self._program = build.cargo(folders.compare, PROGRAM, PROGRAM)
        if self.name == "iceoryx2":
            return f"iceoryx2 {build.locked_version(folders.compare, 'iceoryx2')}"
        return f"kernel {os.uname().release}"

    def measure(self, setup):
        command = [self._program, self.name, str(setup.windows), *map(str, setup.processors)]
        try:
            return lines_of_json(output(command, TIMEOUT_S))
        finally:
            sweep()


def sweep():
    """Removes the files that iceoryx2 keeps after its last user, and those of killed processes."""
    for path in glob.glob("/dev/shm/farside_compare_*"):
        owner = path.split("_")[2]
        if not os.path.exists(f"/proc/{owner}"):
            Path(path).unlink(missing_ok=True)
    for path in glob.glob(os.path.join(tempfile.gettempdir(), "farside_compare_*")):
        owner = path.rpartition("_")[2]
        if not os.path.exists(f"/proc/{owner}"):
            shutil.rmtree(path, ignore_errors=True)


class OpenMpi:
    """OpenMPI over shared memory: send and receive."""

    name = "openmpi"
    sentence = "OpenMPI's send and receive over shared memory"
    packages = ("openmpi-bin", "libopenmpi-dev", "gcc")
    tools = ("mpicc", "mpirun")

    def __init__(self):
        self._program = None

    def prepare(self, folders):
        self._folder = tempfile.TemporaryDirectory(prefix="farside-compare-mpi-")
        self._program = os.path.join(self._folder.name, "pair")
        source = str(folders.compare / "mpi" / "pair.c")
        output(["mpicc", "-O2", "-std=c11", "-Wall", "-o", self._program, source], 120)
        return output(["mpirun", "--version"], 30).splitlines()[0]

    def measure(self, setup):
        # The ranks bind themselves. Only transports within one machine; waiting ranks do not yield.
        parameters = {"pml": "ob1", "btl": "vader,self", "mpi_yield_when_idle": "0"}
        command = ["mpirun", "-n", "2", "--bind-to", "none", "--use-hwthread-cpus"]
        for name, value in parameters.items():
            command += ["--mca", name, value]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        command += [self._program, str(setup.windows), *map(str, setup.processors)]
        return lines_of_json(output(command, TIMEOUT_S, set(setup.processors)))


class Ucx:
    """UCX, measured by its own ucx_perftest."""

    name = "ucx"
    sentence = "UCX tag matching and puts, by its own ucx_perftest"
    packages = ("ucx-utils",)
    tools = ("ucx_perftest", "ucx_info")

    # Transports, channel, test of latency, test of bandwidth, sizes.
    CASES = (
        ("posix,self", "ucx-tag", "tag_lat", "tag_bw", SIZES),
        ("posix,self", "ucx-put", "ucp_put_lat", "ucp_put_bw", SIZES),
        ("posix,cma,self", "ucx-tag-cma", "tag_lat", "tag_bw", SIZES[-1:]),
    )

    def prepare(self, folders):
        return output(["ucx_info", "-v"], 30).splitlines()[0].lstrip("# ")

    def measure(self, setup):
        windows = {}
        for transports in dict.fromkeys(case[0] for case in self.CASES):
            cases = [case[1:] for case in self.CASES if case[0] == transports]
            batch = batch_lines(cases) * setup.windows
            for line in self._run(transports, batch, setup.processors).splitlines():
                add_window(windows, line)
        return entries_of(windows)

    def _run(self, transports, batch, processors):
        """Runs a batch of tests between two processes and returns the output of the measuring one."""
        environment = {"UCX_TLS": transports, "UCX_LOG_LEVEL": "error"}
        with tempfile.NamedTemporaryFile("w", prefix="farside-compare-ucx-") as file:
            file.write("\n".join(batch) + "\n")
            file.flush()
            port = free_port()
            # The command needs a test, but each line of the batch names its own.
            both = ["ucx_perftest", "-p", str(port), "-b", file.name, "-t", "tag_lat", "-v", "-f"]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            server = start(both, {processors[1]}, environment, **quiet)
            try:
                ready = lambda: is_listening(port) or server.poll() is not None
                wait_until("ucx_perftest as a server", ready, 10)
                client = [both[0], "127.0.0.1", *both[1:]]
                return output(client, TIMEOUT_S, {processors[0]}, environment)
            finally:
                end(server)


def batch_lines(cases):
    """Returns the lines of a batch file: each test once."""
    lines = []
    for channel, latency, bandwidth, sizes in cases:
        for size in sizes:
            # About a millisecond each, similar to the windows of our own programs. Percentiles are of
            # the last 2,048 operations.
            rounds = 4000 if size <= 1024 else 400
            count = 8000 if size <= 1024 else 400
            lines.append(f"{channel}:latency:{size} -t {latency} -s {size} -n {rounds} -w {rounds // 10}")
            lines.append(f"{channel}:stream:{size} -t {bandwidth} -s {size} -n {count} -w {count // 10}")
    return lines


def add_window(windows, line):
    """Parses the result of one test: name, iterations, median latency in us, ..., messages a second."""
    name, *cells = line.split(",")
    if name.count(":") != 2 or len(cells) != 8:
        return
    channel, kind, size = name.split(":")
    median_us, rate = float(cells[1]), float(cells[7])
    number = median_us * 1e3 if kind == "latency" else rate
    windows.setdefault((channel, int(size), kind), []).append(number)


def entries_of(windows):
    """Returns the entries of one round, computed from its windows."""
    if not windows:
        raise Failed("ucx_perftest printed no result")
    entries = []
    for (channel, size, kind), numbers in windows.items():
        entry = {"channel": channel, "message_bytes": size, "payload": "unwritten", "wait": "spin"}
        if kind == "latency":
            entry[LATENCY] = spread(LATENCY, numbers)
        else:
            entry[RATE] = spread(RATE, numbers)
            entry[BYTES] = {name: rate * size for name, rate in entry[RATE].items()}
        wrong = fault(entry)
        if wrong:
            raise Failed(f"ucx_perftest: {channel} {kind} of {size} B {wrong}")
        entries.append(entry)
    return entries


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port):
    """Whether a process listens at the port. Does not connect: the server would take that for its client."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            cells = line.split()
            if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                return True
    return False


def all_peers():
    return [
        Ours("bare", "copies, cache lines and futexes without any channel"),
        Ours("socket", "Unix stream sockets"),
        Ours("iceoryx2", "iceoryx2's publish and subscribe"),
        Ucx(),
        OpenMpi(),
    ]
