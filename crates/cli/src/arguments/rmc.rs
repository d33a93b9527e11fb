//! Arguments of `farside rmc`.

use crate::failure::Failure;
use crate::input_file;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc build search.c
  farside rmc build search.c -o /tmp/search.o --clang clang-19
  farside rmc build search.c --json | jq '.programs[].worst'

Runs clang -target bpf -O2 -g -Wall -ffreestanding with farside_rmc.h in its include path (the header documents
the helpers and the subset of C), then verifies the programs. The object is written only if every program is
accepted, or with --keep-refused. An existing file keeps its owner, mode and links; a device, or a FIFO with a
reader, is written directly.")]
pub(crate) struct RmcBuild {
    /// The C source
    #[arg(value_name = "SOURCE.c")]
    pub(crate) source: PathBuf,
    /// The object file [default: in the folder of the source]
    #[arg(long, short, value_name = "OUT.o")]
    pub(crate) output: Option<PathBuf>,
    /// Also write the object if a program is refused (still with exit code 1)
    #[arg(long)]
    pub(crate) keep_refused: bool,
    /// The clang to run; it must support the target bpf, as Debian's does
    #[arg(long, value_name = "PATH", default_value = "clang")]
    pub(crate) clang: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc check search.o
  farside rmc check search.o --disassemble
  farside rmc check *.s                        programs in assembler
  farside rmc check search.o --json | jq '.files[].programs[] | select(.refusal)'

A program is accepted if it provably accesses only its own memory, calls only existing helpers, leaks no
address and terminates. `metered` means that a budget ends it at run time, since no bound of its loops was
proven, or the bound exceeds the budget. Words are helper accesses to a single word; they do not count as helper
calls, since the instructions bound them. Exit code 1 if any program is refused.")]
pub(crate) struct RmcCheck {
    /// Objects of clang -target bpf, programs in assembler (.s), or names of library programs
    #[arg(value_name = "OBJECT|SOURCE.s", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Print the instructions with their source lines
    #[arg(long)]
    pub(crate) disassemble: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc run search.o --parameters 64,7 --memory 0=nodes.bin
  farside rmc run list_search --parameters 64,7 --memory 0=nodes.bin     a program of the library
  farside rmc run log_append --parameters @record.bin --memory 0=log.bin --write-back
  farside rmc run search.o --parameters 64,7 --memory 0=nodes.bin --json | jq .one_sided.round_trips

Files are changed only with --write-back, and only if the program returns. The program runs without an executor
and other callers: a wait for a word that has not changed times out at once, notices have no listener, and there
is no global memory. Exit code 0 if the program returns, with any result, and 1 if it is stopped.")]
pub(crate) struct RmcRun {
    #[command(flatten)]
    pub(crate) of: CallArguments,
    /// A file with the contents of region number REGION
    #[arg(long, value_name = "REGION=FILE", value_parser = OsStringValueParser::new().try_map(Memory::try_from))]
    pub(crate) memory: Vec<Memory>,
    /// Write changed regions back to their files
    #[arg(long)]
    pub(crate) write_back: bool,
    /// Execution engine
    #[arg(long, value_enum, default_value = "fast")]
    pub(crate) engine: EngineName,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc list
  farside rmc list --of search.o
  farside rmc list --json | jq '.programs[].name'

The sources of the library, crates/rmc/library, document the parameters, results and output of each program, and
the memory layout that it expects.")]
pub(crate) struct RmcList {
    /// List the programs of this file
    #[arg(long, value_name = "OBJECT")]
    pub(crate) of: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc figures
  farside rmc figures --out drawings           figure-3.svg to figure-7.svg
  farside rmc figures --json | jq '.figures[] | .title'

The figures are a model: real callers and executors run over a simulated fabric with the latencies of the paper.
The output is crates/sim/CALLS.md.")]
pub(crate) struct RmcFigures {
    /// Write the figures to this folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

/// An execution engine of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EngineName {
    /// An interpreter that checks every access and trusts no proof
    Checked,
    /// The interpreter for verified programs
    Fast,
    /// Machine code for this processor (x86-64)
    Compiled,
}

/// The program to call and its parameters.
#[derive(Args, Debug)]
pub(crate) struct CallArguments {
    /// An object of clang -target bpf, a program in assembler (.s), or the name of a library program
    #[arg(value_name = "OBJECT")]
    pub(crate) object: PathBuf,
    /// The program, if the object has several
    #[arg(long, value_name = "NAME")]
    pub(crate) program: Option<String>,
    /// Parameters: words such as 64,0x7, bytes such as hex:0011aabb, or @FILE
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true,
        value_parser = OsStringValueParser::new().try_map(Parameters::try_from)
    )]
    pub(crate) parameters: Parameters,
}

/// Parameters of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Parameters {
    /// Given on the command line.
    Bytes(Vec<u8>),
    /// In a file.
    File(PathBuf),
}

impl TryFrom<OsString> for Parameters {
    type Error = String;

