//! Arguments of the commands of `farside rmc` that go over a fabric.

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
  farside rmc serve lists --memory 0=nodes.bin          callers of this machine, over shm
  farside rmc serve 10.0.0.1:7471 --memory 0=64M --key cluster.key
  farside rmc serve logs --memory 0=log.bin --write-back
  farside rmc serve near --beside lists                 a processor beside an adapter: it reaches the
                                                        memory of `lists` by one-sided requests
  farside rmc serve lists --memory 0=nodes.bin --tenant batch=weight:1,calls:8,processor:25
  farside rmc serve counters --cluster lab              calls reach the memory of the cluster that
                                                        `farside up --name lab` has started
  farside rmc serve 10.0.0.1:7471 --node node.toml --key cluster.key

Says where callers connect and what is lent, then who comes and goes, until Ctrl-C. A node that is cut
off from its cluster joins it again; calls on global addresses are told meanwhile. Files are read at
the start; --write-back writes those that have changed back at the end, each at once. Callers may change
all that is lent, by calls and by one-sided requests. With --json each event is a line. Events that are
not read in time are dropped, and the next one that is written counts them.")]
pub(crate) struct RmcServe {
    /// Where to serve: a name on this machine, or HOST:PORT (port 0 is any that is free)
    #[arg(value_name = "NAME")]
    pub(crate) at: String,
    /// Lend a region: a copy of a file, or so many bytes of zeros (with K, M or G). A file whose name
    /// is a number is ./NUMBER
    #[arg(long, value_name = "REGION=FILE|BYTES", conflicts_with = "beside", value_parser = OsStringValueParser::new().try_map(Lend::try_from))]
    pub(crate) memory: Vec<Lend>,
    /// Write files that have changed back at the end
    #[arg(long, conflicts_with = "beside")]
    pub(crate) write_back: bool,
    /// Work on the memory of this executor, by one-sided requests
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) beside: Option<String>,
    #[command(flatten)]
    pub(crate) member: NodeArguments,
    /// Most callers at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) sessions: u32,
    /// Most calls of a caller that are in progress at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) slots: u16,
    /// What a tenant may take: weight:W, callers:N, calls:N, programs:N, state:BYTES, processor:PERCENT;
    /// `*` is everybody of whom nothing is said, all together. Tenants share the processor by weight,
    /// callers of a tenant equally. Without callers:N a tenant has all --sessions but a quarter, and but
    /// one for each other tenant
    #[arg(long, value_name = "NAME=SHARE,...")]
    pub(crate) tenant: Vec<Tenant>,
    /// A region that programs and one-sided requests may read and not write
    #[arg(long, value_name = "REGION")]
    pub(crate) read_only: Vec<u8>,
    /// A region that these tenants alone may reach, each of them named by --tenant
    #[arg(long, value_name = "REGION=NAME,...")]
    pub(crate) only_for: Vec<OnlyFor>,
    /// Serve without a key beyond this machine: whoever reaches the address may use all memory
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) choice: FabricArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc register lists search.o
  farside rmc register lists checksum_crc32c           a call of the library, and what is in its object
  farside rmc register 10.0.0.1:7471 search.o --key cluster.key --keep

Says what the executor made of the object. Without --keep that is all: a program is erased with its last
caller.")]
pub(crate) struct RmcRegister {
    /// The executor: what farside rmc serve says
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: String,
    /// An object of clang -target bpf, a program in assembler (.s), or a name of the library
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

Registers, invokes, and gives back. A round trip is from posting the call to having its output.
With --here the program runs in this process, and each of its accesses is a one-sided request;
--cluster or --node makes this process part of the global memory that such a program reaches.
Exit code 0 when the program returns, whatever it returns, and 1 when it does not.

With --place choose, or --also alone, each call runs where it is expected to take least: by a
model of each place, which some calls of a small program measure first, and then by what calls
have taken there. What took longer is tried again now and then. Shown are the calls of each
place, and why the last one ran where it did. A program that keeps state between calls runs
where its first call did; one that notifies, at an executor, whose listeners hear of it.
--timeout-ms is kept here then, and a call that is late is stopped as this process goes.")]
pub(crate) struct RmcCall {
    /// The executor: what farside rmc serve says
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) of: CallArguments,
    #[command(flatten)]
    pub(crate) place: PlaceArguments,
    #[command(flatten)]
    pub(crate) member: NodeArguments,
    /// So many calls, one after the other; the last one's answer is shown
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) times: u64,
    /// Stop a call that takes longer; by default it may take as long as it likes
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

