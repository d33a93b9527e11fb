//! `farside rmc serve`: lends memory, and runs callers' programs on it.

use super::check::counted;
use super::membership::{Membership, MembershipEvent};
use crate::listening::check_security;
use crate::settings::{Lend, LendFrom, OnlyFor, RmcServe};
use farside::ErrorCode;
use farside::call::{CallServer, ServerOptions};
use farside_base::Access;
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes, count};
use farside_command::{input_file, result_file, signals};
use farside_fabric::Arena;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Timeout for the first answer of the memory host of `--beside`.
const HOST_TIMEOUT: Duration = Duration::from_secs(10);
/// Polls before retrying a change that calls in flight prevent.
const POLLS_BETWEEN_RETRIES: u32 = 16;

/// Events of an executor, as `--json` prints them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum ServeEvent<'a> {
    Serving {
        /// The address for callers.
        address: &'a str,
        fabric: &'a str,
        security: &'a str,
        regions: Vec<RegionInfo>,
        /// The executor that hosts the memory, if it is another one.
        #[serde(skip_serializing_if = "Option::is_none")]
        beside: Option<&'a str>,
        /// Its node number, if calls can access a cluster's global memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<u16>,
    },
    /// The number of callers or programs has changed.
    Changed {
        sessions: usize,
        programs: usize,
        served: u64,
        /// The path to each connected caller.
        paths: Vec<String>,
    },
    /// The memory host is unreachable; the executor reconnects until it answers.
    HostLost {
        reason: &'a str,
    },
    /// The memory host is reachable again.
    HostFound,
    /// The node was removed from its cluster: calls on global addresses fail.
    NodeLost {
        reason: &'a str,
        /// Whether it rejoins.
        rejoins: bool,
    },
    /// An attempt to rejoin failed.
    NodeNotJoined {
        reason: &'a str,
    },
    /// It has rejoined as this node.
    NodeFound {
        node: u16,
    },
    Ended {
        served: u64,
        written_back: Vec<String>,
    },
}

/// A lent region, as printed.
#[derive(Debug, Serialize)]
struct RegionInfo {
    region: u8,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

impl RegionInfo {
    fn text(&self) -> String {
        let of = self.file.as_ref().map(|file| format!(" of {file}")).unwrap_or_default();
        format!("region {}: {}{of}", self.region, bytes(self.bytes))
    }
}

impl ServeEvent<'_> {
    fn emit(&self, output: Output) {
        output.event(self, |_| self.lines());
    }

    /// Emits the event after which the command ends.
    fn emit_last(&self, output: Output) {
        output.last_event(self, |_| self.lines());
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Self::Serving { address, fabric, security, regions, beside, node } => {
                let head = format!("serving at {address} over {fabric} ({security}); Ctrl-C ends");
                let host = beside.map(|host| format!("memory of {host}, by one-sided requests"));
                let node = node.map(|node| format!("global memory as node {node}"));
                let regions = regions.iter().map(RegionInfo::text);
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
            Self::HostLost { reason } => vec![format!("memory unreachable: {reason}")],
            Self::HostFound => vec!["memory reachable again".to_owned()],
            Self::NodeLost { reason, rejoins } => {
                let then = if *rejoins { ", rejoining" } else { "" };
                vec![format!("removed from the cluster{then}: {reason}")]
            }
            Self::NodeNotJoined { reason } => vec![format!("rejoin failed: {reason}")],
            Self::NodeFound { node } => vec![format!("global memory as node {node}")],
            Self::Ended { served, written_back } => {
                let files = written_back.iter().map(|file| format!("written     {file}"));
                [format!("served {} requests", count(*served))].into_iter().chain(files).collect()
            }
        }
    }
}

/// A region to lend.
struct RegionPlan {
    region: u8,
    bytes: u64,
    file: Option<PathBuf>,
    /// Initial contents, followed by zeros.
    contents: Vec<u8>,
}

/// A lent region of this process.
struct LentRegion {
    plan: RegionPlan,
    arena: Arena,
}

