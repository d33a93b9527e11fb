//! The folder of names: which folders are accepted, which are refused, and what is removed from them.

use crate::names::{Listener, NamesFolder};
use crate::socket;
use farside_fabric::FabricError;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::geteuid;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder for one test; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farside-names-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("names")
    }

    fn entries(&self) -> usize {
        std::fs::read_dir(self.path()).expect("the folder").count()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
}

/// Returns why a folder is refused, which is the same for listeners and for connecting ports.
fn refused(path: &Path) -> String {
    let listens = socket::listen(Some(path), "a").map(drop).expect_err("to be refused");
    let connects = socket::connect(Some(path), "a").map(drop).expect_err("to be refused");
    assert_eq!(listens.to_string(), connects.to_string());
    let FabricError::NotPermitted(text) = listens else { panic!("{listens:?}") };
    assert!(text.contains("FARSIDE_RUNTIME_DIR") && text.contains("mode 700"), "{text}");
    text
}

/// Leaves a socket as a killed process does: bound, and its file still there.
fn dead(folder: &Path, file: &str) {
    let path = folder.join(file);
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    assert!(path.exists());
}

#[test]
fn a_folder_is_made_for_its_user_alone() {
    let scratch = Scratch::new();
    let absent = socket::connect(Some(&scratch.path()), "a");
    assert!(matches!(absent, Err(FabricError::NoListener(_))), "{absent:?}");
    assert!(!scratch.path().exists(), "made by listeners alone");
    let listener = socket::listen(Some(&scratch.path()), "a").expect("a listener");
    let found = std::fs::metadata(scratch.path()).expect("the folder");
    assert_eq!((found.mode() & 0o7777, found.uid()), (0o700, geteuid().as_raw()));
    socket::connect(Some(&scratch.path()), "a").expect("a listener");
    drop(listener);
    assert_eq!(scratch.entries(), 0, "a listener gives its name back");
}

#[test]
fn folders_that_others_may_enter_are_refused() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path()).expect("a folder");
    for wrong in [0o770, 0o707, 0o755, 0o777, 0o710, 0o701, 0o600] {
        mode(&scratch.path(), wrong);
        assert!(refused(&scratch.path()).contains(&format!("{wrong:03o}")));
    }
    mode(&scratch.path(), 0o700);
    socket::listen(Some(&scratch.path()), "a").expect("a folder of its user");
}

#[test]
fn links_and_files_are_no_folder() {
    let scratch = Scratch::new();
    let target = scratch.0.join("target");
    std::fs::create_dir(&target).expect("a folder");
    mode(&target, 0o700);
    symlink(&target, scratch.path()).expect("a link");
    assert!(refused(&scratch.path()).contains("is a link"));
    std::fs::remove_file(scratch.path()).expect("to remove a link");
    symlink(scratch.0.join("nowhere"), scratch.path()).expect("a link");
    let made = socket::listen(Some(&scratch.path()), "a").map(drop);
    assert!(made.is_err() && !scratch.0.join("nowhere").exists(), "{made:?}");
    std::fs::remove_file(scratch.path()).expect("to remove a link");
    std::fs::write(scratch.path(), b"").expect("a file");
    assert!(refused(&scratch.path()).contains("a file"));
}

#[test]
fn a_folder_that_others_can_replace_is_refused() {
    let scratch = Scratch::new();
    mode(&scratch.0, 0o777);
    let made = socket::listen(Some(&scratch.path()), "a").map(drop);
    assert!(matches!(made, Err(FabricError::NotPermitted(_))), "{made:?}");
    assert!(refused(&scratch.path()).contains("replaced"));
    mode(&scratch.0, 0o1777);
    socket::listen(Some(&scratch.path()), "a").expect("no other user can replace it");
}

/// Returns a folder below `path` with this mode.
fn folder(path: &Path, name: &str, rights: u32) -> PathBuf {
    let made = path.join(name);
    std::fs::create_dir(&made).expect("a folder");
    mode(&made, rights);
    made
}

