//! The state of the fake adapter: regions, queue pairs, queues, and the test's script.
//!
//! Everything is executed by the thread that posts, under one lock: a request runs when it is posted,
//! or when what it waits for (a receive, the peer's queue pair) is there.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the functions of `verbs` | all of this | under the lock of [`world`] |
//! | the memory of regions | is accessed | while the region is registered, within its bounds |

use crate::copy::copy;
use crate::types::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const LOC_LEN_ERR: u32 = 1;
pub(crate) const LOC_PROT_ERR: u32 = 4;
pub(crate) const WR_FLUSH_ERR: u32 = 5;
const MW_BIND_ERR: u32 = 6;
pub(crate) const REM_INV_REQ_ERR: u32 = 9;
pub(crate) const REM_ACCESS_ERR: u32 = 10;
const RETRY_EXC_ERR: u32 = 12;
const EVENT_QP_ACCESS_ERR: u32 = 3;
/// `Odd::RepeatsBinds`.
const REPEATS_BINDS: u32 = 10;

pub(crate) struct FakeRegion {
    /// The address of its memory, less `start`.
    pub(crate) base: u64,
    /// Its first address, for requests.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) access: i32,
}

/// An allocation of device memory. Each context has as much of it as the device reports.
#[derive(Clone, Copy)]
pub(crate) struct DeviceMemory {
    pub(crate) context: usize,
    pub(crate) start: u64,
    pub(crate) bytes: usize,
}

/// A memory window of type 2B.
pub(crate) struct MemoryWindow {
    pub(crate) key: u32,
    /// The queue pair that it is bound to; zero before.
    pub(crate) pair: u32,
    /// The key of its region.
    pub(crate) region: u32,
    pub(crate) place: FakeRegion,
}

/// The region and rkey of a bind request.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    /// The C object.
    pub(crate) window: usize,
    pub(crate) key: u32,
    pub(crate) region: u32,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) access: i32,
}

/// A posted request, with its slices and inline bytes.
pub(crate) struct PostedWork {
    pub(crate) id: u64,
    pub(crate) opcode: i32,
    pub(crate) signalled: bool,
    /// It waits for READs and atomics before it.
    pub(crate) fence: bool,
    pub(crate) immediate: u32,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) operands: [u64; 2],
    pub(crate) slices: Vec<ibv_sge>,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) bind: Option<Bind>,
}

impl PostedWork {
    fn bytes(&self) -> u64 {
        match &self.inline {
            Some(bytes) => bytes.len() as u64,
            None => self.slices.iter().map(|slice| u64::from(slice.length)).sum(),
        }
    }

    fn announces(&self) -> bool {
        matches!(self.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM)
    }
}

pub(crate) struct QueuePairState {
    pub(crate) state: i32,
    pub(crate) peer: u32,
    pub(crate) queue: usize,
    pub(crate) receives: usize,
    pub(crate) context: usize,
    /// The C object.
    pub(crate) object: usize,
    pub(crate) jobs: VecDeque<PostedWork>,
    /// The first of the jobs never ends.
    pub(crate) hangs: bool,
    /// How the first of the jobs ends, once its answer is let through.
    pub(crate) answer: Option<u32>,
}

/// When a refusal is delivered to the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum RefusalTime {
    /// At once.
    #[default]
    Told,
    /// It is lost. The queue pair that has refused answers no more.
    Lost,
    /// It is sent later, if the queue pair that has refused is not in its error state until then.
    Late,
}

#[derive(Default)]
pub(crate) struct Completions {
    pub(crate) done: VecDeque<ibv_wc>,
    pub(crate) armed: bool,
    pub(crate) channel: usize,
    pub(crate) most: usize,
}

#[derive(Default)]
pub(crate) struct Receives {
    pub(crate) posted: VecDeque<(u64, Option<ibv_sge>)>,
    pub(crate) most: usize,
}

