//! iceoryx2, publish and subscribe; both processes poll.
//!
//! The one unsafe call sends a loaned message without writing it; its type cannot show that this is sound.
//!
//! | what | who may touch it | when |
//! | --- | --- | --- |
//! | a loaned sample | the publisher that loaned it | until it is sent |
//! | a received sample | the subscriber that got it, to read | until it is dropped |

use crate::figure::{Entry, Payload, Wait, check, measure, sign};
use crate::pair::{AnsweringProcess, Plan, Task};
use crate::shared::Shared;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::sample::Sample;
use std::fmt::Display;
use std::io::{Error, Result};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Release};

type Service = ipc::Service;

/// Word: the answering process has opened its ports.
const READY: usize = 0;
/// Word: both processes have connected to each other's ports.
const GO: usize = 1;
/// Word: the answering process must end.
const STOP: usize = 2;

/// Size of a subscriber's buffer, in samples.
const BUFFER: usize = 64;
/// Size of the buffer for long messages, of which 64 would not fit in a core's private cache.
const BUFFER_LONG: usize = 16;
const LONG_BYTES: usize = 16 << 10;

/// Measures latency and rate, with copies and zero-copy.
pub(crate) fn run(plan: Plan, sizes: &[usize]) -> Result<()> {
    set_log_level(LogLevel::Error);
    for &bytes in sizes {
        for payload in [Payload::Copied, Payload::Untouched] {
            ping_pong(plan, bytes, payload)?;
            stream(plan, bytes, payload)?;
        }
    }
    Ok(())
}

/// Runs the answering process of a role; returns false if the role is not one of these.
pub(crate) fn answer(role: &str, bytes: usize, name: &str) -> Result<bool> {
    set_log_level(LogLevel::Error);
    let (payload, echoes) = match role {
        "iceoryx2-copy" => (Payload::Copied, true),
        "iceoryx2-loan" => (Payload::Untouched, true),
        "iceoryx2-stream-copy" => (Payload::Copied, false),
        "iceoryx2-stream-loan" => (Payload::Untouched, false),
        _ => return Ok(false),
    };
    let shared = Shared::map(rustix::stdio::stdin())?;
    let ports = Ports::open(name, ["back", "there"], bytes)?;
    shared.word(READY).store(1, Release);
    while shared.word(GO).load(Acquire) == 0 {
        std::hint::spin_loop();
    }
    let stopped = || shared.word(STOP).load(Acquire) == 1;
    if echoes {
        ports.echo(payload, bytes, stopped)?
    } else {
        ports.pour(payload, bytes, stopped)?
    }
    Ok(true)
}

fn ping_pong(plan: Plan, bytes: usize, payload: Payload) -> Result<()> {
    let role = match payload {
        Payload::Copied => "iceoryx2-copy",
        Payload::Untouched => "iceoryx2-loan",
    };
    let measuring = MeasuringSide::start(plan, role, bytes)?;
    let mut message = vec![0; bytes];
    let mut number = 0;
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            number += 1;
            sign(&mut message, number);
            measuring.ports.send(payload, &message)?;
            let sample = measuring.ports.receive_spinning()?;
            take(payload, &sample, &mut message, number)?;
        }
        Ok(())
    })?;
    measuring.stop()?;
    Entry::new(role, bytes, payload, Wait::Spin).round_trip(round).print()
}

/// Measures a stream from the answering process, counted at the receiver.
fn stream(plan: Plan, bytes: usize, payload: Payload) -> Result<()> {
    let (role, channel) = match payload {
        Payload::Copied => ("iceoryx2-stream-copy", "iceoryx2-copy"),
        Payload::Untouched => ("iceoryx2-stream-loan", "iceoryx2-loan"),
    };
    let measuring = MeasuringSide::start(plan, role, bytes)?;
    let mut message = vec![0; bytes];
    let mut number = 0;
    // Several times the buffer, so that messages sent before a window are a small part of it.
    let count_min = 8 * buffer(bytes) as u64;
    let each = measure(plan.windows, count_min, |count| {
        for _ in 0..count {
            number += 1;
            let sample = measuring.ports.receive_spinning()?;
            take(payload, &sample, &mut message, number)?;
        }
        Ok(())
    })?;
    measuring.stop()?;
    Entry::new(channel, bytes, payload, Wait::Spin).stream(each).print()
}

/// Processes a received message: copies it out and checks it, or does nothing.
fn take(
    payload: Payload,
    sample: &Sample<Service, [u8], ()>,
    into: &mut [u8],
    number: u64,
) -> Result<()> {
    match payload {
        Payload::Untouched => Ok(()),
        Payload::Copied => {
            into.copy_from_slice(sample.payload());
            check(into, number)
        }
    }
}

fn buffer(bytes: usize) -> usize {
    if bytes >= LONG_BYTES { BUFFER_LONG } else { BUFFER }
}

