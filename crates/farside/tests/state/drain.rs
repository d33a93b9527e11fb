//! Nodes without state that save their memory when they leave.

use super::*;
use farside::DrainTarget;
use farside::durable::{MemoryState, StateIdentity, StateOptions};

#[test]
fn drained_node_returns_with_its_memory() {
    let folder = StateFolder::new("drained");
    let founder = Node::create(&config("drained", None)).unwrap();
    let home = Node::join(&config("drained", None)).unwrap();
    let (id, memory) = (home.id(), home.memory());
    let mut session = founder.session().unwrap();
    let words = session.alloc_on(300_000, id).unwrap();
    let large = session.alloc_on(2 << 20, id).unwrap(); // of more than a segment
    let freed = session.alloc_on(4096, id).unwrap();
    let last = large.checked_add((2 << 20) - 8).unwrap();
    for (at, word) in (0..300_000_u64).step_by(1_000).zip(1_u64..) {
        session.write_u64(words.checked_add(at).unwrap(), word).unwrap();
    }
    session.write_u64(last, 77).unwrap(); // it stays the owner of this line, without a fence
    let mut own = home.session().unwrap();
    let at_home = own.alloc_on(100, id).unwrap();
    own.write(at_home, &[5; 100]).unwrap();
    let root_at = own.alloc_on(64, founder.id()).unwrap();
    own.publish_root("at home", at_home, 100).unwrap();
    drop(own);
    session.free(freed).unwrap();

    let drained = home.drain(&DrainTarget::Folder(folder.0.clone())).unwrap();
    assert_eq!(drained.lines_lost, 0);
    assert!(drained.memory_bytes >= 300_000 + (2 << 20) + 100, "{drained:?}");
    founder.wait_for_members(1, WATCHDOG).unwrap();
    let timed_out = session.with_timeout(Duration::from_millis(1)).read_u64(words).unwrap_err();
    assert_eq!(timed_out.code, ErrorCode::TimedOut, "calls wait for its return");
    // No other node gets its number meanwhile.
    let other = Node::join(&config("drained", None)).unwrap();
    assert_ne!(other.id(), id);

    let home = Node::join(&config("drained", Some(&folder.0))).unwrap();
    assert_eq!((home.id(), home.memory()), (id, memory));
    let mut session = other.session().unwrap();
    assert_eq!(session.read_u64(freed).unwrap_err().code, ErrorCode::Unallocated);
    for (at, word) in (0..300_000_u64).step_by(1_000).zip(1_u64..) {
        assert_eq!(session.read_u64(words.checked_add(at).unwrap()).unwrap(), word);
    }
    assert_eq!(session.read_u64(last).unwrap(), 77);
    assert_eq!(session.read_u64(large).unwrap(), 0);
    let root = session.root("at home").unwrap();
    assert_eq!(root.address, at_home);
    let mut out = [0; 100];
    session.read(at_home, &mut out).unwrap();
    assert_eq!(out, [5; 100]);
    session.free(large).unwrap();
    session.free(root_at).unwrap();
    // It has state now: what is fenced survives it.
    session.write_u64(words, 9).unwrap();
    session.fence().unwrap();
    let error = home.drain(&DrainTarget::Folder(folder.0.clone())).unwrap_err();
    assert_eq!(error.code, ErrorCode::BadConfiguration, "{error}");
    home.leave().unwrap();
    let _home = Node::join(&config("drained", Some(&folder.0))).unwrap();
    assert_eq!(session.read_u64(words).unwrap(), 9);
}

#[test]
fn draining_both_homes_fails_no_call() {
    let folders = [StateFolder::new("drains"), StateFolder::new("drains")];
    let client = Node::create(&config("drains", None)).unwrap();
    let mut homes = [0, 1].map(|_| Some(Node::join(&config("drains", None)).unwrap()));
    let mut session = client.session().unwrap();
    let words = homes.each_ref().map(|home| {
        let words = session.alloc_on(4096, home.as_ref().unwrap().id()).unwrap();
        [0, 512, 1024].map(|offset| words.checked_add(offset).unwrap())
    });
    let (counts, times) = under_use(&client, &words, 4, |round| {
        let folder = &folders[round % 2].0;
        let home = homes[round % 2].take().unwrap();
        match round {
            0 | 1 => drop(home.drain(&DrainTarget::Folder(folder.clone())).unwrap()),
            _ => drop(home.leave().unwrap()),
        }
        homes[round % 2] = Some(Node::join(&config("drains", Some(folder))).unwrap());
    });
    for at in &words {
        let seen = at.map(|word| session.read_u64(word).unwrap());
        assert_eq!(seen[..], counts[..]);
    }
    report(times);
}

