//! Remote persistent writes on the simulated fabric: whatever a loss of power keeps of what nothing has confirmed, an
//! acknowledged write is there, and a commit word is never there without its records.

use farside::durable::remote::{
    CommitWord, Known, PersistCost, PersistPiece, RemoteHint, RemoteHints, RemotePersist,
    RemotePersistOptions, RemotePlan, RemotePlanner, RemoteStore, RemoteStoreOptions, RemoteWay,
    RemoteWrite, StorableMemory, TargetFacts,
};
use farside_base::{
    Access, Capabilities, Completion, LinkId, Random, ReceiveQueueId, RegionId, RegionKind,
    RemoteSlice,
};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use farside_sim::fabric::{
    CrashDomain, HardwareProfile, NvmProfile, OPTANE_CX5, OPTANE_NVM, SimNet, SimOptions,
    VERBS_CONNECTX5, VERBS_FLUSH,
};
use farside_sim::seeds;
use std::io;
use std::sync::{Arc, Mutex};

const SLOT: u64 = 4_096;
const WRITES: u64 = 6;
/// Offset of the commit word in its slot.
const WORD: u64 = SLOT - 64;

/// A way, the machine on which it is right, and what is known of that.
#[derive(Clone, Debug)]
struct PersistCase {
    way: RemoteWay,
    capabilities: Capabilities,
    domain: CrashDomain,
    facts: TargetFacts,
    hints: RemoteHints,
}

fn cases() -> Vec<PersistCase> {
    let facts = |ddio, caches_persist, has_program| TargetFacts {
        ddio,
        adapter_writes: Known::Yes,
        caches_persist,
        has_program,
        ..TargetFacts::optane()
    };
    let on = CrashDomain { ddio: true, caches_persist: false };
    let off = CrashDomain { ddio: false, caches_persist: false };
    let caches = CrashDomain { ddio: true, caches_persist: true };
    let (plain, flush) = (VERBS_CONNECTX5, VERBS_FLUSH);
    let no_word = Capabilities { atomic_write: false, ..VERBS_FLUSH };
    let unknown = facts(Known::Unknown, Known::Unknown, false);
    let by_program = facts(Known::Unknown, Known::Unknown, true);
    let is_off = facts(Known::No, Known::No, false);
    let mut all = Vec::new();
    for (way, capabilities, domain, facts) in [
        (RemoteWay::Flush, flush, on, unknown.clone()),
        (RemoteWay::Flush, flush, off, unknown.clone()),
        (RemoteWay::Flush, no_word, on, unknown),
        (RemoteWay::Read, plain, off, is_off),
        (RemoteWay::Read, plain, caches, facts(Known::Yes, Known::Yes, false)),
        (RemoteWay::Program, plain, on, by_program.clone()),
        (RemoteWay::Program, plain, off, by_program),
    ] {
        for hints in [
            RemoteHints::ALL,
            RemoteHints::ALL.without(RemoteHint::H9),
            RemoteHints::ALL.without(RemoteHint::H4).without(RemoteHint::H7),
        ] {
            all.push(PersistCase { way, capabilities, domain, facts: facts.clone(), hints });
        }
    }
    all
}

/// Persistent memory of the target, stored to by its program. It remembers what crashes within its calls would leave.
struct TrackedMemory {
    net: SimNet,
    region: RegionId,
    random: Random,
    images: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl TrackedMemory {
    fn store_by(&mut self, at: u64, bytes: &[u8], is_non_temporal: bool) -> io::Result<()> {
        let stored = self.net.store_tracked("b", self.region, at, bytes, is_non_temporal);
        stored.map_err(|_| io::ErrorKind::InvalidInput)?;
        for _ in 0..4 {
            let random = &mut self.random;
            let image = self.net.crash_image("b", self.region, &mut |count| random.index(count));
            self.images.lock().unwrap().push(image);
        }
        Ok(())
    }
}

impl StorableMemory for TrackedMemory {
    fn bytes(&self) -> u64 {
        (WRITES + 1) * SLOT
    }

    fn store_non_temporal(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.store_by(at, bytes, true)
    }

    fn store(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.store_by(at, bytes, false)
    }

    fn write_back(&mut self, at: u64, bytes: u64) -> io::Result<()> {
        self.net.write_back_tracked("b", self.region, at, bytes);
        Ok(())
    }

