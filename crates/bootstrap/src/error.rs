//! Errors of streams, each with what to do.

use crate::{AddressError, Protect};
use farside_fabric::FabricError;
use std::fmt;
use std::path::{Path, PathBuf};

/// A problem of a key file.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyFileProblem {
    /// It cannot be read or written.
    Io(std::io::Error),
    /// Users other than its owner may access it; its mode.
    TooOpen(u32),
    /// It is not 64 hexadecimal digits.
    Form,
}

/// Why a stream failed. After any of these errors a stream is unusable.
#[derive(Debug)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A text is no address.
    Address(AddressError),
    /// The key file.
    KeyFile {
        /// The path; empty for a text.
        path: PathBuf,
        /// Why.
        problem: KeyFileProblem,
    },
    /// This host's certificates or their key cannot be used, with the reason.
    Certificates(String),
    /// The identity and the requested protection do not go together.
    Combination(Protect),
    /// The system has no random numbers.
    Random,
    /// The host's name cannot be in a certificate.
    HostName(String),
    /// The peer does not speak this protocol.
    Stranger,
    /// The peer speaks another version of it.
    Version {
        /// The peer's.
        theirs: u16,
        /// This side's.
        ours: u16,
    },
    /// The peer has another identity or protection.
    OtherSecurity {
        /// The peer's, as text.
        theirs: String,
        /// This side's, as text.
        ours: String,
    },
    /// Without an identity this side serves only its own user on the loopback, and the peer is of this
    /// other user; `None` if the user is unknown, since the peer's end is closed.
    OtherUser(Option<u32>),
    /// The peer serves only its own user on the loopback.
    OtherUserThere,
    /// This process's user is not mapped in its user namespace, so that the kernel cannot distinguish it
    /// from others.
    UnmappedUser,
    /// The kernel query for the owner of a connection over the loopback failed, mostly for lack of
    /// descriptors or memory. May succeed later.
    OwnerUnknown(std::io::Error),
    /// This side does not trust the peer, with the reason.
    NotTrusted(String),
    /// The peer does not trust this side, with the reason that it sent.
    NotTrustedThere(String),
    /// The bytes received are not of the protocol, or were changed or replayed.
    Malformed(String),
    /// The handshake took too long.
    TooSlow,
    /// The handshake took too many bytes.
    TooLong,
    /// The peer ended the stream within the handshake or a record.
    Ended,
    /// The transport failed.
    Io(std::io::Error),
}

impl BootstrapError {
    pub(crate) fn key_file(path: impl AsRef<Path>, problem: KeyFileProblem) -> Self {
        Self::KeyFile { path: path.as_ref().to_owned(), problem }
    }

