//! Named roots, waiting for memory, typed arrays, groups and changes of the membership, over each fabric.

mod fabrics;

use fabrics::{Make, cluster};
use farside::zerocopy::{FromBytes, Immutable, IntoBytes};
use farside::{
    Config, Error, ErrorCode, GlobalSlice, Group, MemberChange, Node, ROOT_NAME_MAX, Session,
};
use std::pin::{Pin, pin};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park_timeout, scope, spawn};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

farside_testkit::on_each_fabric! { mem shm tcp => (
    racing_sessions_create_one_root
    root_waits_for_its_creation
    root_errors_are_typed
    directory_grows_beyond_one_page
    roots_end_with_their_home_and_can_be_created_again
    wait_sees_writes_of_all_sessions
    wait_without_a_change_times_out
    arrays_beyond_one_access_are_whole
    barriers_order_the_writes_of_all_members
    collective_calls_exchange_values
    group_errors_are_typed
    group_breaks_when_a_node_ends
    nodes_may_leave_after_their_group
    members_are_reported_once
    multi_line_atomics_wait_without_polling
) with crate::fabrics::named }

fn config(name: &str) -> Config {
    let mut config = Config::new(format!("{name}-{}", std::process::id()));
    (config.memory_bytes, config.cache_bytes) = (8 << 20, 16 << 20);
    config
}