/// The test's script.
#[derive(Default)]
pub(crate) struct Script {
    /// The next request fails with this `ibv_wc_status`.
    pub(crate) fail: Option<u32>,
    /// The next request never ends.
    pub(crate) hang: bool,
    /// The delivery of refusals.
    pub(crate) refusal: RefusalTime,
    /// The device was removed.
    pub(crate) removed: bool,
    /// How often the port's address has moved.
    pub(crate) moves: u8,
    /// The port is down.
    pub(crate) down: bool,
    /// Windows are not bound until this is taken back.
    pub(crate) hold_binds: bool,
    /// The next one cannot be bound.
    pub(crate) fail_bind: bool,
    /// The next request uses the address and rkey of the last successful one.
    pub(crate) borrow: bool,
    /// The device's attributes, if not the defaults.
    pub(crate) odd: BTreeMap<u32, u64>,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) numbers: u32,
    pub(crate) regions: BTreeMap<u32, FakeRegion>,
    /// Memory at the adapter, by the addresses of its C objects.
    pub(crate) device: BTreeMap<usize, DeviceMemory>,
    /// By the addresses of their C objects.
    pub(crate) windows: BTreeMap<usize, MemoryWindow>,
    /// The address and rkey of the last successful request.
    pub(crate) last: (u64, u32),
    /// Calls of `ibv_post_send`, and the requests in their lists.
    pub(crate) posted: [u64; 2],
    /// Queue pairs and regions that were ended before the windows bound to them.
    pub(crate) violations: u64,
    pub(crate) pairs: BTreeMap<u32, QueuePairState>,
    pub(crate) completions: BTreeMap<usize, Completions>,
    pub(crate) receives: BTreeMap<usize, Receives>,
    /// Events of channels that were not taken: which completion queue.
    pub(crate) channels: BTreeMap<usize, (i32, VecDeque<usize>)>,
    /// Asynchronous events of contexts: descriptor, then element and number of each.
    pub(crate) contexts: BTreeMap<usize, (i32, VecDeque<(usize, u32)>)>,
    pub(crate) script: Script,
}

pub(crate) fn world() -> MutexGuard<'static, World> {
    static INSIDE: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn ring(descriptor: i32) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: writes eight bytes to an event counter.
    unsafe { libc::write(descriptor, one.as_ptr().cast(), 8) };
}

impl World {
    pub(crate) fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// Returns the memory of a region by its rkey, if the range and access are allowed.
    fn place(&self, key: u32, at: u64, bytes: u64, access: i32) -> Option<*mut u8> {
        let region = self.regions.get(&key)?;
        let offset = at.checked_sub(region.start)?;
        let fits = offset <= region.bytes && bytes <= region.bytes - offset;
        let may = region.access & access == access;
        let place = region.base.wrapping_add(at);
        (fits && may).then(|| std::ptr::with_exposed_provenance_mut(place as usize))
    }

    /// Returns the memory of a checked local slice.
    fn local(&self, slice: &ibv_sge) -> *mut u8 {
        let base = self.regions.get(&slice.lkey).map_or(0, |region| region.base);
        std::ptr::with_exposed_provenance_mut(base.wrapping_add(slice.addr) as usize)
    }

    /// Returns the memory of a peer's request to a queue pair: by a window of that queue pair, or by
    /// the region's own rkey.
    fn reach(&self, pair: u32, key: u32, at: u64, bytes: u64, access: i32) -> Option<*mut u8> {
        let Some(window) = self.windows.values().find(|window| window.key == key) else {
            return self.place(key, at, bytes, access);
        };
        let bound = window.pair == pair && pair != 0 && self.regions.contains_key(&window.region);
        let offset = at.checked_sub(window.place.start)?;
        let fits = offset <= window.place.bytes && bytes <= window.place.bytes - offset;
        let may = bound && fits && window.place.access & access == access;
        may.then(|| std::ptr::with_exposed_provenance_mut(at as usize))
    }

    /// Binds a window to a queue pair; the request's status.
    fn bind(&mut self, pair: u32, bind: &Bind) -> u32 {
        let region = self.regions.get(&bind.region);
        let fits = region.is_some_and(|region| {
            let offset = bind.start.checked_sub(region.start);
            let within = offset.is_some_and(|offset| offset + bind.bytes <= region.bytes);
            within && bind.bytes > 0 && region.access & IBV_ACCESS_MW_BIND != 0
        });
        match self.windows.get_mut(&bind.window) {
            Some(window) if fits && window.pair == 0 && window.key >> 8 == bind.key >> 8 => {
                let Bind { start, bytes, access, .. } = *bind;
                let place = FakeRegion { base: 0, start, bytes, access };
                *window = MemoryWindow { key: bind.key, pair, region: bind.region, place };
                SUCCESS
            }
            _ => MW_BIND_ERR,
        }
    }

