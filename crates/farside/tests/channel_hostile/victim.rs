//! The attacked end, and correct ends with it.

use crate::peer::End;
use farside::channel::{Kind, Message, Options, Receiver, Sender, Sent};
use farside::{Error, ErrorCode};
use farside_base::Random;
use farside_fabric::Fabric;
use std::sync::Arc;

/// Returns a message of a correct end, derived from its generation and number.
pub(crate) fn message(generation: u8, number: u32, options: &Options) -> Vec<u8> {
    let name = (u32::from(generation) << 24) | number;
    let mut out = name.to_le_bytes().to_vec();
    if options.kind != Kind::SendBufferless {
        let more = (name.wrapping_mul(2_654_435_761) >> 8) % (options.message_bytes_max - 3);
        out.extend((0..more).map(|at| (name.wrapping_mul(31).wrapping_add(at) % 251) as u8));
    }
    out
}

/// Returns the generation and number of a message of a correct end; `None` for other bytes.
fn named(bytes: &[u8], options: &Options) -> Option<(u8, u32)> {
    let name = u32::from_le_bytes(bytes.get(..4)?.try_into().unwrap());
    let (generation, number) = ((name >> 24) as u8, name & 0x00ff_ffff);
    (message(generation, number, options) == bytes).then_some((generation, number))
}

/// The errors that an end of a channel has reported.
#[derive(Default, Debug)]
pub(crate) struct Told {
    pub(crate) violations: usize,
    pub(crate) losses: usize,
    pub(crate) mismatches: usize,
    /// Texts of the first errors.
    texts: Vec<String>,
}

impl Told {
    /// Counts an error, which must be one that a peer can cause.
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(error) => {
                match error.code {
                    ErrorCode::ProtocolViolation => self.violations += 1,
                    ErrorCode::PeerLost => self.losses += 1,
                    ErrorCode::ChannelMismatch => self.mismatches += 1,
                    _ => panic!("no peer causes this: {error}"),
                }
                if self.texts.len() < 20 {
                    self.texts.push(format!("{:?} {}", error.code, error.detail));
                }
            }
        }
        None
    }
}

/// Either end.
#[expect(clippy::large_enum_variant, reason = "there are two of them at a time")]
enum Handle {
    Sender(Sender),
    Receiver(Receiver),
}

/// An end of a channel in use, itself correct.
pub(crate) struct Used {
    handle: Handle,
    options: Options,
    /// The generation of its messages; only received messages of this generation count.
    generation: u8,
    /// Messages of that generation sent or received.
    pub(crate) count: u32,
    /// Accepts messages of any peer; those other than the next one of its generation do not count.
    lenient: bool,
    held: Vec<Message>,
    pub(crate) told: Told,
}

impl Used {
    pub(crate) fn open(
        end: End,
        listens: bool,
        fabric: Arc<dyn Fabric>,
        name: &str,
        options: &Options,
    ) -> Self {
        let handle = match (end, listens) {
            (End::Sender, true) => Handle::Sender(Sender::listen(fabric, name, options).unwrap()),
            (End::Sender, false) => Handle::Sender(Sender::connect(fabric, name, options).unwrap()),
            (End::Receiver, true) => {
                Handle::Receiver(Receiver::listen(fabric, name, options).unwrap())
            }
            (End::Receiver, false) => {
                Handle::Receiver(Receiver::connect(fabric, name, options).unwrap())
            }
        };
        Self {
            handle,
            options: *options,
            generation: 0,
            count: 0,
            lenient: false,
            held: Vec::new(),
            told: Told::default(),
        }
    }

    /// Starts counting messages of this generation, from its first.
    pub(crate) const fn begin(&mut self, generation: u8) {
        self.generation = generation;
        self.count = 0;
    }

    /// Accepts messages of any peer.
    pub(crate) const fn be_lenient(&mut self) {
        self.lenient = true;
    }

    pub(crate) fn peers(&mut self) -> usize {
        let (progress, peers) = match &mut self.handle {
            Handle::Sender(sender) => (sender.progress(), sender.peers()),
            Handle::Receiver(receiver) => (receiver.progress(), receiver.peers()),
        };
        // A loss is reported for as long as there is no peer: by the calls that need one.
        if progress.as_ref().is_err_and(|error| error.code != ErrorCode::PeerLost) {
            self.told.note(progress);
        }
        peers
    }

