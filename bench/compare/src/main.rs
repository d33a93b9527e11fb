//! Measures peers of Farside's channels that have no benchmark of their own: the bare machine, Unix sockets and
//! iceoryx2; and of its hash table: Redis and DashMap. `run` and `applications` in the folder above start this program; it prints a line of JSON for each figure.

#![deny(unsafe_code)]

mod bare;
mod figure;
#[allow(unsafe_code, reason = "sends a message that the program has not written")]
mod iceoryx;
mod pair;
#[allow(unsafe_code, reason = "maps memory that two processes share")]
mod shared;
mod socket;
mod store;

use pair::Plan;
use std::io::{Error, Result, Write};
use std::process::ExitCode;

/// Message sizes of all measurements.
const SIZES: [usize; 4] = [8, 64, 1 << 10, 64 << 10];

const USAGE: &str = "\
usage: farside-compare bare|probe|socket|iceoryx2 WINDOWS PROCESSOR PROCESSOR
  measures with processes bound to the first and to the second processor
usage: farside-compare redis WINDOWS SOCKET
usage: farside-compare dashmap WINDOWS
  measures GETs of a key-value store";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["answer", role, name, bytes, processor] => match (bytes.parse(), processor.parse()) {
            (Ok(bytes), Ok(processor)) => answer(role, name, bytes, processor),
            _ => return wrong_use(),
        },
        ["redis", windows, socket] => match windows.parse() {
            Ok(windows) if windows > 0 => store::redis(socket, windows).map(|()| true),
            _ => return wrong_use(),
        },
        ["dashmap", windows] => match windows.parse() {
            Ok(windows) if windows > 0 => store::dashmap(windows).map(|()| true),
            _ => return wrong_use(),
        },
        [peer, windows, one, two] => match (windows.parse(), one.parse(), two.parse()) {
            (Ok(windows), Ok(one), Ok(two)) if windows > 0 && one != two => {
                measure(peer, Plan { windows, processors: [one, two] })
            }
            _ => return wrong_use(),
        },
        _ => return wrong_use(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => wrong_use(),
        Err(error) => {
            say(&format!("farside-compare: {}: {error}", words.join(" ")));
            ExitCode::FAILURE
        }
    }
}

/// Measures a peer; returns false if there is no such peer.
fn measure(peer: &str, plan: Plan) -> Result<bool> {
    let run: fn(Plan, &[usize]) -> Result<()> = match peer {
        "bare" => bare::run,
        "probe" => |plan, _| bare::probe(plan),
        "socket" => socket::run,
        "iceoryx2" => iceoryx::run,
        _ => return Ok(false),
    };
    // Binding to the second processor here reports a refusal before the answering process is started.
    pair::bind(plan.processors[1])?;
    pair::bind(plan.processors[0])?;
    run(plan, &SIZES)?;
    Ok(true)
}

/// Runs the answering process; returns false if there is no such role.
fn answer(role: &str, name: &str, bytes: usize, processor: usize) -> Result<bool> {
    pair::prepare_answering(processor)?;
    if bytes > shared::MESSAGE_BYTES_MAX {
        return Err(Error::other(format!("{bytes} bytes are too many")));
    }
    Ok(bare::answer(role, bytes)?
        || socket::answer(role, bytes)?
        || iceoryx::answer(role, bytes, name)?)
}

fn wrong_use() -> ExitCode {
    say(USAGE);
    ExitCode::from(2)
}

fn say(text: &str) {
    // An error means that standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
