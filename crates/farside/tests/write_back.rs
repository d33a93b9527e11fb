//! The data that survives the death of a node that owned lines, and how a lost line is healed.
//!
//! The test executable starts itself again as the killed node: a process with `FARSIDE_TEST_CHILD` set
//! joins the cluster of that name, at `FARSIDE_TEST_HOST` if that is set, and plays its role.

use farside::{Config, ErrorCode, GlobalAddress, LineSize, Node, NodeId, Session};
use farside_fabric::Fabric;
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::{Process, Random, await_parent, role, say, until};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const ACCOUNTS: u64 = 1_000;
const LINE: u64 = LineSize::DEFAULT.bytes() as u64;
const BALANCE: u64 = 1_000;

fn config(cluster: &str, write_back_ns: Option<u64>) -> Config {
    Config::new(cluster).memory_bytes(4 << 20).cache_bytes(16 << 20).write_back_ns(write_back_ns)
}

/// A node's fabric: shared memory, or TCP if a host is named or listened at.
#[derive(Clone, Copy, Debug)]
enum Over {
    Shm,
    Tcp(Option<SocketAddr>),
}

impl Over {
    fn fabric(self) -> (Arc<dyn Fabric>, Self) {
        match self {
            Self::Shm => (Arc::new(ShmFabric::new().unwrap()), self),
            Self::Tcp(host) => {
                let listen = Some("127.0.0.1:0".parse().unwrap());
                let hosts = host.into_iter().map(Into::into).collect();
                let options = TcpOptions { listen, hosts, ..TcpOptions::default() };
                let fabric = TcpFabric::new(options).unwrap();
                let here = fabric.listens_at().unwrap().resolve().unwrap()[0];
                (Arc::new(fabric), Self::Tcp(Some(here)))
            }
        }
    }
}

fn account(bank: GlobalAddress, number: u64) -> GlobalAddress {
    bank.checked_add(number % ACCOUNTS * LINE).unwrap()
}

/// Not a test by itself: the other process.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [cluster, host, bank, interval_ns, role @ ..] = &role[..] else { panic!("{role:?}") };
    let host = host.parse().ok();
    let (fabric, _) = host.map_or(Over::Shm, |host| Over::Tcp(Some(host))).fabric();
    let bank = GlobalAddress::from_bits(bank.parse().unwrap()).unwrap();
    let interval_ns = Some(interval_ns.parse().unwrap()).filter(|interval_ns| *interval_ns > 0);
    let config = config(cluster, interval_ns).memory_bytes(0);
    let node = Node::join_on(&config, fabric).unwrap();
    let mut session = node.session().unwrap();
    match role.join(" ").as_str() {
        "owns all" => add_to_all(&mut session, bank),
        "has it written back" => {
            add_to_all(&mut session, bank);
            session.write_back(bank, (ACCOUNTS * LINE) as usize).unwrap();
        }
        "waits until it is clean" => {
            add_to_all(&mut session, bank);
            while node.stats().write_backs < ACCOUNTS {
                std::thread::yield_now();
            }
        }
        "transfers" => {
            let mut random = Random::new(1);
            for count in 0_u64.. {
                session.fetch_add(account(bank, random.word()), 1_u64.wrapping_neg()).unwrap();
                session.fetch_add(account(bank, random.word()), 1).unwrap();
                // One per millisecond, like a client that waits for its users.
                std::thread::park_timeout(Duration::from_millis(1));
                if count == 1_000 {
                    say("ready");
                }
            }
        }
        role => panic!("unknown role {role}"),
    }
    say("ready");
    // Until it is killed, or its parent is gone.
    await_parent();
}

fn add_to_all(session: &mut Session, bank: GlobalAddress) {
    for number in 0..ACCOUNTS {
        session.fetch_add(account(bank, number), 1).unwrap();
    }
}

/// A home with a bank, and a second node.
struct Bank {
    cluster: String,
    over: Over,
    home: Node,
    second: Node,
    first: GlobalAddress,
}

impl Bank {
    fn new(name: &str, over: Over) -> Self {
        let cluster = format!("{name}-{}", std::process::id());
        let (fabric, over) = over.fabric();
        let home = Node::create_on(&config(&cluster, None), fabric).unwrap();
        let second = Node::join_on(&config(&cluster, None), over.fabric().0).unwrap();
        let mut session = home.session().unwrap();
        let first = session.alloc_on(ACCOUNTS * LINE, home.id()).unwrap();
        for number in 0..ACCOUNTS {
            session.write_u64(account(first, number), BALANCE).unwrap();
        }
        session.fence().unwrap();
        Self { cluster, over, home, second, first }
    }