    fn complete(&mut self, queue: usize, done: ibv_wc) {
        let Some(completions) = self.completions.get_mut(&queue) else {
            return;
        };
        completions.done.push_back(done);
        if std::mem::take(&mut completions.armed)
            && let Some((descriptor, events)) = self.channels.get_mut(&completions.channel)
        {
            events.push_back(queue);
            ring(*descriptor);
        }
    }

    /// Queues an asynchronous event for a context.
    pub(crate) fn tell(&mut self, context: usize, element: usize, number: u32) {
        if let Some((descriptor, events)) = self.contexts.get_mut(&context) {
            events.push_back((element, number));
            ring(*descriptor);
        }
    }

    /// Moves a queue pair to the error state; outstanding requests are flushed.
    pub(crate) fn fail(&mut self, pair: u32) {
        let Some(found) = self.pairs.get_mut(&pair) else {
            return;
        };
        found.state = IBV_QPS_ERR;
        let (queue, jobs) = (found.queue, std::mem::take(&mut found.jobs));
        for job in jobs {
            let mut done = ibv_wc::default();
            (done.wr_id, done.status, done.qp_num) = (job.id, WR_FLUSH_ERR, pair);
            self.complete(queue, done);
        }
    }

    /// Runs the requests that can run on every queue pair.
    pub(crate) fn go_on(&mut self) {
        let pairs: Vec<u32> = self.pairs.keys().copied().collect();
        for pair in pairs {
            self.run(pair);
        }
    }

    /// Runs the jobs of a queue pair until one must wait.
    pub(crate) fn run(&mut self, pair: u32) {
        loop {
            let Some(found) = self.pairs.get_mut(&pair) else {
                return;
            };
            if found.state == IBV_QPS_ERR {
                return self.fail(pair);
            }
            let (peer, queue, hangs) = (found.peer, found.queue, found.hangs);
            if found.state == IBV_QPS_RTS && self.script.down {
                return self.bind_early(pair);
            }
            if found.state != IBV_QPS_RTS || hangs {
                return;
            }
            let Some(mut job) = self.pairs.get_mut(&pair).and_then(|found| found.jobs.pop_front())
            else {
                return;
            };
            if job.bind.is_none() && std::mem::take(&mut self.script.borrow) {
                (job.address, job.key) = self.last;
            }
            let status = match self.execute(pair, peer, &job) {
                Some(status) => status,
                None => {
                    if let Some(found) = self.pairs.get_mut(&pair) {
                        found.jobs.push_front(job);
                    }
                    return;
                }
            };
            if status == SUCCESS && job.key != 0 {
                self.last = (job.address, job.key);
            }
            if status != SUCCESS || job.signalled {
                let mut done = ibv_wc::default();
                (done.wr_id, done.status, done.qp_num) = (job.id, status, pair);
                done.byte_len = job.bytes() as u32;
                self.complete(queue, done);
            }
            if status != SUCCESS {
                self.fail(pair);
            }
        }
    }

    /// Executes binds early, if the adapter repeats binds: while packets are lost it executes those
    /// that nothing delays, and when it repeats the requests before them it executes them again, like
    /// soft-RoCE.
    fn bind_early(&mut self, pair: u32) {
        let repeats = self.script.odd.get(&REPEATS_BINDS).is_some_and(|repeats| *repeats != 0);
        let Some(found) = self.pairs.get(&pair).filter(|_| repeats) else {
            return;
        };
        let mut reads = false;
        let mut free = Vec::new();
        for job in &found.jobs {
            free.extend(job.bind.filter(|_| !(job.fence && reads)));
            reads |= job.opcode == IBV_WR_RDMA_READ || job.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
        }
        for bind in free {
            self.bind(pair, &bind);
        }
    }

