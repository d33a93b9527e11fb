//! `farside agent`: starts workers on this host for commands that run elsewhere.
//!
//! Each stream is for one worker: after the handshake comes [`Order::Start`](wire::Order), then the lines
//! of the worker pass through in both directions ([`wire`]). The worker is killed and reaped when its
//! stream ends, however that ends. Two threads serve a stream: one takes orders and owns the stream's
//! end, the other relays what the worker says and owns the worker's end.

mod client;
mod line;
mod serve;
mod wire;

use crate::arguments::{Agent, HostFabric};
use crate::choice;
use crate::failure::Failure;
use crate::output::Output;
use crate::signals;
pub(crate) use client::Remote;
use farside_bootstrap::{Admission, Endpoint, HostAddress, Security};
use farside_fabric::PendingLimits;
pub(crate) use line::Line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serve::Desk;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Streams beyond those with a worker and those that have ordered nothing yet: refusals in flight.
const STREAMS_SPARE: usize = 32;

/// What happens at an agent, as `--json` shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum Event<'a> {
    Listening {
        address: &'a str,
        security: &'a str,
        /// What the operator must know, with what to do.
        #[serde(skip_serializing_if = "Option::is_none")]
        warning: Option<&'a str>,
    },
    Started {
        process: u32,
        from: &'a str,
    },
    Ended {
        process: u32,
        how: &'a str,
    },
    Refused {
        from: &'a str,
        reason: &'a str,
    },
    Closed,
}

impl Event<'_> {
    fn tell(&self, output: Output) {
        output.event(self, |_| vec![self.text()]);
    }

    fn text(&self) -> String {
        match self {
            Self::Listening { address, security, .. } => {
                format!("agent at {address} ({security}); Ctrl-C ends it and its workers")
            }
            Self::Started { process, from } => format!("worker {process} started for {from}"),
            Self::Ended { process, how } => format!("worker {process} ended ({how})"),
            Self::Refused { from, reason } => format!("refused {from}: {reason}"),
            Self::Closed => "the agent and its workers have ended".to_owned(),
        }
    }
}

/// Whether only processes of this machine reach it.
pub(crate) fn is_loopback(endpoint: &Endpoint) -> bool {
    match &endpoint.host {
        HostAddress::Ip(number) => number.is_loopback(),
        HostAddress::Name(name) => name == "localhost",
    }
}

/// How streams to and from agents are secured: whatever nodes protect of their own, commands travel
/// under TLS, unless there is no key.
pub(crate) fn security(key: Option<&Path>) -> Result<Security, Failure> {
    choice::host_security(HostFabric::Tcp, key, None)
}

/// Serves until told to end.
pub(crate) fn run(arguments: &Agent, output: Output) -> Result<(), Failure> {
    let at = &arguments.listen;
    match &arguments.key {
        None if !arguments.insecure => {
            return Err(Failure::usage(
                "an agent runs programs for others, so it needs --key FILE: make one by `farside key \
                 new FILE` and copy it to every host. On 127.0.0.1, --insecure does without",
            ));
        }
        None if !is_loopback(at) => {
            return Err(Failure::usage(format!(
                "without a key anybody who reaches {at} could run programs here: make one by `farside \
                 key new FILE`. --insecure is for addresses of the loopback alone"
            )));
        }
        _ => {}
    }
    let failed = |e: std::io::Error| Failure::system(format!("{at}: {e}"));
    let security = security(arguments.key.as_deref())?;
    let addresses = at.resolve().map_err(failed)?;
    let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let admission = Admission::of(&security, local);
    let admission = admission.map_err(|e| Failure::system(format!("{at}: {e}")))?;
    let address = local.to_string();
    let words = choice::security_words(&security, Some(&admission));
    let warning = admission.warning();
    let key = arguments.key.as_deref().map(std::path::absolute).transpose().map_err(failed)?;
    let output = output.for_service()?;
    let desk = Arc::new(Desk::new(admission, security, key, arguments.workers_max, output));
    // Closed by the signal, which wakes whoever waits for it.
    let (stop, stopped) = UnixStream::pair().map_err(failed)?;
    let stop = std::sync::Mutex::new(Some(stop));
    signals::watch(move || stop.lock().is_ok_and(|mut stop| stop.take().is_some()))?;
    let warning = warning.as_deref();
    if let Some(warning) = warning {
        output.warning(warning);
    }
    Event::Listening { address: &address, security: &words, warning }.tell(output);
    accept_all(&desk, &listener, &stopped);
    output.last_event(&Event::Closed, |_| vec![Event::Closed.text()]);
    Ok(())
}

/// Serves every stream on threads of its own until `stopped` is closed, then ends all.
fn accept_all(desk: &Arc<Desk>, listener: &TcpListener, stopped: &UnixStream) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        let polled = poll(&mut ready, None);
        if polled.is_ok() && !ready[1].revents().is_empty() {
            break;
        }
        threads.retain(|thread| !thread.is_finished());
        let (socket, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            // The caller is gone, or there are no descriptors: some are free once others have ended.
            Err(_) => {
                let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let _ = poll(&mut [PollFd::new(stopped, PollFlags::IN)], Some(&pause));
                continue;
            }
        };
        let pending_max = PendingLimits::DEFAULT.pending_max;
        if threads.len() >= desk.workers_max() + pending_max + STREAMS_SPARE {
            continue;
        }
        let Some(caller) = desk.take_in(socket, from) else {
            continue;
        };
        let thread = std::thread::Builder::new().name("farside-agent".to_owned());
        // Without a thread the caller finds its stream ended, and may try again.
        threads.extend(thread.spawn(move || serve::stream(caller)).ok());
    }
    desk.end_all();
    for thread in threads {
        let _ = thread.join();
    }
}
