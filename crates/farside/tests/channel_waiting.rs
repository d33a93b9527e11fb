//! Waiting on channels: futures on an executor that counts polls and wake-ups, and blocking calls after them.

use farside::channel::{
    Connection, DuplexOptions, Kind, Options, Receiver, Sender, Sent, Service, can_sleep,
};
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// The intervals of a wait that no event ends: 20 us, doubled up to 500 us.
const NAPS_US: [u64; 6] = [20, 40, 80, 160, 320, 500];

/// Counts the wake-ups of a task and unparks its thread.
struct Wakes {
    count: AtomicUsize,
    thread: Thread,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// The executor: a task that is polled once, and again only when it has been woken.
struct Task<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    wakes: Arc<Wakes>,
    polls: usize,
}

impl<'a, T> Task<'a, T> {
    fn new(future: impl Future<Output = T> + Send + 'a) -> Self {
        let wakes = Wakes { count: AtomicUsize::new(0), thread: std::thread::current() };
        Self { future: Box::pin(future), wakes: Arc::new(wakes), polls: 0 }
    }

    fn wakes(&self) -> usize {
        self.wakes.count.load(Ordering::SeqCst)
    }

    fn poll(&mut self) -> Option<T> {
        self.polls += 1;
        let waker = Waker::from(Arc::clone(&self.wakes));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Parks until the task has been woken more than `wakes` times.
    fn park(&self, wakes: usize) {
        let end = Instant::now() + PATIENCE;
        while self.wakes() <= wakes {
            assert!(Instant::now() < end, "the task is never woken");
            std::thread::park_timeout(PATIENCE);
        }
    }

    /// Runs the task to its end.
    fn run(&mut self) -> T {
        loop {
            let wakes = self.wakes();
            if let Some(output) = self.poll() {
                return output;
            }
            self.park(wakes);
        }
    }
}

fn run<'a, T>(future: impl Future<Output = T> + Send + 'a) -> T {
    Task::new(future).run()
}

/// Creates the fabric of an end; both ends can reach each other over the fabrics it creates.
type Make = dyn Fn() -> Arc<dyn Fabric> + Sync;

fn everywhere(test: impl Fn(&Make, &str, Kind)) {
    let mem: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let mem: Box<Make> = Box::new(move || Arc::clone(&mem));
    let shm: Box<Make> = Box::new(|| Arc::new(ShmFabric::new().unwrap()));
    let tcp: Box<Make> = Box::new(|| {
        let listen = Some("127.0.0.1:0".parse().unwrap());
        Arc::new(TcpFabric::new(TcpOptions { listen, ..TcpOptions::default() }).unwrap())
    });
    for (make, on) in [(mem, "mem"), (shm, "shm"), (tcp, "tcp")] {
        let has = make().capabilities();
        let works =
            |kind: &Kind| kind.requirements(&options(*kind).shape(&has)).check(&has).is_ok();
        for kind in Kind::ALL.into_iter().filter(works) {
            let run = std::panic::AssertUnwindSafe(|| test(&*make, on, kind));
            assert!(std::panic::catch_unwind(run).is_ok(), "{kind} on {on}");
        }
    }
}

fn name(what: &str, on: &str, kind: Kind) -> String {
    format!("waiting-{}-{what}-{on}-{kind}", std::process::id())
}

fn options(kind: Kind) -> Options {
    Options::new(kind, 500).slots(8).ring_bytes(4096)
}

fn address(receiver: &Receiver) -> String {
    receiver.address().unwrap()
}

fn pair(make: &Make, name: &str, options: &Options) -> (Sender, Receiver) {
    let mut receiver = Receiver::listen(make(), name, options).unwrap();
    let mut sender = Sender::connect(make(), &address(&receiver), options).unwrap();
    receiver.wait_for_peers(1, PATIENCE).unwrap();
    sender.wait_for_peers(1, PATIENCE).unwrap();
    (sender, receiver)
}

/// Events that may still come after connecting: over a network, completions of requests posted meanwhile.
fn late_events(on: &str) -> usize {
    if on == "tcp" { 4 } else { 0 }
}

/// Messages between two other ends of the same fabrics.
struct Traffic(Sender, Receiver);

impl Traffic {
    fn new(make: &Make, name: &str) -> Self {
        let (sender, receiver) = pair(make, name, &Options::new(Kind::RingInlined, 100));
        Self(sender, receiver)
    }