pub(crate) fn run(arguments: &RmcServe, output: Output) -> Result<(), Failure> {
    let shares = arguments.member.cluster.is_some() || arguments.member.node.is_some();
    if arguments.memory.is_empty() && arguments.beside.is_none() && !shares {
        return Err(Failure::usage(
            "no memory to serve: give --memory 0=FILE, --beside ADDRESS of an executor that hosts the \
             memory, or --cluster choice::EXECUTOR",
        ));
    }
    let options = options(arguments)?;
    let plans = plans(&arguments.memory)?;
    check_restrictions(arguments)?;
    check_security(&arguments.at, &arguments.choice, arguments.insecure)?;
    let host = arguments.beside.as_deref().map(|host| {
        choice::address_to_call(&arguments.choice, host, choice::EXECUTOR, &arguments.at)
    });
    let host = host.transpose()?;
    let Chosen { fabric, address, security } =
        choice::listener(&arguments.choice, &arguments.at, choice::EXECUTOR)?;
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
    let lent = lend(&mut server, plans, arguments)?;
    if let Some(host) = &host {
        wait_for_host(&mut server, host, &stop)?;
    }
    let (membership, node) = match Membership::begin(&arguments.member)? {
        Some((membership, node)) => {
            server.share(&node)?;
            (Some(membership), Some(node.id().0))
        }
        None => (None, None),
    };
    let regions = lent.iter().map(|one| RegionInfo {
        region: one.plan.region,
        bytes: one.plan.bytes,
        file: one.plan.file.as_ref().map(|file| file.display().to_string()),
    });
    ServeEvent::Serving {
        address: &server.address().unwrap_or(address),
        fabric: fabric.name(),
        security: &security,
        regions: regions.collect(),
        beside: host.as_deref(),
        node,
    }
    .emit(output);
    let end = serve(&mut server, membership.as_ref(), &stop, output);
    let served = server.served();
    // No caller may write to the memory while it is compared and written back.
    drop(server);
    membership.into_iter().for_each(Membership::leave);
    let (written_back, saved) =
        if arguments.write_back { write_back(&lent) } else { (Vec::new(), Ok(())) };
    ServeEvent::Ended { served, written_back }.emit_last(output);
    end.and(saved)
}

/// Creates and lends the planned regions with their restrictions. No caller is served before the first poll.
fn lend(
    server: &mut CallServer,
    plans: Vec<RegionPlan>,
    arguments: &RmcServe,
) -> Result<Vec<LentRegion>, Failure> {
    let mut regions = Vec::new();
    for plan in plans {
        let access = match arguments.read_only.contains(&plan.region) {
            true => Access::READ,
            false => Access::ALL,
        };
        let arena = server.make_region(plan.region, plan.bytes, access)?;
        let wrong = |_| Failure::system(format!("region {} is shorter than asked", plan.region));
        arena.write(0, &plan.contents).map_err(wrong)?;
        regions.push(LentRegion { plan, arena });
    }
    for OnlyFor { region, tenants } in &arguments.only_for {
        if let Some(lent) = server.take_back(*region) {
            let names: Vec<&str> = tenants.iter().map(String::as_str).collect();
            server.lend_to(*region, &lent, &names)?;
        }
    }
    Ok(regions)
}