/// Over TCP, to memory that other processes lend: the node returns from there.
#[test]
fn drained_node_returns_from_copies() {
    let fabric = process_fabric("tcp", None);
    let options = LendOptions::default().exclusive(true);
    let lend = || MemoryServer::lend(&fabric, &unique_name("copy"), 80 << 20, &options).unwrap();
    let servers = [lend(), lend()];
    let copies = servers.each_ref().map(|server| server.address().to_owned()).to_vec();
    let founder = Node::create_on(&config("drain-copies", None), fabric.clone()).unwrap();
    let host = founder.members()[0].host;
    let join = |config: &Config| Node::join_on(config, process_fabric("tcp", host));
    let home = join(&config("drain-copies", None)).unwrap();
    let mut session = founder.session().unwrap();
    let words = session.alloc_on(4096, home.id()).unwrap();
    session.write_u64(words, 42).unwrap();
    home.drain(&DrainTarget::Copies(copies.clone())).unwrap();
    let _home = join(&config("drain-copies", None).state_copies(copies)).unwrap();
    assert_eq!(session.read_u64(words).unwrap(), 42);
}

#[test]
fn node_that_cannot_be_saved_works_as_before() {
    let folder = StateFolder::new("bad-place");
    let founder = Node::create(&config("bad-place", None)).unwrap();
    let home = Node::join(&config("bad-place", None)).unwrap();
    let mut session = founder.session().unwrap();
    let word = session.alloc_on(8, home.id()).unwrap();
    session.write_u64(word, 1).unwrap();

    std::fs::write(&folder.0, "a file").unwrap();
    let target = DrainTarget::Folder(folder.0.clone());
    let error = home.drain(&target).unwrap_err();
    assert_eq!(error.code, ErrorCode::System, "{error}");
    session.write_u64(word, 2).unwrap();
    std::fs::remove_file(&folder.0).unwrap();

    // The state of another node is not overwritten.
    let stranger = config("bad-place-stranger", Some(&folder.0));
    Node::create(&stranger).unwrap().leave().unwrap();
    let error = home.drain(&target).unwrap_err();
    assert_eq!(error.code, ErrorCode::StateForeign, "{error}");
    session.write_u64(word, 3).unwrap();
    Node::create(&stranger).unwrap().leave().unwrap();

    let program = Node::join(&config("bad-place", None).memory_bytes(0)).unwrap();
    let elsewhere = StateFolder::new("elsewhere");
    let error = program.drain(&DrainTarget::Folder(elsewhere.0.clone())).unwrap_err();
    assert_eq!(error.code, ErrorCode::BadConfiguration, "{error}");

    home.drain(&DrainTarget::Folder(elsewhere.0.clone())).unwrap();
    let _home = Node::join(&config("bad-place", Some(&elsewhere.0))).unwrap();
    assert_eq!(session.read_u64(word).unwrap(), 3);
}

/// The place fails after writes are refused: the node stays, serves reads, and is drained to another place.
#[test]
fn node_whose_place_fails_is_drained_to_another() {
    let folder = StateFolder::new("second-place");
    let fabric = process_fabric("shm", None);
    let options = LendOptions::default().exclusive(true);
    let server = MemoryServer::lend(&fabric, &unique_name("copy"), 80 << 20, &options).unwrap();
    let copies = DrainTarget::Copies(vec![server.address().to_owned()]);
    let founder = Node::create(&config("second-place", None)).unwrap();
    let home = Node::join(&config("second-place", None)).unwrap();
    let mut session = founder.session().unwrap();
    let words = session.alloc_on(4096, home.id()).unwrap();
    session.write_u64(words, 1).unwrap();
    let other = words.checked_add(512).unwrap();
    std::thread::scope(|scope| {
        let guard = session.lock_write(words, 8).unwrap();
        let drains = scope.spawn(|| home.drain(&copies));
        let mut second = founder.session().unwrap();
        let refuses = || {
            let refused = second.try_lock_write(other, 8).map(drop);
            refused.is_err_and(|error| error.code == ErrorCode::HomeAway)
        };
        farside_testkit::until("the drain waits for the lock", refuses);
        drop(server);
        guard.unlock().unwrap();
        let error = drains.join().unwrap().unwrap_err();
        assert_ne!(error.code, ErrorCode::NodeClosed, "{error}");
        assert_eq!(session.read_u64(words).unwrap(), 1, "reads are served");
        let late = session.with_timeout(Duration::from_millis(1)).fetch_add(other, 2).unwrap_err();
        assert_eq!(late.code, ErrorCode::TimedOut, "{late}");
        assert_eq!(founder.members().iter().filter(|member| member.alive).count(), 2);

        let writes = scope.spawn(|| founder.session().unwrap().fetch_add(other, 3));
        home.drain(&DrainTarget::Folder(folder.0.clone())).unwrap();
        let _home = Node::join(&config("second-place", Some(&folder.0))).unwrap();
        writes.join().unwrap().unwrap();
        assert_eq!([words, other].map(|word| session.read_u64(word).unwrap()), [1, 3]);
    });
}

