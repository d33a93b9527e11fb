//! Reads whole files into memory: regular files, pipes, terminals and files that the kernel generates on read. A
//! maximum prevents an endless one from exhausting the memory.

use crate::failure::Failure;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Maximum bytes of settings, properties and parameters.
pub const TEXT_BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of a region whose file is not a regular one.
pub const STREAM_BYTES_MAX: u64 = 1 << 30;

/// Reads a file of at most `bytes_max` bytes. *Blocks* on pipes and terminals until their end.
///
/// # Errors
/// The system's, with the path; a file with more bytes is refused.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let failed = |e| Failure::system(format!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Failure::usage(format!(
            "{}: more than {bytes_max} bytes, the maximum for this use",
            path.display()
        )));
    }
    Ok(bytes)
}

/// Reads a text file of at most [`TEXT_BYTES_MAX`].
///
/// # Errors
/// Those of [`read`]; a file that is not UTF-8 is refused.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    String::from_utf8(read(path, TEXT_BYTES_MAX)?)
        .map_err(|_| Failure::usage(format!("{}: not a text in UTF-8", path.display())))
}

/// Reads the contents of a region: all bytes of a regular file, at most [`STREAM_BYTES_MAX`] of others.
///
/// # Errors
/// Those of [`read`].
pub fn read_region(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |e| Failure::system(format!("{}: {e}", path.display()));
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let length = if metadata.is_file() { metadata.len() } else { 0 };
    read(path, length.max(STREAM_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_an_end_is_refused_by_name() {
        let refused = read(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert!(matches!(refused, Failure::Usage { .. }));
        assert!(refused.to_string().starts_with("/dev/zero: more than 1048576 bytes"), "{refused}");
        assert!(read_text(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn files_of_the_kernel_are_read_in_full() {
        let status = read_text(Path::new("/proc/self/status")).unwrap();
        assert!(status.starts_with("Name:") && status.ends_with('\n'), "{status}");
        assert_eq!(read_region(Path::new("/dev/null")).unwrap(), b"");
    }
}
