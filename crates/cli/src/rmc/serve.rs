//! `farside rmc serve`: lends memory, and runs calls of others on it.

use super::membership::{Membership, News};
use super::{NAME, check::counted};
use crate::agent::is_loopback;
use crate::arguments::{Lend, LendFrom, OnlyFor, RmcServe};
use crate::choice::{self, Chosen};
use crate::failure::Failure;
use crate::output::{Output, bytes, count};
use crate::{input_file, result_file, signals};
use farside::ErrorCode;
use farside::call::{CallServer, ServerOptions};
use farside_base::Access;
use farside_bootstrap::Address;
use farside_fabric::Arena;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the host of the memory may take to answer.
const HOST_TIMEOUT: Duration = Duration::from_secs(10);
/// Turns before what calls in progress stand against is tried again.
const TURNS_BETWEEN: u32 = 16;

/// What happens to an executor, as `--json` shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum Event<'a> {
    Serving {
        /// What callers connect to.
        address: &'a str,
        fabric: &'a str,
        security: &'a str,
        regions: Vec<Shown>,
        /// The executor that has the memory, where it is another one.
        #[serde(skip_serializing_if = "Option::is_none")]
        beside: Option<&'a str>,
        /// Its number in the cluster of the global memory that calls reach.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<u16>,
    },
    /// Callers or their programs are others than before.
    Changed {
        sessions: usize,
        programs: usize,
        served: u64,
        /// How each caller in reach is reached.
        paths: Vec<String>,
    },
    /// The executor that has the memory is out of reach; it is called again until it is back.
    HostLost {
        reason: &'a str,
    },
    /// It is back.
    HostFound,
    /// Its node is no member of its cluster any more: calls on global addresses are told so.
    NodeLost {
        reason: &'a str,
        /// Whether it joins again.
        rejoins: bool,
    },
    /// It could not join again yet.
    NodeNotJoined {
        reason: &'a str,
    },
    /// It has.
    NodeFound {
        node: u16,
    },
    Ended {
        served: u64,
        written_back: Vec<String>,
    },
}

/// A region that is lent.
#[derive(Debug, Serialize)]
struct Shown {
    region: u8,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

impl Shown {
    fn text(&self) -> String {
        let of = self.file.as_ref().map(|file| format!(" of {file}")).unwrap_or_default();
        format!("region {}: {}{of}", self.region, bytes(self.bytes))
    }
}

impl Event<'_> {
    fn tell(&self, output: Output) {
        output.event(self, |_| self.lines());
    }

    /// The event after which the command ends.
    fn tell_last(&self, output: Output) {
        output.last_event(self, |_| self.lines());
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Self::Serving { address, fabric, security, regions, beside, node } => {
                let head = format!("serving at {address} over {fabric} ({security}); Ctrl-C ends");
                let host = beside.map(|host| format!("beside {host}, by one-sided requests"));
                let node = node.map(|node| format!("part of node {node} of the global memory"));
                let regions = regions.iter().map(Shown::text);
                [head].into_iter().chain(host).chain(node).chain(regions).collect()
            }
            Self::Changed { sessions, programs, served, paths } => {
                let parts = [
                    counted(*sessions as u64, "caller"),
                    counted(*programs as u64, "program"),
                    counted(*served, "request") + " served",
                ];
                let paths = paths.iter().collect::<BTreeSet<_>>().into_iter();
                let paths = paths.map(|path| format!("  over {path}"));
                [parts.join(", ")].into_iter().chain(paths).collect()
            }
            Self::HostLost { reason } => vec![format!("no memory at present: {reason}")],
            Self::HostFound => vec!["the memory is back".to_owned()],
            Self::NodeLost { reason, rejoins } => {
                let then = if *rejoins { ", joins again" } else { "" };
                vec![format!("no global memory at present: cut off{then}: {reason}")]
            }
            Self::NodeNotJoined { reason } => vec![format!("not joined yet: {reason}")],
            Self::NodeFound { node } => vec![format!("part of node {node} of the global memory")],
            Self::Ended { served, written_back } => {
                let files = written_back.iter().map(|file| format!("written     {file}"));
                [format!("served {} requests", count(*served))].into_iter().chain(files).collect()
            }
        }
    }
}

