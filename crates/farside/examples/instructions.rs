//! Executes one kind of operation many times on a thread alone, so that an instruction counter (valgrind's
//! callgrind) gives its instructions: `instructions OPERATION COUNT`. `cargo xtask ci --only instructions`
//! takes the difference of two counts.
//!
//! Both nodes of operations between nodes run on this thread, over the in-process fabric: the count is that
//! of both sides, with its polls.

use farside::call::rmc::library::{HostWord, LibraryEntry, ListSearch};
use farside::call::{CallOptions, CallServer, Caller, CallerOptions, ServerOptions};
use farside::fabrics::{Fabric, MemFabric};
use farside::{
    AllocationHint, AllocationSpec, Config, Error, GlobalAddress, Joining, LineSize, Node,
};
use farside_base::Access;
use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const LINE: u64 = 64;

/// A home, and another node.
struct Pair([Node; 2]);

impl Pair {
    fn new() -> Result<Self, Error> {
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let mut config = Config::new("instructions").memory_bytes(64 << 20).cache_bytes(64 << 20);
        config.line_size = LineSize::MIN;
        config.write_back_ns = None;
        let home = Node::create_driven(&config, Arc::clone(&fabric))?;
        let mut joining = Joining::start(&config, fabric)?;
        let other = loop {
            home.progress();
            if let Some(node) = joining.poll()? {
                break node;
            }
        };
        let pair = Self([home, other]);
        while pair.progress() {}
        Ok(pair)
    }

    fn progress(&self) -> bool {
        let [home, other] = &self.0;
        home.progress() | other.progress()
    }

    fn finish<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut call = pin!(call);
        loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(end) = call.as_mut().poll(&mut context) {
                return end;
            }
            self.progress();
        }
    }
}

/// Executes calls one after the other that search a list of one node at an executor.
fn call(count: u64) -> Result<(), Box<dyn std::error::Error>> {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let mut server = CallServer::listen(&fabric, "executor", &ServerOptions::default())?;
    let memory = server.make_region(0, 4096, Access::ALL)?;
    memory.write(64, &[7_u64, 70, 0].map(u64::to_le_bytes).concat())?;
    let address = server.address().ok_or("no address")?;
    let mut caller = Caller::begin(&fabric, &address, &CallerOptions::default())?;
    let object = LibraryEntry::with_name("list_search").ok_or("no such program")?.object;
    let mut begun = false;
    let search = loop {
        server.progress();
        caller.progress()?;
        begun = begun || caller.begin_register(object)?;
        if let Some(programs) = caller.registered() {
            break programs?.remove(0);
        }
    };
    let parameters =
        ListSearch { head: HostWord::new(0, 64).ok_or("within the region")?, key: 7 }.to_bytes();
    for _ in 0..count {
        let ticket =
            caller.invoke(&search, &parameters, CallOptions::new())?.ok_or("no slot is free")?;
        let answer = loop {
            server.progress();
            caller.progress()?;
            if let Some(answer) = caller.poll(ticket) {
                break answer?;
            }
        };
        black_box(answer);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [operation, count] = &words[..] else {
        return Err("instructions OPERATION COUNT".into());
    };
    let count = count.parse()?;
    if operation == "call" {
        return call(count);
    }
    let pair = Pair::new()?;
    let [home, other] = &pair.0;
    let (mut here, mut there) = (home.session()?, other.session()?);
    let spec = AllocationSpec::new(AllocationHint::On(home.id()));
    let memory = pair.finish(here.alloc_with_async(48 << 20, spec))?;
    let line = |number: u64| memory.checked_add(number * LINE).ok_or("within the allocation");
    let (own, theirs): (GlobalAddress, GlobalAddress) = (line(0)?, line(1)?);
    pair.finish(there.write_async(theirs, &[1; 8]))?;
    pair.finish(there.fence_async())?;
    match operation.as_str() {
        "read-local" => (0..count).try_for_each(|_| here.read_u64(black_box(own)).map(drop))?,
        "read-cached" => {
            (0..count).try_for_each(|_| there.read_u64(black_box(theirs)).map(drop))?
        }
        "read-direct" => (0..count).try_for_each(|_| there.read_u64(black_box(own)).map(drop))?,
        "write-owned" => (0..count).try_for_each(|at| there.write_u64(black_box(theirs), at))?,
        "fetch-add" => {
            (0..count).try_for_each(|_| there.fetch_add(black_box(theirs), 1).map(drop))?;
        }
        "lock" => {
            (0..count).try_for_each(|_| here.lock_write(black_box(own), 8)?.unlock())?;
        }
        "read-miss" => {
            there.set_direct_reads(false);
            for at in 0..count {
                pair.finish(there.read_async(line(2 + at)?, &mut [0; 8]))?;
            }
        }
        "write-miss" => {
            for at in 0..count {
                pair.finish(there.write_async(line(2 + at)?, &[1; 8]))?;
                pair.finish(there.fence_async())?;
            }
        }
        other => return Err(format!("no operation {other}").into()),
    }
    Ok(())
}