/// The measuring side: its ports, the answering process, and the folder of both.
struct MeasuringSide {
    // Dropped in this order: ports, the answering process, then the memory and folder of both.
    ports: Ports,
    other: AnsweringProcess,
    shared: Shared,
    folder: Folder,
}

impl MeasuringSide {
    fn start(plan: Plan, role: &'static str, message_bytes: usize) -> Result<Self> {
        let folder = Folder::create()?;
        let name = folder.name.clone();
        let ports = Ports::open(&name, ["there", "back"], message_bytes)?;
        let (other, shared) = AnsweringProcess::sharing(plan, &Task { role, message_bytes, name })?;
        while shared.word(READY).load(Acquire) == 0 {
            std::hint::spin_loop();
        }
        // A subscriber connects to a new publisher at its next `receive`. A publisher whose buffer is full before
        // that drops messages instead of waiting.
        if ports.receive()?.is_some() {
            return Err(Error::other("iceoryx2: a message arrived before the start"));
        }
        shared.word(GO).store(1, Release);
        Ok(Self { ports, other, shared, folder })
    }

    /// Ends the answering process. It may wait for room; dropping this process's ports unblocks it.
    fn stop(self) -> Result<()> {
        let Self { ports, other, shared, folder } = self;
        shared.word(STOP).store(1, Release);
        drop(ports);
        other.wait()?;
        drop(folder);
        Ok(())
    }
}

/// The private folder for iceoryx2's files, removed on drop.
struct Folder {
    name: String,
}

impl Folder {
    fn create() -> Result<Self> {
        let name = format!("farside_compare_{}", std::process::id());
        std::fs::create_dir_all(Self::path(&name))?;
        Ok(Self { name })
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Self::path(&self.name));
    }
}

/// A publisher and a subscriber. Their node lives as long as they do.
struct Ports {
    publisher: Publisher<Service, [u8], ()>,
    subscriber: Subscriber<Service, [u8], ()>,
    _node: Node<Service>,
}

impl Ports {
    /// Opens a publisher on service `out` and a subscriber on service `back`.
    fn open(name: &str, [out, back]: [&str; 2], bytes: usize) -> Result<Self> {
        let mut config = Config::default();
        let folder = Folder::path(name).display().to_string();
        config.global.set_root_path(&Path::new(folder.as_bytes()).map_err(failed)?);
        let prefix = format!("{name}_");
        config.global.prefix = FileName::new(prefix.as_bytes()).map_err(failed)?;
        let node = NodeBuilder::new()
            .config(&config)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<Service>()
            .map_err(failed)?;
        let service = |direction: &str| {
            node.service_builder(&direction.try_into().map_err(failed)?)
                .publish_subscribe::<[u8]>()
                .enable_safe_overflow(false)
                .subscriber_max_buffer_size(buffer(bytes))
                .max_publishers(1)
                .max_subscribers(1)
                .open_or_create()
                .map_err(failed)
        };
        let publisher = service(out)?
            .publisher_builder()
            .initial_max_slice_len(bytes)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .map_err(failed)?;
        let subscriber = service(back)?.subscriber_builder().create().map_err(failed)?;
        Ok(Self { publisher, subscriber, _node: node })
    }

    fn send(&self, payload: Payload, message: &[u8]) -> Result<()> {
        let loan = self.publisher.loan_slice_uninit(message.len()).map_err(failed)?;
        let sample = match payload {
            Payload::Copied => loan.write_from_slice(message),
            // SAFETY: every value of a byte is valid, and the kernel has initialized these pages;
            // neither side reads them.
            Payload::Untouched => unsafe { loan.assume_init() },
        };
        sample.send().map_err(failed)?;
        Ok(())
    }

    fn receive(&self) -> Result<Option<Sample<Service, [u8], ()>>> {
        self.subscriber.receive().map_err(failed)
    }

    fn receive_spinning(&self) -> Result<Sample<Service, [u8], ()>> {
        loop {
            if let Some(sample) = self.receive()? {
                return Ok(sample);
            }
        }
    }

    /// Sends every received message back.
    fn echo(&self, payload: Payload, bytes: usize, stopped: impl Fn() -> bool) -> Result<()> {
        let mut message = vec![0; bytes];
        loop {
            let Some(sample) = self.receive()? else {
                if stopped() {
                    return Ok(());
                }
                continue;
            };
            if let Payload::Copied = payload {
                message.copy_from_slice(sample.payload());
            }
            drop(sample);
            self.send(payload, &message)?;
        }
    }

    /// Sends as fast as the other process receives.
    fn pour(&self, payload: Payload, bytes: usize, stopped: impl Fn() -> bool) -> Result<()> {
        let mut message = vec![0; bytes];
        let mut number = 0;
        while !stopped() {
            number += 1;
            sign(&mut message, number);
            self.send(payload, &message)?;
        }
        Ok(())
    }
}

fn failed(error: impl Display) -> Error {
    Error::other(format!("iceoryx2: {error}"))
}