    /// Kills a client once it is ready; returns the balances, `None` for a lost line.
    fn killed(&self, role: &str, interval_ns: u64) -> Vec<Option<u64>> {
        let host = match self.over {
            Over::Tcp(Some(host)) => host.to_string(),
            Over::Tcp(None) | Over::Shm => "-".to_owned(),
        };
        let bank = self.first.to_bits();
        let role = format!("{} {host} {bank} {interval_ns} {role}", self.cluster);
        let mut client = Process::child(&role);
        client.hear("ready");
        drop(client);
        self.wait_for_death();
        let mut session = self.second.session().unwrap();
        let balance = |number| match session.read_u64(account(self.first, number)) {
            Ok(balance) => Some(balance),
            Err(error) if error.code == ErrorCode::LineLost => None,
            Err(error) => panic!("{error}"),
        };
        (0..ACCOUNTS).map(balance).collect()
    }

    fn wait_for_death(&self) {
        let deadline = Instant::now() + PATIENCE;
        let alive = |node: &Node| node.members().iter().filter(|member| member.alive).count();
        while alive(&self.home) > 2 || alive(&self.second) > 2 {
            assert!(
                Instant::now() < deadline,
                "the death is not noticed: {}",
                self.home.describe()
            );
            std::thread::yield_now();
        }
    }
}

fn everywhere(name: &str, check: impl Fn(&Bank)) {
    for (kind, over) in [("shm", Over::Shm), ("tcp", Over::Tcp(None))] {
        check(&Bank::new(&format!("{name}-{kind}"), over));
    }
}

#[test]
fn nothing_of_a_range_written_back_is_lost() {
    everywhere("range", |bank| {
        let balances = bank.killed("has it written back", 0);
        assert_eq!(balances, vec![Some(BALANCE + 1); ACCOUNTS as usize], "{:?}", bank.over);
    });
}

#[test]
fn data_older_than_the_interval_survives_its_writer() {
    everywhere("interval", |bank| {
        let balances = bank.killed("waits until it is clean", 10_000_000);
        assert_eq!(balances, vec![Some(BALANCE + 1); ACCOUNTS as usize], "{:?}", bank.over);
    });
}

/// A client that transfers all the time loses its last writes at its death; they are printed. In any case
/// the bank has all its accounts again once they are written.
#[test]
#[expect(clippy::print_stdout, reason = "what is lost depends on time, and people want to know")]
fn bank_is_whole_again_after_its_client_was_killed() {
    everywhere("bank", |bank| {
        let mut session = bank.home.session().unwrap();
        for interval_ns in [0, 100_000_000] {
            let balances = bank.killed("transfers", interval_ns);
            let lost = balances.iter().filter(|balance| balance.is_none()).count();
            println!("{:?}: {lost} of {ACCOUNTS} accounts lost at {interval_ns} ns", bank.over);
            let mut whole = [0; LINE as usize];
            whole[..8].copy_from_slice(&BALANCE.to_le_bytes());
            for number in 0..ACCOUNTS {
                session.write(account(bank.first, number), &whole).unwrap();
            }
            session.fence().unwrap();
            let balances =
                (0..ACCOUNTS).map(|number| session.read_u64(account(bank.first, number)));
            assert!(balances.into_iter().all(|balance| balance == Ok(BALANCE)));
        }
    });
}

fn code<T: std::fmt::Debug>(result: Result<T, farside::Error>) -> ErrorCode {
    result.unwrap_err().code
}

/// Reads a line at both nodes.
fn reads(bank: &Bank, address: GlobalAddress) -> [Result<u8, ErrorCode>; 2] {
    [&bank.home, &bank.second].map(|node| {
        let mut bytes = [0; LINE as usize];
        let read = node.session().unwrap().read(address, &mut bytes);
        read.map(|()| bytes[0]).map_err(|error| error.code)
    })
}

