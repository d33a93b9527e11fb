//! Nodes with state: what was fenced is there after the node has returned, at the same addresses.

use farside::{AllocationHint, AllocationSpec, Config, Durability, ErrorCode, Node};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("farside-state-{name}-{}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        _ = std::fs::remove_dir_all(&folder.0);
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(name: &str, state: Option<&Path>) -> Config {
    let config = Config::new(format!("state-{name}-{}", std::process::id()));
    let config = config.memory_bytes(4 << 20).cache_bytes(1 << 20);
    config.state(state.map(Path::to_path_buf))
}

#[test]
fn founder_with_state_returns_with_its_memory() {
    let folder = Folder::new("founder");
    let config = config("founder", Some(&folder.0));
    let node = Node::create(&config).unwrap();
    let memory = node.memory();
    let mut session = node.session().unwrap();
    let words = session.alloc(4096).unwrap();
    let freed = session.alloc(4096).unwrap();
    session.publish_root("words", words, 4096).unwrap();
    session.write(words, b"kept").unwrap();
    session.write(freed, b"freed").unwrap();
    session.free(freed).unwrap();
    assert_eq!(session.fetch_add(words.checked_add(8).unwrap(), 7).unwrap(), 0);
    session.atomic(words.checked_add(512).unwrap(), 8, |bytes| bytes.fill(3)).unwrap();
    session.write_atomic(words.checked_add(1020).unwrap(), &[9; 8]).unwrap();
    session.fence().unwrap();
    drop(session);
    node.leave().unwrap();

    let node = Node::create(&config).unwrap();
    assert_eq!(node.memory(), memory);
    let mut session = node.session().unwrap();
    assert_eq!(session.root("words").unwrap().address, words);
    let mut out = [0; 16];
    session.read(words, &mut out).unwrap();
    assert_eq!((&out[..4], &out[8..]), (&b"kept"[..], &7_u64.to_le_bytes()[..]));
    session.read(words.checked_add(512).unwrap(), &mut out).unwrap();
    assert_eq!(out, [3, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
    session.read(words.checked_add(1020).unwrap(), &mut out[..8]).unwrap();
    assert_eq!(out[..8], [9; 8]);
    assert_eq!(session.read(freed, &mut out).unwrap_err().code, ErrorCode::Unallocated);
    let again = session.alloc(4096).unwrap();
    assert_ne!(again, words);
    session.read(again, &mut out).unwrap();
    assert_eq!(out, [0; 16]);
    session.free(words).unwrap();
}

#[test]
fn member_with_state_returns_to_those_that_use_its_memory() {
    let folder = Folder::new("member");
    let founder = Node::create(&config("member", None).return_timeout_ns(0)).unwrap();
    let kept = config("member", Some(&folder.0));
    let home = Node::join(&kept).unwrap();
    let mut session = founder.session().unwrap();
    let words = session.alloc_on(4096, home.id()).unwrap();
    for (at, word) in (0..4096_u64).step_by(8).zip(1_u64..) {
        session.write_u64(words.checked_add(at).unwrap(), word).unwrap();
    }
    session.fence().unwrap();
    home.leave().unwrap();
    assert_eq!(session.read_u64(words).unwrap_err().code, ErrorCode::HomeAway);

    let home = Node::join(&kept).unwrap();
    assert_eq!(Some(words.memory()), home.memory());
    for (at, word) in (0..4096_u64).step_by(8).zip(1_u64..) {
        assert_eq!(session.read_u64(words.checked_add(at).unwrap()).unwrap(), word);
    }
    session.write_u64(words, 99).unwrap();
    session.fence().unwrap();
    assert_eq!(home.session().unwrap().read_u64(words).unwrap(), 99);
}

#[test]
fn accesses_wait_for_a_node_with_state_that_is_away() {
    let folder = Folder::new("waiting");
    let founder = Node::create(&config("waiting", None)).unwrap();
    let kept = config("waiting", Some(&folder.0));
    let home = Node::join(&kept).unwrap();
    let mut session = founder.session().unwrap();
    let spec = AllocationSpec::default().durability(Durability::Logged);
    let word = session.alloc_with(8, spec).unwrap();
    assert_eq!(word.home(), home.id());
    session.write_u64(word, 1).unwrap();
    session.fence().unwrap();
    home.leave().unwrap();
    let error = session.with_timeout(Duration::from_millis(1)).read_u64(word).unwrap_err();
    assert_eq!(error.code, ErrorCode::TimedOut, "{error}");
    std::thread::scope(|scope| {
        let adds = scope.spawn(|| founder.session().unwrap().fetch_add(word, 5).unwrap());
        let reads = scope.spawn(|| founder.session().unwrap().read_u64(word).unwrap());
        let _home = Node::join(&kept).unwrap();
        assert_eq!(adds.join().unwrap(), 1);
        assert!([1, 6].contains(&reads.join().unwrap()));
        session.write_u64(word, 7).unwrap();
        session.fence().unwrap();
    });
}

#[test]
fn logged_memory_needs_a_node_with_state() {
    let folder = Folder::new("policy");
    let founder = Node::create(&config("policy", None)).unwrap();
    let mut session = founder.session().unwrap();
    let logged = AllocationSpec::default().durability(Durability::Logged);
    assert_eq!(session.alloc_with(8, logged).unwrap_err().code, ErrorCode::NoState);
    let here = logged.hint(AllocationHint::On(founder.id()));
    assert_eq!(session.alloc_with(8, here).unwrap_err().code, ErrorCode::NoState);
    let home = Node::join(&config("policy", Some(&folder.0))).unwrap();
    assert_eq!(session.alloc_with(8, logged).unwrap().home(), home.id());
    assert_eq!(session.alloc(8).unwrap().home(), founder.id());
    let mut at_home = home.session().unwrap();
    assert_eq!(at_home.alloc(8).unwrap().home(), founder.id(), "volatile where there is room");
    assert_eq!(at_home.alloc_with(8, logged).unwrap().home(), home.id());
}
