//! Remote memory calls: programs, parameters, regions, tenants, and the site where calls run.

use farside::call::Quota;
use farside_command::failure::Failure;
use farside_command::input_file;
use farside_command::settings::FabricSettings;
use farside_command::units::bytes;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

/// Compiles a C program and verifies it.
#[derive(Debug)]
pub(crate) struct RmcBuild {
    pub(crate) source: PathBuf,
    /// The object file; `None` for one in the folder of the source.
    pub(crate) output: Option<PathBuf>,
    /// Whether the object is written even if a program is refused.
    pub(crate) keep_refused: bool,
    pub(crate) clang: PathBuf,
}

/// Verifies programs.
#[derive(Debug)]
pub(crate) struct RmcCheck {
    /// Objects, sources in assembler, or names of library programs.
    pub(crate) files: Vec<PathBuf>,
    /// Whether the instructions are printed.
    pub(crate) disassemble: bool,
}

/// Runs a program in this process.
#[derive(Debug)]
pub(crate) struct RmcRun {
    pub(crate) of: ProgramCall,
    /// Files with the contents of regions.
    pub(crate) memory: Vec<Memory>,
    /// Whether changed regions are written back to their files.
    pub(crate) write_back: bool,
    pub(crate) engine: EngineName,
}

/// Runs an executor.
#[derive(Debug)]
pub(crate) struct RmcServe {
    /// Its address.
    pub(crate) at: String,
    pub(crate) memory: Vec<Lend>,
    /// Whether changed regions are written back to their files.
    pub(crate) write_back: bool,
    /// The executor on whose memory calls run.
    pub(crate) beside: Option<String>,
    pub(crate) member: MemberSettings,
    /// Maximum number of callers.
    pub(crate) sessions: u32,
    /// Maximum number of calls in flight per caller.
    pub(crate) slots: u16,
    pub(crate) tenant: Vec<Tenant>,
    /// Regions that programs and one-sided requests can only read.
    pub(crate) read_only: Vec<u8>,
    pub(crate) only_for: Vec<OnlyFor>,
    /// Whether it serves other machines without a key.
    pub(crate) insecure: bool,
    pub(crate) choice: FabricSettings,
}

/// Registers programs at an executor.
#[derive(Debug)]
pub(crate) struct RmcRegister {
    /// The address of the executor.
    pub(crate) to: String,
    pub(crate) object: PathBuf,
    /// Whether the session stays open.
    pub(crate) keep: bool,
    pub(crate) caller: CallerSettings,
}

/// Calls a program.
#[derive(Debug)]
pub(crate) struct RmcCall {
    /// The address of the executor.
    pub(crate) to: String,
    pub(crate) of: ProgramCall,
    pub(crate) place: PlaceSettings,
    pub(crate) member: MemberSettings,
    /// Number of calls, one after the other.
    pub(crate) times: u64,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) caller: CallerSettings,
}

/// Prints notices of topics.
#[derive(Debug)]
pub(crate) struct RmcListen {
    /// The address of the executor.
    pub(crate) to: String,
    pub(crate) topics: Vec<u64>,
    /// Number of notices after which it ends.
    pub(crate) count: Option<u64>,
    pub(crate) caller: CallerSettings,
}

/// The program to call and its parameters.
#[derive(Debug)]
pub(crate) struct ProgramCall {
    pub(crate) object: PathBuf,
    /// The program, if the object has several.
    pub(crate) program: Option<String>,
    pub(crate) parameters: Parameters,
}

/// The places where calls may run.
#[derive(Debug)]
pub(crate) struct PlaceSettings {
    pub(crate) place: PlaceName,
    /// Other places to choose from.
    pub(crate) also: Vec<String>,
    /// Expected memory accesses of a call.
    pub(crate) accesses: Option<u64>,
}

/// The cluster whose global memory calls can access; none if both are absent.
#[derive(Debug)]
pub(crate) struct MemberSettings {
    /// A cluster of this machine, by name.
    pub(crate) cluster: Option<String>,
    /// A settings file of a node, for a cluster of several hosts.
    pub(crate) node: Option<PathBuf>,
}

/// How a command connects to an executor.
#[derive(Debug)]
pub(crate) struct CallerSettings {
    /// The tenant whose quota applies.
    pub(crate) tenant: String,
    pub(crate) choice: FabricSettings,
}

/// An execution engine of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EngineName {
    /// An interpreter that checks every access and trusts no proof.
    Checked,
    /// The interpreter for verified programs.
    Fast,
    /// Machine code for this processor (x86-64).
    Compiled,
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

/// A place as given on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PlaceName {
    /// The place with the lowest expected latency, for each call.
    Choose,
    /// In this process.
    Here,
    /// At the executor of the command's `ADDRESS`.
    There,
    /// At the executor of this address.
    At(String),
}

impl FromStr for PlaceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "" => return Err("a place is choose, here, there or an address".to_owned()),
            "choose" => Self::Choose,
            "here" => Self::Here,
            "there" => Self::There,
            address => Self::At(address.to_owned()),
        })
    }
}

/// A region to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lend {
    /// Its number in programs.
    pub(crate) region: u8,
    pub(crate) from: LendFrom,
}

/// The initial contents of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LendFrom {
    /// The contents of a file.
    File(PathBuf),
    /// A number of zero bytes.
    Zeros(u64),
}

impl TryFrom<OsString> for Lend {
    type Error = String;

