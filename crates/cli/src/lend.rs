//! `farside lend`: lends memory to clients, and sleeps.

use crate::listening::check_security;
use crate::settings::LendMemory;
use farside::onesided::{Access, LendOptions, MemoryServer};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes};
use farside_command::signals;
use serde::Serialize;
use std::sync::mpsc::channel;

/// Events of a memory server, as `--json` prints them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum LendEvent<'a> {
    Lending {
        /// The address for clients.
        address: &'a str,
        fabric: &'a str,
        security: &'a str,
        bytes: u64,
        read_only: bool,
        /// The socket next to which the memory is.
        socket: Option<u16>,
    },
    Ended {
        /// Clients that were connected at the end.
        clients: usize,
    },
}

impl LendEvent<'_> {
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Lending { address, fabric, security, bytes: lent, read_only, socket } => {
                let access = if *read_only { " to read" } else { "" };
                let near = socket.map_or_else(String::new, |socket| format!(" on socket {socket}"));
                let lent = bytes(*lent);
                vec![
                    format!("lending {lent}{access}{near} at {address} over {fabric} ({security})"),
                    format!("open:  farside::onesided::MemoryClient::open(\"{address}\", timeout)"),
                    "end:   Ctrl-C; the memory ends with it".to_owned(),
                ]
            }
            Self::Ended { clients: 0 } => vec!["ended".to_owned()],
            Self::Ended { clients } => vec![format!("ended; {clients} clients were connected")],
        }
    }
}

/// Lends memory until a signal.
pub(crate) fn run(arguments: &LendMemory, output: Output) -> Result<(), Failure> {
    let at = match &arguments.listen {
        Some(endpoint) => format!("{endpoint}/{}", arguments.name),
        None => arguments.name.clone(),
    };
    check_security(&at, &arguments.choice, arguments.insecure)?;
    let output = output.for_service()?;
    let (sender, ended) = channel();
    signals::watch(move || sender.send(()).is_ok())?;
    let Chosen { fabric, address, security } =
        choice::listener(&arguments.choice, &at, &arguments.name)?;
    let access = if arguments.read_only { Access::READ } else { Access::ALL };
    let options = LendOptions::default().access(access).clients_max(arguments.clients_max);
    let options = options.exclusive(arguments.exclusive);
    let options = match arguments.socket {
        None => options,
        Some(socket) => {
            let machine = choice::topology(arguments.topology.as_deref())?;
            options.socket(Some(machine.socket(socket)?.clone()))
        }
    };
    let server = MemoryServer::lend(&fabric, &address, arguments.bytes, &options)?;
    let lending = LendEvent::Lending {
        address: server.address(),
        fabric: fabric.name(),
        security: &security,
        bytes: server.bytes(),
        read_only: arguments.read_only,
        socket: server.socket(),
    };
    output.event(&lending, |_| lending.lines());
    // The thread of the signals lives as long as the process.
    let _ = ended.recv();
    let event = LendEvent::Ended { clients: server.clients() };
    output.last_event(&event, |_| event.lines());
    Ok(())
}
