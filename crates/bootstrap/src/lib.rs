//! How Farside's hosts find and trust each other: addresses, the cluster key, and streams that are
//! authenticated and encrypted by TLS 1.3. Shared by the fabrics that reach other hosts.
//!
//! From outside inwards: [`Address`] says whom to call; [`Security`] says who is trusted and what is
//! protected; a [`Stream`] carries bytes over any non-blocking transport. Below them `opening` (the
//! sixteen bytes before everything), `tls` (what is asked of rustls) and `records` (TLS records, one
//! at a time, so that no byte behind the last is swallowed).
//!
//! | identity | who is let in | nothing | handshake | everything |
//! | --- | --- | --- | --- | --- |
//! | open | everybody; on the loopback the same user ([`Admission`]) | yes | no | no |
//! | cluster key | who holds the same 32 bytes | no | yes | yes |
//! | certificates | whose certificate a trusted authority signed, for that host | no | yes | yes |
//!
//! Both sides always prove who they are. Each announces its row and column before TLS begins and
//! refuses any other than its own, so nobody in between can talk two hosts into less than both ask.
//!
//! What is absent: revocation lists, sessions that are resumed, early data, and TLS below 1.3. With
//! `handshake`, whoever can change packets on the way can change what follows in plain text; only
//! `everything` keeps it out.
#![forbid(unsafe_code)]

mod address;
mod admission;
mod error;
mod identity;
mod key;
mod opening;
mod records;
mod stream;
#[cfg(test)]
mod stream_tests;
mod tls;

pub use address::{Address, AddressError, Endpoint, Host};
pub use admission::Admission;
pub use error::{BootstrapError, KeyFileProblem};
pub use identity::{Identity, Protect, Security};
pub use key::ClusterKey;
pub use stream::{HandshakeLimits, Plain, Stream, Transfer};