/// A region as it is to be.
struct Plan {
    region: u8,
    bytes: u64,
    file: Option<PathBuf>,
    /// What it begins with, zeros behind it.
    contents: Vec<u8>,
}

/// A region of this process.
struct Own {
    plan: Plan,
    arena: Arena,
}

pub(super) fn run(arguments: &RmcServe, output: Output) -> Result<(), Failure> {
    let shares = arguments.member.cluster.is_some() || arguments.member.node.is_some();
    if arguments.memory.is_empty() && arguments.beside.is_none() && !shares {
        return Err(Failure::usage(
            "no memory to work on: lend some with --memory 0=FILE, name whose it is with --beside \
             ADDRESS, or a cluster with --cluster NAME",
        ));
    }
    let options = options(arguments)?;
    let plans = plans(&arguments.memory)?;
    check_restrictions(arguments)?;
    check_security(arguments)?;
    let host = arguments
        .beside
        .as_deref()
        .map(|host| choice::address_to_call(&arguments.choice, host, NAME, &arguments.at));
    let host = host.transpose()?;
    let Chosen { fabric, address, security } =
        choice::listener(&arguments.choice, &arguments.at, NAME)?;
    let output = output.for_service()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    signals::watch(move || {
        stopped.store(true, Ordering::Release);
        true
    })?;
    let mut server = match &host {
        Some(host) => CallServer::listen_with_host(&fabric, &address, host, &options)?,
        None => CallServer::listen(&fabric, &address, &options)?,
    };
    let own = lend(&mut server, plans, arguments)?;
    if let Some(host) = &host {
        find_host(&mut server, host, &stop)?;
    }
    let (membership, node) = match Membership::begin(&arguments.member)? {
        Some((membership, node)) => {
            server.share(&node)?;
            (Some(membership), Some(node.id().0))
        }
        None => (None, None),
    };
    let shown = own.iter().map(|one| Shown {
        region: one.plan.region,
        bytes: one.plan.bytes,
        file: one.plan.file.as_ref().map(|file| file.display().to_string()),
    });
    Event::Serving {
        address: &server.address().unwrap_or(address),
        fabric: fabric.name(),
        security: &security,
        regions: shown.collect(),
        beside: host.as_deref(),
        node,
    }
    .tell(output);
    let end = serve(&mut server, membership.as_ref(), &stop, output);
    let served = server.served();
    // Nobody writes to the memory any more while it is compared and written.
    drop(server);
    membership.into_iter().for_each(Membership::leave);
    let (written_back, saved) =
        if arguments.write_back { write_back(&own) } else { (Vec::new(), Ok(())) };
    Event::Ended { served, written_back }.tell_last(output);
    end.and(saved)
}

/// Lends what was planned, as it is said and to whom it is said. Nobody is served before the first turn.
fn lend(
    server: &mut CallServer,
    plans: Vec<Plan>,
    arguments: &RmcServe,
) -> Result<Vec<Own>, Failure> {
    let mut own = Vec::new();
    for plan in plans {
        let access = match arguments.read_only.contains(&plan.region) {
            true => Access::READ,
            false => Access::ALL,
        };
        let arena = server.make_region(plan.region, plan.bytes, access)?;
        let wrong = |_| Failure::system(format!("region {} is shorter than asked", plan.region));
        arena.write(0, &plan.contents).map_err(wrong)?;
        own.push(Own { plan, arena });
    }
    for OnlyFor { region, tenants } in &arguments.only_for {
        if let Some(lent) = server.take_back(*region) {
            let names: Vec<&str> = tenants.iter().map(String::as_str).collect();
            server.lend_to(*region, &lent, &names)?;
        }
    }
    Ok(own)
}