#[test]
fn a_folder_below_one_that_others_may_write_is_refused() {
    let scratch = Scratch::new();
    let open = folder(&scratch.0, "open", 0o777);
    let names = folder(&folder(&open, "between", 0o755), "deep", 0o700).join("names");
    let made = socket::listen(Some(&names), "a").map(drop);
    assert!(matches!(made, Err(FabricError::NotPermitted(_))), "{made:?}");
    for wrong in [0o777, 0o775, 0o757] {
        mode(&open, wrong);
        let text = refused(&names);
        assert!(text.contains(&format!("{} has mode {wrong:03o}", open.display())), "{text}");
    }
    mode(&open, 0o1777);
    socket::listen(Some(&names), "a").expect("a folder that no other user can replace");
}

#[test]
fn links_on_the_way_to_a_folder_are_judged_with_their_targets() {
    let scratch = Scratch::new();
    let (safe, open) = (folder(&scratch.0, "safe", 0o755), folder(&scratch.0, "open", 0o777));
    let deep = folder(&open, "deep", 0o755);
    let link = |to: &Path, at: PathBuf| {
        symlink(to, &at).expect("a link");
        at.join("names")
    };
    let good = link(Path::new("../safe"), safe.join("again"));
    let listener = socket::listen(Some(&good), "a").expect("a link of this user to a folder of it");
    socket::connect(Some(&safe.join("names")), "a").expect("the same folder");
    drop(listener);
    // Another user may put another link there, or another folder at its target.
    for names in [link(&safe, open.join("link")), link(&deep, safe.join("link"))] {
        let made = socket::listen(Some(&names), "a").map(drop);
        assert!(matches!(made, Err(FabricError::NotPermitted(_))), "{made:?}");
        let text = refused(&names);
        assert!(text.contains(&format!("{} has mode 777", open.display())), "{text}");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn a_folder_below_one_of_another_user_is_refused() {
    if !geteuid().is_root() {
        println!("SKIPPED: only root can make a folder of another user");
        return;
    }
    let scratch = Scratch::new();
    let foreign = folder(&scratch.0, "foreign", 0o755);
    let names = folder(&foreign, "between", 0o755).join("names");
    drop(socket::listen(Some(&names), "a").expect("a folder of this user"));
    chown(&foreign, Some(65_534), None).expect("another owner");
    assert!(refused(&names).contains("foreign belongs to user 65534"));
    // Its owner can replace a link, wherever that is.
    let link = scratch.0.join("link");
    symlink(folder(&scratch.0, "safe", 0o755), &link).expect("a link");
    drop(socket::listen(Some(&link.join("names")), "a").expect("a link of this user"));
    std::os::unix::fs::lchown(&link, Some(65_534), None).expect("another owner");
    assert!(refused(&link.join("names")).contains("link belongs to user 65534"));
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn the_folder_of_another_user_is_refused() {
    if !geteuid().is_root() {
        println!("SKIPPED: only root can make a folder of another user");
        return;
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path()).expect("a folder");
    mode(&scratch.path(), 0o700);
    chown(scratch.path(), Some(65_534), None).expect("another owner");
    assert!(refused(&scratch.path()).contains("belongs to user 65534"));
}

#[test]
fn a_place_that_is_no_path_from_the_root_is_refused() {
    for path in ["names", "", "/"] {
        let listens = socket::listen(Some(Path::new(path)), "a").map(drop);
        assert!(matches!(listens, Err(FabricError::System(..))), "{path}: {listens:?}");
    }
}

#[test]
fn names_of_every_form_are_found_again() {
    let scratch = Scratch::new();
    // Longer than an address of a socket.
    let deep = scratch.0.join("x".repeat(120));
    std::fs::create_dir(&deep).expect("a folder");
    let longest = format!("farside.{}.65535", "c".repeat(64));
    let slashes = "/".repeat(80);
    let names = [
        "a",
        ".",
        "..",
        "../a",
        "a/b",
        "a%2Fb",
        "%",
        "",
        "\u{e9} \n",
        "nul\0",
        longest.as_str(),
        &slashes,
        &slashes[1..],
    ];
    for folder in [scratch.path(), deep.join("names")] {
        let listen = |name: &&str| socket::listen(Some(&folder), name).expect("a listener");
        let listeners: Vec<Listener> = names.iter().map(listen).collect();
        for name in names {
            socket::connect(Some(&folder), name).expect("a listener");
            let again = socket::listen(Some(&folder), name).map(drop);
            assert!(matches!(again, Err(FabricError::AddressInUse(_))), "{name:?}: {again:?}");
        }
        let opened = NamesFolder::find(Some(&folder)).expect("a right folder").expect("a folder");
        let found = opened.names();
        // All that are not hashed, and the empty one.
        assert_eq!(found.len(), names.len() - 3, "{found:?}");
        assert!(found.iter().all(|name| names.contains(&name.as_str())), "{found:?}");
        drop(listeners);
        assert_eq!(opened.names(), [""; 0]);
        assert!(!opened.is_live(b"removed"), "a file that is gone when it is probed");
    }
    let long = "x".repeat(81);
    assert!(matches!(
        socket::listen(Some(&scratch.path()), &long).map(drop),
        Err(FabricError::Limit(_))
    ));
}

/// The next listener removes the sockets of killed processes, whatever their names; live sockets and
/// files of others stay.
#[test]
fn dead_sockets_are_removed_and_live_ones_are_not() {
    let scratch = Scratch::new();
    let live = socket::listen(Some(&scratch.path()), "live").expect("a listener");
    std::fs::write(scratch.path().join("file"), b"").expect("a file");
    for number in 0..50 {
        dead(&scratch.path(), &format!("dead{number}"));
    }
    dead(&scratch.path(), "again");
    assert_eq!(scratch.entries(), 53);
    let again = socket::listen(Some(&scratch.path()), "again").expect("a name that is free");
    assert_eq!(scratch.entries(), 3);
    for name in ["live", "again"] {
        socket::connect(Some(&scratch.path()), name).expect("a listener");
    }
    // The check of a live listener makes no connection to it.
    for _ in 0..2 {
        let accepted = socket::accept(rustix::fd::AsFd::as_fd(&live));
        let one = matches!(accepted, Ok(socket::Accepted::Connection(..)));
        let none = matches!(accepted, Ok(socket::Accepted::Nothing));
        assert!(one || none);
        if none {
            return drop(again);
        }
    }
    panic!("more connections than were made");
}

/// Of several concurrent listeners at a dead name exactly one gets it, and is reached.
#[test]
fn one_of_many_listeners_gets_a_dead_name() {
    let scratch = Scratch::new();
    drop(socket::listen(Some(&scratch.path()), "a").expect("a listener"));
    for _ in 0..50 {
        dead(&scratch.path(), "a");
        let start = Barrier::new(4);
        let listen = || {
            start.wait();
            socket::listen(Some(&scratch.path()), "a").ok()
        };
        let got: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(listen)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(got.iter().flatten().count(), 1);
        socket::connect(Some(&scratch.path()), "a").expect("the one listener");
    }
}

/// A process that is stopped while listening delays others for some time, and is named to them.
#[test]
fn a_lock_that_is_never_released_is_an_error_that_says_so() {
    let scratch = Scratch::new();
    drop(socket::listen(Some(&scratch.path()), "a").expect("a listener"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::openat(CWD, scratch.path(), flags, Mode::empty()).expect("the folder");
    let operation = rustix::fs::FlockOperation::LockExclusive;
    rustix::fs::flock(&held, operation).expect("the lock");
    let refused = socket::listen(Some(&scratch.path()), "a").map(drop).expect_err("a lock");
    assert!(refused.to_string().contains("continue or end it"), "{refused}");
    drop(held);
    socket::listen(Some(&scratch.path()), "a").expect("a free lock");
}
