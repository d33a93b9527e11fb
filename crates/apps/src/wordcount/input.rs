//! The text to count: files as one run of bytes, in the order given, as `cat` would print them; or a
//! text at hand.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes read at a time.
const BLOCK_BYTES: usize = 1 << 18;

/// Files of known lengths, one after the other, or a text.
#[derive(Clone, Debug)]
pub struct Input {
    /// Each file with where it begins in the whole.
    files: Vec<(u64, PathBuf)>,
    /// A text instead of files.
    text: Vec<u8>,
    bytes: u64,
}

impl Input {
    /// The text of these files. They must not change while they are counted.
    ///
    /// # Errors
    /// The system's, with the file's name; a directory, or what has no length, is `InvalidInput`.
    pub fn open(paths: &[impl AsRef<Path>]) -> io::Result<Self> {
        let mut input = Self { files: Vec::new(), text: Vec::new(), bytes: 0 };
        for path in paths {
            let path = path.as_ref();
            let metadata = std::fs::metadata(path).map_err(|error| named(path, &error))?;
            if !metadata.is_file() {
                let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
                return Err(named(path, &error));
            }
            input.files.push((input.bytes, path.to_owned()));
            input.bytes += metadata.len();
        }
        Ok(input)
    }

    /// This text.
    pub fn of_text(text: Vec<u8>) -> Self {
        Self { files: Vec::new(), bytes: text.len() as u64, text }
    }

    /// Bytes of the whole text.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes among which the words of worker `worker` of `workers` begin.
    pub(super) fn share(&self, worker: u32, workers: u32) -> Range<u64> {
        let cut = |number: u32| {
            (u128::from(self.bytes) * u128::from(number) / u128::from(workers)) as u64
        };
        cut(worker)..cut(worker + 1)
    }

    /// Reads from byte `from` on, block by block, until the end or until `take` has had enough and
    /// says false. No block is empty.
    ///
    /// # Errors
    /// The system's, with the file's name.
    pub fn read(&self, from: u64, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        let rest = usize::try_from(from).ok().and_then(|from| self.text.get(from..));
        if !rest.unwrap_or_default().chunks(BLOCK_BYTES).all(&mut take) {
            return Ok(());
        }
        let mut block = vec![0; BLOCK_BYTES];
        for (index, (start, path)) in self.files.iter().enumerate() {
            let end = self.files.get(index + 1).map_or(self.bytes, |next| next.0);
            let mut at = from.max(*start);
            if at >= end {
                continue;
            }
            let mut file = File::open(path).map_err(|error| named(path, &error))?;
            file.seek(SeekFrom::Start(at - start)).map_err(|error| named(path, &error))?;
            while at < end {
                let room = (end - at).min(BLOCK_BYTES as u64) as usize;
                let bytes = file.read(&mut block[..room]).map_err(|error| named(path, &error))?;
                if bytes == 0 {
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, "shorter than it was");
                    return Err(named(path, &error));
                }
                at += bytes as u64;
                if !take(&block[..bytes]) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