fn options(arguments: &RmcServe) -> Result<ServerOptions, Failure> {
    let (sessions, slots) = (arguments.sessions, arguments.slots);
    let mut options = ServerOptions { sessions, slots, ..ServerOptions::default() };
    let mut seen = BTreeSet::new();
    for tenant in &arguments.tenant {
        if !seen.insert(&tenant.name) {
            let name = tenant.name.as_deref().unwrap_or("*");
            return Err(Failure::usage(format!("--tenant {name}: said twice")));
        }
        match &tenant.name {
            Some(name) => {
                options.tenants.insert(name.clone(), tenant.quota);
            }
            None => options.quota = tenant.quota,
        }
    }
    Ok(options)
}

/// Reads what is to be lent. A file or a number comes once.
fn plans(memory: &[Lend]) -> Result<Vec<Plan>, Failure> {
    let (mut plans, mut places): (Vec<Plan>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for Lend { region, from } in memory {
        if plans.iter().any(|plan| plan.region == *region) {
            return Err(Failure::usage(format!("region {region} is lent twice: number it anew")));
        }
        let plan = match from {
            LendFrom::Zeros(bytes) => {
                Plan { region: *region, bytes: *bytes, file: None, contents: Vec::new() }
            }
            LendFrom::File(file) => {
                let shown = file.display();
                // A pipe that the shell has made has no name of its own.
                let place = std::fs::canonicalize(file).unwrap_or_else(|_| file.clone());
                if places.contains(&place) {
                    let text = format!("{shown}: lent already: a file is one region");
                    return Err(Failure::usage(text));
                }
                places.push(place);
                let contents = input_file::read_region(file)?;
                if contents.is_empty() {
                    return Err(Failure::usage(format!("{shown}: is empty: nothing to lend")));
                }
                let (bytes, file) = (contents.len() as u64, Some(file.clone()));
                Plan { region: *region, bytes, file, contents }
            }
        };
        plans.push(plan);
    }
    Ok(plans)
}

/// Refuses restrictions of what is not there, which would restrict nothing.
fn check_restrictions(arguments: &RmcServe) -> Result<(), Failure> {
    let is_lent = |region: u8| arguments.memory.iter().any(|lend| lend.region == region);
    let only_for = arguments.only_for.iter().map(|one| ("--only-for", one.region));
    let read_only = arguments.read_only.iter().map(|region| ("--read-only", *region));
    for (flag, region) in only_for.chain(read_only) {
        if !is_lent(region) {
            let text = format!("{flag} {region}: there is no such region: lend it by --memory");
            return Err(Failure::usage(text));
        }
    }
    let named = |name: &str| arguments.tenant.iter().any(|one| one.name.as_deref() == Some(name));
    let unknown = arguments.only_for.iter().flat_map(|one| &one.tenants).find(|name| !named(name));
    match unknown {
        Some(name) => {
            let text =
                format!("--only-for: tenant {name} is not named: say --tenant {name}=weight:1 too");
            Err(Failure::usage(text))
        }
        None => Ok(()),
    }
}

/// Refuses what would let anybody in without that being said.
fn check_security(arguments: &RmcServe) -> Result<(), Failure> {
    let whole = arguments.at.split_once('/').map_or(&*arguments.at, |(host, _)| host);
    let host = format!("{whole}/{NAME}").parse::<Address>();
    let beyond = host.is_ok_and(|address| !is_loopback(&address.endpoint));
    if beyond && arguments.choice.key.is_none() && !arguments.insecure {
        return Err(Failure::usage(format!(
            "without a key anybody who reaches {} could read and write what is lent: make one by \
             `farside key new cluster.key`, copy it to every host and say --key cluster.key. On a \
             network that nobody else is on, --insecure does without",
            arguments.at
        )));
    }
    Ok(())
}

/// Waits until the memory of another executor is there.
fn find_host(server: &mut CallServer, host: &str, stop: &AtomicBool) -> Result<(), Failure> {
    let end = Instant::now() + HOST_TIMEOUT;
    server.serve_while(|server| {
        let found = server.has_memory() || server.host_trouble().is_some();
        !found && !stop.load(Ordering::Acquire) && Instant::now() < end
    });
    if server.has_memory() {
        return Ok(());
    }
    if stop.load(Ordering::Acquire) {
        return Err(Failure::Interrupted);
    }
    let why = server.host_trouble().unwrap_or("it does not answer");
    Err(Failure::system(format!("--beside {host}: {why}")))
}

/// Serves until told to end, and tells what changes.
fn serve(
    server: &mut CallServer,
    membership: Option<&Membership>,
    stop: &AtomicBool,
    output: Output,
) -> Result<(), Failure> {
    let (mut known, mut lost) = ((0, 0), false);
    while !stop.load(Ordering::Acquire) {
        server.serve_while(|server| {
            let now = (server.sessions(), server.programs());
            if now != known {
                known = now;
                let (served, paths) = (server.served(), server.paths());
                Event::Changed { sessions: now.0, programs: now.1, served, paths }.tell(output);
            }
            match server.host_trouble() {
                Some(reason) if !lost => Event::HostLost { reason }.tell(output),
                None if lost => Event::HostFound.tell(output),
                _ => {}
            }
            lost = server.host_trouble().is_some();
            !stop.load(Ordering::Acquire) && !membership.is_some_and(Membership::has_news)
        });
        if let Some(membership) = membership {
            take_news(server, membership, stop, output)?;
        }
    }
    Ok(())
}

/// Goes on with another node where the one before was cut off.
fn take_news(
    server: &mut CallServer,
    membership: &Membership,
    stop: &AtomicBool,
    output: Output,
) -> Result<(), Failure> {
    while let Some(news) = membership.news() {
        match news {
            News::CutOff { reason, rejoins } => {
                Event::NodeLost { reason: &reason, rejoins }.tell(output);
                if !rejoins && !server.has_memory() {
                    return Err(Failure::system(format!("nothing left to serve: {reason}")));
                }
                // Calls that wait for it are told first.
                settled(server, stop, CallServer::unshare)?;
                membership.given_up();
            }
            News::NotJoined(reason) => Event::NodeNotJoined { reason: &reason }.tell(output),
            News::Joined(node) => {
                let shared = settled(server, stop, |server| match server.share(&node) {
                    // Cut off once more: there is news of that, or will be.
                    Err(error) if error.code == ErrorCode::NodeClosed => Ok(()),
                    shared => shared,
                });
                shared?;
                Event::NodeFound { node: node.id().0 }.tell(output);
            }
        }
    }
    Ok(())
}

/// Serves on until a change can be made that calls in progress may stand against.
fn settled(
    server: &mut CallServer,
    stop: &AtomicBool,
    mut change: impl FnMut(&mut CallServer) -> Result<(), farside::Error>,
) -> Result<(), Failure> {
    loop {
        match change(server) {
            Err(error) if error.code == ErrorCode::Busy && !stop.load(Ordering::Acquire) => {
                let mut turns = 0..TURNS_BETWEEN;
                server.serve_while(|_| turns.next().is_some());
            }
            Err(error) if error.code == ErrorCode::Busy => return Ok(()),
            done => return Ok(done?),
        }
    }
}

/// Writes changed regions to their files, each at once: which were written, and why the first that was not
/// could not be.
fn write_back(own: &[Own]) -> (Vec<String>, Result<(), Failure>) {
    let (mut written, mut saved) = (Vec::new(), Ok(()));
    for one in own {
        match write_back_one(one) {
            Ok(file) => written.extend(file),
            Err(failure) => saved = saved.and(Err(failure)),
        }
    }
    (written, saved)
}

/// Writes a region to its file if it has changed; the file's name then.
fn write_back_one(Own { plan, arena }: &Own) -> Result<Option<String>, Failure> {
    let Some(file) = &plan.file else { return Ok(None) };
    let mut now = vec![0; plan.contents.len()];
    let wrong = |_| Failure::system(format!("region {} is shorter than lent", plan.region));
    arena.read(0, &mut now).map_err(wrong)?;
    if now == plan.contents {
        return Ok(None);
    }
    result_file::write(file, &now)?;
    Ok(Some(file.display().to_string()))
}