    fn fence(&mut self) {
        self.net.fence_tracked("b", self.region);
    }
}

/// A write that was started.
struct Started {
    at: u64,
    bytes: Vec<u8>,
    word: Option<u64>,
    is_kept: bool,
}

/// A requester and a target with persistent memory.
struct PersistScene {
    net: SimNet,
    requester: Box<dyn Port>,
    target: Box<dyn Port>,
    memory: Region,
    to: RemoteSlice,
    persist: RemotePersist,
    store: RemoteStore,
    images: Arc<Mutex<Vec<Vec<u8>>>>,
    started: Vec<Started>,
    random: Random,
}

fn register(fabric: &dyn Fabric, bytes: u64, access: Access) -> Region {
    fabric.register(&RegionSpec { bytes, access, kind: RegionKind::Memory }).unwrap()
}

fn connect(
    net: &SimNet,
    requester: &mut dyn Port,
    target: &mut dyn Port,
    (here, there): (ReceiveQueueId, ReceiveQueueId),
) -> LinkId {
    let link = requester.connect("b", b"", here).unwrap();
    net.run_until_idle();
    let mut events = Vec::new();
    target.link_events(&mut events);
    let Some(LinkEvent::Requested { link: incoming, .. }) = events.pop() else {
        panic!("no request");
    };
    target.accept(incoming, b"", there).unwrap();
    net.run_until_idle();
    requester.link_events(&mut events);
    assert_eq!(events.len(), 1);
    link
}

impl PersistScene {
    fn new(seed: u64, case: &PersistCase, options: SimOptions) -> Self {
        let net = SimNet::new(seed, options);
        if options.hardware.is_some() {
            net.place_persistent("b", true).unwrap();
        }
        net.track_crashes("b", Some(case.domain));
        let (here, there) = (net.fabric("a"), net.fabric("b"));
        let flush = case.capabilities.flush == farside_base::FlushScope::Persistent;
        let access = if flush { Access::ALL.with(Access::FLUSH_PERSISTENT) } else { Access::ALL };
        let memory = register(&*there, (WRITES + 1) * SLOT, access);
        net.track_crashes("b", None);
        let open = |fabric: &dyn Fabric, name: &str| {
            let mut port = fabric.open(&PortSpec { listen: Some(name.to_owned()) }).unwrap();
            let queue = port.create_receive_queue(64).unwrap();
            (port, queue)
        };
        let ((mut requester, here_queue), (mut target, there_queue)) =
            (open(&*here, "a"), open(&*there, "b"));
        let link = connect(&net, &mut *requester, &mut *target, (here_queue, there_queue));
        let region = requester.import(link, &memory.token).unwrap();
        let images = Arc::default();
        let tracked = TrackedMemory {
            net: net.clone(),
            region: memory.id,
            random: Random::new(seed),
            images: Arc::clone(&images),
        };
        let options = RemoteStoreOptions { first_id: 1_000, slots: 4, message_bytes_max: 8_192 };
        let buffer = register(&*there, options.buffer_bytes(), Access::NONE);
        let tracked = Box::new(tracked);
        let store = RemoteStore::new(&mut *target, there_queue, buffer, tracked, options).unwrap();
        let buffer = register(&*here, RemotePersist::buffer_bytes(SLOT, 4), Access::NONE);
        let options = RemotePersistOptions { first_id: 1, receives: Some(here_queue) };
        Self {
            persist: RemotePersist::new(link, buffer, options),
            to: RemoteSlice { region, offset: 0 },
            random: Random::new(seed ^ 0x7065_7273),
            started: Vec::new(),
            net,
            requester,
            target,
            memory,
            store,
            images,
        }
    }