/// A later life of the same number and generation does not overwrite what was saved.
#[test]
fn saved_memory_is_not_overwritten() {
    let folder = StateFolder::new("twice");
    let target = DrainTarget::Folder(folder.0.clone());
    let life = |value: u64| {
        let node = Node::create(&config("twice", None)).unwrap();
        let mut session = node.session().unwrap();
        let word = session.alloc(8).unwrap();
        session.write_u64(word, value).unwrap();
        drop(session);
        (node, word)
    };
    let (node, word) = life(1);
    node.drain(&target).unwrap();
    drop(node);
    let (node, _) = life(2);
    let error = node.drain(&target).unwrap_err();
    assert_eq!(error.code, ErrorCode::StateForeign, "{error}");
    node.leave().unwrap();
    let node = Node::create(&config("twice", Some(&folder.0))).unwrap();
    assert_eq!(node.session().unwrap().read_u64(word).unwrap(), 1);
}

/// A clone that leaves first: the drain says that it has saved nothing.
#[test]
fn drain_of_a_node_that_has_left_fails() {
    let folder = StateFolder::new("clone");
    let node = Node::create(&config("clone", None)).unwrap();
    node.clone().leave().unwrap();
    let error = node.drain(&DrainTarget::Folder(folder.0.clone())).unwrap_err();
    assert_eq!(error.code, ErrorCode::NodeClosed, "{error}");
}

/// Names stay where they are when another node is drained, and move with the node that has them.
#[test]
fn names_are_found_while_another_node_is_drained() {
    let folders = [StateFolder::new("names-2"), StateFolder::new("names-1")];
    let program = Node::create(&config("names", None).memory_bytes(0)).unwrap();
    let first = Node::join(&config("names", None)).unwrap();
    let second = Node::join(&config("names", None)).unwrap();
    let mut session = program.session().unwrap();
    let root = session.root_or_create("one", 64).unwrap();
    second.drain(&DrainTarget::Folder(folders[0].0.clone())).unwrap();
    assert_eq!(session.root("one").unwrap().address, root.address);
    let more = session.root_or_create("two", 64).unwrap();
    assert_eq!(more.address.home(), first.id());
    let second = Node::join(&config("names", Some(&folders[0].0))).unwrap();
    let third = Node::join(&config("names", None)).unwrap();
    first.drain(&DrainTarget::Folder(folders[1].0.clone())).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| program.session().unwrap().root("two").unwrap().address);
        let _first = Node::join(&config("names", Some(&folders[1].0))).unwrap();
        assert_eq!(waits.join().unwrap(), more.address);
        for node in [&second, &third] {
            let mut session = node.session().unwrap();
            assert_eq!(session.try_root("one").unwrap().unwrap().address, root.address);
            assert!(!session.root_or_create("two", 64).unwrap().is_new);
        }
    });
}

/// A call asks for the directory of names at a node that is away, when another takes that over: it need not wait any more.
#[test]
fn names_that_have_moved_are_asked_where_they_are() {
    let folder = StateFolder::new("moved");
    let config = |state| config("moved", state).return_timeout_ns(600_000_000_000);
    let program = Node::create(&config(None).memory_bytes(0)).unwrap();
    let drained = Node::join(&config(None)).unwrap();
    drained.drain(&DrainTarget::Folder(folder.0.clone())).unwrap();
    program.wait_for_members(1, WATCHDOG).unwrap();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut session = program.session().unwrap();
            session.root_or_create("one", 64).unwrap().address.home()
        });
        let lends = Node::join(&config(None)).unwrap();
        assert_eq!(asks.join().unwrap(), lends.id());
    });
}

#[test]
fn memory_that_was_not_saved_to_its_end_is_refused() {
    let folder = StateFolder::new("half");
    let config = config("half", Some(&folder.0));
    let options = StateOptions::default().memory_bytes(config.memory_bytes);
    let identity = StateIdentity {
        cluster: config.cluster.clone(),
        node: 0,
        generation: 0,
        memory_bytes: config.memory_bytes,
    };
    let (mut state, _) = MemoryState::open(&folder.0, &options).unwrap();
    state.begin_saving(identity).unwrap();
    state.close(WATCHDOG).unwrap();
    drop(state);
    let error = Node::create(&config).unwrap_err();
    assert_eq!(error.code, ErrorCode::StateForeign, "{error}");
    assert!(error.to_string().contains("did not end saving"), "{error}");

    let (mut state, _) = MemoryState::open(&folder.0, &options).unwrap();
    assert!(state.is_saving());
    state.end_saving().unwrap();
    state.close(WATCHDOG).unwrap();
    drop(state);
    Node::create(&config).unwrap().leave().unwrap();
}
