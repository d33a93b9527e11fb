//! A proxy that simulates network failures: all connections to one host go through it.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Forwards the connections to one host.
#[derive(Clone)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    at: SocketAddr,
}

struct Shared {
    state: Mutex<ProxyState>,
    changed: Condvar,
}

#[derive(Default)]
struct ProxyState {
    to: Option<SocketAddr>,
    /// Both sides of each open connection, with its number.
    open: Vec<(u64, [TcpStream; 2])>,
    /// Connections from this one on, counted from 1, transfer nothing.
    silent_from: Option<u64>,
    connections: u64,
    /// New connections are accepted, and never transfer anything.
    swallows: bool,
    swallowed: Vec<TcpStream>,
}

impl Proxy {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let shared =
            Arc::new(Shared { state: Mutex::new(ProxyState::default()), changed: Condvar::new() });
        let carried = Arc::clone(&shared);
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&carried);
                std::thread::spawn(move || shared.carry(connection));
            }
        });
        Self { shared, at }
    }

    /// The address of the proxy.
    pub(crate) fn at(&self) -> SocketAddr {
        self.at
    }

    /// Sets the destination.
    pub(crate) fn leads_to(&self, to: SocketAddr) {
        self.shared.state().to = Some(to);
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for (_, sides) in self.shared.state().open.drain(..) {
            shut_down(&sides);
        }
    }

    /// Stops or resumes the transfer of data.
    pub(crate) fn silence(&self, silent: bool) {
        self.silence_from(silent.then_some(0));
    }

    /// Stops it for this connection, counted from 1, and later ones.
    pub(crate) fn silence_from(&self, first: Option<u64>) {
        self.shared.state().silent_from = first;
        self.shared.changed.notify_all();
    }

    /// Simulates an outage: connections made meanwhile stay dead afterwards.
    pub(crate) fn swallow(&self, swallows: bool) {
        self.shared.state().swallows = swallows;
        self.silence(swallows);
    }

    /// Connections swallowed so far.
    pub(crate) fn swallowed(&self) -> usize {
        self.shared.state().swallowed.len()
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.state().connections
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until_heard(&self, number: u64) {
        let mut state = self.state();
        while state.silent_from.is_some_and(|first| number >= first) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carry(self: Arc<Self>, from: TcpStream) {
        {
            let mut state = self.state();
            if state.swallows {
                return state.swallowed.push(from);
            }
        }
        // Not counted yet: the latest.
        self.wait_until_heard(u64::MAX);
        let Some(to) = self.state().to.and_then(|to| TcpStream::connect(to).ok()) else {
            return;
        };
        let _ = (from.set_nodelay(true), to.set_nodelay(true));
        let (from2, to2) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let number = {
            let mut state = self.state();
            state.connections += 1;
            let sides = [from.try_clone().unwrap(), to.try_clone().unwrap()];
            let number = state.connections;
            state.open.push((number, sides));
            number
        };
        let back = Arc::clone(&self);
        std::thread::spawn(move || back.copy(number, to2, from2));
        self.copy(number, from, to);
    }

    fn copy(&self, number: u64, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            self.wait_until_heard(number);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        self.state().open.retain(|(open, _)| *open != number);
        shut_down(&[from, to]);
    }
}

fn shut_down(sides: &[TcpStream; 2]) {
    for side in sides {
        let _ = side.shutdown(Shutdown::Both);
    }
}