    /// Starts a write of one or two pieces.
    fn start(&mut self, plan: &RemotePlan, has_word: bool) {
        let (slot, write) = (self.started.len() as u64, plan.write());
        let bytes: Vec<u8> = (0..write.bytes).map(|_| self.random.between(1, 255) as u8).collect();
        let (first, second) = bytes.split_at(self.random.index(bytes.len()));
        let at = |offset| RemoteSlice { offset: write.offset + offset, ..self.to };
        let pieces = [
            PersistPiece { bytes: first, to: at(0) },
            PersistPiece { bytes: second, to: at(first.len() as u64) },
        ];
        let pieces = if first.is_empty() { &pieces[1..] } else { &pieces[..] };
        let value = u64::from_ne_bytes([slot as u8 + 1; 8]);
        let to = RemoteSlice { offset: slot * SLOT + WORD, ..self.to };
        let word = has_word.then_some(CommitWord { to, value });
        self.persist.start(&mut *self.requester, plan, pieces, word).unwrap();
        let word = word.map(|word| word.value);
        self.started.push(Started { at: write.offset, bytes, word, is_kept: false });
    }

    /// Checks what a crash would leave.
    fn check(&self, image: &[u8]) -> Result<(), String> {
        for (number, write) in self.started.iter().enumerate() {
            let slot = number * SLOT as usize;
            let at = write.at as usize;
            let is_there = image[at..at + write.bytes.len()] == write.bytes;
            if write.is_kept && !is_there {
                return Err(format!("write {number} was acknowledged and is lost"));
            }
            let Some(value) = write.word else {
                continue;
            };
            let word = &image[slot + WORD as usize..][..8];
            match u64::from_ne_bytes(word.try_into().unwrap()) {
                0 if write.is_kept => return Err(format!("word {number} is lost")),
                0 => {}
                found if found != value => return Err(format!("word {number} is torn")),
                _ if !is_there => return Err(format!("word {number} without its records")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Crashes at this moment: with all subsets of the unkept lines if they are few, else with some.
    fn crash(&mut self) -> Result<(), String> {
        let lines = self.net.unkept_lines("b", self.memory.id).len();
        let subsets = if lines <= 4 { 1 << lines } else { 12 };
        for subset in 0..subsets {
            let (random, mut line) = (&mut self.random, 0);
            let image = self.net.crash_image("b", self.memory.id, &mut |count| {
                let bit = subset >> line & 1;
                line += 1;
                match subset {
                    0 => 0,
                    _ if lines > 4 => random.index(count),
                    _ => {
                        if bit == 1 {
                            count - 1
                        } else {
                            0
                        }
                    }
                }
            });
            self.check(&image)?;
        }
        Ok(())
    }

    /// Steps until the write has ended; crashes at some moments on the way.
    fn finish(&mut self) -> Result<PersistCost, String> {
        loop {
            if !self.net.step() {
                return Err(format!("write {} never ends", self.started.len() - 1));
            }
            let mut done = [Completion::BLANK; 8];
            let count = self.target.poll(&mut done);
            for completion in &done[..count] {
                self.store.on_completion(&mut *self.target, completion).unwrap();
            }
            for image in std::mem::take(&mut *self.images.lock().unwrap()) {
                self.check(&image)?;
            }
            let count = self.requester.poll(&mut done);
            for completion in &done[..count] {
                assert!(self.persist.on_completion(&mut *self.requester, completion));
            }
            self.persist.post(&mut *self.requester);
            if let Some(outcome) = self.persist.take_outcome() {
                let cost = outcome.map_err(|error| error.to_string())?;
                if let Some(write) = self.started.last_mut() {
                    write.is_kept = true;
                }
                self.crash()?;
                return Ok(cost);
            }
            if self.random.below(8) == 0 {
                self.crash()?;
            }
        }
    }
}

/// Performs some writes of one case.
fn run(seed: u64, case: &PersistCase, options: SimOptions) -> Result<(), String> {
    let mut cluster = PersistScene::new(seed, case, options);
    let mut planner = RemotePlanner::new(case.capabilities, case.facts.clone()).hints(case.hints);
    for slot in 0..WRITES {
        let random = &mut cluster.random;
        let bytes = *random.pick(&[8, 16, 64, 100, 256, 300, 2_000]);
        let offset = slot * SLOT + *random.pick(&[0, 0, 8, 64]);
        let room = WORD - offset % SLOT;
        let has_word = random.below(2) == 0;
        let write = match has_word {
            true => RemoteWrite::commit(offset, bytes, room),
            false => RemoteWrite::record(offset, bytes, room),
        };
        let plan = planner.plan(&write).map_err(|error| error.to_string())?;
        cluster.start(&plan, has_word);
        cluster.finish().map_err(|why| format!("{why}\n{}", plan.explain()))?;
    }
    Ok(())
}

/// The same on the hardware of 002, whose persistent memory agrees with the case.
fn optane(case: &PersistCase) -> SimOptions {
    let CrashDomain { ddio, caches_persist } = case.domain;
    let nvm = NvmProfile { ddio, caches_persist, ..OPTANE_NVM };
    let hardware = HardwareProfile { nvm: Some(nvm), ..OPTANE_CX5 };
    SimOptions::on_hardware(case.capabilities, hardware)
}

#[test]
fn acknowledged_writes_survive_any_loss_of_power() {
    let command = "cargo test -p farside-sim --test remote_persist acknowledged";
    seeds::each_seed(command, 60, |seed| {
        for case in cases() {
            run(seed, &case, SimOptions::draw(seed, case.capabilities))
                .map_err(|why| format!("{why}\n{:?} {:?}", case.way, case.domain))?;
        }
        Ok(())
    });
}

#[test]
fn acknowledged_writes_survive_on_the_hardware_of_002() {
    for case in cases() {
        for seed in 1..6 {
            let outcome = run(seed, &case, optane(&case));
            assert_eq!(outcome, Ok(()), "seed {seed} {:?}", case.way);
        }
    }
}

/// Requests, doorbells and round trips of each way; and the messages of the target's program.
#[test]
fn costs_are_counted_by_way() {
    let cost = |work_requests, doorbells, round_trips| PersistCost {
        work_requests,
        doorbells,
        round_trips,
    };
    let without = RemoteHints::ALL.without(RemoteHint::H9);
    for case in cases() {
        let has_word_request = case.capabilities.atomic_write;
        let is_batched = case.hints != without;
        let (record, commit) = match case.way {
            RemoteWay::Program => (cost(1, 1, 1), cost(1, 1, 1)),
            RemoteWay::Flush if is_batched && has_word_request => (cost(2, 1, 1), cost(4, 1, 1)),
            _ if is_batched => (cost(2, 1, 1), cost(4, 2, 2)),
            _ => (cost(2, 2, 2), cost(4, 4, 4)),
        };
        let mut cluster = PersistScene::new(1, &case, optane(&case));
        let mut planner =
            RemotePlanner::new(case.capabilities, case.facts.clone()).hints(case.hints);
        for (has_word, expected) in [(false, record), (true, commit)] {
            let offset = cluster.started.len() as u64 * SLOT;
            let write = match has_word {
                true => RemoteWrite::commit(offset, 8, 64),
                false => RemoteWrite::record(offset, 8, 64),
            };
            let plan = planner.plan(&write).unwrap();
            assert_eq!(plan.way(), case.way);
            cluster.net.take_counts("a");
            // One piece.
            let to = RemoteSlice { offset, ..cluster.to };
            let word = CommitWord { to: RemoteSlice { offset: offset + WORD, ..to }, value: 1 };
            let word = has_word.then_some(word);
            let pieces = [PersistPiece { bytes: &[7; 8], to }];
            cluster.persist.start(&mut *cluster.requester, &plan, &pieces, word).unwrap();
            let started = Started {
                at: offset,
                bytes: vec![7; 8],
                word: word.map(|one| one.value),
                is_kept: false,
            };
            cluster.started.push(started);
            assert_eq!(cluster.finish(), Ok(expected), "{}", plan.explain());
            let counts = cluster.net.take_counts("a");
            let found = (counts.requests, counts.doorbells);
            let expected = (u64::from(expected.work_requests), u64::from(expected.doorbells));
            assert_eq!(found, expected, "{}", plan.explain());
        }
        assert_eq!(cluster.store.stored(), if case.way == RemoteWay::Program { 2 } else { 0 });
    }
}

/// Messages and READs alternate, on a machine where both are right: the completion of a SEND may come after its answer,
/// and ends nothing of the next write.
fn run_mixed(seed: u64) -> Result<(), String> {
    let off = CrashDomain { ddio: false, caches_persist: false };
    let case = cases().into_iter().find(|one| one.way == RemoteWay::Program && one.domain == off);
    let case = case.unwrap();
    let mut scene = PersistScene::new(seed, &case, SimOptions::draw(seed, case.capabilities));
    let (ddio, adapter_writes) = (Known::No, Known::Yes);
    let is_off = TargetFacts { ddio, adapter_writes, has_program: false, ..TargetFacts::optane() };
    let facts = [case.facts, is_off];
    for slot in 0..WRITES {
        let facts = &facts[slot as usize % 2];
        let write = RemoteWrite::record(slot * SLOT, 256, 256);
        let plan = RemotePlan::choose(&case.capabilities, facts, RemoteHints::ALL, &write).unwrap();
        scene.start(&plan, false);
        scene.finish()?;
    }
    Ok(())
}

#[test]
fn ways_may_change_between_writes() {
    let command = "cargo test -p farside-sim --test remote_persist ways_may";
    seeds::each_seed(command, 200, run_mixed);
}

/// With facts that are wrong, crash images lose acknowledged writes: a READ confirms nothing where DDIO is on.
#[test]
fn reads_confirm_nothing_with_ddio() {
    let wrong_facts = PersistCase {
        domain: CrashDomain { ddio: true, caches_persist: false },
        ..cases().into_iter().find(|case| case.way == RemoteWay::Read).unwrap()
    };
    let options = |seed| SimOptions::draw(seed, wrong_facts.capabilities);
    let found = (1..20).find_map(|seed| run(seed, &wrong_facts, options(seed)).err());
    let found = found.expect("a fact that is wrong loses acknowledged writes");
    assert!(found.contains("lost"), "{found}");
}

/// The program refuses bytes outside of its memory, and the requester says so.
#[test]
fn writes_outside_of_the_memory_are_refused() {
    for case in cases() {
        let mut cluster = PersistScene::new(3, &case, SimOptions::draw(3, case.capabilities));
        let mut planner = RemotePlanner::new(case.capabilities, case.facts.clone());
        let offset = (WRITES + 1) * SLOT - 64;
        let plan = planner.plan(&RemoteWrite::record(offset, 128, 128)).unwrap();
        let to = RemoteSlice { offset, ..cluster.to };
        let pieces = [PersistPiece { bytes: &[7; 128], to }];
        cluster.persist.start(&mut *cluster.requester, &plan, &pieces, None).unwrap();
        let error = cluster.finish().unwrap_err();
        assert!(error.contains("access"), "{error}");
        let again = cluster.persist.start(&mut *cluster.requester, &plan, &pieces, None);
        assert!(again.is_err(), "the link is of no further use");
    }
}

#[cfg(canary)]
mod canary {
    use super::*;
    use farside::canary::{NodeMutant, plant};

    /// Finds a defect within some seeds of the cases of a way.
    fn find(mutant: NodeMutant, way: RemoteWay) -> Option<String> {
        plant(Some(mutant));
        let found = (1..40).find_map(|seed| {
            let mut all = cases().into_iter().filter(|case| case.way == way);
            all.find_map(|case| run(seed, &case, SimOptions::draw(seed, case.capabilities)).err())
        });
        plant(None);
        found
    }

    #[test]
    fn canary_remote_completion_of_another_write_is_found() {
        plant(Some(NodeMutant::RemoteSendEndsStep));
        let found = (1..500).find_map(|seed| run_mixed(seed).err());
        plant(None);
        assert!(found.is_some_and(|why| why.contains("lost")));
    }

    /// Each confirmation that is left out loses an acknowledged write, or shows a word without its records.
    #[test]
    fn canary_remote_writes_without_a_confirmation_are_found() {
        for (mutant, way, text) in [
            (NodeMutant::RemoteNotFlushed, RemoteWay::Flush, "lost"),
            (NodeMutant::RemoteWordNotFlushed, RemoteWay::Flush, "lost"),
            (NodeMutant::RemoteNotRead, RemoteWay::Read, "lost"),
            (NodeMutant::RemoteReadUnknown, RemoteWay::Program, "lost"),
            (NodeMutant::RemoteStoreNotWrittenBack, RemoteWay::Program, "lost"),
            (NodeMutant::RemoteStoreNotFenced, RemoteWay::Program, "lost"),
            (NodeMutant::RemoteStoreWordNotBehind, RemoteWay::Program, "without its records"),
        ] {
            let found = find(mutant, way).unwrap_or_default();
            let is_found = found.contains(text) || found.contains("without its records");
            assert!(is_found, "{mutant:?} is not found: {found}");
        }
    }
}
