//! Benchmarks of one-sided memory, on memory of this process or of a server elsewhere.

pub mod access;
pub mod atomics;
pub mod consolidate;
pub mod hashtable;
pub mod join;
pub mod list;
pub mod log;
pub mod numa;
pub mod shuffle;
pub mod vector;

use crate::plot::{self, Chart};
use crate::settings::BenchLent;
use farside::Error;
use farside::fabrics;
use farside::fabrics::Fabric;
use farside::onesided::{
    LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteMemory, RequestId,
};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
/// Requests in flight of benchmarks that measure a rate.
const DEPTH: usize = 16;

/// The memory that a benchmark uses.
struct Lent {
    fabric: Arc<dyn Fabric>,
    address: String,
    bytes: u64,
    in_call: bool,
    /// Of this process, if the memory is.
    _server: Option<MemoryServer>,
}

impl Lent {
    /// Chooses the memory: of the server that the arguments name, or `bytes` of this process, over shared memory.
    fn new(arguments: &BenchLent, bytes: u64) -> Result<Self, Failure> {
        let in_call = !arguments.posted;
        if let Some(to) = &arguments.to {
            let Chosen { fabric, address, .. } = choice::caller(&arguments.choice, to, "pool")?;
            return Ok(Self { fabric, address, bytes, in_call, _server: None });
        }
        let name = format!("bench-{}", std::process::id());
        let lender = fabrics::shared_memory()?;
        let server = MemoryServer::lend(&lender, &name, bytes, &LendOptions::default())?;
        let address = server.address().to_owned();
        Ok(Self {
            fabric: fabrics::shared_memory()?,
            address,
            bytes,
            in_call,
            _server: Some(server),
        })
    }

    /// Opens a client of it.
    fn client(&self) -> Result<(MemoryClient, RemoteMemory), Failure> {
        let options = MemoryClientOptions::default().in_call(self.in_call);
        let mut client = MemoryClient::new(&self.fabric, &options)?;
        let memory = client.open(&self.address, TIMEOUT)?;
        let (lends, needs) = (memory.bytes(), self.bytes);
        if lends < needs {
            let text = format!("the server lends {lends} B; the benchmark needs {needs}");
            return Err(Failure::usage(text));
        }
        Ok((client, memory))
    }
}

/// Draws figures, if a file is named: each is a point of the line of that name.
pub(crate) fn draw<T>(
    path: Option<&Path>,
    [title, across]: [&str; 2],
    figures: &[T],
    point: impl Fn(&T) -> (String, f64, f64),
) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for figure in figures {
        let (name, x, y) = point(figure);
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((x, y)),
            None => lines.push((name, vec![(x, y)])),
        }
    }
    let chart = Chart { title: title.to_owned(), across: across.to_owned(), lines };
    plot::draw(path, &[chart])
}

/// Requests of which at most [`DEPTH`] are in flight, and `batch`, a part of that, share a doorbell.
struct Pipeline {
    requests: [Option<RequestId>; DEPTH],
    at: usize,
    batch: usize,
}

impl Pipeline {
    const fn new(batch: usize) -> Self {
        Self { requests: [None; DEPTH], at: 0, batch }
    }

    /// Queues a request, which is given the number of a place that no other request in flight has. Waits for the oldest
    /// ones before the first of a batch, since waiting would post a part of it.
    fn queue(
        &mut self,
        client: &mut MemoryClient,
        request: impl FnOnce(&mut MemoryClient, usize) -> Result<RequestId, Error>,
    ) -> Result<(), Error> {
        if self.at.is_multiple_of(self.batch) {
            Self::wait(client, &mut self.requests[self.at..self.at + self.batch])?;
        }
        self.requests[self.at] = Some(request(client, self.at)?);
        self.at = (self.at + 1) % DEPTH;
        if self.at.is_multiple_of(self.batch) {
            client.submit();
        }
        Ok(())
    }

    fn wait(client: &mut MemoryClient, requests: &mut [Option<RequestId>]) -> Result<(), Error> {
        for request in requests.iter_mut().filter_map(Option::take) {
            if client.take(request)?.is_none() {
                client.wait(request, TIMEOUT)?;
            }
        }
        Ok(())
    }

    /// Waits for the end of all requests.
    fn drain(&mut self, client: &mut MemoryClient) -> Result<(), Error> {
        Self::wait(client, &mut self.requests)
    }
}
