//! Arguments of the `farside rmc` commands that use a fabric.

use super::rmc::{CallArguments, split_once, word};
use super::{FabricArguments, bytes};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use farside::call::Quota;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc serve lists --memory 0=nodes.bin          for callers of this machine, over shm
  farside rmc serve 10.0.0.1:7471 --memory 0=64M --key cluster.key
  farside rmc serve logs --memory 0=log.bin --write-back
  farside rmc serve near --beside lists                 an executor that reaches the memory of `lists` by
                                                        one-sided requests, such as a SmartNIC's
  farside rmc serve lists --memory 0=nodes.bin --tenant batch=weight:1,calls:8,processor:25
  farside rmc serve counters --cluster lab              calls reach the global memory of the cluster
                                                        that `farside up --name lab` started
  farside rmc serve 10.0.0.1:7471 --node node.toml --key cluster.key

Prints the address and the regions, then a line whenever callers or programs change, until Ctrl-C. If its node
is isolated from the cluster, the executor joins again; calls on global addresses fail until then. Files are read
at the start; --write-back writes changed regions to their files at the end, each atomically if possible. Callers
may change all regions, by calls and by one-sided requests, except those of --read-only. With --json each event
is a line. Events that are not read in time are dropped and counted by the next one.")]
pub(crate) struct RmcServe {
    /// Address: a name on this machine, or HOST:PORT (port 0 selects a free port)
    #[arg(value_name = "NAME")]
    pub(crate) at: String,
    /// Serve a region: a copy of a file, or a number of zero bytes (with K, M or G). Write ./NUMBER for a
    /// file whose name is a number
    #[arg(long, value_name = "REGION=FILE|BYTES", conflicts_with = "beside", value_parser = OsStringValueParser::new().try_map(Lend::try_from))]
    pub(crate) memory: Vec<Lend>,
    /// Write changed regions back to their files at the end
    #[arg(long, conflicts_with = "beside")]
    pub(crate) write_back: bool,
    /// Run calls on the memory of this executor, by one-sided requests
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) beside: Option<String>,
    #[command(flatten)]
    pub(crate) member: NodeArguments,
    /// Maximum number of callers
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) sessions: u32,
    /// Maximum number of calls in flight per caller
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) slots: u16,
    /// Quota of a tenant: weight:W, callers:N, calls:N, programs:N, state:BYTES, processor:PERCENT. The name `*`
    /// is the tenant of all callers that no other quota names. Tenants share the processor by weight, callers
    /// within a tenant equally. Without callers:N a tenant may use all --sessions except those that are reserved
    /// for other tenants: one for each, and at least a quarter
    #[arg(long, value_name = "NAME=SHARE,...")]
    pub(crate) tenant: Vec<Tenant>,
    /// A region that programs and one-sided requests can only read
    #[arg(long, value_name = "REGION")]
    pub(crate) read_only: Vec<u8>,
    /// A region that only these tenants can access; each needs a --tenant
    #[arg(long, value_name = "REGION=NAME,...")]
    pub(crate) only_for: Vec<OnlyFor>,
    /// Serve other machines without a key: every process that reaches the address can use all memory
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) choice: FabricArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc register lists search.o
  farside rmc register lists checksum_crc32c           a program of the library
  farside rmc register 10.0.0.1:7471 search.o --key cluster.key --keep

Prints what the executor reports about the programs. Without --keep, the programs are then erased: the executor
erases a program when its last caller disconnects.")]
pub(crate) struct RmcRegister {
    /// Address of the executor, as farside rmc serve prints it
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: String,
    /// An object of clang -target bpf, a program in assembler (.s), or the name of a library program
    #[arg(value_name = "OBJECT")]
    pub(crate) object: PathBuf,
    /// Stay registered until Ctrl-C, so that the program's shared state outlives its callers
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) caller: CallerArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc call lists search.o --parameters 64,7
  farside rmc call lists list_search --parameters 64,7 --times 10000
  farside rmc call lists list_search --parameters 64,7 --times 10000 --here
  farside rmc call lists list_search --parameters 64,7 --times 10000 --place choose
  farside rmc call lists list_search --parameters 64,7 --times 10000 --also near     after
                                                         `farside rmc serve near --beside lists`
  farside rmc call lists list_search --parameters 64,7 --also near --place near
  farside rmc call 10.0.0.1:7471 search.o --parameters 64,7 --json | jq .returned.result
  farside rmc call counters add.s --parameters 0x1000,1 --here --cluster lab

Registers the program, calls it and unregisters it. A round trip lasts from posting the call to having its
output. With --here the program runs in this process, and each of its accesses is a one-sided request; --cluster
or --node make this process a node, so that such a program can access global memory. Exit code 0 if the program
returns, with any result, and 1 otherwise.

