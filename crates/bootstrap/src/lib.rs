//! Addressing and trust between Farside's hosts: addresses, the cluster key, and streams that are
//! authenticated and encrypted by TLS 1.3. Shared by the fabrics between hosts.
//!
//! From outside inwards: [`Address`] names the peer; [`Security`] has the trusted identities and the
//! protection; a [`Stream`] carries bytes over any non-blocking transport. Below them `opening` (the first
//! sixteen bytes), `tls` (the configuration of rustls) and `records` (TLS records, one at a time, so that
//! no byte after the last is consumed).
//!
//! | identity | admitted peers | nothing | handshake | everything |
//! | --- | --- | --- | --- | --- |
//! | open | all; on the loopback those of the same user ([`Admission`]) | yes | no | no |
//! | cluster key | holders of the same 32 bytes | no | yes | yes |
//! | certificates | holders of a certificate for that host, signed by a trusted authority | no | yes | yes
//! |
//!
//! Both sides always authenticate. Each announces its row and column before TLS begins and refuses any
//! other, so no intermediary can downgrade two hosts.
//!
//! Not supported: revocation lists, session resumption, early data, and TLS below 1.3. With `handshake`, an
//! attacker who can change packets can change the plaintext that follows; only `everything` prevents it.
#![forbid(unsafe_code)]

mod address;
mod admission;
mod error;
mod identity;
mod key;
mod opening;
mod protect;
mod records;
mod stream;
#[cfg(test)]
mod stream_tests;
mod tls;

pub use address::{Address, AddressError, Endpoint, HostAddress};
pub use admission::Admission;
pub use error::{BootstrapError, KeyFileProblem};
pub use identity::{Identity, Security};
pub use key::ClusterKey;
pub use protect::Protect;
pub use stream::{HandshakeLimits, Plain, Stream, Transfer};
