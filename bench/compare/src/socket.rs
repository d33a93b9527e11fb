//! Unix stream sockets: what two processes have without any library.

use crate::figure::{Entry, Payload, Wait, check, measure, sign};
use crate::pair::{Other, Plan, Task};
use std::io::{ErrorKind, Read, Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

/// Messages of a stream's window, at least: several times what the socket's buffer holds, so that no
/// window lives on what was sent before it.
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

/// Answers as the role says; false when it is none of these.
pub(crate) fn answer(role: &str, bytes: usize) -> Result<bool> {
    match role {
        "socket-spin" => echo(bytes, Wait::Spin)?,
        "socket-block" => echo(bytes, Wait::Block)?,
        "socket-stream" => pour(bytes)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn start(plan: Plan, role: &'static str, message_bytes: usize) -> Result<(Other, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let task = Task { role, message_bytes, name: String::new() };
    let other = Other::start(plan, &task, Stdio::from(OwnedFd::from(theirs)))?;
    Ok((other, ours))
}

fn ping_pong(plan: Plan, bytes: usize, wait: Wait) -> Result<()> {
    let role = match wait {
        Wait::Spin => "socket-spin",
        Wait::Block => "socket-block",
    };
    let (other, stream) = start(plan, role, bytes)?;
    let mut end = End::new(stream, wait)?;
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

/// Sends everything back until the other side closes.
fn echo(bytes: usize, wait: Wait) -> Result<()> {
    let mut end = End::new(inherited()?, wait)?;
    let mut message = vec![0; bytes];
    while !ended(end.receive(&mut message))? {
        if ended(end.send(&message))? {
            break;
        }
    }
    Ok(())
}

/// The answering side sends, this one counts what has arrived.
fn stream(plan: Plan, bytes: usize) -> Result<()> {
    let (other, stream) = start(plan, "socket-stream", bytes)?;
    let mut end = End::new(stream, Wait::Block)?;
    let mut message = vec![0; bytes];
    let mut number = 0;
    // 64 KiB are so few to the buffer that a smaller window does.
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
    let mut end = End::new(inherited()?, Wait::Block)?;
    let mut message = vec![0; bytes];
    for number in 1.. {
        sign(&mut message, number);
        if ended(end.send(&message))? {
            break;
        }
    }
    Ok(())
}

/// The socket that the measuring process gave as standard input.
fn inherited() -> Result<UnixStream> {
    Ok(UnixStream::from(rustix::stdio::stdin().as_fd().try_clone_to_owned()?))
}

/// Whether the other side has closed: the way a measurement ends.
fn ended(done: Result<()>) -> Result<bool> {
    match done.map_err(|error| (error.kind(), error)) {
        Ok(()) => Ok(false),
        Err((ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset, _)) => {
            Ok(true)
        }
        Err((_, error)) => Err(error),
    }
}

/// One end, which sleeps in the kernel or asks it again and again.
struct End {
    stream: UnixStream,
}

impl End {
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
    fn messages_longer_than_the_buffer_cross_in_pieces() {
        for wait in [Wait::Spin, Wait::Block] {
            let (one, two) = UnixStream::pair().unwrap();
            let sender = std::thread::spawn(move || {
                let mut end = End::new(one, wait).unwrap();
                let mut message = vec![5; 4 << 20];
                sign(&mut message, 9);
                end.send(&message).unwrap();
            });
            let mut end = End::new(two, wait).unwrap();
            let mut message = vec![0; 4 << 20];
            end.receive(&mut message).unwrap();
            sender.join().unwrap();
            assert!(check(&message, 9).is_ok() && message[1] == 5);
            assert!(ended(end.receive(&mut message)).unwrap(), "closed is the end, not an error");
        }
    }
}
