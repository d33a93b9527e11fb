//! Sequencers and locks by remote atomics, by calls over Send/Recv channels, and in local memory (paper 000, section
//! III-E, figure 10).

use super::{Lent, TIMEOUT};
use crate::contended::watch;
use crate::settings::BenchAtomics;
use crate::window::Figure;
use farside::ErrorCode;
use farside::channel::{Connection, DuplexOptions, Kind, Options, Service};
use farside::fabrics::Fabric;
use farside::onesided::{MemoryClient, QueueLock, RemoteGuard, RemoteLock, Sequencer, TicketLock};
use farside_base::waiting::Backoff;
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use serde::Serialize;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Bytes of the remote memory that are used.
const BYTES: u64 = 8192;
const LEASE: Duration = Duration::from_secs(10);
/// Slots of the queue lock: as many as clients at most.
const SLOTS: u32 = 64;
/// How often a service looks whether its clients have ended.
const POLL: Duration = Duration::from_millis(20);
/// Operations that a thread counts at once.
const BATCH: u64 = 8;

/// What is measured, by each of its forms.
const OPERATIONS: [(&str, &[&str]); 4] = [
    ("sequencer", &["local", "rpc", "remote"]),
    ("spinlock", &["local", "local back-off", "rpc", "rpc back-off", "remote", "remote back-off"]),
    ("ticket lock", &["remote", "remote back-off"]),
    ("queue lock", &["remote", "remote back-off"]),
];

/// A form of an operation with a number of clients.
#[derive(Debug, Serialize)]
struct AtomicsFigure {
    operation: &'static str,
    form: &'static str,
    clients: u16,
    /// Time per operation of all clients: a number, or a lock taken and freed.
    #[serde(flatten)]
    time: Figure,
    /// Million operations per second.
    operations_per_us: f64,
    /// The rate divided by that of the RPC form with as much back-off and as many clients.
    by_rpc: Option<f64>,
    /// The rate divided by that of the same form with the first number of clients.
    scaling: f64,
}