    fn check(&mut self, from: usize, bytes: &[u8]) {
        let most = if self.options.kind == Kind::SendBufferless {
            4
        } else {
            self.options.message_bytes_max as usize
        };
        assert!(bytes.len() <= most, "{} bytes", bytes.len());
        let next = (self.generation, self.count);
        // The correct peer of a receiver with unshared memory connected first.
        let from_sound = from == 0 || self.lenient;
        let is_next = from_sound && named(bytes, &self.options) == Some(next);
        assert!(is_next || from > 0 || self.lenient, "from {from} instead of {next:?}: {bytes:?}");
        self.count += u32::from(is_next);
    }

    /// Polls the end.
    pub(crate) fn look(&mut self) {
        match &mut self.handle {
            Handle::Sender(_) => self.send(0),
            Handle::Receiver(_) => self.receive(0, &mut Random::new(0)),
        }
    }

    /// Performs a random operation of a program.
    pub(crate) fn act(&mut self, random: &mut Random) {
        match &mut self.handle {
            Handle::Sender(_) => self.send(random.below(8)),
            Handle::Receiver(_) => self.receive(random.below(10), random),
        }
    }

    /// Makes progress: sends or receives the next message only.
    pub(crate) fn go_on(&mut self) {
        match &mut self.handle {
            Handle::Sender(_) => self.send(7),
            Handle::Receiver(_) => {
                self.receive(0, &mut Random::new(0));
                for message in std::mem::take(&mut self.held) {
                    self.release(message);
                }
                if let Handle::Receiver(receiver) = &mut self.handle {
                    receiver.acknowledge();
                }
            }
        }
    }

    fn send(&mut self, what: u64) {
        let Handle::Sender(sender) = &mut self.handle else {
            return;
        };
        let bytes = message(self.generation, self.count, &self.options);
        let sent = match what {
            0 => sender.progress().map(|()| Sent::Full),
            1 => sender.try_flush().map(|_| Sent::Full),
            2 => match sender.loan(bytes.len() as u32) {
                Ok(Some(loan)) => {
                    loan.write(0, &bytes).unwrap();
                    sender.send_loan(loan, bytes.len() as u32)
                }
                Ok(None) => Ok(Sent::Full),
                Err(error) => Err(error),
            },
            3 => sender.send_batch([&bytes[..]]).map(|taken| {
                self.count += taken as u32;
                Sent::Full
            }),
            _ => sender.send(&bytes),
        };
        if let Some(Sent::Taken(ticket)) = self.told.note(sent) {
            self.count += 1;
            sender.is_done(ticket);
        }
    }

    fn receive(&mut self, what: u64, random: &mut Random) {
        let Handle::Receiver(receiver) = &mut self.handle else {
            return;
        };
        match what {
            0..=4 => {
                let polled = receiver.poll();
                if let Some(Some(message)) = self.told.note(polled) {
                    self.check(message.from(), &message.to_vec());
                    self.held.push(message);
                }
                if random.one_in(3) || self.held.len() > 3 {
                    self.release_one(random);
                }
            }
            5 | 6 => {
                let mut seen = Vec::new();
                let drained = receiver.drain(4, |message| {
                    let mut bytes = vec![0; message.len()];
                    message.read(0, &mut bytes).unwrap();
                    seen.push((message.from(), bytes));
                });
                if let Some(count) = self.told.note(drained) {
                    assert_eq!(count, seen.len());
                }
                for (from, bytes) in seen {
                    self.check(from, &bytes);
                }
            }
            7 => receiver.acknowledge(),
            8 => {
                let progress = receiver.progress();
                self.told.note(progress);
            }
            _ => self.release_one(random),
        }
    }

    fn release_one(&mut self, random: &mut Random) {
        if !self.held.is_empty() {
            let at = random.below(self.held.len() as u64) as usize;
            let message = self.held.swap_remove(at);
            self.release(message);
        }
    }

    fn release(&mut self, message: Message) {
        if let Handle::Receiver(receiver) = &mut self.handle {
            receiver.release(message);
        }
    }

    /// Fetches a message into separate memory, for channels whose receiver fetches.
    pub(crate) fn fetch(&mut self) {
        let Handle::Receiver(receiver) = &mut self.handle else {
            return;
        };
        let offered = receiver.offer();
        let Some(Some(offer)) = self.told.note(offered) else {
            return;
        };
        assert!(offer.bytes_max() <= self.options.message_bytes_max);
        let buffer = receiver.register(u64::from(self.options.message_bytes_max)).unwrap();
        let Ok(slice) = buffer.slice(0, offer.bytes_max()) else {
            return;
        };
        if receiver.receive_into(offer, slice).is_ok() {
            for _ in 0..8 {
                let fetched = receiver.fetched(offer);
                if let Some(Some(bytes)) = self.told.note(fetched) {
                    assert!(bytes <= offer.bytes_max());
                    break;
                }
            }
        }
    }
}