    /// Does one job; its status, or nothing while it must wait for the peer.
    fn execute(&mut self, pair: u32, peer: u32, job: &PostedWork) -> Option<u32> {
        if let Some(bind) = &job.bind {
            // Nothing of the peer's.
            if std::mem::take(&mut self.script.fail_bind) {
                return Some(MW_BIND_ERR);
            }
            return (!self.script.hold_binds).then(|| self.bind(pair, bind));
        }
        let there = self.pairs.get(&peer)?;
        let ready =
            there.peer == pair && (there.state == IBV_QPS_RTR || there.state == IBV_QPS_RTS);
        if !ready {
            return None;
        }
        if std::mem::take(&mut self.script.hang) {
            self.pairs.get_mut(&pair)?.hangs = true;
            return None;
        }
        if let Some(status) = self.script.fail.take() {
            return Some(status);
        }
        let (queue, receives) = (there.queue, there.receives);
        let (object, context) = (there.object, there.context);
        if job.announces() && self.receives.get(&receives).is_none_or(|all| all.posted.is_empty()) {
            return None;
        }
        let own = IBV_ACCESS_LOCAL_WRITE;
        for slice in &job.slices {
            if job.inline.is_none()
                && self.place(slice.lkey, slice.addr, u64::from(slice.length), own).is_none()
            {
                return Some(LOC_PROT_ERR);
            }
        }
        let status = match job.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => self.send(peer, queue, receives, job),
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => self.write(peer, job),
            IBV_WR_RDMA_READ => self.read(peer, job),
            _ => self.atomic(peer, job),
        };
        let sent = matches!(job.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
        if status == SUCCESS && job.announces() && !sent {
            self.announce(peer, queue, receives, job);
        }
        if status == SUCCESS {
            return Some(SUCCESS);
        }
        if !sent {
            // For a message, the completion of its receive reports it.
            self.tell(context, object, EVENT_QP_ACCESS_ERR);
        }
        let refusal = self.script.refusal;
        if refusal != RefusalTime::Late {
            self.fail(peer);
        }
        if refusal == RefusalTime::Told {
            return Some(status);
        }
        let found = self.pairs.get_mut(&pair)?;
        found.hangs = true;
        found.answer = (refusal == RefusalTime::Late).then_some(status);
        None
    }

    /// Lets answers through that were held back.
    pub(crate) fn answer(&mut self) {
        let pairs: Vec<u32> = self.pairs.keys().copied().collect();
        for pair in pairs {
            let found = self.pairs.get_mut(&pair);
            let held = found.and_then(|found| Some((found.peer, found.answer.take()?)));
            if let Some((peer, status)) = held
                && self.pairs.get(&peer).is_some_and(|there| there.state != IBV_QPS_ERR)
            {
                self.fail(peer);
                self.end_hanging(pair, status);
            }
        }
    }

    /// Fails every request that hangs.
    pub(crate) fn give_up(&mut self) {
        let pairs: Vec<u32> = self.pairs.keys().copied().collect();
        for pair in pairs {
            if self.pairs.get(&pair).is_some_and(|found| found.hangs) {
                self.end_hanging(pair, RETRY_EXC_ERR);
            }
        }
    }

    fn end_hanging(&mut self, pair: u32, status: u32) {
        let Some(found) = self.pairs.get_mut(&pair) else {
            return;
        };
        found.hangs = false;
        let queue = found.queue;
        if let Some(job) = found.jobs.pop_front() {
            let mut done = ibv_wc::default();
            (done.wr_id, done.status, done.qp_num) = (job.id, status, pair);
            self.complete(queue, done);
        }
        self.fail(pair);
    }

    /// Copies the bytes of a job, one slice after the other, to an address.
    fn put(&self, job: &PostedWork, mut to: *mut u8) {
        if let Some(bytes) = &job.inline {
            // SAFETY: the range was checked for that many bytes.
            return unsafe { copy(to, bytes.as_ptr(), bytes.len()) };
        }
        for slice in &job.slices {
            let from = self.local(slice);
            // SAFETY: both ranges were checked for that many bytes.
            unsafe {
                copy(to, from, slice.length as usize);
                to = to.add(slice.length as usize);
            }
        }
    }