    /// Whether it means that one side does not trust the other, rather than a failure.
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::OtherSecurity { .. }
                | Self::OtherUser(_)
                | Self::OtherUserThere
                | Self::UnmappedUser
                | Self::NotTrusted(_)
                | Self::NotTrustedThere(_)
        )
    }
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(reason) => write!(f, "{reason}"),
            Self::KeyFile { path, problem } => key_file(f, path, problem),
            Self::Certificates(reason) => write!(
                f,
                "this host's certificates cannot be used: {reason}; give the chain, its private key and the \
                 trusted authority as PEM"
            ),
            Self::Combination(protect) => write!(
                f,
                "{} does not go with this identity; an open fabric protects nothing, all others at \
                 least the handshake",
                protect.name()
            ),
            Self::Random => write!(f, "the system has no random numbers; check its entropy"),
            Self::HostName(name) => write!(
                f,
                "`{}` is no host name that a certificate could be for",
                name.escape_debug()
            ),
            Self::Stranger => write!(
                f,
                "the peer is no Farside fabric; check host and port, and which program listens there"
            ),
            Self::Version { theirs, ours } => write!(
                f,
                "the peer speaks version {theirs} and this side {ours}; bring both to one release"
            ),
            Self::OtherSecurity { theirs, ours } => {
                write!(f, "the peer asks for {theirs}, this side for {ours}; give both the same")
            }
            Self::OtherUser(_) | Self::OtherUserThere | Self::UnmappedUser => other_user(f, self),
            Self::OwnerUnknown(reason) => write!(
                f,
                "the kernel query for the owner of a connection over the loopback failed: {reason}{}",
                exhausted(reason)
            ),
            Self::NotTrusted(reason) => write!(f, "the peer is not trusted: {reason}"),
            Self::NotTrustedThere(reason) => {
                write!(f, "the peer does not trust this side: {reason}")
            }
            Self::Malformed(reason) => write!(
                f,
                "not a message of this protocol ({reason}): changed or replayed in transit, or the \
                 peer is something else; check the network between the hosts"
            ),
            Self::TooSlow => write!(
                f,
                "the handshake took too long; check the peer's load, and firewalls that drop \
                 packets"
            ),
            Self::TooLong => write!(
                f,
                "the handshake has too many bytes; shorten the chain of certificates, unless the \
                 peer means harm"
            ),
            Self::Ended => write!(
                f,
                "the peer ended the stream too early; its log says why, or it has crashed"
            ),
            Self::Io(reason) => write!(f, "the transport failed: {reason}; check the network"),
        }
    }
}

fn other_user(f: &mut fmt::Formatter<'_>, error: &BootstrapError) -> fmt::Result {
    match error {
        BootstrapError::OtherUser(Some(user)) => write!(f, "the peer is a process of user {user}")?,
        BootstrapError::OtherUser(None) => {
            write!(f, "the peer has closed its end, so that its user is not known")?;
        }
        BootstrapError::UnmappedUser => f.write_str(&farside_fabric::user::why_unmapped())?,
        _ => write!(f, "it is a process of another user")?,
    }
    write!(
        f,
        "; without a key an address of the loopback is for one user alone: give both sides a key (farside \
         key new)"
    )
}

/// The exhausted resource, its limit, and what to do.
fn exhausted(reason: &std::io::Error) -> String {
    use rustix::io::Errno;
    if let Some(Errno::NOBUFS | Errno::NOMEM) = Errno::from_io_error(reason) {
        return "; the kernel has no memory left for a socket: free some, or raise the memory limit of the \
                control group"
            .to_owned();
    }
    match farside_fabric::limit_reached("a socket", reason) {
        text if text.is_empty() => {
            "; try again, or give both sides a key (farside key new)".to_owned()
        }
        text => text,
    }
}

/// Maps errors of admission to errors of a fabric.
impl From<BootstrapError> for FabricError {
    fn from(error: BootstrapError) -> Self {
        match error {
            BootstrapError::OwnerUnknown(reason) => Self::System("owner of a listener", reason),
            error => Self::NotPermitted(error.to_string()),
        }
    }
}

fn key_file(f: &mut fmt::Formatter<'_>, path: &Path, problem: &KeyFileProblem) -> fmt::Result {
    let path = path.display();
    match problem {
        KeyFileProblem::Io(reason) => {
            write!(f, "key file {path}: {reason}; make one on one host and copy it to the others")
        }
        KeyFileProblem::TooOpen(mode) => write!(
            f,
            "key file {path} may be used by others (mode {mode:o}): chmod 600 {path}, and make a new \
             key if anybody could have seen it"
        ),
        KeyFileProblem::Form => write!(f, "key file {path} is not 64 hexadecimal digits"),
    }
}

impl std::error::Error for BootstrapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Address(reason) => Some(reason),
            Self::Io(reason)
            | Self::OwnerUnknown(reason)
            | Self::KeyFile { problem: KeyFileProblem::Io(reason), .. } => Some(reason),
            _ => None,
        }
    }
}

impl From<AddressError> for BootstrapError {
    fn from(reason: AddressError) -> Self {
        Self::Address(reason)
    }
}
