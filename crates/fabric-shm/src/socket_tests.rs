//! Socket calls that are interrupted by signals.
//!
//! | who | touches | when |
//! | --- | --- | --- |
//! | the kernel | this process's handling of one signal | once, before any is sent |
//! | the handler | an atomic count | at each signal |

use crate::names::NamesFolder;
use crate::socket::{self, Accepted};
use farside_fabric::FabricError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(60);
/// Signals that a thread has handled.
static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Lets a signal interrupt system calls.
fn handle_signals() {
    // SAFETY: all bytes zero are a value of this structure: no flags, an empty mask, no restorer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    // SAFETY: the action is whole, and its handler touches an atomic number alone.
    let done = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    assert_eq!(done, 0);
}

/// Connects as a program does that tries again while a listener accepts nothing.
fn connect(folder: &Path) -> Result<OwnedFd, FabricError> {
    loop {
        match socket::connect(Some(folder), "a") {
            Err(FabricError::System(_, reason))
                if reason.kind() == std::io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

#[test]
fn a_connect_that_signals_interrupt_goes_on() {
    let scratch = std::env::temp_dir().join(format!("farside-signals-{}", std::process::id()));
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let listener = NamesFolder::open(Some(&scratch)).unwrap().bind(listener, "a").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    // Its queue is full with one, so that the next one waits.
    let _first = connect(&scratch).unwrap();
    handle_signals();
    let folder = scratch.clone();
    let thread = std::thread::spawn(move || connect(&folder));
    let start = Instant::now();
    for sent in 1..=200 {
        if thread.is_finished() {
            break;
        }
        // SAFETY: the handle of the thread is held, so its number is valid.
        assert_eq!(unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) }, 0);
        while HANDLED.load(Ordering::Relaxed) < sent && !thread.is_finished() {
            assert!(start.elapsed() < WATCHDOG, "signal {sent} is not handled");
            std::thread::yield_now();
        }
    }
    let mut accepted = Vec::new();
    while accepted.len() < 2 && !thread.is_finished() {
        assert!(start.elapsed() < WATCHDOG, "it does not connect");
        if let Accepted::Connection(socket, _) = socket::accept(listener.as_fd()).unwrap() {
            accepted.push(socket);
        }
    }
    thread.join().unwrap().expect("to be connected");
    drop(listener);
    std::fs::remove_dir(scratch).unwrap();
}