    fn run(&mut self) {
        let Self(sender, receiver) = self;
        for _ in 0..300 {
            sender.send_wait(&[7; 4], PATIENCE).unwrap();
            let message = receiver.receive(PATIENCE).unwrap();
            receiver.release(message);
        }
    }
}

/// Sends until the channel stays full, also after the requests that its messages need; returns how many were taken.
fn fill(sender: &mut Sender) -> usize {
    let (mut taken, mut refused) = (0, 0);
    while refused < 1000 {
        match sender.send(&[1; 4]).unwrap() {
            Sent::Taken(_) => (taken, refused) = (taken + 1, 0),
            Sent::Full => refused += 1,
        }
        sender.progress().unwrap();
    }
    taken
}

#[test]
fn futures_of_every_operation_complete_on_any_executor() {
    everywhere(|make, on, kind| {
        let (options, name) = (options(kind), name("all", on, kind));
        let mut receiver = Receiver::listen(make(), &name, &options).unwrap();
        let address = address(&receiver);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                run(async {
                    let mut sender = Sender::connect(make(), &address, &options).unwrap();
                    sender.wait_for_peers_async(1).await.unwrap();
                    for number in 0..100_u32 {
                        let ticket = sender.send_async(&number.to_le_bytes()).await.unwrap();
                        sender.wait_done_async(ticket).await.unwrap();
                    }
                    sender.flush_async().await.unwrap();
                    sender.close_async().await.unwrap();
                });
            });
            run(async {
                receiver.wait_for_peers_async(1).await.unwrap();
                for number in 0..100_u32 {
                    let message = receiver.receive_async().await.unwrap();
                    assert_eq!(message.to_vec(), number.to_le_bytes());
                    receiver.release(message);
                }
                receiver.close_async().await.unwrap();
            });
        });
    });
}

#[test]
fn blocking_close_of_both_ends_delivers_every_message() {
    everywhere(|make, on, kind| {
        let (options, name) = (options(kind), name("close", on, kind));
        let mut receiver = Receiver::listen(make(), &name, &options).unwrap();
        let address = address(&receiver);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut sender = Sender::connect(make(), &address, &options).unwrap();
                for number in 0..5_u32 {
                    sender.send_wait(&number.to_le_bytes(), PATIENCE).unwrap();
                }
                sender.close(PATIENCE).unwrap();
            });
            for number in 0..5_u32 {
                let message = receiver.receive(PATIENCE).unwrap();
                assert_eq!(message.to_vec(), number.to_le_bytes());
                receiver.release(message);
            }
            receiver.close(PATIENCE).unwrap();
        });
    });
}

#[test]
fn pending_receive_with_events_is_woken_by_the_message_alone() {
    everywhere(|make, on, kind| {
        let options = options(kind);
        if !can_sleep(kind, &options.shape(&make().capabilities())) {
            return;
        }
        let (mut sender, mut receiver) = pair(make, &name("event", on, kind), &options);
        let mut traffic = Traffic::new(make, &name("traffic", on, kind));
        let mut task = Task::new(receiver.receive_async());
        assert!(task.poll().is_none());
        traffic.run();
        assert!(task.wakes() <= late_events(on), "{} wake-ups without a message", task.wakes());
        let received = AtomicBool::new(false);
        let message = std::thread::scope(|threads| {
            threads.spawn(|| {
                sender.send_wait(&[1, 2, 3, 4], PATIENCE).unwrap();
                // Until the receiver has the message, which may need further requests of its sender.
                while !received.load(Ordering::SeqCst) {
                    sender.progress().unwrap();
                    std::thread::yield_now();
                }
            });
            task.park(0);
            let message = task.run().unwrap();
            received.store(true, Ordering::SeqCst);
            message
        });
        assert_eq!(message.to_vec(), [1, 2, 3, 4]);
        let polls_max = 4 + late_events(on);
        assert!(task.polls <= polls_max, "{} polls for one message", task.polls);
    });
}

#[test]
fn pending_accept_is_woken_by_the_connecting_peer_alone() {
    everywhere(|make, on, kind| {
        let (options, name) = (options(kind), name("accept", on, kind));
        let mut receiver = Receiver::listen(make(), &name, &options).unwrap();
        let mut traffic = Traffic::new(make, &format!("{name}-traffic"));
        let address = address(&receiver);
        let mut task = Task::new(receiver.wait_for_peers_async(1));
        assert!(task.poll().is_none());
        traffic.run();
        assert!(task.wakes() <= late_events(on), "{} wake-ups without a message", task.wakes());
        let _sender = Sender::connect(make(), &address, &options).unwrap();
        task.run().unwrap();
        let polls_max = 4 + late_events(on);
        assert!(task.polls <= polls_max, "{} polls for one peer", task.polls);
    });
}

