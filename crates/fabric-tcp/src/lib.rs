//! Farside's fabric over TCP: a software RNIC for clusters without RDMA adapters.
//!
//! It implements the whole fabric interface: WRITE, READ, all atomics, ATOMIC WRITE, FLUSH, messages with shared
//! receive queues and immediates, receiver-not-ready, and sleep; in plain text, with a protected handshake, or under
//! TLS 1.3. The model is RDMAP over TCP (iWARP, RFC 5040) in user space, with the order and atomicity of an InfiniBand
//! reliable connection (IBTA 9.7) and its own frame format. `docs/internals/tcp.md` explains the design.
//!
//! Modules, each of which sees only those after it: `fabric` (the public fabric), `port` (the program's interface),
//! `engine` (the thread), `pending` (connections that have named no port), `core` (a port behind its lock), `link` (one
//! connection: `send`, `receive`), `requester`, `responder`, `incoming`, `dial`, `queues` (shared by the links of a
//! port), `imports`, `region`, `stream` (the bytes of a connection), `socket`, `options`, `wire` (frames), `staged`,
//! `raw`, `payload`, `failure`.
//!
//! # Threads
//! Each link is one TCP connection. A port and its links are behind one lock, and the thread that holds it serves them.
//! A thread that posts sends at once, by one system call for all requests of a list for one link; a thread that polls
//! receives for itself; the fabric's one engine thread does everything else. The target of a one-sided request needs no
//! thread of its program.
//!
//! * *The engine* serves a port from the start. It polls for `TcpOptions::spin` after the last arrival,
//!   then sleeps in `epoll_wait`. It does so until a thread claims the port (`claimed`), by 9 empty
//!   polls in a row or by 33 polls of any kind since it slept.
//! * *The polling thread* serves a claimed port. The engine checks it every 800 us and takes the port back if it
//!   finds no poll, or fewer than 32 calls, since its last check, or once the thread arms its waiter.
//!
//! Wake-ups of the engine for a claimed port would find nothing to do, and on few cores a change of threads is most of
//! a round trip. Moved bytes
//! count as calls, one per 16 KiB, and a port is never taken from a thread that holds its lock. A polling thread may
//! hold back requests while 16 are in flight, so that one call sends many.
//!
//! Both ask the epoll; while only one link receives, they try to receive on it instead. A full socket is left alone
//! until the epoll reports room. Where long payloads follow each other, little is received together with a header, so
//! that the rest is received directly into its memory; what is followed by another send is sent with `MSG_MORE`, or
//! each payload would end in a segment of a few bytes.
//!
//! The system's congestion control is used, unless that is BBR (`Congestion`): it arms a pacing timer for each segment,
//! which took a virtual machine more time than everything else. Streams of 64 KiB were three to five times as fast
//! without.
//!
//! One engine serves all ports of a fabric: with a thread for each port, few cores would pay for each wake-up with
//! another thread's time slice. io_uring is not used: the data path makes one `send` and one `recv` for each burst,
//! and a ping-pong of bare sockets took no less time with it (`bench/compare`).
//!
//! Compared with libfabric 1.17's tcp provider (`bench/compare/README.md` has the table): streams of 8 bytes are 11 to
//! 14 times as fast; of 64 KiB and 1 MiB 1.5 to 4 times if the system paces, and as fast if not; round trips of
//! messages take as long or less. Between a sleeping target here and a polling one there, small WRITEs take as long or
//! 5 % longer, and READs as long. WRITEs and READs of memory that keeps order take another copy.
//!
//! # Frames
//! The frame format is in `wire`; all fields are little-endian. Lengths, sequences, bounds, keys and permissions are
//! checked before anything is stored. A length from a peer never causes an allocation, except for control frames of at
//! most 20 KiB. A protocol violation ends the link on which it arrived.
//!
//! # Software one-sided operations
//! * *Order*: requests of a link are executed in the order of its stream. A READ is queued with its position; before a
//!   later request changes memory, an unsent answer is copied, or that request is answered `NotReady`.
//! * *Bytes of a WRITE* are stored in rising order, and a cut of the stream never tears a word (`incoming`). READs and
//!   messages may be received directly into memory, since their order is not promised. Local memory of a WRITE or SEND
//!   is sent directly; a READ's source is copied by whole words before it is sent.
//! * *Regions with `Access::RELAXED_ORDERING`* take a copy less: long WRITEs are received directly into them, and READs
//!   sent directly out of them, in one frame for 256 KiB. A later request that changes the memory, or the end of the
//!   region, first has the rest of that frame copied. One thread at a time serves a link, with fences before what a
//!   later request does, so later requests still find these bytes whole.
//! * *Atomics* are processor instructions, so they are atomic with those of the target's program too.
//! * *A completion* means that the target has executed the request and acknowledged it. Acknowledgements go with other
//!   frames if there are any, and are delayed for a program that is about to reply.
//! * *Receiver-not-ready* (`BackPressure::Retried`): the target drops what follows until the requester repeats from
//!   that request, after `Ready`. Answers and acknowledgements of the other direction continue.
//! * *Revocation*: all copies are made under the port's lock, which `deregister` and `close` take. The rest of a WRITE
//!   that is being received is discarded from then on, and the request is refused.
//!
//! # Liveness
//! Each side sends a keepalive after a sixth of the shorter lease without traffic. A link whose peer is silent for a
//! lease, or makes no progress on a request for `request_timeout`, is lost as `Unreachable`. The kernel's
//! retransmissions, which would back off exponentially, are kept to steps of at most half a second by moving
//! TCP_USER_TIMEOUT ahead of the silence. Outages of up to a third of a lease are survived, and traffic resumes within
//! some 0.4 s of their end.
//!
//! # Not implemented
//! Resuming a connection: a broken link must be dialled again. A congestion control of its own. Persistent FLUSH.
//! Device memory (it is modelled). Zero-copy sends of the kernel, whose notifications cost more than the copies of the
//! sizes here. The hot path does not allocate, except for what TLS itself does.
#![deny(unsafe_code)]

mod core;
mod dial;
mod engine;
mod fabric;
mod failure;
mod imports;
mod incoming;
mod link;
mod options;
mod payload;
mod pending;
mod port;
mod queues;
#[allow(unsafe_code, reason = "the home of sockets that reach memory which peers change")]
mod raw;
mod region;
mod requester;
mod responder;
mod socket;
mod staged;
mod stream;
mod wire;

pub use fabric::TcpFabric;
pub use options::{Congestion, TcpLimits, TcpOptions};