#[test]
fn lost_line_is_healed_by_writing_it_whole() {
    everywhere("heal", |bank| {
        let lost = bank.killed("owns all", 0);
        assert_eq!(lost, vec![None; ACCOUNTS as usize]);
        let (mut here, mut there) = (bank.home.session().unwrap(), bank.second.session().unwrap());
        let at = |number| account(bank.first, number);
        let line = LINE as usize;

        // A part, at the home: reported at once. From elsewhere: at the fence, once.
        assert_eq!(code(here.write(at(0), &[1; 8])), ErrorCode::LineLost);
        assert_eq!(here.fence(), Ok(()));
        there.write(at(0), &[1; 8]).unwrap();
        assert_eq!(code(there.fence()), ErrorCode::LineLost);
        assert_eq!(there.fence(), Ok(()));
        assert_eq!(code(there.fetch_add(at(0), 1)), ErrorCode::LineLost);
        assert_eq!(reads(bank, at(0)), [Err(ErrorCode::LineLost); 2]);

        // The kernel closes the links of a killed process before it has ended.
        until("it can write no more", || bank.home.stats().quarantined_members == 0);
        here.write(at(0), &vec![2; line]).unwrap();
        here.fence().unwrap();
        assert_eq!(reads(bank, at(0)), [Ok(2); 2]);
        there.write(at(1), &vec![3; line]).unwrap();
        there.fence().unwrap();
        assert_eq!(reads(bank, at(1)), [Ok(3); 2]);

        // Several lines, some of them whole.
        there.write(at(2).checked_add(8).unwrap(), &vec![4; 3 * line]).unwrap();
        assert_eq!(code(there.fence()), ErrorCode::LineLost);
        let read = [2, 3, 4, 5].map(|number| reads(bank, at(number))[0]);
        let part = Err(ErrorCode::LineLost);
        assert_eq!(read, [part, Ok(4), Ok(4), part]);
        let whole = vec![5; line];
        there.write_vectored(&[(at(2), &whole[..]), (at(5), &whole[..])]).unwrap();
        there.fence().unwrap();
        assert_eq!([reads(bank, at(2)), reads(bank, at(5))], [[Ok(5); 2]; 2]);
        there.write_atomic(at(6), &vec![6; line]).unwrap();
        here.write_atomic(at(7), &vec![7; line]).unwrap();
        assert_eq!([6, 7].map(|number| reads(bank, at(number))), [[Ok(6); 2], [Ok(7); 2]]);

        // Of an atomic write over several lines, readers see all or nothing.
        for session in [&mut there, &mut here] {
            assert_eq!(code(session.write_atomic(at(7), &vec![8; 2 * line])), ErrorCode::LineLost);
        }
        let read = [7, 8].map(|number| reads(bank, at(number))[0]);
        assert_eq!(read, [Ok(7), Err(ErrorCode::LineLost)]);
        there.write(at(8), &vec![8; line]).unwrap();
        there.fence().unwrap();
        there.write_atomic(at(7), &vec![9; 2 * line]).unwrap();
        assert_eq!([7, 8].map(|number| reads(bank, at(number))), [[Ok(9); 2]; 2]);

        here.free(bank.first).unwrap();
        let fresh = here.alloc_on(ACCOUNTS * LINE, bank.home.id()).unwrap();
        assert_eq!(reads(bank, fresh), [Ok(0); 2]);
    });
}

#[test]
fn lost_line_is_healed_by_many_at_a_time() {
    everywhere("healers", |bank| {
        bank.killed("owns all", 0);
        std::thread::scope(|scope| {
            for (byte, node) in [(1, &bank.home), (2, &bank.second), (3, &bank.second)] {
                scope.spawn(move || {
                    let mut session = node.session().unwrap();
                    for number in 0..ACCOUNTS {
                        let bytes = [byte; LINE as usize];
                        session.write(account(bank.first, number), &bytes).unwrap();
                    }
                    session.fence().unwrap();
                });
            }
        });
        for number in 0..ACCOUNTS {
            let [here, there] = reads(bank, account(bank.first, number));
            assert!(here == there && matches!(here, Ok(1..=3)), "{here:?} {there:?}");
        }
    });
}

/// The last line of an allocation is whole when its bytes of the allocation are.
#[test]
fn lost_end_of_an_allocation_is_healed() {
    everywhere("end", |bank| {
        let mut session = bank.second.session().unwrap();
        let bytes = ACCOUNTS * LINE - 99;
        let address = bank.home.session().unwrap().alloc_on(bytes, bank.home.id()).unwrap();
        let of_end = Bank { first: address, ..Bank::clone_of(bank) };
        of_end.killed("owns all", 0);
        session.write(address, &vec![8; bytes as usize]).unwrap();
        session.fence().unwrap();
        let mut last = [0; 8];
        session.read(address.checked_add(bytes - 8).unwrap(), &mut last).unwrap();
        assert_eq!(last, [8; 8]);
    });
}