/// Runs `farside bench atomics`.
///
/// # Errors
/// Those of the memory server; that of output which cannot be written.
pub fn run(arguments: &BenchAtomics, output: Output) -> Result<(), Failure> {
    let lent = Lent::new(&arguments.lent, BYTES)?;
    let is_here = arguments.lent.to.is_none();
    let mut figures: Vec<AtomicsFigure> = Vec::new();
    let forms: usize = OPERATIONS.iter().map(|(_, forms)| forms.len()).sum();
    let bar = output.bar("figures", (forms * arguments.clients.len()) as u64);
    for (operation, forms) in OPERATIONS {
        for form in forms.iter().filter(|form| is_here || !form.starts_with("rpc")) {
            for clients in &arguments.clients {
                let run = Run { lent: &lent, operation, form, clients: *clients };
                let time = run.measure(arguments.lent.windows)?;
                let rate = 1e3 / time.median_ns;
                let rate_of = |form: &str, clients| {
                    let is_it = |one: &&AtomicsFigure| {
                        (one.operation, one.form, one.clients) == (operation, form, clients)
                    };
                    figures.iter().find(is_it).map(|one| one.operations_per_us)
                };
                let rpc = form.replace("remote", "rpc");
                let first = rate_of(form, arguments.clients[0]).unwrap_or(rate);
                figures.push(AtomicsFigure {
                    operation,
                    form,
                    clients: *clients,
                    time,
                    operations_per_us: rate,
                    by_rpc: rate_of(&rpc, *clients).map(|rpc| rate / rpc),
                    scaling: rate / first,
                });
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    output.line(table(&figures));
    output.line(format!("the remote and rpc forms over {}", lent.fabric.name()));
    let labels = ["operations, millions a second", "clients"];
    super::draw(arguments.lent.plot.as_deref(), labels, &figures, |one| {
        let name = format!("{} {}", one.operation, one.form);
        (name, one.clients.into(), one.operations_per_us)
    })?;
    output.value(&figures);
    Ok(())
}

fn table(figures: &[AtomicsFigure]) -> String {
    let heads = ["operation", "form", "clients", "best", "median", "MOPS", "by rpc", "scaling"];
    let mut table = Table::new(heads).left(0).left(1);
    for one in figures {
        table.row([
            one.operation.to_owned(),
            one.form.to_owned(),
            one.clients.to_string(),
            time(one.time.best_ns),
            time(one.time.median_ns),
            format!("{:.3}", one.operations_per_us),
            one.by_rpc.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
            format!("{:.2}", one.scaling),
        ]);
    }
    table.text()
}

/// One operation of a client.
type Operation<'a> = Box<dyn FnMut() -> Result<(), Failure> + 'a>;

/// Of a thread, in a line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Count(AtomicU64);

/// Objects of this process's memory, each in a line of its own.
#[derive(Default)]
struct Local {
    numbers: Count,
    lock: Count,
}

/// The clients of one figure.
struct Run<'a> {
    lent: &'a Lent,
    operation: &'static str,
    form: &'static str,
    clients: u16,
}

impl Run<'_> {
    fn measure(&self, windows: u32) -> Result<Figure, Failure> {
        let (mut client, memory) = self.lent.client()?;
        client.write_bytes(memory.at(0), &[0; BYTES as usize], TIMEOUT)?;
        let local = Local::default();
        if !self.form.starts_with("rpc") {
            return self.contend(windows, &|| match self.form.starts_with("local") {
                true => Ok(self.local(&local)),
                false => self.remote(),
            });
        }
        let name = format!("bench-rpc-{}", std::process::id());
        let options = Options::new(Kind::Send, 8).peers(self.clients);
        let options = DuplexOptions::same(options);
        let service = Service::listen(&self.lent.fabric, &name, &options)?;
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serves = scope.spawn(|| serve(service, &ends));
            let figure = self.contend(windows, &|| self.rpc(&self.lent.fabric, &name, &options));
            ends.store(true, Ordering::Release);
            serves.join().map_err(|_| Failure::system("the service has ended"))??;
            figure
        })
    }

    /// Runs a thread for each client, which repeats its operation, and watches how many they do.
    fn contend<'a>(
        &self,
        windows: u32,
        connect: &(dyn Fn() -> Result<Operation<'a>, Failure> + Sync),
    ) -> Result<Figure, Failure> {
        let counts: Vec<Count> = (0..self.clients).map(|_| Count::default()).collect();
        let (ends, ready) = (AtomicBool::new(false), Barrier::new(counts.len() + 1));
        std::thread::scope(|scope| {
            let start = |count| {
                let (ends, ready) = (&ends, &ready);
                scope.spawn(move || repeat(connect, count, ends, ready))
            };
            let threads: Vec<_> = counts.iter().map(start).collect();
            ready.wait();
            let done = || counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum();
            let figure = watch(done, windows);
            ends.store(true, Ordering::Release);
            for thread in threads {
                thread.join().map_err(|_| Failure::system("a client has ended"))??;
            }
            Ok(figure)
        })
    }

    fn remote(&self) -> Result<Operation<'static>, Failure> {
        let (mut client, memory) = self.lent.client()?;
        let backoff = self.form.ends_with("back-off");
        Ok(match self.operation {
            "sequencer" => {
                let numbers = Sequencer::new(memory.at(0))?;
                Box::new(move || {
                    black_box(numbers.next(&mut client, TIMEOUT)?);
                    Ok(())
                })
            }
            "spinlock" => {
                let lock = RemoteLock::new(memory.at(0), LEASE)?;
                let lock = if backoff { lock } else { lock.without_backoff() };
                locked(client, move |client| lock.lock(client, TIMEOUT))
            }
            "ticket lock" => {
                let lock = TicketLock::new(memory.at(0), LEASE)?;
                let lock = if backoff { lock } else { lock.without_backoff() };
                locked(client, move |client| lock.lock(client, TIMEOUT))
            }
            _ => {
                let lock = QueueLock::new(memory.at(0), SLOTS, LEASE)?;
                let lock = if backoff { lock } else { lock.without_backoff() };
                locked(client, move |client| lock.lock(client, TIMEOUT))
            }
        })
    }

    fn local<'a>(&self, local: &'a Local) -> Operation<'a> {
        if self.operation == "sequencer" {
            return Box::new(|| {
                black_box(local.numbers.0.fetch_add(1, Ordering::Relaxed));
                Ok(())
            });
        }
        let backoff = self.form.ends_with("back-off");
        Box::new(move || {
            let mut spins = 1;
            let lock = &local.lock.0;
            while lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                if backoff {
                    (0..spins).for_each(|_| spin_loop());
                    spins = (2 * spins).min(1024);
                }
                if !backoff || spins == 1024 {
                    std::thread::yield_now();
                }
            }
            lock.store(0, Ordering::Release);
            Ok(())
        })
    }

    fn rpc(
        &self,
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &DuplexOptions,
    ) -> Result<Operation<'static>, Failure> {
        let mut service = Connection::connect(fabric, name, options)?;
        service.wait(TIMEOUT)?;
        if self.operation == "sequencer" {
            return Ok(Box::new(move || {
                black_box(call(&mut service, Request::Next)?);
                Ok(())
            }));
        }
        let backoff = self.form.ends_with("back-off");
        Ok(Box::new(move || {
            let mut naps = Backoff::NAPS;
            while call(&mut service, Request::TryLock)? == 0 {
                match backoff {
                    true => std::thread::park_timeout(Duration::from_nanos(naps.next_ns())),
                    false => std::thread::yield_now(),
                }
            }
            call(&mut service, Request::Unlock).map(drop)
        }))
    }
}

