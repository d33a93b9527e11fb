//! Asynchronous send and receive, for any executor.
//!
//! A channel with events wakes the task from a dedicated thread, which sleeps on the port's waiter and is started
//! by the first `await`. Any other channel requests to be polled again immediately: it yields to other tasks
//! between polls and uses a processor, as polling does.

use super::{Message, Receiver, Sender, Sent, Ticket};
use crate::Error;
use farside_fabric::Waiter;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

/// State shared by the thread and the task.
#[derive(Default)]
struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The task to wake when something arrives.
    waker: Option<Waker>,
    stop: bool,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that sleeps on a port's waiter on behalf of a task.
pub(super) struct Ringer {
    bell: Arc<Bell>,
    waiter: Arc<dyn Waiter>,
    thread: Option<JoinHandle<()>>,
}

impl Ringer {
    fn new(waiter: Arc<dyn Waiter>) -> std::io::Result<Self> {
        let bell = Arc::new(Bell::default());
        let (its_bell, its_waiter) = (Arc::clone(&bell), Arc::clone(&waiter));
        let thread = std::thread::Builder::new()
            .name("farside-channel".to_owned())
            .spawn(move || ring(&its_bell, &*its_waiter))?;
        Ok(Self { bell, waiter, thread: Some(thread) })
    }

    /// Wakes this task once something arrives at the port, which is armed.
    fn wake_later(&self, waker: &Waker) {
        self.bell.lock().waker = Some(waker.clone());
        self.bell.changed.notify_one();
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.bell.lock().stop = true;
        self.bell.changed.notify_one();
        self.waiter.wake();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, nothing depends on it any more.
            let _ = thread.join();
        }
    }
}

fn ring(bell: &Bell, waiter: &dyn Waiter) {
    loop {
        let mut state = bell.lock();
        while state.waker.is_none() && !state.stop {
            state = bell.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        drop(state);
        waiter.wait(None);
        if let Some(waker) = bell.lock().waker.take() {
            waker.wake();
        }
    }
}

impl Receiver {
    /// Awaits the next message. Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Receiver::poll`]; `System` if the waking thread cannot be started.
    pub async fn next(&mut self) -> Result<Message, Error> {
        poll_fn(|context| {
            loop {
                match self.poll() {
                    Ok(Some(message)) => return Poll::Ready(Ok(message)),
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
                if !self.arrives_by_completion() {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                if let Err(error) = self.ensure_ringer() {
                    return Poll::Ready(Err(error));
                }
                if !self.port().arm() {
                    if let Some(ringer) = self.ringer() {
                        ringer.wake_later(context.waker());
                    }
                    return Poll::Pending;
                }
                self.port().disarm();
            }
        })
        .await
    }

    fn ensure_ringer(&mut self) -> Result<(), Error> {
        if self.ringer().is_none() {
            let made = Ringer::new(self.port().waiter());
            let made =
                made.map_err(|error| Error::with(crate::ErrorCode::System, error.to_string()))?;
            self.set_ringer(made);
        }
        Ok(())
    }
}

impl Sender {
    /// Sends a message, awaiting space for it.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub async fn sent(&mut self, message: &[u8]) -> Result<Ticket, Error> {
        poll_fn(|context| match self.send(message) {
            Ok(Sent::Taken(ticket)) => Poll::Ready(Ok(ticket)),
            Ok(Sent::Full) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }
}
