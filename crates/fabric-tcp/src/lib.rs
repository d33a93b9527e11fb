//! Farside's fabric over TCP: a software RNIC for clusters without RDMA. Everything that the seam has is
//! here: WRITE, READ, all atomics, ATOMIC WRITE, FLUSH, messages with shared receive queues and
//! immediates, receivers that are not ready, sleep; plain, with a protected handshake, or under TLS 1.3
//! altogether.
//!
//! From the data path outwards: `port` (what programs call), `core` (all of it, behind one lock), `link`
//! with `requester`, `responder`, `incoming` and `staged` (one connection), `connection` and `raw` (its
//! socket), `wire` (its frames); `desk` (what links share), `region`, `import`; `call` and `guest` (how
//! connections come about), `engine` (the one thread), `fabric`, `options`, `trouble`.
//!
//! # Who does the work
//! Each link is one TCP connection. A port with all its links is behind one lock, and whoever holds that
//! serves them: the thread that posts sends at once, by one call for all that a list has for a link; a
//! thread that polls receives for itself; otherwise the fabric's one engine thread does, which looks a
//! moment for more (`TcpOptions::spin`) and then sleeps in the kernel. The target of a one-sided request
//! needs no thread of its program.
//!
//! While a thread polls again and again it has the port to itself (`claimed`): every wake-up of the engine
//! would be in vain, and on few cores a hop from one thread to another is most of a round trip. It gets the
//! port after a few polls in vain or some more of any kind, for a thread whose polls always find what the
//! engine brought fights with it for lock and processor. The engine then looks around every 100 us, after a
//! while every 1.6 ms or with the next tick of the processor, for each timer of its own costs, in a virtual
//! machine tens of microseconds; a thread that has polled and posted fewer than four times per 100 us since,
//! or has not polled at all, or that arms its waiter, loses the port to it at once. Who moves long payloads calls
//! rarely: every 16 KiB count as a call, and nobody loses the port in the middle of one. Of a thread that
//! polls, requests behind sixteen that are under way already may wait for its next poll, so that many go by
//! one call.
//!
//! Whoever waits asks the epoll, or tries to receive where nothing has come but over one link for a while;
//! the engine, while it looks for more, does so with the lock in hand until anybody else wants that.
//! A full socket is left alone until the epoll finds room. Where long payloads follow each other little is
//! received with a header, so that the rest goes straight to its place; what another send follows at once
//! is sent with `MSG_MORE`, or each payload would end in a segment of a few bytes.
//!
//! The system's congestion control is used, unless that is BBR (`Congestion`): its pacing arms a timer for
//! each segment, and a virtual machine took more time for that than for all else. Streams of 64 KiB were
//! three to five times as fast without.
//!
//! Beside libfabric 1.17's tcp provider (`bench/compare/README.md` has the table): streams of 8 bytes are 11
//! to 14 times as fast, of 64 KiB and 1 MiB 1.5 to 4 times where the system paces and as fast where it does
//! not; messages take as long there and back, or less; WRITEs of some bytes take as long or a twentieth
//! longer, and READs as long, of targets that sleep here and poll there. WRITEs and READs of memory that keeps order take
//! another copy: into rising order, or out by whole words.
//!
//! One engine for all ports of a fabric, and not one for each: with as many threads as ports, few cores
//! would pay for each wake-up with another one's time slice. io_uring is absent: the data path does one
//! `send` and one `recv` for each burst, which is all that could be batched here, and a ping-pong of
//! bare sockets took no less time by it (`bench/compare`).
//!
//! # Memory that gives up order
//! Of a region with `Access::RELAXED_ORDERING` long payloads take a copy less: WRITEs go straight from the
//! socket to their place, as messages always do, and READs straight from there to the socket, in one
//! frame for 256 KiB. What changes memory behind a READ, or ends its region, first has the rest of the
//! frame that is under way copied.
//!
//! # What travels
//! ```text
//! opening (16 B) | TLS 1.3 handshake, if protected |
//!     <- Greeting(challenge, incarnation)   Hello(challenge, name, words) ->
//!     <- Accepted | Declined | Nobody       Confirm ->   (handshake alone: plain text from here on)
//! then, in both directions at once, frames:
//!
//! request   0 kind | 1 flags | 2 zero | 4 bytes | 8 sequence | 12 acknowledged | 16 region
//!           20 immediate | 24 key | 32 offset | 40 value | (atomics: 4 operands) | bytes...
//! answer    0 kind | 1 code  | 2 zero | 4 bytes | 8 sequence | 12 acknowledged | 16 value | bytes...
//! ```
//! All little-endian (`wire`). Lengths, sequences, bounds, keys and permissions are checked before
//! anything is taken or touched; nothing is allocated by a length that a peer says, but for control frames
//! of at most 20 KiB. What nobody may say costs the link that said it.
//!
//! # Why the guarantees hold
//! * *Order*: a link's requests are carried out by the order of its stream. A READ is queued with its
//!   place; should a later request change memory before the answer was copied or sent, the answer is copied
//!   first, or that request is put off like a message without a receive.
//! * *Bytes of a WRITE* are put down by `Arena::write` in rising order, and the cuts of the stream never
//!   tear a word (`incoming`). READs and messages may go straight from the socket to their place, since
//!   nothing is said of their order; what a WRITE or SEND reads here goes straight to the socket, since its
//!   owner keeps it unchanged. A READ's source is copied by whole words before it is sent. Regions that
//!   give up order are not bound to this, and whatever comes behind still finds them whole: one thread at
//!   a time serves a link, and fences before what a later request does.
//! * *Atomics* are the processor's own, so they meet those of the target's program.
//! * *A completion* means that the target has carried the request out and said so; what acknowledges costs
//!   nothing when anything goes back anyway, and is put off for a program that is about to answer.
//! * *Receivers that are not ready* (`BackPressure::Retried`): the target says so and drops what follows
//!   until that request comes again, which it asks for as soon as there is a receive. Answers and
//!   acknowledgements of the other direction go on.
//! * *Revocation*: `deregister` and `close` take the port's lock, under which all copies are made; a WRITE
//!   that is half there goes nowhere from then on, and is refused.
//!
//! # Time
//! Each side says something after a sixth of the shorter lease without any traffic. Who hears nothing for a lease loses
//! the link as `Unreachable`; a request that makes no progress for `request_timeout` does too, though the
//! peer be there. The kernel's tries, which come ever more rarely while nobody answers, are kept to steps
//! of half a second at most by moving TCP_USER_TIMEOUT ahead of the silence, so that a mended way is found
//! soon: outages of up to a third of a lease are survived and over within some 0.4 s of their end.
//!
//! # What is absent
//! Connections that are taken up again: a link that broke is connected anew. A congestion control of its own.
//! Persistent FLUSH. Memory at an adapter (it is modelled). Zero-copy sends of the kernel, whose
//! notifications cost more than the copies of the sizes here. Allocation on the hot path, but for what
//! TLS itself does.
#![deny(unsafe_code)]

mod call;
mod connection;
mod core;
mod desk;
mod engine;
mod fabric;
mod guest;
mod import;
mod incoming;
mod link;
mod options;
mod port;
#[allow(unsafe_code, reason = "the home of sockets that reach memory which peers change")]
mod raw;
mod region;
mod requester;
mod responder;
mod staged;
mod trouble;
mod wire;

pub use fabric::TcpFabric;
pub use options::{Congestion, TcpLimits, TcpOptions};