/// Runs a task that stays pending for some wake-ups; checks that the intervals between its polls grew.
fn polls_at_growing_intervals<T>(mut task: Task<'_, T>, what: &str) {
    let began = Instant::now();
    let mut least_us = 0;
    for wakes in 0..20 {
        assert!(task.poll().is_none(), "{what} is pending");
        least_us += NAPS_US[wakes.min(NAPS_US.len() - 1)];
        task.park(wakes);
        let elapsed = began.elapsed();
        assert!(elapsed >= Duration::from_micros(least_us), "{what}: {wakes} in {elapsed:?}");
        assert_eq!(task.wakes(), wakes + 1, "{what}: one wake-up for each poll");
    }
}

#[test]
fn pending_future_without_events_is_polled_at_growing_intervals() {
    everywhere(|make, on, kind| {
        let options = options(kind);
        let (mut sender, mut receiver) = pair(make, &name("words", on, kind), &options);
        if !can_sleep(kind, &options.shape(&make().capabilities())) {
            polls_at_growing_intervals(Task::new(receiver.receive_async()), "receive");
        }
        if on == "tcp" {
            return; // whether it is full depends on what is on the network
        }
        let taken = fill(&mut sender);
        polls_at_growing_intervals(Task::new(sender.send_async(&[1; 4])), "send");
        // A sender that must first be given a place by its receiver has taken none.
        if taken > 0 {
            polls_at_growing_intervals(Task::new(sender.flush_async()), "flush");
        }
    });
}

#[test]
fn dropped_future_loses_no_message_and_no_event() {
    everywhere(|make, on, kind| {
        let options = options(kind);
        let (mut sender, mut receiver) = pair(make, &name("dropped", on, kind), &options);
        for round in 0..20_u8 {
            let mut task = Task::new(receiver.receive_async());
            assert!(task.poll().is_none());
            drop(task);
            std::thread::scope(|threads| {
                let sends = threads.spawn(|| {
                    sender.send_wait(&[round; 4], PATIENCE).unwrap();
                    sender.flush(PATIENCE).unwrap();
                });
                // The thread that slept for the future must not take the event of the blocking call.
                let message = if round % 2 == 0 {
                    receiver.receive(PATIENCE).unwrap()
                } else {
                    run(receiver.receive_async()).unwrap()
                };
                assert_eq!(message.to_vec(), [round; 4]);
                receiver.release(message);
                // An acknowledgement may have to wait until the one before has arrived.
                while !sends.is_finished() {
                    receiver.acknowledge();
                    receiver.progress().unwrap();
                    std::thread::yield_now();
                }
            });
        }
    });
}

#[test]
fn calls_between_client_and_service_are_awaited() {
    everywhere(|make, on, kind| {
        let to_client = if kind.shares_sender() { Kind::RingInlined } else { kind };
        let duplex = DuplexOptions::new(options(kind), options(to_client));
        let name = name("calls", on, kind);
        let mut service = Service::listen(&make(), &name, &duplex).unwrap();
        let address = address(&service.receiver);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut client = Connection::connect(&make(), &address, &duplex).unwrap();
                run(async {
                    client.wait_async().await.unwrap();
                    for round in 0..20_u8 {
                        let answer = client.call_async(&[round; 4]).await.unwrap();
                        assert_eq!(answer.to_vec(), [round + 1; 4]);
                        client.receiver.release(answer);
                    }
                });
            });
            run(async {
                for _ in 0..20 {
                    let (request, client) = service.wait_async().await.unwrap();
                    let answer: Vec<u8> = request.to_vec().iter().map(|byte| byte + 1).collect();
                    service.release(request);
                    service.answer_async(client, &answer).await.unwrap();
                }
            });
            // The last answer may need requests of the service before the client has it.
            service.sender.flush(PATIENCE).or_else(lost).unwrap();
        });
    });
}

/// A client that has all its answers may be gone before it has acknowledged them.
fn lost(error: farside::Error) -> Result<(), farside::Error> {
    if error.code == farside::ErrorCode::PeerLost { Ok(()) } else { Err(error) }
}