fn options(arguments: &RmcServe) -> Result<ServerOptions, Failure> {
    let (sessions, slots) = (arguments.sessions, arguments.slots);
    let mut options = ServerOptions::default().sessions(sessions).slots(slots);
    let mut seen = BTreeSet::new();
    for tenant in &arguments.tenant {
        if !seen.insert(&tenant.name) {
            let name = tenant.name.as_deref().unwrap_or("*");
            return Err(Failure::usage(format!("--tenant {name}: given twice")));
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

/// Reads the regions to lend; refuses a file or region number that is given twice.
fn plans(memory: &[Lend]) -> Result<Vec<RegionPlan>, Failure> {
    let (mut plans, mut paths): (Vec<RegionPlan>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for Lend { region, from } in memory {
        if plans.iter().any(|plan| plan.region == *region) {
            return Err(Failure::usage(format!(
                "region {region} is lent twice: give one another number"
            )));
        }
        let plan = match from {
            LendFrom::Zeros(bytes) => {
                RegionPlan { region: *region, bytes: *bytes, file: None, contents: Vec::new() }
            }
            LendFrom::File(file) => {
                let shown = file.display();
                // A pipe of the shell (`<(...)`) has no canonical path.
                let path = std::fs::canonicalize(file).unwrap_or_else(|_| file.clone());
                if paths.contains(&path) {
                    let text = format!("{shown}: lent already: a file is one region");
                    return Err(Failure::usage(text));
                }
                paths.push(path);
                let contents = input_file::read_region(file)?;
                if contents.is_empty() {
                    return Err(Failure::usage(format!(
                        "{shown}: the file is empty: nothing to lend"
                    )));
                }
                let (bytes, file) = (contents.len() as u64, Some(file.clone()));
                RegionPlan { region: *region, bytes, file, contents }
            }
        };
        plans.push(plan);
    }
    Ok(plans)
}

/// Refuses restrictions on regions that are not lent or to unknown tenants, which would have no effect.
fn check_restrictions(arguments: &RmcServe) -> Result<(), Failure> {
    let is_lent = |region: u8| arguments.memory.iter().any(|lend| lend.region == region);
    let only_for = arguments.only_for.iter().map(|one| ("--only-for", one.region));
    let read_only = arguments.read_only.iter().map(|region| ("--read-only", *region));
    for (flag, region) in only_for.chain(read_only) {
        if !is_lent(region) {
            let text = format!("{flag} {region}: no such region: lend it with --memory");
            return Err(Failure::usage(text));
        }
    }
    let named = |name: &str| arguments.tenant.iter().any(|one| one.name.as_deref() == Some(name));
    let unknown = arguments.only_for.iter().flat_map(|one| &one.tenants).find(|name| !named(name));
    match unknown {
        Some(name) => {
            let text = format!("--only-for: unknown tenant {name}: add --tenant {name}=weight:1");
            Err(Failure::usage(text))
        }
        None => Ok(()),
    }
}

/// Waits until the memory of the host is available.
fn wait_for_host(server: &mut CallServer, host: &str, stop: &AtomicBool) -> Result<(), Failure> {
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

/// Serves until `stop` is set, and emits events.
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
                ServeEvent::Changed { sessions: now.0, programs: now.1, served, paths }
                    .emit(output);
            }
            match server.host_trouble() {
                Some(reason) if !lost => ServeEvent::HostLost { reason }.emit(output),
                None if lost => ServeEvent::HostFound.emit(output),
                _ => {}
            }
            lost = server.host_trouble().is_some();
            !stop.load(Ordering::Acquire) && !membership.is_some_and(Membership::has_event)
        });
        if let Some(membership) = membership {
            handle_events(server, membership, stop, output)?;
        }
    }
    Ok(())
}

/// Handles events of the membership: drops a removed node, and shares the new one.
fn handle_events(
    server: &mut CallServer,
    membership: &Membership,
    stop: &AtomicBool,
    output: Output,
) -> Result<(), Failure> {
    while let Some(event) = membership.next_event() {
        match event {
            MembershipEvent::Removed { reason, rejoins } => {
                ServeEvent::NodeLost { reason: &reason, rejoins }.emit(output);
                if !rejoins && !server.has_memory() {
                    return Err(Failure::system(format!("nothing left to serve: {reason}")));
                }
                // Calls that wait for the node are answered first.
                retry_while_busy(server, stop, CallServer::unshare)?;
                membership.released();
            }
            MembershipEvent::RejoinFailed(reason) => {
                ServeEvent::NodeNotJoined { reason: &reason }.emit(output);
            }
            MembershipEvent::Rejoined(node) => {
                let shared = retry_while_busy(server, stop, |server| match server.share(&node) {
                    // Removed again: another event follows.
                    Err(error) if error.code == ErrorCode::NodeClosed => Ok(()),
                    shared => shared,
                });
                shared?;
                ServeEvent::NodeFound { node: node.id().0 }.emit(output);
            }
        }
    }
    Ok(())
}

/// Applies a change, serving calls between retries while calls in flight prevent it (`Busy`).
fn retry_while_busy(
    server: &mut CallServer,
    stop: &AtomicBool,
    mut change: impl FnMut(&mut CallServer) -> Result<(), farside::Error>,
) -> Result<(), Failure> {
    loop {
        match change(server) {
            Err(error) if error.code == ErrorCode::Busy && !stop.load(Ordering::Acquire) => {
                let mut polls = 0..POLLS_BETWEEN_RETRIES;
                server.serve_while(|_| polls.next().is_some());
            }
            Err(error) if error.code == ErrorCode::Busy => return Ok(()),
            done => return Ok(done?),
        }
    }
}

/// Writes changed regions to their files, each atomically. Returns the files written, and the first error.
fn write_back(regions: &[LentRegion]) -> (Vec<String>, Result<(), Failure>) {
    let (mut written, mut saved) = (Vec::new(), Ok(()));
    for one in regions {
        match write_back_one(one) {
            Ok(file) => written.extend(file),
            Err(failure) => saved = saved.and(Err(failure)),
        }
    }
    (written, saved)
}

/// Writes a region to its file if it has changed; then returns the file's name.
fn write_back_one(LentRegion { plan, arena }: &LentRegion) -> Result<Option<String>, Failure> {
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
