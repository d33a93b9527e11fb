//! The cache of guests between runs. Only one process at a time builds a part of it.
//!
//! A part is a folder that is renamed to its final name when it is complete and never changed afterwards, so runs use
//! it without a lock. Its name depends on its sources: other sources make another folder.

use super::progress::say;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// The folders of the cache.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    /// Parts that take seconds to rebuild: files of packages, and the folders of runs.
    pub(crate) common: PathBuf,
    /// Parts that take minutes: the kernel of User Mode Linux. Survives `cargo clean`.
    pub(crate) lasting: PathBuf,
}

impl Cache {
    /// Returns the folders for the value of `--cache`, made absolute since guests and apt run in other folders.
    pub(crate) fn new(asked: Option<&Path>) -> Result<Self, String> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let (common, lasting) = match asked {
            Some(folder) => (folder.to_owned(), folder.to_owned()),
            None => {
                // Relative to this crate's folder, which cargo provides, not to the current folder.
                let here = variable("CARGO_MANIFEST_DIR").map(PathBuf::from);
                let project = here.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
                let target = variable("CARGO_TARGET_DIR").map(PathBuf::from);
                let target = target.unwrap_or_else(|| project.join("target"));
                let common = target.join("rdma-guest");
                let home = || variable("HOME").map(|home| PathBuf::from(home).join(".cache"));
                let caches = variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
                (common.clone(), caches.map_or(common, |caches| caches.join("farside")))
            }
        };
        Ok(Self { common: absolute(&common)?, lasting: absolute(&lasting)? })
    }
}

/// Returns the absolute path. Kernel command lines, QEMU and make cannot represent some characters.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).map_err(|e| failed(path, e))?;
    let plain = |text: &str| !text.contains([' ', ',', ':', '\t', '\n']);
    match path.to_str().is_some_and(plain) {
        true => Ok(path),
        false => Err(format!(
            "the cache cannot be in `{}`: blanks, commas and colons are in the way; --cache takes \
             another folder",
            path.display()
        )),
    }
}

/// Returns the part at `folder`; if it is missing, `make` creates it in an empty folder, which is then renamed.
pub(crate) fn part(
    folder: &Path,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let parent = folder.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(|e| failed(parent, e))?;
    let lock = folder.with_added_extension("lock");
    let _held = exclusive(&lock)?;
    // Another process may have made it while this process waited.
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let new = folder.with_added_extension("new");
    forget(&new)?;
    std::fs::create_dir(&new).map_err(|e| failed(&new, e))?;
    let made = make(&new);
    if let Err(text) = made {
        // An incomplete part is useless and may be large.
        let _ = forget(&new);
        return Err(text);
    }
    std::fs::rename(&new, folder).map_err(|e| failed(folder, e))?;
    Ok(folder.to_owned())
}

/// Removes a folder, if it exists.
pub(crate) fn forget(folder: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(folder, e)),
        _ => Ok(()),
    }
}

/// Waits for the lock; it is held until the file is closed, also by a crash.
fn exclusive(path: &Path) -> Result<File, String> {
    let file = File::create(path).map_err(|e| failed(path, e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            say("another process is preparing the guest; waiting for it");
            file.lock().map_err(|e| failed(path, e))?;
        }
        Err(TryLockError::Error(e)) => return Err(failed(path, e)),
    }
    Ok(file)
}

/// The folder of one run, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) path: PathBuf,
    /// Locked during the run: an unlocked folder was left by a killed process.
    _lock: File,
}

impl RunFolder {
    /// Creates a folder in `cache`, and removes those of killed processes.
    pub(crate) fn new(cache: &Cache) -> Result<Self, String> {
        let runs = cache.common.join("runs");
        std::fs::create_dir_all(&runs).map_err(|e| failed(&runs, e))?;
        sweep(&runs);
        for number in 0..u32::MAX {
            let path = runs.join(format!("{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => {
                    let lock = path.join("lock");
                    let file = File::create(&lock).map_err(|e| failed(&lock, e))?;
                    file.lock().map_err(|e| failed(&lock, e))?;
                    return Ok(Self { path, _lock: file });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(&path, e)),
            }
        }
        Err(format!("no free name in {}", runs.display()))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // A later run removes what cannot be removed now.
        let _ = forget(&self.path);
    }
}

/// Removes the folders of ended runs.
fn sweep(runs: &Path) {
    let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        // A folder without a lock file belongs to a run that has just begun.
        let Ok(lock) = File::open(path.join("lock")) else {
            continue;
        };
        if lock.try_lock().is_ok() {
            let _ = forget(&path);
        }
    }
}

/// Returns the text of a system error with its path.
pub(crate) fn failed(path: &Path, error: std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Returns a hash of contents, the same on every machine (FNV-1a).
pub(crate) fn fingerprint(texts: &[&str]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for text in texts {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("farside-cache-{name}-{}", std::process::id()));
        forget(&path).unwrap();
        path
    }

    #[test]
    fn part_is_created_once_and_atomically() {
        let folder = scratch("part").join("image");
        let half = part(&folder, |new| {
            std::fs::write(new.join("a"), "1").unwrap();
            Err("stopped".to_owned())
        });
        assert_eq!((half, folder.exists()), (Err("stopped".to_owned()), false));
        for _ in 0..2 {
            let mut made = 0;
            let path = part(&folder, |new| {
                made += 1;
                std::fs::write(new.join("b"), "2").map_err(|e| failed(new, e))
            });
            assert!(path.unwrap().join("b").exists() && !folder.join("a").exists());
        }
        assert_eq!(part(&folder, |_| Err("made again".to_owned())), Ok(folder.clone()));
        forget(folder.parent().unwrap()).unwrap();
    }

    #[test]
    fn runs_have_separate_folders_and_dead_ones_are_removed() {
        let root = scratch("runs");
        let cache = Cache { common: root.clone(), lasting: root.clone() };
        let (one, two) = (RunFolder::new(&cache).unwrap(), RunFolder::new(&cache).unwrap());
        let left = root.join("runs/left-behind");
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("lock"), "").unwrap();
        let three = RunFolder::new(&cache).unwrap();
        assert!(one.path.exists() && two.path.exists() && three.path.exists() && !left.exists());
        assert!(one.path != two.path);
        drop((one, two, three));
        assert_eq!(std::fs::read_dir(root.join("runs")).unwrap().count(), 0);
        forget(&root).unwrap();
    }

    #[test]
    fn unsupported_folder_names_are_refused() {
        for path in ["a b", "a,b", "a:b"] {
            assert!(Cache::new(Some(Path::new(path))).is_err(), "{path}");
        }
        assert!(Cache::new(Some(Path::new("a/b"))).is_ok_and(|cache| cache.common.is_absolute()));
    }

    #[test]
    fn fingerprints_depend_on_the_contents() {
        assert_eq!(fingerprint(&["a", "b"]), fingerprint(&["a", "b"]));
        assert_ne!(fingerprint(&["a", "b"]), fingerprint(&["ab", ""]));
    }
}
