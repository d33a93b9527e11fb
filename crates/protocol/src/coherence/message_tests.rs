//! The wire form: every message round-trips, and no other body is accepted.

use super::{CoherenceMessage, Extent, Frame, Had, Level, Requester, Supply};
use crate::wire::BODY;
use alloc::vec::Vec;
use farside_base::{
    ErrorCode, Generation, GlobalAddress, Grant, LineAddress, LineSize, MemoryId, NodeId, Random,
    Ticket,
};

struct MessageGenerator(Random);

impl MessageGenerator {
    /// Small and large numbers alike.
    fn id(&mut self) -> u64 {
        let bits = self.0.below(65) as u32;
        self.0.word().checked_shr(bits).unwrap_or(0)
    }

    fn line(&mut self) -> LineAddress {
        let size = LineSize::from_class(self.0.below(11) as u8).unwrap();
        let offset = self.0.word() >> 22;
        let generation = Generation(self.0.below(1_024) as u16);
        let memory = MemoryId::new(NodeId(self.0.below(256) as u16), generation).unwrap();
        GlobalAddress::new_in(memory, size, offset).unwrap().line()
    }

    fn level(&mut self) -> Level {
        *self.0.pick(&[Level::Invalid, Level::Shared, Level::Dirty])
    }

    fn optional<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.0.below(2) == 1).then(|| value(self))
    }

    fn message(&mut self, kind: u64) -> CoherenceMessage {
        let line = self.line();
        let (ticket, grant) = (Ticket(self.id()), Grant(self.id()));
        let frame = Frame(self.id() as u32);
        match kind {
            0 => CoherenceMessage::Read { line, frame, ticket },
            1 => CoherenceMessage::Write {
                line,
                frame,
                ticket,
                held: self.optional(|numbers| Grant(numbers.id())),
                covers: self.0.below(line.line_size().bytes() as u64 + 1) as u32,
            },
            2 => CoherenceMessage::Evict { line, grant, dirty: self.0.below(2) == 1 },
            3 => CoherenceMessage::Recall {
                line,
                grant,
                down_to: self.level(),
                forward: self.optional(|numbers| Requester {
                    node: NodeId(numbers.id() as u16),
                    frame: Frame(numbers.id() as u32),
                    ticket: Ticket(numbers.id()),
                }),
            },
            4 => CoherenceMessage::Grant {
                line,
                ticket,
                grant,
                level: self.level(),
                supply: {
                    let owner = NodeId(self.id() as u16);
                    *self.0.pick(&[
                        Supply::Held,
                        Supply::Home,
                        Supply::Owner(owner),
                        Supply::Nothing,
                    ])
                },
                extent: Extent {
                    first: self.0.below(2) == 1,
                    bytes: 1 + self.0.below(line.line_size().bytes() as u64) as u32,
                },
            },
            5 => CoherenceMessage::Refuse {
                line,
                ticket,
                code: *self.0.pick(&[ErrorCode::Unallocated, ErrorCode::LineLost]),
                supplier: self.optional(|numbers| NodeId(numbers.id() as u16)),
            },
            6 => CoherenceMessage::Data { line, ticket },
            8 => CoherenceMessage::WriteBack {
                line,
                ticket,
                owned: *self.0.pick(&[None, Some(grant)]),
            },
            9 => CoherenceMessage::Written { line, ticket },
            _ => CoherenceMessage::Ack {
                line,
                grant,
                had: *self.0.pick(&[Had::Nothing, Had::Clean, Had::Bytes, Had::Forwarded]),
                left: self.level(),
            },
        }
    }
}

#[test]
fn every_message_comes_back() {
    for seed in 0..20_000 {
        let message = MessageGenerator(Random::new(seed)).message(seed % 10);
        assert_eq!(CoherenceMessage::decode(&message.encode()), Ok(message), "seed {seed}");
    }
}

/// Every accepted body is the encoding of its message: each message has one form, and no bit is ignored.
#[test]
fn junk_is_refused() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..40_000 {
        let mut numbers = MessageGenerator(Random::new(seed));
        let mut body = numbers.message(seed % 10).encode();
        for _ in 0..=numbers.0.below(3) {
            let bit = numbers.0.below(BODY as u64 * 8) as usize;
            body[bit / 8] ^= 1 << (bit % 8);
        }
        match CoherenceMessage::decode(&body) {
            Ok(message) => {
                assert_eq!(message.encode(), body, "seed {seed}");
                taken += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 5_000 && refused > 5_000, "{taken} taken, {refused} refused");
}

#[test]
fn noise_is_refused() {
    for seed in 0..20_000 {
        let mut numbers = MessageGenerator(Random::new(seed));
        let noise: Vec<u8> = (0..BODY).map(|_| numbers.0.word() as u8).collect();
        let body: [u8; BODY] = noise.try_into().expect("as long as a body");
        assert!(CoherenceMessage::decode(&body).is_err(), "seed {seed}");
    }
    assert!(CoherenceMessage::decode(&[0; BODY]).is_err());
    assert!(CoherenceMessage::decode(&[0xff; BODY]).is_err());
}

#[test]
fn each_kind_of_message_has_its_class() {
    use crate::wire::Class::{Forward, Reply, Request};
    let classes: Vec<_> =
        (0..10).map(|kind| MessageGenerator(Random::new(kind)).message(kind).class()).collect();
    let expected = [Request, Request, Request, Forward, Reply, Reply, Reply, Reply, Request, Reply];
    assert_eq!(classes, expected);
}

#[test]
fn text_is_one_line_and_tells_everything_apart() {
    let mut texts: Vec<_> = (0..1_000)
        .map(|seed| alloc::format!("{}", MessageGenerator(Random::new(seed)).message(seed % 10)))
        .collect();
    assert!(texts.iter().all(|text| !text.contains('\n')));
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 1_000);
}