/// Connects, and repeats the operation until the end.
fn repeat<'a>(
    connect: &(dyn Fn() -> Result<Operation<'a>, Failure> + Sync),
    count: &Count,
    ends: &AtomicBool,
    ready: &Barrier,
) -> Result<(), Failure> {
    let operation = connect();
    ready.wait();
    let mut operation = operation?;
    let mut done = 0;
    while !ends.load(Ordering::Relaxed) {
        operation()?;
        done += 1;
        // All of the first ones: some clients do few in a window.
        if done < BATCH || done % BATCH == 0 {
            count.0.store(done, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Takes and frees a lock.
fn locked(
    mut client: MemoryClient,
    lock: impl Fn(&mut MemoryClient) -> Result<RemoteGuard, farside::Error> + 'static,
) -> Operation<'static> {
    Box::new(move || Ok(lock(&mut client)?.unlock(&mut client, TIMEOUT)?))
}

/// What a client asks of the service, in a byte.
#[derive(Clone, Copy)]
enum Request {
    Next,
    TryLock,
    Unlock,
}

fn call(service: &mut Connection, request: Request) -> Result<u64, Failure> {
    let answer = service.call(&[request as u8], TIMEOUT)?;
    let mut word = [0; 8];
    answer.read(0, &mut word)?;
    service.receiver.release(answer);
    Ok(u64::from_le_bytes(word))
}

/// The same sequencer and spinlock as a program: answers requests until the clients have ended.
fn serve(mut service: Service, ends: &AtomicBool) -> Result<(), Failure> {
    let (mut next, mut is_held) = (0_u64, false);
    while !ends.load(Ordering::Acquire) {
        let (request, client) = match service.wait(POLL) {
            Err(error) if error.code == ErrorCode::TimedOut => continue,
            received => received?,
        };
        let mut byte = [0];
        request.read(0, &mut byte)?;
        service.release(request);
        let answer = if byte[0] == Request::Next as u8 {
            next += 1;
            next - 1
        } else if byte[0] == Request::TryLock as u8 {
            u64::from(!std::mem::replace(&mut is_held, true))
        } else {
            is_held = false;
            0
        };
        service.answer_wait(client, &answer.to_le_bytes(), TIMEOUT)?;
    }
    Ok(())
}
