//! The text to count: files as one sequence of bytes, in the order given, as `cat` would print them; or a
//! text in memory.
//!
//! A regular file has a length, so that several workers can each read a share of it. A pipe, a terminal and
//! files that the kernel generates while they are read (`/proc`) have none, or a wrong one: such an input
//! is a stream, which one reader reads from its beginning to its end.

use crate::dht::VALUE_BYTES_MAX;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes read at a time.
const BLOCK_BYTES: usize = 1 << 18;
/// The longest word: the maximum value of the table less the address of its counter.
pub const WORD_BYTES_MAX: usize = VALUE_BYTES_MAX - 8;

/// Files, concatenated, or a text.
#[derive(Clone, Debug)]
pub struct Input {
    files: Vec<InputFile>,
    /// A text instead of files.
    text: Vec<u8>,
    bytes: u64,
    is_stream: bool,
}

#[derive(Clone, Debug)]
struct InputFile {
    /// Its offset in the whole; unused for files of a stream.
    start: u64,
    /// A path that names the same file in any process of this machine, or for a stream the path as given.
    path: PathBuf,
    /// `None` if it has no reliable length.
    bytes: Option<u64>,
}

impl Input {
    /// The text of these files, which must not change while they are counted. Opens regular files briefly,
    /// others not before [`Self::read`]. If one of them has no length, the input is a stream.
    ///
    /// # Errors
    /// The system's, with the file's name; a directory or a socket is `InvalidInput`.
    pub fn open(paths: &[impl AsRef<Path>]) -> io::Result<Self> {
        let mut input = Self { files: Vec::new(), text: Vec::new(), bytes: 0, is_stream: false };
        for path in paths {
            let path = path.as_ref();
            let mut file = InputFile::open(path).map_err(|error| named(path, &error))?;
            file.start = input.bytes;
            input.bytes = input.bytes.saturating_add(file.bytes.unwrap_or(0));
            input.is_stream |= file.bytes.is_none();
            input.files.push(file);
        }
        Ok(input)
    }

    /// Wraps a text.
    pub fn of_text(text: Vec<u8>) -> Self {
        Self { files: Vec::new(), bytes: text.len() as u64, text, is_stream: false }
    }

    /// Bytes of the whole text; `None` for a stream, whose end is known once it was read.
    pub fn bytes(&self) -> Option<u64> {
        (!self.is_stream).then_some(self.bytes)
    }

    /// Paths under which other processes of this machine read the same files; empty for a text. Those of a
    /// stream may name other files there.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }

    /// The byte range in which the words of worker `worker` of `workers` begin; `InvalidInput` for a
    /// stream.
    pub(super) fn share(&self, worker: u32, workers: u32) -> io::Result<Range<u64>> {
        let bytes = self.bytes().ok_or_else(|| {
            let text = "a stream has no shares: read it and count its text";
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let cut = |number: u32| {
            let at = u128::from(bytes) * u128::from(number) / u128::from(workers);
            u64::try_from(at).unwrap_or(u64::MAX)
        };
        Ok(cut(worker)..cut(worker + 1))
    }

    /// Reads from byte `from` on, which is 0 for a stream, block by block, until the end or until `take`
    /// returns false. No block is empty. *Blocks* on pipes and terminals until they have more data.
    ///
    /// # Errors
    /// The system's and those of `take`, with the file's name; `UnexpectedEof` for a file that has become
    /// shorter.
    pub fn read(
        &self,
        from: u64,
        mut take: impl FnMut(&[u8]) -> io::Result<bool>,
    ) -> io::Result<()> {
        let rest = usize::try_from(from).ok().and_then(|from| self.text.get(from..));
        for block in rest.unwrap_or_default().chunks(BLOCK_BYTES) {
            if !take(block)? {
                return Ok(());
            }
        }
        for file in &self.files {
            let goes_on = file.read(from, &mut take).map_err(|error| named(&file.path, &error))?;
            if !goes_on {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl InputFile {
    fn open(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        let refused = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if metadata.is_dir() {
            return refused("is a directory: name its files");
        }
        if metadata.file_type().is_socket() {
            return refused("is a socket, which cannot be read as a file");
        }
        let stream = Self { start: 0, path: path.to_owned(), bytes: None };
        if !metadata.is_file() {
            return Ok(stream);
        }
        let bytes = length(&File::open(path)?, metadata.len());
        // `/dev/stdin` is another file in another process, and an open file may have no name.
        let lasting = std::fs::canonicalize(path).ok().filter(|path| is_same(path, &metadata));
        Ok(match (bytes, lasting) {
            (Some(bytes), Some(path)) => Self { start: 0, path, bytes: Some(bytes) },
            _ => stream,
        })
    }

    /// Reads its part after byte `from` of the whole; returns whether `take` wants more.
    fn read(
        &self,
        from: u64,
        take: &mut impl FnMut(&[u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let skipped = from.saturating_sub(self.start);
        let mut left = self.bytes.map(|bytes| bytes.saturating_sub(skipped));
        if left == Some(0) {
            return Ok(true);
        }
        let mut file = File::open(&self.path)?;
        if skipped > 0 {
            file.seek(SeekFrom::Start(skipped))?;
        }
        let mut block = vec![0; BLOCK_BYTES];
        while left != Some(0) {
            let most = left.unwrap_or(u64::MAX).min(BLOCK_BYTES as u64);
            let room = usize::try_from(most).unwrap_or(BLOCK_BYTES);
            let bytes = match file.read(&mut block[..room]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if bytes == 0 {
                let text = "shorter than it was";
                return match left {
                    None => Ok(true),
                    Some(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)),
                };
            }
            left = left.map(|left| left - bytes as u64);
            if !take(&block[..bytes])? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The length of a regular file, if it is reliable: its last byte exists, and none after it.
fn length(file: &File, bytes: u64) -> Option<u64> {
    let (from, expected) = if bytes == 0 { (0, 0) } else { (bytes - 1, 1) };
    file.read_at(&mut [0; 2], from).is_ok_and(|found| found == expected).then_some(bytes)
}

fn is_same(path: &Path, file: &Metadata) -> bool {
    let found = std::fs::metadata(path);
    found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