With --place choose, or --also without --place, each call runs at the place with the lowest expected latency. The
expectation is at first a model of each place, with parameters that calls of a small program measure, and later
the observed latency; slower places are tried again occasionally. The result shows the calls of each place, and
why the last call ran where it did. A program with state between calls stays at the place of its first call. A
program that notifies topics runs at an executor, so that the executor's listeners receive the notices. This
process then enforces --timeout-ms, and stops a late call by ending.")]
pub(crate) struct RmcCall {
    /// Address of the executor, as farside rmc serve prints it
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) of: CallArguments,
    #[command(flatten)]
    pub(crate) place: PlaceArguments,
    #[command(flatten)]
    pub(crate) member: NodeArguments,
    /// Number of calls, one after the other; shows the result of the last one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) times: u64,
    /// Stop a call that takes longer than N milliseconds; by default there is no limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) timeout_ms: Option<u64>,
    #[command(flatten)]
    pub(crate) caller: CallerArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc listen lists 7                           topic 7, until Ctrl-C
  farside rmc listen lists 7 8 0x100 --count 10        three topics; ends after ten notices
  farside rmc listen 10.0.0.1:7471 7 --key cluster.key --json | jq -r .bytes

A program notifies a topic, which is any number, with farside_notify (farside_rmc.h). The executor that runs the
program sends the notice to its listeners. This command prints when it is subscribed, then each notice as it
arrives: its topic and its bytes in hexadecimal. Notices of a topic arrive in the order in which they were sent.
An executor buffers 16 notices per topic for a slow listener; the number of lost notices is printed before the
next one. Exit code 0 after Ctrl-C or --count, and 1 if the executor is lost or the output cannot be written. With
--json each event is a line: listening, notice, ended. Events that are not read in time are dropped and counted by
the next one.")]
pub(crate) struct RmcListen {
    /// Address of the executor, as farside rmc serve prints it
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: String,
    /// Topics, at most 64: numbers such as 7 or 0x1f
    #[arg(value_name = "TOPIC", required = true, num_args = 1.., value_parser = word)]
    pub(crate) topics: Vec<u64>,
    /// End after N notices
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) caller: CallerArguments,
}

/// The place where calls run.
#[derive(Args, Debug)]
pub(crate) struct PlaceArguments {
    /// Run the program in this process, with one-sided requests to the executor's memory: short for --place here
    #[arg(long, conflicts_with = "place")]
    pub(crate) here: bool,
    /// Where calls run: there (at ADDRESS), here (as with --here), an address of --also, or choose (the lowest
    /// expected latency for each call) [default: there; choose with --also]
    #[arg(long, value_name = "PLACE")]
    pub(crate) place: Option<PlaceName>,
    /// Another place to choose: an executor on the same memory, as from `farside rmc serve --beside ADDRESS`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) also: Vec<String>,
    /// Expected memory accesses of a call, for choosing before any is measured (farside rmc run counts
    /// them)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) accesses: Option<u64>,
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

impl PlaceArguments {
    /// Returns the place of calls, including the short form and the defaults.
    pub(crate) fn told(&self) -> PlaceName {
        match &self.place {
            Some(place) => place.clone(),
            None if self.here => PlaceName::Here,
            None if self.also.is_empty() => PlaceName::There,
            None => PlaceName::Choose,
        }
    }
}

/// The global memory that calls can access.
#[derive(Args, Debug)]
pub(crate) struct NodeArguments {
    /// Join this cluster of this machine (see farside up), so that calls can access its memory by global
    /// addresses
    #[arg(long, value_name = "NAME", conflicts_with = "node")]
    pub(crate) cluster: Option<String>,
    /// Join a cluster of several hosts, with the settings file of farside node --config
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) node: Option<PathBuf>,
}

/// Arguments of all commands that connect to an executor.
#[derive(Args, Debug)]
pub(crate) struct CallerArguments {
    /// The tenant whose quota applies
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) tenant: String,
    #[command(flatten)]
    pub(crate) choice: FabricArguments,
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn place_defaults_to_there_or_to_choose_with_also() {
        let place_of = |here, place: Option<&str>, also: &[&str]| {
            let place = place.map(|text| text.parse().unwrap());
            let also = also.iter().map(|text| (*text).to_owned()).collect();
            PlaceArguments { here, place, also, accesses: None }.told()
        };
        assert_eq!(place_of(false, None, &[]), PlaceName::There);
        assert_eq!(place_of(false, None, &["near"]), PlaceName::Choose);
        for also in [&[][..], &["near"]] {
            assert_eq!(place_of(true, None, also), PlaceName::Here);
            assert_eq!(place_of(false, Some("here"), also), PlaceName::Here);
            assert_eq!(place_of(false, Some("there"), also), PlaceName::There);
            assert_eq!(place_of(false, Some("choose"), also), PlaceName::Choose);
            assert_eq!(place_of(false, Some("near"), also), PlaceName::At("near".to_owned()));
        }
        assert!("".parse::<PlaceName>().is_err());
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
