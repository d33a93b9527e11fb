//! Arguments of the `farside rmc` commands that use a fabric.

use super::fabric::FabricArguments;
use super::rmc::CallArguments;
use crate::settings::{
    CallerSettings, Lend, MemberSettings, OnlyFor, PlaceName, PlaceSettings, RmcCall, RmcListen,
    RmcRegister, RmcServe, Tenant, word,
};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::path::PathBuf;

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
pub(crate) struct RmcServeArguments {
    /// Address: a name on this machine, or HOST:PORT (port 0 selects a free port)
    #[arg(value_name = "NAME")]
    at: String,
    /// Serve a region: a copy of a file, or a number of zero bytes (with K, M or G). Write ./NUMBER for a
    /// file whose name is a number
    #[arg(long, value_name = "REGION=FILE|BYTES", conflicts_with = "beside", value_parser = OsStringValueParser::new().try_map(Lend::try_from))]
    memory: Vec<Lend>,
    /// Write changed regions back to their files at the end
    #[arg(long, conflicts_with = "beside")]
    write_back: bool,
    /// Run calls on the memory of this executor, by one-sided requests
    #[arg(long, value_name = "ADDRESS")]
    beside: Option<String>,
    #[command(flatten)]
    member: MemberArguments,
    /// Maximum number of callers
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    sessions: u32,
    /// Maximum number of calls in flight per caller
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    slots: u16,
    /// Quota of a tenant: weight:W, callers:N, calls:N, programs:N, state:BYTES, processor:PERCENT. The name `*`
    /// is the tenant of all callers that no other quota names. Tenants share the processor by weight, callers
    /// within a tenant equally. Without callers:N a tenant may use all --sessions except those that are reserved
    /// for other tenants: one for each, and at least a quarter
    #[arg(long, value_name = "NAME=SHARE,...")]
    tenant: Vec<Tenant>,
    /// A region that programs and one-sided requests can only read
    #[arg(long, value_name = "REGION")]
    read_only: Vec<u8>,
    /// A region that only these tenants can access; each needs a --tenant
    #[arg(long, value_name = "REGION=NAME,...")]
    only_for: Vec<OnlyFor>,
    /// Serve other machines without a key: every process that reaches the address can use all memory
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    choice: FabricArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc register lists search.o
  farside rmc register lists checksum_crc32c           a program of the library
  farside rmc register 10.0.0.1:7471 search.o --key cluster.key --keep

Prints what the executor reports about the programs. Without --keep, the programs are then erased: the executor
erases a program when its last caller disconnects.")]
pub(crate) struct RmcRegisterArguments {
    /// Address of the executor, as farside rmc serve prints it
    #[arg(value_name = "ADDRESS")]
    to: String,
    /// An object of clang -target bpf, a program in assembler (.s), or the name of a library program
    #[arg(value_name = "OBJECT")]
    object: PathBuf,
    /// Stay registered until Ctrl-C, so that the program's shared state outlives its callers
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    caller: CallerArguments,
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
pub(crate) struct RmcCallArguments {
    /// Address of the executor, as farside rmc serve prints it
    #[arg(value_name = "ADDRESS")]
    to: String,
    #[command(flatten)]
    of: CallArguments,
    #[command(flatten)]
    place: PlaceArguments,
    #[command(flatten)]
    member: MemberArguments,
    /// Number of calls, one after the other; shows the result of the last one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    times: u64,
    /// Stop a call that takes longer than N milliseconds; by default there is no limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    timeout_ms: Option<u64>,
    #[command(flatten)]
    caller: CallerArguments,
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
pub(crate) struct RmcListenArguments {
    /// Address of the executor, as farside rmc serve prints it
    #[arg(value_name = "ADDRESS")]
    to: String,
    /// Topics, at most 64: numbers such as 7 or 0x1f
    #[arg(value_name = "TOPIC", required = true, num_args = 1.., value_parser = word)]
    topics: Vec<u64>,
    /// End after N notices
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    caller: CallerArguments,
}

/// The place where calls run.
#[derive(Args, Debug)]
pub(crate) struct PlaceArguments {
    /// Run the program in this process, with one-sided requests to the executor's memory: short for --place here
    #[arg(long, conflicts_with = "place")]
    here: bool,
    /// Where calls run: there (at ADDRESS), here (as with --here), an address of --also, or choose (the lowest
    /// expected latency for each call) [default: there; choose with --also]
    #[arg(long, value_name = "PLACE")]
    place: Option<PlaceName>,
    /// Another place to choose: an executor on the same memory, as from `farside rmc serve --beside ADDRESS`
    #[arg(long, value_name = "ADDRESS")]
    also: Vec<String>,
    /// Expected memory accesses of a call, for choosing before any is measured (farside rmc run counts
    /// them)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    accesses: Option<u64>,
}

/// The global memory that calls can access.
#[derive(Args, Debug)]
pub(crate) struct MemberArguments {
    /// Join this cluster of this machine (see farside up), so that calls can access its memory by global
    /// addresses
    #[arg(long, value_name = "NAME", conflicts_with = "node")]
    cluster: Option<String>,
    /// Join a cluster of several hosts, with the settings file of farside node --config
    #[arg(long, value_name = "FILE.toml")]
    node: Option<PathBuf>,
}

/// Arguments of all commands that connect to an executor.
#[derive(Args, Debug)]
pub(crate) struct CallerArguments {
    /// The tenant whose quota applies
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tenant: String,
    #[command(flatten)]
    choice: FabricArguments,
}

convert! {
    RmcServeArguments => RmcServe {
        at, memory, write_back, beside, member, sessions, slots, tenant, read_only, only_for,
        insecure, choice,
    }
    RmcRegisterArguments => RmcRegister { to, object, keep, caller }
    RmcCallArguments => RmcCall { to, of, place, member, times, timeout_ms, caller }
    RmcListenArguments => RmcListen { to, topics, count, caller }
    CallerArguments => CallerSettings { tenant, choice }
    MemberArguments => MemberSettings { cluster, node }
}

impl From<PlaceArguments> for PlaceSettings {
    fn from(arguments: PlaceArguments) -> Self {
        let PlaceArguments { here, place, also, accesses } = arguments;
        let place = match place {
            Some(place) => place,
            None if here => PlaceName::Here,
            None if also.is_empty() => PlaceName::There,
            None => PlaceName::Choose,
        };
        Self { place, also, accesses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_defaults_to_there_or_to_choose_with_also() {
        let place_of = |here, place: Option<&str>, also: &[&str]| {
            let place = place.map(|text| text.parse().unwrap());
            let also = also.iter().map(|text| (*text).to_owned()).collect();
            PlaceSettings::from(PlaceArguments { here, place, also, accesses: None }).place
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
}
