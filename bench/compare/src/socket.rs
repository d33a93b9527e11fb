//! Unix stream sockets: communication without any library.

use crate::figure::{Entry, Payload, Wait, check, measure, sign};
use crate::pair::{AnsweringProcess, Plan, Task};
use std::io::{ErrorKind, Read, Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

/// Least messages of a stream's window: several times the socket's buffer, so that messages sent before a window
/// are a small part of it.
const STREAM_COUNT_MIN: u64 = 4096;

/// Measures ping-pongs, spinning and blocking, and a stream.
pub(crate) fn run(plan: Plan, sizes: &[usize]) -> Result<()> {
    for &bytes in sizes {
        ping_pong(plan, bytes, Wait::Spin)?;
        ping_pong(plan, bytes, Wait::Block)?;
        stream(plan, bytes)?;
    }
    Ok(())
}

/// Runs the answering process of a role; returns false if the role is not one of these.
pub(crate) fn answer(role: &str, bytes: usize) -> Result<bool> {
    match role {
        "socket-spin" => echo(bytes, Wait::Spin)?,
        "socket-block" => echo(bytes, Wait::Block)?,
        "socket-stream" => pour(bytes)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn start(
    plan: Plan,
    role: &'static str,
    message_bytes: usize,
) -> Result<(AnsweringProcess, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let task = Task { role, message_bytes, name: String::new() };
    let other = AnsweringProcess::start(plan, &task, Stdio::from(OwnedFd::from(theirs)))?;
    Ok((other, ours))
}

fn ping_pong(plan: Plan, bytes: usize, wait: Wait) -> Result<()> {
    let role = match wait {
        Wait::Spin => "socket-spin",
        Wait::Block => "socket-block",
    };
    let (other, stream) = start(plan, role, bytes)?;
    let mut end = SocketEnd::new(stream, wait)?;
    let mut message = vec![0; bytes];
    let mut number = 0;
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            number += 1;
            sign(&mut message, number);
            end.send(&message)?;
            end.receive(&mut message)?;
            check(&message, number)?;
        }
        Ok(())
    })?;
    drop(end);
    other.wait()?;
    Entry::new("socket", bytes, Payload::Copied, wait).round_trip(round).print()
}

/// Sends every message back until the other process closes.
fn echo(bytes: usize, wait: Wait) -> Result<()> {
    let mut end = SocketEnd::new(inherited()?, wait)?;
    let mut message = vec![0; bytes];
    while !ended(end.receive(&mut message))? {
        if ended(end.send(&message))? {
            break;
        }
    }
    Ok(())
}

/// Measures a stream from the answering process, counted at the receiver.
fn stream(plan: Plan, bytes: usize) -> Result<()> {
    let (other, stream) = start(plan, "socket-stream", bytes)?;
    let mut end = SocketEnd::new(stream, Wait::Block)?;
    let mut message = vec![0; bytes];
    let mut number = 0;
    // The buffer has room for few 64 KiB messages, so a smaller window is enough.
    let count_min = (STREAM_COUNT_MIN * 64 / bytes as u64).clamp(64, STREAM_COUNT_MIN);
    let each = measure(plan.windows, count_min, |count| {
        for _ in 0..count {
            number += 1;
            end.receive(&mut message)?;
            check(&message, number)?;
        }
        Ok(())
    })?;
    drop(end);
    other.wait()?;
    Entry::new("socket", bytes, Payload::Copied, Wait::Block).stream(each).print()
}

fn pour(bytes: usize) -> Result<()> {
    let mut end = SocketEnd::new(inherited()?, Wait::Block)?;
    let mut message = vec![0; bytes];
    for number in 1.. {
        sign(&mut message, number);
        if ended(end.send(&message))? {
            break;
        }
    }
    Ok(())
}

/// Returns the socket that the measuring process passed as standard input.
fn inherited() -> Result<UnixStream> {
    Ok(UnixStream::from(rustix::stdio::stdin().as_fd().try_clone_to_owned()?))
}

/// Returns whether the other process has closed, which ends a measurement.
fn ended(done: Result<()>) -> Result<bool> {
    match done.map_err(|error| (error.kind(), error)) {
        Ok(()) => Ok(false),
        Err((ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset, _)) => {
            Ok(true)
        }
        Err((_, error)) => Err(error),
    }
}

/// One end of the socket, blocking or polling.
struct SocketEnd {
    stream: UnixStream,
}

impl SocketEnd {
    fn new(stream: UnixStream, wait: Wait) -> Result<Self> {
        stream.set_nonblocking(matches!(wait, Wait::Spin))?;
        Ok(Self { stream })
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut sent = 0;
        while sent < message.len() {
            match self.stream.write(&message[sent..]) {
                Ok(0) => return Err(ErrorKind::BrokenPipe.into()),
                Ok(bytes) => sent += bytes,
                Err(error) if may_retry(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> Result<()> {
        let mut received = 0;
        while received < message.len() {
            match self.stream.read(&mut message[received..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => received += bytes,
                Err(error) if may_retry(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn may_retry(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_longer_than_the_buffer_arrive_whole() {
        for wait in [Wait::Spin, Wait::Block] {
            let (one, two) = UnixStream::pair().unwrap();
            let sender = std::thread::spawn(move || {
                let mut end = SocketEnd::new(one, wait).unwrap();
                let mut message = vec![5; 4 << 20];
                sign(&mut message, 9);
                end.send(&message).unwrap();
            });
            let mut end = SocketEnd::new(two, wait).unwrap();
            let mut message = vec![0; 4 << 20];
            end.receive(&mut message).unwrap();
            sender.join().unwrap();
            assert!(check(&message, 9).is_ok() && message[1] == 5);
            assert!(ended(end.receive(&mut message)).unwrap(), "closed is the end, not an error");
        }
    }
}
