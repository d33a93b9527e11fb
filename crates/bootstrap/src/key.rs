//! The secret that the hosts of a cluster share.

use crate::{BootstrapError, KeyFileProblem};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// Bytes of the key.
const BYTES: usize = 32;

/// 32 random bytes that all hosts of a cluster hold, and no others. Hosts that hold them are admitted.
///
/// Its file is 64 hexadecimal digits and a line end, readable by its owner alone.
#[derive(Clone)]
pub struct ClusterKey([u8; BYTES]);

impl ClusterKey {
    /// A new key from the system's random numbers.
    ///
    /// # Errors
    /// `Random` if the system has none.
    pub fn generate() -> Result<Self, BootstrapError> {
        let mut bytes = [0; BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| BootstrapError::Random)?;
        Ok(Self(bytes))
    }

    /// Parses the form of the file; surrounding blanks are ignored.
    ///
    /// # Errors
    /// `KeyFile` (`Form`) for anything but 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, BootstrapError> {
        Self::parse(text).ok_or_else(|| BootstrapError::key_file("", KeyFileProblem::Form))
    }

    /// The form of the file. Reveals the secret: do not hand it out of the cluster.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// `KeyFile`: it cannot be read, users other than its owner may access it, or it has another form.
    pub fn load(path: &Path) -> Result<Self, BootstrapError> {
        let failed = |why| BootstrapError::key_file(path, why);
        let file = File::open(path).map_err(|e| failed(KeyFileProblem::Io(e)))?;
        if let Some(mode) = too_open(&file).map_err(|e| failed(KeyFileProblem::Io(e)))? {
            return Err(failed(KeyFileProblem::TooOpen(mode)));
        }
        // One byte more than the longest form with blanks, so that a wrong file is never read whole.
        let mut text = String::new();
        let read = file.take(257).read_to_string(&mut text);
        match read {
            Ok(bytes) if bytes <= 256 => {}
            Err(reason) if reason.kind() != std::io::ErrorKind::InvalidData => {
                return Err(failed(KeyFileProblem::Io(reason)));
            }
            _ => return Err(failed(KeyFileProblem::Form)),
        }
        Self::parse(&text).ok_or_else(|| failed(KeyFileProblem::Form))
    }

    /// Writes a new key file that only its owner may read.
    ///
    /// # Errors
    /// `KeyFile` (`Io`), also if the file exists: it is never overwritten.
    pub fn save(&self, path: &Path) -> Result<(), BootstrapError> {
        let failed = |why| BootstrapError::key_file(path, KeyFileProblem::Io(why));
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(failed)?;
        file.write_all(format!("{}\n", self.to_hex()).as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)
    }

    /// Sixteen digits that identify the key without revealing it, to be compared between hosts.
    pub fn fingerprint(&self) -> String {
        hex(&self.derive(b"fingerprint")[..8])
    }

    /// Derives a further secret for `label`.
    pub(crate) fn derive(&self, label: &[u8]) -> [u8; 32] {
        // The key is random already, so it serves as the pseudorandom key (RFC 5869 §3.3).
        let root: Prk = Salt::new(HKDF_SHA256, b"farside cluster key 1").extract(&self.0);
        let mut out = [0; 32];
        let filled = root.expand(&[label], HKDF_SHA256).and_then(|okm| okm.fill(&mut out));
        filled.expect("32 bytes are as much as one round of this hash gives");
        out
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.trim().as_bytes();
        if digits.len() != 2 * BYTES {
            return None;
        }
        let mut bytes = [0; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey(..)")
    }
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The mode of a file that users other than its owner may access.
#[cfg(unix)]
fn too_open(file: &File) -> std::io::Result<Option<u32>> {
    let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata()?) & 0o777;
    Ok((mode & 0o077 != 0).then_some(mode))
}

#[cfg(not(unix))]
fn too_open(_: &File) -> std::io::Result<Option<u32>> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_not_shown() {
        let (one, other) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap());
        assert_ne!(one.to_hex(), other.to_hex());
        assert_ne!(one.fingerprint(), other.fingerprint());
        assert_eq!(format!("{one:?}"), "ClusterKey(..)");
        assert_ne!(one.derive(b"a"), one.derive(b"b"));
        assert!(!one.to_hex().contains(&one.fingerprint()));
    }

    #[test]
    fn other_forms_are_refused() {
        let good = ClusterKey::generate().unwrap().to_hex();
        assert_eq!(ClusterKey::from_hex(&format!(" {good}\n")).unwrap().to_hex(), good);
        let upper = ClusterKey::from_hex(&good.to_uppercase()).unwrap();
        assert_eq!(upper.to_hex(), good);
        let odd = "\u{e9}".repeat(32);
        for text in ["", &good[1..], &format!("{good}0"), &good.replace(&good[..1], "g"), &odd] {
            let refused = ClusterKey::from_hex(text).unwrap_err();
            assert!(!refused.to_string().contains(&good[8..]), "errors do not show keys");
        }
    }

    #[cfg(unix)]
    #[test]
    fn files_are_for_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("farside-key-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        let key = ClusterKey::generate().unwrap();
        key.save(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ClusterKey::load(&path).unwrap().to_hex(), key.to_hex());
        assert!(key.save(&path).is_err(), "never overwritten");
        for mode in [0o640, 0o604, 0o660] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let refused = ClusterKey::load(&path).unwrap_err().to_string();
            assert!(refused.contains("chmod 600"), "{refused}");
        }
        let binary = folder.join("binary");
        std::fs::write(&binary, [0xff; 1000]).unwrap();
        std::fs::set_permissions(&binary, PermissionsExt::from_mode(0o600)).unwrap();
        for (path, says) in [(&binary, "64 hexadecimal"), (&folder.join("none"), "copy it")] {
            let refused = ClusterKey::load(path).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