fn sessions(nodes: &[Node], each: usize) -> Vec<Session> {
    let session = |node: &Node| node.session().unwrap();
    nodes.iter().flat_map(|node| std::iter::repeat_with(|| session(node)).take(each)).collect()
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorCode {
    result.unwrap_err().code
}

fn racing_sessions_create_one_root(make: &Make) {
    let nodes = cluster(make, &config("race"), 3);
    for name in ["first", "second", "third"] {
        let create = |mut session: Session| session.root_or_create(name, 1000).unwrap();
        let roots: Vec<_> = scope(|scope| {
            let threads: Vec<_> = sessions(&nodes, 2)
                .into_iter()
                .map(|session| scope.spawn(move || create(session)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(roots.iter().filter(|root| root.is_new).count(), 1);
        assert!(roots.iter().all(|root| root.address == roots[0].address && root.bytes == 1000));
    }
}

fn root_waits_for_its_creation(make: &Make) {
    let nodes = cluster(make, &config("await"), 2);
    let (mut waiting, mut creating) = (nodes[1].session().unwrap(), nodes[0].session().unwrap());
    assert_eq!(waiting.try_root("late").unwrap(), None);
    let waiting = spawn(move || {
        let root = waiting.with_timeout(LONG).root("late").unwrap();
        root.array::<u64>().to_vec(&mut waiting).unwrap()
    });
    let values: GlobalSlice<u64> = creating.alloc_array(4).unwrap();
    values.write(&mut creating, 0, &[1, 2, 3, 4]).unwrap();
    creating.publish_root("late", values.address(), 32).unwrap();
    assert_eq!(waiting.join().unwrap(), [1, 2, 3, 4], "published after they were written");
    assert_eq!(creating.remove_root("late").unwrap().unwrap().address, values.address());
    assert_eq!(creating.remove_root("late").unwrap(), None);
}

fn root_errors_are_typed(make: &Make) {
    let nodes = cluster(make, &config("refuse"), 2);
    let mut session = nodes[1].session().unwrap();
    for name in ["", &"x".repeat(ROOT_NAME_MAX + 1)] {
        assert_eq!(code(session.root(name)), ErrorCode::BadConfiguration);
        assert_eq!(code(session.root_or_create(name, 8)), ErrorCode::BadConfiguration);
    }
    let error = session.with_timeout(SHORT).root("absent").unwrap_err();
    assert_eq!(error.code, ErrorCode::TimedOut);
    assert!(error.detail.contains("\"absent\""), "{error}");
    let root = session.root_or_create(&"y".repeat(ROOT_NAME_MAX), 8).unwrap();
    let taken = session.publish_root(&"y".repeat(ROOT_NAME_MAX), root.address, 8);
    assert_eq!(code(taken), ErrorCode::RootExists);
    let directory =
        farside::GlobalAddress::new_in(nodes[0].memory().unwrap(), farside::LineSize::DEFAULT, 0);
    assert_eq!(code(session.free(directory.unwrap())), ErrorCode::NotAnAllocation);
    assert_eq!(session.root(&"y".repeat(ROOT_NAME_MAX)).unwrap().address, root.address);
}

fn directory_grows_beyond_one_page(make: &Make) {
    let nodes = cluster(make, &config("pages"), 2);
    let mut sessions = sessions(&nodes, 1);
    let name = |number: usize| format!("root {number}");
    let made: Vec<_> = (0..100)
        .map(|number| sessions[number % 2].root_or_create(&name(number), 8).unwrap())
        .collect();
    for number in (0..100).step_by(3) {
        let removed = sessions[0].remove_root(&name(number)).unwrap().unwrap();
        sessions[0].free(removed.address).unwrap();
    }
    for (number, root) in made.iter().enumerate() {
        let found = sessions[1].try_root(&name(number)).unwrap().map(|found| found.address);
        assert_eq!(found, (number % 3 != 0).then_some(root.address), "{number}");
    }
}

fn roots_end_with_their_home_and_can_be_created_again(make: &Make) {
    let mut nodes = cluster(make, &config("heir"), 3);
    let mut session = nodes[2].session().unwrap();
    let before = session.root_or_create("table", 64).unwrap();
    session.write_u64(before.address, 7).unwrap();
    nodes.remove(0).leave().unwrap();
    assert_eq!(session.try_root("table").unwrap(), None, "the directory has left");
    assert_eq!(session.read_u64(before.address).unwrap(), 7, "the memory is that of another home");
    session.publish_root("table", before.address, 64).unwrap();
    let mut other = nodes[0].session().unwrap();
    assert_eq!(other.root("table").unwrap().address, before.address);
}

fn wait_sees_writes_of_all_sessions(make: &Make) {
    let nodes = cluster(make, &config("wait"), 2);
    let mut writers = sessions(&nodes, 2);
    for home in 0..2 {
        let word = writers[0].alloc_on(8, nodes[home].id()).unwrap();
        for round in 0..20 {
            let writer = round as usize % 4;
            let mut readers = sessions(&nodes, 1);
            scope(|scope| {
                for reader in &mut readers {
                    scope.spawn(move || {
                        let seen = reader.with_timeout(LONG).wait_for_change(word, round).unwrap();
                        assert_eq!(seen, round + 1);
                    });
                }
                writers[writer].write_u64(word, round + 1).unwrap();
                writers[writer].fence().unwrap();
            });
        }
    }
}

fn wait_without_a_change_times_out(make: &Make) {
    let nodes = cluster(make, &config("idle"), 2);
    let mut session = nodes[1].session().unwrap();
    let word = session.alloc_on(16, nodes[0].id()).unwrap();
    let error = session.with_timeout(SHORT).wait_for_change(word, 0).unwrap_err();
    assert_eq!((error.code, error.address), (ErrorCode::TimedOut, Some(word)));
    let odd = word.checked_add(4).unwrap();
    assert_eq!(code(session.wait_for_change(odd, 0)), ErrorCode::Misaligned);
    session.free(word).unwrap();
    assert_eq!(code(session.wait_for_change(word, 0)), ErrorCode::Unallocated);
}

#[derive(Clone, Copy, PartialEq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Edge {
    from: u32,
    to: u32,
    weight: f64,
}

fn arrays_beyond_one_access_are_whole(make: &Make) {
    let mut config = config("arrays");
    config.limits.access_bytes_max = 10_000;
    let node = Node::create_on(&config, make()).unwrap();
    let mut session = node.session().unwrap();
    let edge = |number: u32| Edge { from: number, to: number + 1, weight: f64::from(number) / 2.0 };
    let edges: Vec<Edge> = (0..5000).map(edge).collect();
    let array: GlobalSlice<Edge> = session.alloc_array(5000).unwrap();
    array.write(&mut session, 0, &edges).unwrap();
    assert_eq!(array.to_vec(&mut session).unwrap(), edges);
    let part = array.slice(4000..4010).unwrap();
    part.fill(&mut session, edge(1)).unwrap();
    assert_eq!(array.get(&mut session, 4009).unwrap(), edge(1));
    assert_eq!(array.get(&mut session, 4010).unwrap(), edge(4010));
    assert_eq!(code(array.get(&mut session, 5000)), ErrorCode::OutOfBounds);
    assert_eq!(code(part.write(&mut session, 1, &edges[..10])), ErrorCode::OutOfBounds);
    let (from, to) = (10, 5);
    assert_eq!(code(array.slice(from..to)), ErrorCode::OutOfBounds);
    assert!(array.slice(5000..5000).unwrap().is_empty());
    let endless = GlobalSlice::<Edge>::new(array.address(), usize::MAX);
    assert_eq!(code(endless.get(&mut session, usize::MAX / 2)), ErrorCode::OutOfBounds);
    assert_eq!(code(endless.to_vec(&mut session)), ErrorCode::System);
    assert_eq!(array.slice(5000..5000).unwrap().to_vec(&mut session).unwrap(), []);
}

/// Runs a closure in a member of a group for each session.
fn members<R: Send>(
    nodes: &[Node],
    each: usize,
    run: impl Fn(Group, &mut Session) -> R + Sync,
) -> Vec<R> {
    let sessions = sessions(nodes, each);
    let size = sessions.len();
    scope(|scope| {
        let threads: Vec<_> = sessions
            .into_iter()
            .map(|mut session| {
                let run = &run;
                scope.spawn(move || {
                    session.set_timeout(Some(LONG));
                    let group = Group::join(&mut session, "members", size).unwrap();
                    run(group, &mut session)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn barriers_order_the_writes_of_all_members(make: &Make) {
    let nodes = cluster(make, &config("barrier"), 2);
    let mut ranks = members(&nodes, 2, |mut group, session| {
        let words = session.root_or_create("words", 8 * 4).unwrap().array::<u64>();
        for round in 1..=30 {
            words.set(session, group.rank(), round).unwrap();
            group.barrier(session).unwrap();
            assert_eq!(words.to_vec(session).unwrap(), [round; 4]);
            group.barrier(session).unwrap();
        }
        let rank = group.rank();
        group.leave(session).unwrap();
        rank
    });
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2, 3]);
    let mut session = nodes[0].session().unwrap();
    let left = session.try_root("group/members").unwrap();
    assert_eq!(left, None, "the last member has removed the group");
}

fn collective_calls_exchange_values(make: &Make) {
    let nodes = cluster(make, &config("collective"), 3);
    let results = members(&nodes, 1, |mut group, session| {
        let rank = group.rank();
        assert_eq!(group.nodes().count(), 3);
        let mut word = [if rank == 1 { 42_u32 } else { 0 }];
        group.broadcast(session, 1, &mut word).unwrap();
        assert_eq!(word, [42]);
        let own = vec![rank as u16; rank * 300];
        let all = group.all_gather(session, &own).unwrap();
        assert_eq!(all, [vec![], vec![1; 300], vec![2; 600]]);
        let mut values = [0.1 * rank as f64, 1e16 * (1 - rank as i32) as f64];
        group.all_reduce(session, &mut values, |left, right| left + right).unwrap();
        let error = group.broadcast(session, 3, &mut word).unwrap_err();
        assert!(matches!(error.code, ErrorCode::BadConfiguration | ErrorCode::GroupBroken));
        values.map(f64::to_bits)
    });
    assert!(results.iter().all(|result| *result == results[0]), "the same at all, bit by bit");
}

fn group_errors_are_typed(make: &Make) {
    let nodes = cluster(make, &config("grouped"), 1);
    let mut session = nodes[0].session().unwrap();
    for size in [0, 5000] {
        assert_eq!(code(Group::join(&mut session, "none", size)), ErrorCode::BadConfiguration);
    }
    let group = Group::join_as(&mut session, "one", 1, 0).unwrap();
    assert_eq!((group.rank(), group.size()), (0, 1));
    for (size, rank) in [(2, 1), (1, 0), (1, 1)] {
        let refused = Group::join_as(&mut session, "one", size, rank);
        assert_eq!(code(refused), ErrorCode::BadConfiguration);
    }
    assert_eq!(code(Group::join(&mut session, "one", 1)), ErrorCode::BadConfiguration, "complete");
    let alone = Group::join(&mut session.with_timeout(SHORT), "two", 2);
    assert_eq!(code(alone), ErrorCode::TimedOut);
    let late = Group::join(&mut session, "two", 2);
    assert_eq!(code(late), ErrorCode::GroupBroken, "the first did not wait long enough");
}

fn group_breaks_when_a_node_ends(make: &Make) {
    let nodes = cluster(make, &config("broken"), 3);
    let nodes: Vec<_> = nodes.into_iter().map(|node| Mutex::new(Some(node))).collect();
    let ends = |index: usize| {
        let node = nodes[index].lock().unwrap().clone().unwrap();
        let mut session = node.session().unwrap();
        session.set_timeout(Some(LONG));
        let mut group = Group::join_as(&mut session, "fragile", 3, index).unwrap();
        group.barrier(&mut session).unwrap();
        if index == 2 {
            nodes[index].lock().unwrap().take();
            drop(session);
            node.leave().unwrap();
            return;
        }
        assert_eq!(code(group.barrier(&mut session)), ErrorCode::GroupBroken);
        assert_eq!(code(group.barrier(&mut session)), ErrorCode::GroupBroken);
    };
    scope(|scope| {
        (0..3).for_each(|index| _ = scope.spawn(move || ends(index)));
    });
}

fn nodes_may_leave_after_their_group(make: &Make) {
    for round in 0..10 {
        let nodes = cluster(make, &config(&format!("finish-{round}")), 3);
        scope(|scope| {
            for node in nodes {
                scope.spawn(move || {
                    let mut session = node.session().unwrap();
                    session.set_timeout(Some(LONG));
                    let mut group = Group::join(&mut session, "finish", 3).unwrap();
                    group.barrier(&mut session).unwrap();
                    group.leave(&mut session).unwrap();
                    drop(session);
                    node.leave().unwrap();
                });
            }
        });
    }
}

fn members_are_reported_once(make: &Make) {
    let first = Node::create_on(&config("changes"), make()).unwrap();
    let mut changes = first.member_changes();
    assert_eq!(changes.next(Some(Duration::ZERO)).unwrap(), None);
    let (report, reported) = channel();
    let waiting = spawn(move || {
        for _ in 0..3 {
            report.send(changes.next(Some(LONG)).unwrap().unwrap()).unwrap();
        }
        changes
    });
    let shown = || match reported.recv_timeout(LONG).unwrap() {
        MemberChange::Joined(member) => ("joined", member.node, member.admission),
        MemberChange::Gone(member) => ("gone", member.node, member.admission),
        other => panic!("{other:?}"),
    };
    let second = Node::join_on(&config("changes"), make()).unwrap();
    let (change, node, admission) = shown();
    assert_eq!((change, node), ("joined", second.id()));
    second.leave().unwrap();
    assert_eq!(shown(), ("gone", node, admission));
    let third = Node::join_on(&config("changes"), make()).unwrap();
    let (change, node, later) = shown();
    assert_eq!((change, node), ("joined", third.id()));
    assert!(later > admission);
    let mut changes = waiting.join().unwrap();
    first.leave().unwrap();
    assert_eq!(code(changes.next(Some(LONG))), ErrorCode::NodeClosed);
}

/// Wakes a thread that polls a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future to its end, once for each time that it wakes this thread; returns the number of polls.
fn polls(mut future: Pin<&mut impl Future<Output = Result<(), Error>>>) -> u32 {
    let waker = Waker::from(Arc::new(Unpark(current())));
    for polls in 1.. {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            result.unwrap();
            return polls;
        }
        park_timeout(LONG);
    }
    unreachable!("it ends")
}

fn multi_line_atomics_wait_without_polling(make: &Make) {
    let nodes = cluster(make, &config("gate"), 2);
    let mut sessions = [(); 3].map(|()| nodes[1].session().unwrap());
    let address = sessions[0].alloc_on(2048, nodes[0].id()).unwrap();
    let [first, second, third] = &mut sessions;
    for round in 0..20 {
        let bytes = [round; 2048];
        let once = |future: Pin<&mut dyn Future<Output = Result<(), Error>>>| {
            future.poll(&mut Context::from_waker(Waker::noop()))
        };
        let mut holder = pin!(first.write_atomic_async(address, &bytes));
        let holds = once(holder.as_mut()).is_pending();
        let waiting = &mut Box::pin(second.write_atomic_async(address, &bytes));
        if holds {
            assert!(once(waiting.as_mut()).is_pending(), "the first holds the gate");
        }
        let last = pin!(third.write_atomic_async(address, &bytes));
        let count = scope(|scope| {
            let last = scope.spawn(move || polls(last));
            if holds {
                polls(holder);
            }
            last.join().unwrap()
        });
        // The gate, and each of the four lines.
        assert!(count <= 10, "{count} polls");
        nodes[1].evict_all();
    }
}
