//! `farside agent`: starts workers on this host for commands on other hosts.
//!
//! Each stream is for one worker: after the handshake comes `Order::Start`, then the worker's lines
//! pass through in both directions (`wire`). When a stream ends, for any reason, its worker is killed and reaped.
//! Two threads serve a stream: one takes orders and handles the end of the stream, the other relays the worker's
//! output and handles the end of the worker.

mod client;
mod event;
mod line;
mod serve;
mod wire;

pub(crate) use client::Remote;
use event::AgentEvent;
use farside_bootstrap::{Admission, Endpoint, HostAddress, Security};
use farside_command::choice;
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::settings::HostFabric;
use farside_command::signals;
use farside_fabric::PendingLimits;
pub(crate) use line::Line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serve::AgentState;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// An agent, which starts workers for commands on other hosts.
#[derive(Debug)]
pub struct Agent {
    /// Address of the agent; port 0 selects a free port.
    pub listen: Endpoint,
    /// The file with the cluster's key.
    pub key: Option<PathBuf>,
    /// Maximum number of workers.
    pub workers_max: u16,
    /// Whether it may run without a key, on a loopback address.
    pub insecure: bool,
}

/// Maximum number of streams besides those with a worker and those without an order yet: refusals in flight.
const STREAMS_SPARE: usize = 32;

/// Returns whether only processes of this machine can reach an endpoint.
pub fn is_loopback(endpoint: &Endpoint) -> bool {
    match &endpoint.host {
        HostAddress::Ip(number) => number.is_loopback(),
        HostAddress::Name(name) => name == "localhost",
    }
}

/// Returns the security of streams between commands and agents: TLS if there is a key, regardless of what the nodes
/// protect.
pub(crate) fn security(key: Option<&Path>) -> Result<Security, Failure> {
    choice::host_security(HostFabric::Tcp, key, None)
}

/// Serves until a signal.
pub fn run(arguments: &Agent, output: Output) -> Result<(), Failure> {
    let at = &arguments.listen;
    match &arguments.key {
        None if !arguments.insecure => {
            return Err(Failure::usage(
                "an agent runs programs for other hosts, so it needs --key FILE: create one with `farside key \
                 new FILE` and copy it to every host. On 127.0.0.1, --insecure runs without a key",
            ));
        }
        None if !is_loopback(at) => {
            return Err(Failure::usage(format!(
                "without a key every process that reaches {at} could run programs here: create one with `farside \
                 key new FILE`. --insecure is for loopback addresses only"
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
    let agent = AgentState::new(admission, security, key, arguments.workers_max, output);
    let agent = Arc::new(agent);
    // The signal handler closes it, which ends the poll of the accepting thread.
    let (stop, stopped) = UnixStream::pair().map_err(failed)?;
    let stop = std::sync::Mutex::new(Some(stop));
    signals::watch(move || stop.lock().is_ok_and(|mut stop| stop.take().is_some()))?;
    let warning = warning.as_deref();
    if let Some(warning) = warning {
        output.warning(warning);
    }
    AgentEvent::Listening { address: &address, security: &words, warning }.tell(output);
    accept_all(&agent, &listener, &stopped);
    output.last_event(&AgentEvent::Closed, |_| vec![AgentEvent::Closed.text()]);
    Ok(())
}

/// Serves every stream on separate threads until `stopped` is closed, then ends all.
fn accept_all(agent: &Arc<AgentState>, listener: &TcpListener, stopped: &UnixStream) {
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
            // The peer has gone, or no descriptors are free until other streams end.
            Err(_) => {
                let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let _ = poll(&mut [PollFd::new(stopped, PollFlags::IN)], Some(&pause));
                continue;
            }
        };
        let pending_max = PendingLimits::DEFAULT.pending_max;
        if threads.len() >= agent.workers_max() + pending_max + STREAMS_SPARE {
            continue;
        }
        let Some(connection) = agent.admit(socket, from) else {
            continue;
        };
        let thread = std::thread::Builder::new().name("farside-agent".to_owned());
        // If no thread can be started, the stream ends and the peer may retry.
        threads.extend(thread.spawn(move || serve::stream(connection)).ok());
    }
    agent.end_all();
    for thread in threads {
        let _ = thread.join();
    }
}
