//! The death of a home leaves no state behind at the other nodes.

use farside::{
    AllocationHint, AllocationSpec, Config, ErrorCode, GlobalAddress, LineSize, Node, Session,
};
use farside_fabric::{Fabric, FaultFabric, FaultPlan, MemFabric};
use farside_fabric_shm::ShmFabric;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Makes the fabric of a node.
type Make<'a> = dyn Fn() -> Arc<dyn Fabric> + Sync + 'a;

const PATIENCE: Duration = Duration::from_secs(20);
const LINE: LineSize = LineSize::DEFAULT;
/// Frames of the survivors' caches.
const FRAMES: usize = 16;
/// Lines of the dying home and of the surviving one: several times as many.
const LINES: usize = 4 * FRAMES;
/// Asynchronous writes that a session has in flight before it waits for the oldest.
const IN_FLIGHT: usize = 16;

fn config(name: &str) -> Config {
    Config::new(format!("{name}-{}", std::process::id()))
        .memory_bytes(1 << 20)
        .cache_bytes((FRAMES * LINE.bytes()) as u64)
}

/// A fabric on which a node receives no message: requests to it stay in flight.
fn deaf(inner: Arc<dyn Fabric>) -> Arc<dyn Fabric> {
    let plan = FaultPlan { completion_delay_polls_max: u32::MAX, ..FaultPlan::default() };
    Arc::new(FaultFabric::new(inner, plan))
}

/// Runs `act` on another thread while this one drives the node.
fn while_driving<T: Send>(node: &Node, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| {
        let acting = threads.spawn(act);
        while !acting.is_finished() {
            node.progress();
            std::thread::yield_now();
        }
        acting.join().unwrap()
    })
}

/// The lines of an allocation at the node that made it.
fn lines(node: &Node) -> Vec<GlobalAddress> {
    let bytes = (LINES * LINE.bytes()) as u64;
    let spec = AllocationSpec::new(AllocationHint::Local).line_size(Some(LINE));
    let first = node.session().unwrap().alloc_with(bytes, spec).unwrap();
    let nth = |number| first.checked_add((number * LINE.bytes()) as u64).unwrap();
    (0..LINES).map(nth).collect()
}

fn wait_for_deaths(node: &Node, alive: usize) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while node.members().iter().filter(|member| member.alive).count() > alive {
        assert!(std::time::Instant::now() < deadline, "not noticed: {}", node.describe());
        std::thread::yield_now();
    }
}

/// Fills the cache with lines of a living home, several times; all frames must be usable.
fn use_every_frame(node: &Node, lines: Vec<GlobalAddress>) {
    let (sender, done) = channel();
    let mut session = node.session().unwrap();
    std::thread::spawn(move || {
        for round in 0..4_u64 {
            for (number, line) in lines.iter().enumerate() {
                session.write_u64(*line, round << 32 | number as u64).unwrap();
            }
            session.fence().unwrap();
            for (number, line) in lines.iter().enumerate() {
                assert_eq!(session.read_u64(*line).unwrap(), round << 32 | number as u64);
            }
        }
        sender.send(()).unwrap();
    });
    done.recv_timeout(PATIENCE).expect("frames are left for every line");
}

/// Kills a home while requests to it are in flight, for every frame of the cache.
fn requests_in_flight_to_a_dead_home_leave_no_frame_behind(make: &Make<'_>) {
    let config = config("frames");
    let dying = Node::create_driven(&config, deaf(make())).unwrap();
    let survivors = while_driving(&dying, || {
        let survivors = [(); 2].map(|()| Node::join_on(&config, make()).unwrap());
        survivors.iter().for_each(|node| node.wait_for_members(3, PATIENCE).unwrap());
        survivors
    });
    let lost = lines(&dying);
    let kept = lines(&survivors[1]);

    let sessions: Vec<Session> = lost
        .chunks(IN_FLIGHT)
        .map(|some| {
            let mut session = survivors[0].session().unwrap();
            some.iter().for_each(|line| session.write_u64(*line, 7).unwrap());
            session
        })
        .collect();
    drop(dying);
    for mut session in sessions {
        assert_eq!(session.fence().unwrap_err().code, ErrorCode::NodeLost);
    }
    survivors.iter().for_each(|node| wait_for_deaths(node, 2));
    use_every_frame(&survivors[0], kept);
}

#[test]
fn requests_in_flight_to_a_dead_home_leave_no_frame_behind_on_mem() {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    requests_in_flight_to_a_dead_home_leave_no_frame_behind(&|| Arc::clone(&fabric));
}

#[test]
fn requests_in_flight_to_a_dead_home_leave_no_frame_behind_on_shm() {
    requests_in_flight_to_a_dead_home_leave_no_frame_behind(&|| {
        Arc::new(ShmFabric::new().unwrap())
    });
}