    fn try_from(argument: OsString) -> Result<Self, String> {
        let expected = || {
            let text = argument.to_string_lossy();
            format!(
                "`{text}` is neither REGION=FILE nor REGION=BYTES, as in 0=nodes.bin or 0=64M; regions \
                 are 0 to 255"
            )
        };
        let (region, from) = split_once(&argument).ok_or_else(expected)?;
        let region = region.trim().parse().map_err(|_| expected())?;
        let from = match bytes(&from.to_string_lossy()) {
            _ if from.is_empty() => return Err(expected()),
            Ok(0) => return Err("a region has at least one byte".to_owned()),
            Ok(number) => LendFrom::Zeros(number),
            Err(_) => LendFrom::File(from.into()),
        };
        Ok(Self { region, from })
    }
}

/// The tenants that can access a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OnlyFor {
    pub(crate) region: u8,
    pub(crate) tenants: Vec<String>,
}

impl FromStr for OnlyFor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(region, names)| {
            let region = region.trim().parse().ok()?;
            let tenants: Vec<_> = names.split(',').map(str::to_owned).collect();
            tenants.iter().all(|name| !name.is_empty()).then_some(Self { region, tenants })
        });
        parsed.ok_or_else(|| format!("`{text}` is not REGION=NAME,..., as in 1=accounts,audit"))
    }
}

/// A tenant and its quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tenant {
    /// `None` for the tenant of all callers that no other quota names.
    pub(crate) name: Option<String>,
    pub(crate) quota: Quota,
}

impl FromStr for Tenant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, shares) =
            text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
                format!("`{text}` is not NAME=SHARE,..., as in batch=weight:1,calls:8,processor:25")
            })?;
        let mut quota = Quota::DEFAULT;
        for share in shares.split(',') {
            set(&mut quota, share)?;
        }
        Ok(Self { name: (name != "*").then(|| name.to_owned()), quota })
    }
}

fn set(quota: &mut Quota, share: &str) -> Result<(), String> {
    let known =
        "expected weight:W, callers:N, calls:N, programs:N, state:BYTES or processor:PERCENT";
    let (what, value) = share.split_once(':').ok_or_else(|| format!("`{share}`: {known}"))?;
    let number = |least: u32| {
        let read = value.parse().ok().filter(|number| *number >= least);
        read.ok_or_else(|| format!("`{share}`: expected a whole number, at least {least}"))
    };
    match what {
        "weight" => quota.weight = number(1)?,
        "callers" => quota.sessions = Some(number(0)?),
        "calls" => quota.calls = number(0)?,
        "programs" => quota.programs = number(0)?,
        "state" => quota.state_bytes = bytes(value).map_err(|e| format!("`{share}`: {e}"))?,
        "processor" => quota.processor_ns_per_s = Some(processor(value)?),
        _ => return Err(format!("`{share}`: {known}")),
    }
    Ok(())
}

/// Parses a share of a processor in percent, as nanoseconds per second.
fn processor(percent: &str) -> Result<u64, String> {
    let number = percent.trim_end_matches('%').parse::<f64>().ok();
    let number = number.filter(|number| (0.01..=100.0).contains(number));
    let number = number
        .ok_or_else(|| format!("`{percent}`: expected 0.01 to 100 percent of a processor"))?;
    // At most 1e9, as just checked.
    Ok((number * 1e7) as u64)
}

pub(crate) fn word(text: &str) -> Result<u64, String> {
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
fn split_once(argument: &OsStr) -> Option<(String, &OsStr)> {
    let bytes = argument.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let before = String::from_utf8(bytes[..at].to_vec()).ok()?;
    Some((before, OsStr::from_bytes(&bytes[at + 1..])))
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

    #[test]
    fn regions_are_parsed_from_files_and_sizes() {
        let lend = |region, from| Ok(Lend { region, from });
        let parsed = |text: &str| Lend::try_from(OsString::from(text));
        assert_eq!(parsed("0=nodes.bin"), lend(0, LendFrom::File("nodes.bin".into())));
        assert_eq!(parsed("255=64K"), lend(255, LendFrom::Zeros(65_536)));
        assert_eq!(parsed("7=./12"), lend(7, LendFrom::File("./12".into())));
        assert_eq!(parsed("1=a=b"), lend(1, LendFrom::File("a=b".into())));
        for junk in ["", "0", "0=", "=a", "256=a", "-1=a", "x=a", "0=0"] {
            assert!(parsed(junk).is_err(), "{junk}");
        }
    }

    #[test]
    fn tenant_quotas_are_parsed() {
        let all: Tenant =
            "a=weight:3,callers:2,calls:4,programs:5,state:1K,processor:12.5".parse().unwrap();
        let quota = Quota {
            programs: 5,
            state_bytes: 1024,
            calls: 4,
            sessions: Some(2),
            processor_ns_per_s: Some(125_000_000),
            weight: 3,
        };
        assert_eq!(all, Tenant { name: Some("a".to_owned()), quota });
        let others: Tenant = "*=calls:0".parse().unwrap();
        assert_eq!(others, Tenant { name: None, quota: Quota { calls: 0, ..Quota::DEFAULT } });
        for junk in [
            "",
            "a",
            "a=",
            "=calls:1",
            "a=calls",
            "a=calls:x",
            "a=calls:-1",
            "a=callers:-1",
            "a=callers:all",
            "a=weight:0",
            "a=speed:1",
            "a=processor:0",
            "a=processor:101",
            "a=processor:nan",
            "a=state:much",
            "a=calls:1,",
            "a=calls:4294967296",
        ] {
            assert!(junk.parse::<Tenant>().is_err(), "{junk}");
        }
    }
}
