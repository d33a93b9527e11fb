#!/usr/bin/env python3
"""Asks the verifier of the running kernel for its verdicts on the corpus, and prints the table `../linux.txt`.

Compiles each file at each level and size with the helpers of Linux (`farside_rmc.h` beside this file), and loads each
program by bpf(2) as a raw tracepoint, whose context is read in the way of parameters. Needs root and clang; takes a few
minutes. Nothing is attached. `ask.py NAME` prints the last lines of the kernel's log for each variant of that program.
"""
import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).resolve().parent.parent
LEVELS = ("-O1", "-O2", "-Os")
SIZES = (8, 20, 48)

SYS_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
MAP_CREATE, MAP_UPDATE, PROG_LOAD, MAP_FREEZE = 0, 2, 5, 22
ARRAY, RINGBUF, RAW_TRACEPOINT = 2, 27, 17
READ_ONLY_FOR_PROGRAMS = 1 << 7
PSEUDO_MAP, PSEUDO_MAP_VALUE = 1, 2
LOG_BYTES = 1 << 24

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, fields):
    """The result of bpf(2), or the negative errno."""
    attributes = ctypes.create_string_buffer(fields.ljust(144, b"\0"), 144)
    result = libc.syscall(SYS_BPF, command, attributes, 144)
    return result if result >= 0 else -ctypes.get_errno()


def new_map(kind, key_bytes, value_bytes, entries, flags):
    descriptor = bpf(MAP_CREATE, struct.pack("<5I", kind, key_bytes, value_bytes, entries, flags))
    if descriptor < 0:
        sys.exit(f"bpf(BPF_MAP_CREATE): {os.strerror(-descriptor)}")
    return descriptor


def data_map(content, read_only):
    flags = READ_ONLY_FOR_PROGRAMS if read_only else 0
    descriptor = new_map(ARRAY, 4, len(content), 1, flags)
    key, value = ctypes.c_uint32(0), ctypes.create_string_buffer(content, len(content))
    entry = struct.pack("<IIQQQ", descriptor, 0, ctypes.addressof(key), ctypes.addressof(value), 0)
    bpf(MAP_UPDATE, entry)
    if read_only:
        bpf(MAP_FREEZE, struct.pack("<I", descriptor))
    return descriptor


class Object:
    """A relocatable ELF object."""

    def __init__(self, file):
        self.file = file
        (start,) = struct.unpack_from("<Q", file, 40)
        size, count, names = struct.unpack_from("<3H", file, 58)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", file, start + at * size) for at in range(count)]
        self.names = [self.text(names, section[0]) for section in self.sections]
        symbols = next(at for at, section in enumerate(self.sections) if section[1] == 2)
        self.symbols = list(struct.iter_unpack("<IBBHQQ", self.content(symbols)))
        self.maps = {}

    def content(self, at):
        _, kind, _, _, offset, size = self.sections[at][:6]
        return bytes(size) if kind == 8 else self.file[offset : offset + size]

    def text(self, at, offset):
        return self.content(at)[offset:].split(b"\0", 1)[0].decode()

    def map_of(self, section):
        if section not in self.maps:
            name = self.names[section]
            is_output = name == "maps"
            self.maps[section] = (
                new_map(RINGBUF, 0, 0, 4096, 0)
                if is_output
                else data_map(self.content(section), name.startswith(".rodata"))
            )
        return self.maps[section]

    def programs(self):
        """Names and code with the relocations applied."""
        for at, name in enumerate(self.names):
            if name.startswith("rmc/"):
                yield name[4:], self.relocated(at)

    def relocated(self, program):
        code = bytearray(self.content(program))
        for at, section in enumerate(self.sections):
            if section[1] != 9 or section[7] != program:
                continue
            for offset, info in struct.iter_unpack("<QQ", self.content(at)):
                symbol, kind = self.symbols[info >> 32], info & 0xFFFFFFFF
                if kind != 1:
                    sys.exit(f"{self.names[program]}: relocation of type {kind}")
                self.relocate(code, offset, symbol)
        return bytes(code)

    def relocate(self, code, offset, symbol):
        section, value = symbol[3], symbol[4]
        is_output = self.names[section] == "maps"
        (addend,) = struct.unpack_from("<i", code, offset + 4)
        code[offset + 1] = code[offset + 1] & 15 | (PSEUDO_MAP if is_output else PSEUDO_MAP_VALUE) << 4
        struct.pack_into("<i", code, offset + 4, self.map_of(section))
        struct.pack_into("<i", code, offset + 12, 0 if is_output else addend + value)

    def close(self):
        for descriptor in self.maps.values():
            os.close(descriptor)


def load(code, log=None):
    """Zero where the verifier accepts, else the errno."""
    code_buffer, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    log_fields = (1, len(log), ctypes.addressof(log)) if log else (0, 0, 0)
    fields = (RAW_TRACEPOINT, len(code) // 8, ctypes.addressof(code_buffer), ctypes.addressof(licence), *log_fields)
    result = bpf(PROG_LOAD, struct.pack("<IIQQIIQ", *fields))
    if result < 0:
        return -result
    os.close(result)
    return 0


def compiled(file, level, size):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.o"
        options = ["-target", "bpf", "-ffreestanding", "-g", level, f"-DN={size}", "-I", str(CORPUS / "linux")]
        command = [os.environ.get("FARSIDE_CLANG", "clang"), *options, "-c", str(file), "-o", str(out)]
        subprocess.run(command, check=True)
        return Object(out.read_bytes())


def verdicts(only):
    """`+` accepted, `-` refused, `?` no verdict, by program and variant."""
    # EFAULT: "The sequence of 8193 jumps is too complex".
    refusals = (errno.EACCES, errno.EINVAL, errno.E2BIG, errno.EFAULT)
    table, reasons = {}, {0: "+"} | dict.fromkeys(refusals, "-")
    for file in sorted(CORPUS.glob("*.c")):
        for level in LEVELS:
            for size in SIZES:
                unit = compiled(file, level, size)
                for name, code in unit.programs():
                    if only in (None, name):
                        error = load(code)
                        table[name, level, size] = reasons.get(error, "?")
                        if only:
                            show(name, level, size, error, code)
                unit.close()
    return table


def show(name, level, size, error, code):
    log = ctypes.create_string_buffer(LOG_BYTES)
    load(code, log)
    last = log.value.decode(errors="replace").strip().splitlines()[-6:]
    print(f"{name} {size} {level}: {os.strerror(error) if error else 'accepted'}", *last, sep="\n    ")


def main():
    only = sys.argv[1] if len(sys.argv) > 1 else None
    table = verdicts(only)
    if only:
        return
    print(f"# Verdicts of the verifier of Linux {platform.release().split('-')[0]} on the corpus, by linux/ask.py:")
    print("# + accepts, - refuses; at each level of clang for an N of 8, 20 and 48.")
    print("# name -O1 -O2 -Os")
    for name in sorted({name for name, _, _ in table}):
        columns = ("".join(table[name, level, size] for size in SIZES) for level in LEVELS)
        print(name, *columns)


main()