    fn write(&self, peer: u32, job: &PostedWork) -> u32 {
        let bytes = job.bytes();
        match self.reach(peer, job.key, job.address, bytes, IBV_ACCESS_REMOTE_WRITE) {
            // Nothing is checked of a WRITE of no bytes (IBTA 9.4.3).
            _ if bytes == 0 => SUCCESS,
            Some(to) => {
                self.put(job, to);
                SUCCESS
            }
            None => REM_ACCESS_ERR,
        }
    }

    fn read(&self, peer: u32, job: &PostedWork) -> u32 {
        let bytes = job.bytes();
        if bytes == 0 {
            return SUCCESS;
        }
        let from = self.reach(peer, job.key, job.address, bytes, IBV_ACCESS_REMOTE_READ);
        let Some(from) = from else {
            return REM_ACCESS_ERR;
        };
        let mut from = from.cast_const();
        for slice in &job.slices {
            let to = self.local(slice);
            // SAFETY: both ranges were checked for that many bytes.
            unsafe {
                copy(to, from, slice.length as usize);
                from = from.add(slice.length as usize);
            }
        }
        SUCCESS
    }

    fn atomic(&self, peer: u32, job: &PostedWork) -> u32 {
        let word = self.reach(peer, job.key, job.address, 8, IBV_ACCESS_REMOTE_ATOMIC);
        let Some(word) = word else {
            return REM_ACCESS_ERR;
        };
        if !job.address.is_multiple_of(8) {
            return REM_INV_REQ_ERR;
        }
        let Some(slice) = job.slices.first() else {
            return REM_INV_REQ_ERR;
        };
        // SAFETY: an aligned word of a region, used by atomics alone.
        let word = unsafe { &*word.cast::<AtomicU64>() };
        let [first, second] = job.operands;
        let before = if job.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
            word.fetch_add(first, Ordering::AcqRel)
        } else {
            let done = word.compare_exchange(first, second, Ordering::AcqRel, Ordering::Acquire);
            done.unwrap_or_else(|before| before)
        };
        let to = self.local(slice);
        // SAFETY: the slice was checked.
        unsafe { copy(to, before.to_ne_bytes().as_ptr(), 8) };
        SUCCESS
    }

    fn take_receive(&mut self, receives: usize) -> Option<(u64, Option<ibv_sge>)> {
        self.receives.get_mut(&receives)?.posted.pop_front()
    }

    fn announce(&mut self, peer: u32, queue: usize, receives: usize, job: &PostedWork) {
        let Some((id, _)) = self.take_receive(receives) else {
            return;
        };
        let mut done = ibv_wc::default();
        (done.wr_id, done.qp_num, done.opcode) = (id, peer, IBV_WC_RECV_RDMA_WITH_IMM);
        (done.imm_data, done.wc_flags) = (job.immediate, IBV_WC_WITH_IMM);
        done.byte_len = job.bytes() as u32;
        self.complete(queue, done);
    }

    fn send(&mut self, peer: u32, queue: usize, receives: usize, job: &PostedWork) -> u32 {
        let Some((id, into)) = self.take_receive(receives) else {
            return REM_INV_REQ_ERR;
        };
        let mut done = ibv_wc::default();
        (done.wr_id, done.qp_num, done.opcode) = (id, peer, IBV_WC_RECV);
        let room = into.map_or(0, |slice| u64::from(slice.length));
        if job.bytes() > room {
            done.status = LOC_LEN_ERR;
            self.complete(queue, done);
            return REM_INV_REQ_ERR;
        }
        if let Some(slice) = into {
            let Some(to) = self.place(slice.lkey, slice.addr, room, IBV_ACCESS_LOCAL_WRITE) else {
                done.status = LOC_PROT_ERR;
                self.complete(queue, done);
                return REM_INV_REQ_ERR;
            };
            self.put(job, to);
        }
        done.byte_len = job.bytes() as u32;
        if job.opcode == IBV_WR_SEND_WITH_IMM {
            (done.imm_data, done.wc_flags) = (job.immediate, IBV_WC_WITH_IMM);
        }
        self.complete(queue, done);
        SUCCESS
    }
}
