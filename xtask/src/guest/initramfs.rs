//! Writes the archive from which a kernel fills its initial root file system (cpio, "newc").
//!
//! Concatenated archives count as one, in their order.

use super::cache::failed;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_000;

/// An archive that grows entry by entry.
#[derive(Debug)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), entries: 0 }
    }

    pub(crate) fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER, &[]);
    }

    pub(crate) fn file(&mut self, name: &str, permissions: u32, contents: &[u8]) {
        self.entry(name, FILE | permissions, contents);
    }

    /// Adds all files of a folder of this machine, in an order that does not depend on the file system.
    pub(crate) fn tree(&mut self, folder: &Path) -> Result<(), String> {
        self.subtree(folder, "")
    }

    /// Returns the finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn subtree(&mut self, folder: &Path, prefix: &str) -> Result<(), String> {
        let entries = std::fs::read_dir(folder).map_err(|e| failed(folder, e))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let own = path.file_name().unwrap_or_default().to_string_lossy();
            let name = format!("{prefix}{own}");
            let about = path.symlink_metadata().map_err(|e| failed(&path, e))?;
            if about.is_symlink() {
                let target = std::fs::read_link(&path).map_err(|e| failed(&path, e))?;
                self.entry(&name, LINK, target.to_string_lossy().as_bytes());
            } else if about.is_dir() {
                self.folder(&name);
                self.subtree(&path, &format!("{name}/"))?;
            } else if about.is_file() {
                let contents = std::fs::read(&path).map_err(|e| failed(&path, e))?;
                self.file(&name, about.permissions().mode() & 0o777, &contents);
            }
        }
        Ok(())
    }

    /// Adds an entry: a header of thirteen hexadecimal numbers, the name with a zero, and the contents, each padded to
    /// four bytes.
    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let links = if mode & FOLDER == FOLDER { 2 } else { 1 };
        let size = contents.len();
        let numbers = [self.entries as usize, mode as usize, 0, 0, links, 0, size, 0, 0, 0, 0];
        self.bytes.extend(b"070701");
        for number in numbers.into_iter().chain([name.len() + 1, 0]) {
            self.bytes.extend(format!("{number:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_layout_of_the_kernel() {
        let mut archive = Archive::new();
        archive.folder("bin");
        archive.file("bin/x", 0o755, b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(bytes.len() % 4, 0);
        // Header of 110 bytes, "bin" and its zero, padded: the next entry starts at 116.
        assert_eq!(&text[..6], "070701");
        assert_eq!(&text[14..22], "000041ed");
        assert_eq!(&text[116..122], "070701");
        assert_eq!((&text[130..138], &text[170..178]), ("000081ed", "00000005"));
        assert_eq!(&text[226..232], "bin/x\0");
        assert_eq!(&text[232..237], "hello");
        assert!(text.contains("TRAILER!!!"));
    }
}
