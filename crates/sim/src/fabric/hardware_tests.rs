//! Measurements of the hardware profile, as ratios and ranges of virtual time.

use super::scene::{LinkedNodes, NAMES};
use super::{
    CONNECTX5_ROCE, EPYC_7742, HardwareProfile, INFINIBAND, ONE_RMA, ProgramCounts, SimOptions,
};
use crate::stage::{Actor, ActorNetwork, Spent, Stopped, Then};
use farside_base::{
    Access, Capabilities, CompletionStatus, LocalSlice, Operation, Receive, RegionKind,
    RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, RegionSpec};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

fn cluster(nodes: usize) -> LinkedNodes {
    on(INFINIBAND, CONNECTX5_ROCE, nodes)
}

fn on(capabilities: Capabilities, hardware: HardwareProfile, nodes: usize) -> LinkedNodes {
    LinkedNodes::with(1, SimOptions::on_hardware(capabilities, hardware), nodes)
}

/// Posts a list in one call; only its last request is signaled.
fn post_list(scene: &mut LinkedNodes, from: usize, list: &[(usize, Operation<'_>)]) {
    let works: Vec<_> = list
        .iter()
        .enumerate()
        .map(|(at, (to, operation))| Work {
            id: WorkId(at as u64),
            link: scene.sides[from].links[*to].unwrap().0,
            flags: WorkFlags { signalled: at + 1 == list.len(), fence: false, awaited: false },
            operation: *operation,
        })
        .collect();
    let posted = scene.sides[from].port.post(&works);
    assert_eq!((posted.accepted, posted.stop), (list.len(), None));
}

fn inline(scene: &LinkedNodes, from: usize, to: usize, offset: u64) -> Operation<'static> {
    let (source, to) = (Source::Inline(&[9; 8]), scene.at(from, to, offset));
    Operation::Write { source, to, immediate: None }
}

/// Time until node `node` has polled `count` successful completions.
fn time_to_complete(scene: &mut LinkedNodes, node: usize, count: usize) -> u64 {
    let start_ns = scene.net.now_ns();
    let mut done = 0;
    while done < count {
        assert!(scene.net.step(), "{done} of {count}");
        let polled = scene.poll(node);
        assert!(polled.iter().all(|done| done.status == CompletionStatus::Success), "{polled:?}");
        done += polled.len();
    }
    scene.net.now_ns() - start_ns
}

/// Time until memory of node `node` has changed.
fn time_to_see(scene: &LinkedNodes, node: usize, offset: u64) -> u64 {
    let start_ns = scene.net.now_ns();
    let word = |scene: &LinkedNodes| scene.sides[node].region.arena.load(offset, Ordering::Acquire);
    let before = word(scene).unwrap();
    while word(scene).unwrap() == before {
        assert!(scene.net.step());
    }
    scene.net.now_ns() - start_ns
}

fn read_time(scene: &mut LinkedNodes, bytes: u32) -> u64 {
    let into = [scene.slice(0, 0, bytes)];
    let from = scene.at(0, 1, 0);
    scene.post(0, 1, 1, Operation::Read { into: &into, from });
    time_to_complete(scene, 0, 1)
}

fn write_time(scene: &mut LinkedNodes, bytes: u32) -> u64 {
    scene.write(0, 1, 1, 0, bytes);
    time_to_complete(scene, 0, 1)
}

#[test]
fn small_write_takes_half_and_read_over_one_round_trip() {
    let mut scene = cluster(2);
    let write = inline(&scene, 0, 1, 64);
    scene.post(0, 1, 1, write);
    let half_ns = time_to_see(&scene, 1, 64);
    assert!((900..=1_500).contains(&half_ns), "{half_ns}");
    scene.net.run_until_idle();
    scene.poll(0);
    scene.post(0, 1, 1, write);
    let write_ns = time_to_complete(&mut scene, 0, 1);
    let read_ns = read_time(&mut scene, 8);
    assert!(read_ns > write_ns && write_ns > half_ns, "{half_ns} {write_ns} {read_ns}");
    assert!((1_800..=2_600).contains(&read_ns), "{read_ns}");
}

#[test]
fn inline_bytes_save_the_bus_and_slices_cost() {
    let time = |slices: Option<u64>| {
        let mut scene = cluster(2);
        let each = 64 / slices.unwrap_or(1) as u32;
        let places: Vec<LocalSlice> =
            (0..slices.unwrap_or(0)).map(|at| scene.slice(0, 1_000 * at, each)).collect();
        let source = match slices {
            None => Source::Inline(&[9; 64]),
            Some(_) => Source::Gather(&places),
        };
        let write = Operation::Write { source, to: scene.at(0, 1, 64), immediate: None };
        scene.post(0, 1, 1, write);
        time_to_complete(&mut scene, 0, 1)
    };
    let (inline, one, eight) = (time(None), time(Some(1)), time(Some(8)));
    assert!(one >= inline + CONNECTX5_ROCE.pcie_read_ns, "{inline} {one}");
    assert_eq!(eight, one + 7 * CONNECTX5_ROCE.gather_ns);
}

#[test]
fn long_writes_fill_the_wire_but_for_headers() {
    for packet_bytes_max in [1_024, 4_096] {
        let hardware = HardwareProfile { packet_bytes_max, ..CONNECTX5_ROCE };
        let mut scene = on(INFINIBAND, hardware, 2);
        let slices = [scene.slice(0, 0, 65_536)];
        let (source, to) = (Source::Gather(&slices), scene.at(0, 1, 0));
        let write = Operation::Write { source, to, immediate: None };
        post_list(&mut scene, 0, &[(1, write); 128]);
        let ns = time_to_complete(&mut scene, 0, 1);
        let gbit = 128 * 65_536 * 8 / ns;
        let most = 100 * packet_bytes_max / (packet_bytes_max + CONNECTX5_ROCE.packet_header_bytes);
        assert!((u64::from(most) - 2..=u64::from(most)).contains(&gbit), "{gbit} of {most}");
    }
}

/// Time per request if each of `links` links of node 0 has 128 of them.
fn small_write_ns(links: usize) -> u64 {
    let mut scene = cluster(links + 1);
    let mut list = Vec::new();
    for _ in 0..128 {
        for to in 1..=links {
            list.push((to, inline(&scene, 0, to, 64)));
        }
    }
    let start_ns = scene.net.now_ns();
    post_list(&mut scene, 0, &list);
    scene.net.run_until_idle();
    (scene.net.now_ns() - start_ns) / (128 * links as u64)
}

#[test]
fn small_message_rate_is_limited_by_link_then_adapter() {
    let (one, eight) = (small_write_ns(1), small_write_ns(8));
    assert!((80..=100).contains(&one), "{one}");
    assert!((14..=18).contains(&eight), "{eight}");
}

#[test]
fn small_message_is_delayed_by_packets_not_messages() {
    let mut scene = cluster(3);
    let write = inline(&scene, 2, 1, 64);
    scene.post(2, 1, 1, write);
    let alone_ns = time_to_see(&scene, 1, 64);
    scene.net.run_until_idle();
    scene.fill(1, 64, 8, 0);
    // Saturates the same wires: node 0 writes to node 1, and node 2 to node 0.
    for _ in 0..8 {
        scene.write(0, 1, 1, 1_024, 60_000);
        scene.write(2, 0, 1, 1_024, 60_000);
    }
    scene.net.run_until_ns(scene.net.now_ns() + 10_000);
    scene.post(2, 1, 2, write);
    let loaded_ns = time_to_see(&scene, 1, 64);
    let packet_ns = (4_096 + 82) * 80 / 1_000 + 1;
    assert!(
        loaded_ns > alone_ns && loaded_ns <= alone_ns + 3 * packet_ns,
        "{alone_ns} {loaded_ns}"
    );
}

/// Time per message at a receiver with 8 senders of 8 messages each.
fn inbound_ns(how: impl Fn(&LinkedNodes, usize) -> Operation<'static>) -> u64 {
    let mut scene = cluster(9);
    for id in 0..64 {
        let into = scene.slice(0, 60_000, 8);
        let receive = Receive { id: WorkId(id), queue: scene.sides[0].queue, into };
        assert_eq!(scene.sides[0].port.post_receives(&[receive]).accepted, 1);
    }
    let start_ns = scene.net.now_ns();
    for from in 1..9 {
        let operation = how(&scene, from);
        post_list(&mut scene, from, &[(0, operation); 8]);
    }
    scene.net.run_until_idle();
    (scene.net.now_ns() - start_ns) / 64
}

#[test]
fn receives_cost_the_receiver() {
    let write = inbound_ns(|scene, from| inline(scene, from, 0, 64));
    let immediate = inbound_ns(|scene, from| Operation::Write {
        source: Source::Inline(&[9; 8]),
        to: scene.at(from, 0, 64),
        immediate: Some(1),
    });
    let send =
        inbound_ns(|_, _| Operation::Send { source: Source::Inline(&[9; 8]), immediate: None });
    assert!(send > write + 20 && immediate > write + 20, "{write} {immediate} {send}");
}

/// Registers a region of this kind at node 0, imported by all others.
fn region_for_all(
    scene: &mut LinkedNodes,
    kind: RegionKind,
) -> (farside_fabric::Arena, Vec<RemoteRegionId>) {
    let spec = RegionSpec { bytes: 4_096, access: Access::ALL, kind };
    let region = scene.net.fabric(NAMES[0]).register(&spec).unwrap();
    let others = 1..scene.sides.len();
    let imported = others.map(|from| {
        let side = &mut scene.sides[from];
        let (link, _) = side.links[0].unwrap();
        side.port.import(link, &region.token).unwrap()
    });
    let imported = imported.collect();
    (region.arena, imported)
}

/// Time per FETCH_ADD of 8 times 64 on one word.
fn fetch_add_ns(kind: RegionKind) -> u64 {
    let mut scene = cluster(9);
    let (arena, imported) = region_for_all(&mut scene, kind);
    let start_ns = scene.net.now_ns();
    for from in 1..9 {
        let at = RemoteSlice { region: imported[from - 1], offset: 8 };
        let add = Operation::FetchAdd { at, add: 1, into: scene.slice(from, 8, 8) };
        post_list(&mut scene, from, &[(0, add); 64]);
    }
    scene.net.run_until_idle();
    assert_eq!(arena.load(8, Ordering::Acquire).unwrap(), 8 * 64);
    assert_eq!(scene.net.marks().atomics_contended, 0, "the unit takes one at a time");
    (scene.net.now_ns() - start_ns) / (8 * 64)
}

#[test]
fn atomics_serialize_at_one_unit_and_are_faster_in_device_memory() {
    let (host, device) = (fetch_add_ns(RegionKind::Memory), fetch_add_ns(RegionKind::Device));
    assert!((420..=430).contains(&host), "{host}");
    assert!((90..=100).contains(&device), "{device}");
    assert!(host > 3 * device);
}

#[test]
fn memory_at_the_adapter_saves_the_bus() {
    let time = |kind| {
        let mut scene = cluster(2);
        let (_, imported) = region_for_all(&mut scene, kind);
        let from = RemoteSlice { region: imported[0], offset: 0 };
        let into = [scene.slice(1, 0, 8)];
        scene.post(1, 0, 1, Operation::Read { into: &into, from });
        time_to_complete(&mut scene, 1, 1)
    };
    let (host, device) = (time(RegionKind::Memory), time(RegionKind::Device));
    assert_eq!(host - device, CONNECTX5_ROCE.pcie_read_ns - CONNECTX5_ROCE.device_ns);
}

#[test]
fn bytes_sent_from_the_adapter_do_not_cross_the_bus() {
    let time = |kind| {
        let mut scene = cluster(2);
        let spec = RegionSpec { bytes: 4_096, access: Access::NONE, kind };
        let region = scene.net.fabric(NAMES[0]).register(&spec).unwrap();
        let slices = [LocalSlice { region: region.id, offset: 0, bytes: 1_000 }];
        let (source, to) = (Source::Gather(&slices), scene.at(0, 1, 0));
        scene.post(0, 1, 1, Operation::Write { source, to, immediate: None });
        time_to_complete(&mut scene, 0, 1)
    };
    let (host, device) = (time(RegionKind::Memory), time(RegionKind::Device));
    let bus_ns = 1_000 * CONNECTX5_ROCE.pcie_ps_per_byte / 1_000;
    assert_eq!(host - device, CONNECTX5_ROCE.pcie_read_ns + bus_ns);
}

#[test]
fn outstanding_reads_of_a_link_are_bounded() {
    let time = |fetches_max| {
        let mut scene = on(INFINIBAND, HardwareProfile { fetches_max, ..CONNECTX5_ROCE }, 2);
        let into = [scene.slice(0, 0, 8)];
        let read = Operation::Read { into: &into, from: scene.at(0, 1, 0) };
        post_list(&mut scene, 0, &[(1, read); 64]);
        time_to_complete(&mut scene, 0, 1)
    };
    let (one, sixteen, many) = (time(1), time(16), time(64));
    assert!(one > 64 * 1_500, "each waits for the one before: {one}");
    assert!(sixteen * 8 < one && many <= sixteen, "{one} {sixteen} {many}");
}

#[test]
fn a_write_by_read_takes_two_round_trips() {
    let mut scene = cluster(2);
    let (read_ns, plain_ns) = (read_time(&mut scene, 64), write_time(&mut scene, 64));
    let options =
        SimOptions { write_by_read: true, ..SimOptions::on_hardware(ONE_RMA, CONNECTX5_ROCE) };
    let mut scene = LinkedNodes::with(1, options, 2);
    let by_read_ns = write_time(&mut scene, 64);
    assert!(by_read_ns > plain_ns + 700 && by_read_ns > read_ns + 700, "{plain_ns} {by_read_ns}");
    assert_eq!(scene.net.marks().writes_read_back, 1);
}

/// Posts requests one by one or all at once, like a program without other work.
struct Poster {
    scene: Rc<RefCell<LinkedNodes>>,
    lists: Vec<Vec<usize>>,
    /// Work before each list, in nanoseconds.
    before_ns: u64,
}

impl Actor for Poster {
    fn run(&mut self) -> Spent {
        let mut scene = self.scene.borrow_mut();
        let Some(list) = self.lists.pop() else {
            return Spent { then: Then::End, ..Spent::NOTHING };
        };
        let list: Vec<_> = list.iter().map(|to| (*to, inline(&scene, 0, *to, 64))).collect();
        scene.net.spend_ns(self.before_ns);
        post_list(&mut scene, 0, &list);
        Spent::NOTHING
    }
}

/// Time until the last list is placed, and the busy time of the program.
fn posting_ns(before_ns: u64, lists: Vec<Vec<usize>>) -> (u64, u64) {
    let scene = Rc::new(RefCell::new(cluster(5)));
    let net = scene.borrow().net.clone();
    let start_ns = net.now_ns();
    net.take_counts(NAMES[0]);
    let requests: usize = lists.iter().map(Vec::len).sum();
    let work_ns = before_ns * lists.len() as u64;
    let mut stage = ActorNetwork::new(&net, EPYC_7742);
    let poster = stage.add(NAMES[0], Poster { scene: Rc::clone(&scene), lists, before_ns });
    assert_eq!(stage.run_until(u64::MAX, |_| false), Stopped::Stuck);
    let counts = net.take_counts(NAMES[0]);
    assert_eq!(counts.requests, requests as u64);
    let busy_ns = stage.busy_ns(poster).unwrap();
    assert_eq!(busy_ns, work_ns + EPYC_7742.port_ns(&counts) + 1, "plus one ns to end");
    (net.now_ns() - start_ns, busy_ns)
}

#[test]
fn one_doorbell_for_many_is_faster_than_one_for_each() {
    let each = (0..128).map(|at| vec![1 + at % 4]).collect();
    let all = vec![(0..128).map(|at| 1 + at % 4).collect()];
    let (each_ns, each_busy_ns) = posting_ns(0, each);
    let (all_ns, all_busy_ns) = posting_ns(0, all);
    assert!(each_ns > 3 * all_ns / 2, "{each_ns} {all_ns}");
    assert!(each_busy_ns > 3 * all_busy_ns, "{each_busy_ns} {all_busy_ns}");
}

#[test]
fn requests_are_posted_at_the_clock_of_their_program() {
    let lists = || vec![vec![1], vec![2]];
    let (soon_ns, _) = posting_ns(0, lists());
    let (late_ns, _) = posting_ns(5_000, lists());
    assert_eq!(late_ns, soon_ns + 2 * 5_000);
}

#[test]
fn program_operations_are_counted() {
    let mut scene = cluster(2);
    scene.net.take_counts(NAMES[0]);
    scene.receive(0, 1);
    scene.write(0, 1, 1, 0, 8);
    scene.send(1, 0, 2);
    scene.net.run_until_idle();
    assert_eq!(scene.poll(0).len(), 2);
    assert!(!scene.sides[0].port.arm());
    let counts = scene.net.take_counts(NAMES[0]);
    let expected = ProgramCounts {
        posts: 1,
        requests: 1,
        doorbells: 1,
        polls: 2,
        empty_polls: 1,
        completions: 2,
        receive_posts: 1,
        receives: 1,
        arms: 1,
    };
    assert_eq!(counts, expected);
    assert_eq!(scene.net.take_counts(NAMES[0]), ProgramCounts::default());
    scene.net.pause(NAMES[0]);
    scene.poll(0);
    assert_eq!(scene.net.take_counts(NAMES[0]), ProgramCounts::default(), "the program is paused");
}

/// One side of a ping-pong by WRITEs and polled memory.
struct Paddle {
    scene: Rc<RefCell<LinkedNodes>>,
    node: usize,
    round: u64,
    rounds: u64,
}

impl Actor for Paddle {
    fn run(&mut self) -> Spent {
        let mut scene = self.scene.borrow_mut();
        let word = scene.sides[self.node].region.arena.load(64, Ordering::Acquire).unwrap();
        // Node 0 begins; node 1 answers with the same number.
        let wanted = if self.node == 0 { self.round } else { self.round + 1 };
        if word != wanted {
            return Spent { loads: 1, then: Then::Poll, ..Spent::NOTHING };
        }
        if self.round == self.rounds {
            return Spent { then: Then::End, ..Spent::NOTHING };
        }
        self.round += 1;
        let bytes = self.round.to_ne_bytes();
        let (source, to) = (Source::Inline(&bytes), scene.at(self.node, 1 - self.node, 64));
        post_list(
            &mut scene,
            self.node,
            &[(1 - self.node, Operation::Write { source, to, immediate: None })],
        );
        scene.poll(self.node);
        Spent { misses: 1, ..Spent::NOTHING }
    }
}

/// Runs a ping-pong. Returns the time of all rounds, how often actors ran, and the net's fingerprint.
fn ping_pong(seed: u64, rounds: u64) -> (u64, u64, u64) {
    let options = SimOptions::on_hardware(INFINIBAND, CONNECTX5_ROCE);
    let scene = Rc::new(RefCell::new(LinkedNodes::with(seed, options, 2)));
    let net = scene.borrow().net.clone();
    let start_ns = net.now_ns();
    let mut stage = ActorNetwork::new(&net, EPYC_7742);
    for (node, name) in NAMES.iter().enumerate().take(2) {
        stage.add(name, Paddle { scene: Rc::clone(&scene), node, round: 0, rounds });
    }
    let ended =
        |stage: &ActorNetwork<Paddle>| stage.actor(0).is_none_or(|paddle| paddle.round > rounds);
    assert_eq!(stage.run_until(u64::MAX, ended), Stopped::Stuck);
    (stage.clock_ns(0).unwrap() - start_ns, stage.runs(), net.fingerprint())
}

#[test]
fn a_ping_pong_takes_two_halves_and_few_runs() {
    let (ns, runs, _) = ping_pong(1, 100);
    let round_ns = ns / 100;
    assert!((2_000..=3_000).contains(&round_ns), "{round_ns}");
    assert!(runs < 100 * 16, "unsuccessful polls are skipped: {runs}");
}

#[test]
fn schedule_is_independent_of_seed() {
    assert_eq!(ping_pong(1, 20), ping_pong(1, 20));
    assert_eq!(ping_pong(1, 20), ping_pong(2, 20));
    let twice = || (fetch_add_ns(RegionKind::Memory), small_write_ns(3));
    assert_eq!(twice(), twice());
}
