//! FLUSH to persistent memory: on ordinary memory such a region is refused; on a guest's emulated
//! NVDIMM (`RDMA_PMEM`, for example `/dev/dax0.0`) a WRITE, a persistent FLUSH and an ATOMIC WRITE are
//! posted with one doorbell, and the next guest on the same NVDIMM finds the bytes
//! (`FARSIDE_NVDIMM_ROUND` is the number of guests that have written there before). Without FLUSH
//! (`plain_posting` has none) a READ after the WRITE replaces it as far as possible. Without a device,
//! or without FLUSH, the tests report so and pass.

mod common;

use common::skipped;
use farside_base::{
    Access, Completion, CompletionKind, CompletionStatus, FlushScope, FlushWay, LinkId, LocalSlice,
    Operation, RegionKind, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::{Arena, Fabric, FabricError, LinkEvent, Port, PortSpec, RegionSpec, Stop};
use farside_fabric_verbs::{Options, VerbsFabric, map_device};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longer than everything that is waited for, on however slow a machine.
const WATCHDOG: Duration = Duration::from_secs(60);
const NVDIMM_BYTES: usize = 2 << 20;
/// The offset of the word with the number of the last complete round.
const MARK: u64 = 8192;
/// A mark's upper half.
const MAGIC: u64 = 0xfa51_de00;

fn fabric() -> Option<VerbsFabric> {
    let fabric = VerbsFabric::open(options()).ok()?;
    (fabric.capabilities().flush == FlushScope::Persistent).then_some(fabric)
}

fn options() -> Options {
    let mut options = Options::new(Security::open());
    options.listen = Some("127.0.0.1:0".parse::<Endpoint>().expect("an endpoint"));
    options.lease = Duration::from_secs(5);
    options
}

/// Returns two ports of a fabric with a link between them: the caller's, its link, and the other port.
fn pair(fabric: &VerbsFabric) -> (Box<dyn Port>, LinkId, Box<dyn Port>) {
    let mut far = fabric.open(&PortSpec { listen: Some("far".to_owned()) }).expect("a port");
    let mut near = fabric.open(&PortSpec::default()).expect("a port");
    let queue = near.create_receive_queue(4).expect("a queue");
    let far_queue = far.create_receive_queue(4).expect("a queue");
    let link = near.connect("far", b"", queue).expect("a call");
    let LinkEvent::Requested { link: there, .. } = event(&mut *far) else { panic!("no request") };
    far.accept(there, b"", far_queue).expect("to accept");
    assert!(matches!(event(&mut *near), LinkEvent::Connected { .. }));
    (near, link, far)
}

fn event(port: &mut dyn Port) -> LinkEvent {
    let (start, mut events) = (Instant::now(), Vec::new());
    while events.is_empty() {
        assert!(start.elapsed() < WATCHDOG, "no link event");
        port.link_events(&mut events);
        std::thread::yield_now();
    }
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn completions(port: &mut dyn Port, count: usize) -> Vec<Completion> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while all.len() < count {
        assert!(start.elapsed() < WATCHDOG, "no completion");
        let mut out = [Completion::BLANK; 4];
        let taken = port.poll(&mut out);
        all.extend(&out[..taken]);
        std::thread::yield_now();
    }
    all
}

#[test]
fn memory_that_cannot_persist_is_refused() {
    let Some(fabric) = fabric() else {
        skipped("no RDMA device with persistent FLUSH");
        return;
    };
    let access = Access::WRITE.with(Access::FLUSH_PERSISTENT);
    let spec = RegionSpec { bytes: 4096, access, kind: RegionKind::Memory };
    let refused = fabric.register(&spec);
    let Err(error @ FabricError::Lacks("persistent memory")) = refused else {
        panic!("{refused:?}");
    };
    assert!(error.to_string().contains("DAX"), "{error}");
    // Of memory that is brought, the adapter judges.
    let refused = fabric.register_memory(Arena::heap(4096), access);
    let Err(error @ FabricError::System(..)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("/dev/dax"), "{error}");
    let access = Access::WRITE.with(Access::FLUSH);
    fabric.register(&RegionSpec { access, ..spec }).expect("visible to all is had");
}

#[test]
#[allow(clippy::print_stdout, reason = "says what was skipped, and what was found")]
fn bytes_mark_and_flush_go_with_one_doorbell_and_stay() {
    let path = std::env::var_os("RDMA_PMEM").or_else(|| std::env::var_os("RXE_PMEM"));
    let (Some(path), Some(fabric)) = (path.map(PathBuf::from), fabric()) else {
        skipped("no RDMA_PMEM, or no RDMA device with persistent FLUSH");
        return;
    };
    let nvdimm = map_device(&path, NVDIMM_BYTES).expect("the NVDIMM");
    let mark = nvdimm.load(MARK, Ordering::Acquire).expect("a word");
    let round = if mark >> 32 == MAGIC { mark & 0xffff_ffff } else { 0 };
    if let Ok(before) = std::env::var("FARSIDE_NVDIMM_ROUND") {
        assert_eq!(before.parse(), Ok(round), "what guests before this one have left");
    }
    if round > 0 {
        let mut found = vec![0; 4096];
        nvdimm.read(0, &mut found).expect("within the NVDIMM");
        assert!(found.iter().all(|byte| u64::from(*byte) == round & 0xff), "what was written");
        println!("found round {round} of an earlier guest, whole");
    }
    let round = round + 1;
    let access =
        Access::READ.with(Access::WRITE).with(Access::FLUSH).with(Access::FLUSH_PERSISTENT);
    let region = fabric.register_memory(nvdimm, access).expect("persistent memory");
    let spec = RegionSpec { bytes: 4096, access: Access::NONE, kind: RegionKind::Memory };
    let local = fabric.register(&spec).expect("a region");
    local.arena.write(0, &vec![round as u8; 4096]).expect("all of it");
    let (mut near, link, _far) = pair(&fabric);
    let remote = near.import(link, &region.token).expect("a region");
    let at = |offset| RemoteSlice { region: remote, offset };
    let slices = [LocalSlice { region: local.id, offset: 0, bytes: 4096 }];
    let (source, scope) = (Source::Gather(&slices), FlushScope::Persistent);
    let operations = [
        Operation::Write { source, to: at(0), immediate: None },
        Operation::Flush { from: at(0), bytes: 4096, scope },
        Operation::AtomicWrite { to: at(MARK), value: MAGIC << 32 | round },
        Operation::Flush { from: at(MARK), bytes: 8, scope },
    ];
    let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
    let work = operations.map(|operation| Work { id: WorkId(1), link, flags, operation });
    assert_eq!(near.post(&work).accepted, 4);
    let done = completions(&mut *near, 4);
    let kinds: Vec<_> = done.iter().map(|done| (done.kind, done.status)).collect();
    let success = CompletionStatus::Success;
    let (write, flush) = (CompletionKind::Write, CompletionKind::Flush);
    let word = CompletionKind::AtomicWrite;
    assert_eq!(kinds, [write, flush, word, flush].map(|kind| (kind, success)));
    assert_eq!(region.arena.load(MARK, Ordering::Acquire), Ok(MAGIC << 32 | round));
    println!("wrote round {round}");
}

fn signalled(link: LinkId, operation: Operation<'_>) -> Work<'_> {
    let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
    Work { id: WorkId(1), link, flags, operation }
}

/// The texts and behaviour of a fabric without FLUSH, on any device.
#[test]
fn without_flush_a_read_behind_a_write_makes_it_visible_and_nothing_makes_it_persistent() {
    let plain = Options { plain_posting: true, ..options() };
    let Ok(fabric) = VerbsFabric::open(plain) else {
        skipped("no RDMA device");
        return;
    };
    let has = fabric.capabilities();
    assert_eq!((has.flush, has.atomic_write), (FlushScope::None, false));
    assert_eq!(has.flush_way(FlushScope::Visible), FlushWay::Read);
    assert_eq!(has.flush_way(FlushScope::Persistent), FlushWay::Target);
    for (access, name) in [(Access::FLUSH, "flush"), (Access::FLUSH_PERSISTENT, "persistent flush")]
    {
        let refused = fabric.register_memory(Arena::heap(4096), Access::WRITE.with(access));
        let Err(error @ FabricError::Lacks(lacking)) = refused else { panic!("{refused:?}") };
        assert!(lacking == name && error.to_string().contains("flush_way"), "{error}");
    }
    let spec = RegionSpec { bytes: 8192, access: Access::ALL, kind: RegionKind::Memory };
    let (region, local) = (fabric.register(&spec), fabric.register(&spec));
    let (region, local) = (region.expect("a region"), local.expect("a region"));
    let (mut near, link, _far) = pair(&fabric);
    let remote = near.import(link, &region.token).expect("a region");
    let at = RemoteSlice { region: remote, offset: 0 };
    for scope in [FlushScope::Visible, FlushScope::Persistent] {
        let posted = near.post(&[signalled(link, Operation::Flush { from: at, bytes: 8, scope })]);
        assert_eq!((posted.accepted, posted.stop), (0, Some(Stop::Invalid("lacks flush"))));
    }
    let of = |offset, bytes| [LocalSlice { region: local.id, offset, bytes }];
    for round in 1..=50_u8 {
        local.arena.write(0, &[round; 4096]).expect("within it");
        let (from, into) = (of(0, 4096), of(4096, 1));
        let write = Operation::Write { source: Source::Gather(&from), to: at, immediate: None };
        let silent = Work { flags: WorkFlags::default(), ..signalled(link, write) };
        let read = signalled(link, Operation::Read { into: &into, from: at });
        let posted = near.post(&[silent, read]);
        assert_eq!(posted.accepted, 2);
        let done = completions(&mut *near, 1);
        let expected = (CompletionKind::Read, CompletionStatus::Success);
        assert_eq!((done[0].kind, done[0].status), expected);
        let mut found = [0; 4096];
        region.arena.read(0, &mut found).expect("within it");
        assert!(found == [round; 4096], "the READ came before the WRITE, round {round}");
    }
}