A program notifies a topic, which is any number, by farside_notify (farside_rmc.h). Listeners of
the executor where it runs hear of it: this says when it is subscribed, then each notice as it
comes, its topic and its bytes in hexadecimal. Notices of a topic come in the order in which
they were sent. An executor keeps 16 of each topic for a listener that is slow; how many were
lost is said before the next one that was not. Exit code 0 after Ctrl-C or --count, and 1 when
the executor is gone, or its output could not be written. With --json each event is a line: listening,
notice, ended. Events that are not read in time are dropped, and the next one that is written counts them.")]
pub(crate) struct RmcListen {
    /// The executor: what farside rmc serve says
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: String,
    /// Topics, at most 64: numbers as 7 or 0x1f
    #[arg(value_name = "TOPIC", required = true, num_args = 1.., value_parser = word)]
    pub(crate) topics: Vec<u64>,
    /// End after so many notices
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) caller: CallerArguments,
}

/// Where calls run.
#[derive(Args, Debug)]
pub(crate) struct PlaceArguments {
    /// Run it in this process, by one-sided requests to the executor's memory: short for --place here
    #[arg(long, conflicts_with = "place")]
    pub(crate) here: bool,
    /// Where calls run: there (at ADDRESS), here (as --here), an address of --also, or choose, each where
    /// it is expected to take least [default: there, with --also choose]
    #[arg(long, value_name = "PLACE")]
    pub(crate) place: Option<PlaceName>,
    /// Another executor that works on the same memory, as `farside rmc serve --beside ADDRESS` does: a place
    /// to choose
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) also: Vec<String>,
    /// How many accesses to memory a call will make, which choosing goes by before it has measured
    /// (farside rmc run counts them)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) accesses: Option<u64>,
}

/// A place as it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PlaceName {
    /// Wherever a call takes least.
    Choose,
    /// In this process.
    Here,
    /// At the executor that the command names.
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
    /// Where calls run, with what is short for it and what is meant where nothing is said.
    pub(crate) fn told(&self) -> PlaceName {
        match &self.place {
            Some(place) => place.clone(),
            None if self.here => PlaceName::Here,
            None if self.also.is_empty() => PlaceName::There,
            None => PlaceName::Choose,
        }
    }
}

/// Which global memory calls reach.
#[derive(Args, Debug)]
pub(crate) struct NodeArguments {
    /// Be part of a node of this cluster of this machine (see farside up), whose memory calls reach by
    /// global addresses
    #[arg(long, value_name = "NAME", conflicts_with = "node")]
    pub(crate) cluster: Option<String>,
    /// The same for a cluster of several hosts, with the settings of farside node --config
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) node: Option<PathBuf>,
}

/// What both commands of a caller take.
#[derive(Args, Debug)]
pub(crate) struct CallerArguments {
    /// Whose quota it counts towards
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) tenant: String,
    #[command(flatten)]
    pub(crate) choice: FabricArguments,
}

/// A region to lend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lend {
    /// Its number, as programs name it.
    pub(crate) region: u8,
    pub(crate) from: LendFrom,
}

/// What a region begins with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LendFrom {
    /// What is in a file.
    File(PathBuf),
    /// So many zeros.
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

/// Who may reach a region.
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

/// A tenant and what it may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tenant {
    /// `None` for all of whom nothing is said.
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
        "there are weight:W, callers:N, calls:N, programs:N, state:BYTES and processor:PERCENT";
    let (what, value) = share.split_once(':').ok_or_else(|| format!("`{share}`: {known}"))?;
    let number = |least: u32| {
        let read = value.parse().ok().filter(|number| *number >= least);
        read.ok_or_else(|| format!("`{share}`: a whole number from {least} on"))
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

/// Nanoseconds a second of so many percent of a processor.
fn processor(percent: &str) -> Result<u64, String> {
    let number = percent.trim_end_matches('%').parse::<f64>().ok();
    let number = number.filter(|number| (0.01..=100.0).contains(number));
    let number =
        number.ok_or_else(|| format!("`{percent}`: 0.01 to 100 percent of a processor"))?;
    // Within the bounds just checked.
    Ok((number * 1e7) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_lent_from_files_or_of_zeros() {
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
    fn calls_run_there_unless_something_is_said() {
        let told = |here, place: Option<&str>, also: &[&str]| {
            let place = place.map(|text| text.parse().unwrap());
            let also = also.iter().map(|text| (*text).to_owned()).collect();
            PlaceArguments { here, place, also, accesses: None }.told()
        };
        assert_eq!(told(false, None, &[]), PlaceName::There);
        assert_eq!(told(false, None, &["near"]), PlaceName::Choose);
        for also in [&[][..], &["near"]] {
            assert_eq!(told(true, None, also), PlaceName::Here);
            assert_eq!(told(false, Some("here"), also), PlaceName::Here);
            assert_eq!(told(false, Some("there"), also), PlaceName::There);
            assert_eq!(told(false, Some("choose"), also), PlaceName::Choose);
            assert_eq!(told(false, Some("near"), also), PlaceName::At("near".to_owned()));
        }
        assert!("".parse::<PlaceName>().is_err());
    }

    #[test]
    fn tenants_have_shares() {
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
