//! An event that comes between any two steps of a suspension wakes its task, also where the thread of the end still
//! sleeps for a future that was dropped.

use super::{Awaited, Sleeper, Waits, wait_async};
use crate::progress::EnginePort;
use farside_base::ReceiveQueueId;
use farside_fabric::MemFabric;
use farside_testkit::until;
use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// An end that awaits a connection. It counts the steps of a suspension that ask it something, and a peer connects
/// before one of them.
struct WaitingEnd {
    port: EnginePort,
    sleeper: Option<Sleeper>,
    peer: EnginePort,
    queue: ReceiveQueueId,
    steps: Rc<Cell<usize>>,
    connects_at: Option<usize>,
}

impl WaitingEnd {
    fn new() -> Self {
        let fabric = MemFabric::new();
        let port = EnginePort::open(&fabric, Some("end".to_owned())).unwrap();
        let mut peer = EnginePort::open(&fabric, None).unwrap();
        let queue = peer.create_receive_queue(1).unwrap();
        let sleeper = Some(Sleeper::start(port.waiter()).unwrap());
        Self { port, sleeper, peer, queue, steps: Rc::default(), connects_at: None }
    }

    fn step(&mut self) {
        if self.connects_at == Some(self.steps.get()) {
            let armed = self.port.is_armed();
            self.peer.connect("end", b"", self.queue).unwrap();
            if armed && let Some(sleeper) = &self.sleeper {
                until("the thread has used the event up", || !sleeper.lock().waits);
            }
        }
        self.steps.set(self.steps.get() + 1);
    }

    fn attempt(&mut self) -> Option<()> {
        self.step();
        (!self.port.connection_events().is_empty()).then_some(())
    }
}

impl Waits for WaitingEnd {
    fn is_announced(&self, _: Awaited) -> bool {
        true
    }

    fn is_quiet(&self) -> bool {
        true
    }

    fn port(&mut self) -> &mut EnginePort {
        self.step();
        &mut self.port
    }

    fn sleeper(&mut self) -> &mut Option<Sleeper> {
        self.step();
        &mut self.sleeper
    }
}

/// Polls the future once.
fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>, flag: &Arc<Flag>) -> Poll<T> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(flag))))
}

/// Suspends a future and drops it; returns its steps. The thread of the end stays asleep.
fn suspend_and_drop(end: &mut WaitingEnd) -> usize {
    let steps = Rc::clone(&end.steps);
    let state = end.sleeper.as_ref().map(|sleeper| Arc::clone(&sleeper.shared)).unwrap();
    let mut future = pin!(wait_async(end, Awaited::Peers, |end| Ok(end.attempt())));
    assert!(poll_once(future.as_mut(), &Arc::default()).is_pending());
    until("the thread sleeps", || state.lock().waits);
    steps.get()
}

#[test]
fn event_between_any_steps_of_a_suspension_wakes_the_task() {
    let steps = suspend_and_drop(&mut WaitingEnd::new());
    assert_eq!(steps, 5, "disarm, attempt, request (twice) and arm");
    for at in 0..steps {
        let mut end = WaitingEnd::new();
        suspend_and_drop(&mut end);
        end.steps.set(0);
        end.connects_at = Some(at);
        let flag = Arc::new(Flag::default());
        let mut future = pin!(wait_async(&mut end, Awaited::Peers, |end| Ok(end.attempt())));
        while poll_once(future.as_mut(), &flag).is_pending() {
            let woken = || flag.0.swap(false, Ordering::SeqCst);
            until(&format!("the task is woken, with an event before step {at}"), woken);
        }
    }
}