    fn try_from(argument: OsString) -> Result<Self, String> {
        if let Some(path) = argument.as_bytes().strip_prefix(b"@") {
            return Ok(Self::File(OsStr::from_bytes(path).into()));
        }
        let text = &*argument.to_string_lossy();
        if let Some(digits) = text.strip_prefix("hex:") {
            return hex(digits).map(Self::Bytes);
        }
        let words = text.split(',').filter(|_| !text.is_empty()).map(word);
        let words: Vec<_> = words.collect::<Result<_, _>>()?;
        Ok(Self::Bytes(words.into_iter().flat_map(u64::to_le_bytes).collect()))
    }
}

impl Parameters {
    /// Returns the bytes, of a file if necessary.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::File(path) => input_file::read(path, input_file::TEXT_BYTES_MAX),
        }
    }
}

pub(super) fn word(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if text.starts_with('-') => text.parse::<i64>().map(i64::cast_unsigned),
        None => text.parse(),
    };
    number.map_err(|_| {
        format!("`{text}` is no word of 64 bits: write 7, -1 or 0x1f, or bytes as in hex:0011aabb")
    })
}

fn hex(digits: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<_> = digits.chars().filter(|c| !c.is_whitespace() && *c != '_').collect();
    let value = |c: char| {
        c.to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
            .ok_or_else(|| format!("`{c}` is no hexadecimal digit"))
    };
    let byte = |pair: &[char]| match pair {
        [high, low] => Ok(value(*high)? << 4 | value(*low)?),
        _ => Err("an odd number of hexadecimal digits".to_owned()),
    };
    digits.chunks(2).map(byte).collect()
}

/// Splits an argument at the first `=`; the second part may be the name of a file that is not UTF-8.
pub(super) fn split_once(argument: &OsStr) -> Option<(String, &OsStr)> {
    let bytes = argument.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let before = String::from_utf8(bytes[..at].to_vec()).ok()?;
    Some((before, OsStr::from_bytes(&bytes[at + 1..])))
}

/// A file with the contents of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    /// The region's number in programs.
    pub(crate) region: u64,
    pub(crate) file: PathBuf,
}

impl TryFrom<OsString> for Memory {
    type Error = String;

    fn try_from(argument: OsString) -> Result<Self, String> {
        let expected = || {
            let text = argument.to_string_lossy();
            format!("`{text}` is not REGION=FILE, as in 0=nodes.bin")
        };
        let (region, file) = split_once(&argument).ok_or_else(expected)?;
        let region = word(&region).map_err(|_| expected())?;
        if file.is_empty() {
            return Err(expected());
        }
        Ok(Self { region, file: file.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_parsed_from_words_or_bytes() {
        let bytes = |text: &str| match Parameters::try_from(OsString::from(text)) {
            Ok(Parameters::Bytes(bytes)) => Ok(bytes),
            Ok(Parameters::File(_)) => Err("a file".to_owned()),
            Err(error) => Err(error),
        };
        assert_eq!(bytes(""), Ok(vec![]));
        assert_eq!(bytes("258"), Ok(vec![2, 1, 0, 0, 0, 0, 0, 0]));
        let two = [&[0x1f][..], &[0; 7], &[0xff; 8]].concat();
        assert_eq!(bytes("0x1f, -1"), Ok(two));
        assert_eq!(bytes("18446744073709551615"), Ok(vec![0xff; 8]));
        assert_eq!(bytes("hex:00ff_A0 01"), Ok(vec![0, 0xff, 0xa0, 1]));
        assert_eq!(bytes("hex:"), Ok(vec![]));
        assert_eq!(
            Parameters::try_from(OsString::from("@a,b")),
            Ok(Parameters::File("a,b".into()))
        );
        for junk in ["x", "1,", ",", "0x", "18446744073709551616", "-9223372036854775809", "1.5"] {
            assert!(bytes(junk).unwrap_err().contains("no word"), "{junk}");
        }
        assert!(bytes("hex:0").unwrap_err().contains("odd"));
        assert!(bytes("hex:0g").unwrap_err().contains("`g`"));
    }

    #[test]
    fn regions_are_parsed_from_number_and_file() {
        let memory = |region, file: &str| Ok(Memory { region, file: file.into() });
        let parsed = |text: &str| Memory::try_from(OsString::from(text));
        assert_eq!(parsed("0=a"), memory(0, "a"));
        assert_eq!(parsed("0x10=a=b"), memory(16, "a=b"));
        let name = OsStr::from_bytes(b"1=caf\xe9").to_owned();
        let file = OsStr::from_bytes(b"caf\xe9").into();
        assert_eq!(Memory::try_from(name), Ok(Memory { region: 1, file }));
        for junk in ["", "a", "=a", "0=", "x=a"] {
            assert!(parsed(junk).is_err(), "{junk}");
        }
    }
}