/// A write that reaches beyond the end of its allocation, or into it from the one before, is refused: it heals nothing.
#[test]
fn lost_line_is_not_healed_by_a_write_out_of_bounds() {
    everywhere("beyond", |bank| {
        let (mut here, mut there) = (bank.home.session().unwrap(), bank.second.session().unwrap());
        let bytes = ACCOUNTS * LINE - 99;
        let first = here.alloc_on(bytes, bank.home.id()).unwrap();
        let of_end = Bank { first, ..Bank::clone_of(bank) };
        assert_eq!(of_end.killed("owns all", 0), vec![None; ACCOUNTS as usize]);
        let last = account(first, ACCOUNTS - 1);
        let before = GlobalAddress::from_bits(first.to_bits() - LINE).unwrap();
        for session in [&mut here, &mut there] {
            let beyond = session.write(last, &[1; LINE as usize]).and_then(|()| session.fence());
            assert_eq!(code(beyond), ErrorCode::LineLost);
            let into = session.write(before, &[1; 2 * LINE as usize]);
            assert!(into.and_then(|()| session.fence()).is_err());
        }
        for address in [first, last] {
            for session in [&mut here, &mut there] {
                assert_eq!(code(session.read_u64(address)), ErrorCode::LineLost);
            }
        }
    });
}

impl Bank {
    fn clone_of(other: &Self) -> Self {
        Self {
            cluster: other.cluster.clone(),
            over: other.over,
            home: other.home.clone(),
            second: other.second.clone(),
            first: other.first,
        }
    }
}

#[test]
fn write_back_needs_no_owned_line_and_says_what_is_wrong() {
    everywhere("errors", |bank| {
        let (mut here, mut there) = (bank.home.session().unwrap(), bank.second.session().unwrap());
        let bytes = (ACCOUNTS * LINE) as usize;
        here.write_back(bank.first, bytes).unwrap();
        there.write_back(bank.first, bytes).unwrap();
        there.read_u64(bank.first).unwrap();
        there.write_back(bank.first, bytes).unwrap();
        there.write_u64(bank.first, 1).unwrap();
        there.write_back(bank.first, 1).unwrap();
        assert_eq!(bank.second.stats().write_backs, 2 * ACCOUNTS + 1, "each line is asked about");
        assert_eq!(code(there.write_back(bank.first, 0)), ErrorCode::ZeroSize);
        let beyond = bank.first.checked_add(bytes as u64).unwrap();
        there.write_u64(beyond, 1).unwrap();
        assert_eq!(code(there.write_back(bank.first, 1)), ErrorCode::Unallocated);
        assert_eq!(there.write_back(bank.first, 1), Ok(()));
    });
}

/// An atomic with a forgotten future holds lines until its session's next call, and no leave waits for
/// that.
#[test]
fn forgotten_atomic_does_not_keep_a_node_from_leaving() {
    let bank = Bank::new("forgotten", Over::Shm);
    let mut session = bank.second.session().unwrap();
    let lines = 4 * LINE as usize;
    let bytes = vec![8; lines];
    let mut context = Context::from_waker(Waker::noop());
    let mut owner = bank.home.session().unwrap();
    // The home's answer may arrive within the first poll; then the next atomic is tried.
    let forgotten = (0..1_000).any(|_| {
        session.write(bank.first, &vec![9; lines]).unwrap();
        session.fence().unwrap();
        owner.write(account(bank.first, 2), &[7; 8]).unwrap();
        owner.fence().unwrap();
        let mut atomic = Box::pin(session.write_atomic_async(bank.first, &bytes));
        let pending = atomic.as_mut().poll(&mut context).is_pending();
        std::mem::forget(atomic);
        pending
    });
    assert!(forgotten, "the third line is the home's");
    assert_eq!(bank.second.clone().leave().map(|departure| departure.memory_bytes), Ok(0));
    assert_eq!(owner.read_u64(bank.first), Ok(u64::from_le_bytes([9; 8])));
    assert_eq!(bank.home.id(), NodeId(0));
}
