//! Sockets (NUMA): matched links, requests through proxies, and their ends. Two sockets are given of one processor each,
//! where this machine has two.

mod fabrics;
mod lent;
#[path = "hosts/proxy.rs"]
mod proxy;

use fabrics::Make;
use farside::ErrorCode;
use farside::onesided::{
    LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, ProxiedRequestId, RegionKind,
    SocketClients, SocketOptions, SocketRequester, SocketStats,
};
use farside::topology::Topology;
use farside_testkit::{WATCHDOG, unique_name, until};
use lent::{BYTES, code, cut_pair};
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm tcp => (
    additions_of_two_sockets_are_exact
    links_are_of_matched_sockets
    bytes_are_moved_through_proxies
    batch_takes_one_doorbell
    requests_wait_for_slots_and_none_is_lost
    wrong_requests_fail_alone
    server_that_ends_fails_its_requests_alone
    ended_proxies_answer_everything
    idle_proxy_sleeps
) with crate::fabrics::named }

/// The first two processors as sockets.
fn sockets() -> Topology {
    let machine = Topology::of_system().unwrap();
    let all = machine.sockets().iter().flat_map(|socket| socket.processors());
    let texts: Vec<String> = all.take(2).map(u16::to_string).collect();
    texts.join(";").parse().unwrap()
}

/// A server on each socket.
fn servers(make: &Make, test: &str, topology: &Topology) -> Vec<MemoryServer> {
    let lend = |number: usize| {
        let socket = topology.socket(number).unwrap().clone();
        let options = LendOptions::default().socket(Some(socket));
        MemoryServer::lend(&make(), &unique_name(test), BYTES, &options).unwrap()
    };
    (0..topology.sockets().len()).map(lend).collect()
}

fn clients(
    make: &Make,
    topology: &Topology,
    servers: &[MemoryServer],
    options: &SocketOptions,
) -> SocketClients {
    let addresses: Vec<&str> = servers.iter().map(MemoryServer::address).collect();
    SocketClients::open(topology, &[make()], &addresses, options, WATCHDOG).unwrap()
}

fn total(stats: &[SocketStats], of: fn(&SocketStats) -> u64) -> u64 {
    stats.iter().map(of).sum()
}

/// A thread on each socket adds to the words of all sockets, in batches.
fn additions_of_two_sockets_are_exact(make: &Make) {
    const BATCH: u64 = 25;
    let topology = sockets();
    let count = topology.sockets().len() as u64;
    // Fewer over fabrics that take a system call for each batch.
    let additions = if make().name() == "tcp" { 10_000 } else { 100_000 };
    let each = additions / (count * count) / BATCH;
    let servers = servers(make, "exact", &topology);
    let clients = clients(make, &topology, &servers, &SocketOptions::default());
    let add = |socket: usize| {
        topology.socket(socket).unwrap().bind_current_thread().unwrap();
        let mut requester = clients.requester(socket).unwrap();
        let mut before = vec![Vec::new(); servers.len()];
        for _ in 0..each {
            let requests = clients.memories().iter().map(|memory| {
                let add = |_| requester.fetch_add(memory.at(64), 1).unwrap();
                (0..BATCH).map(add).collect::<Vec<_>>()
            });
            let requests: Vec<Vec<ProxiedRequestId>> = requests.collect();
            for (before, requests) in before.iter_mut().zip(requests) {
                let wait = |request| requester.wait(request, WATCHDOG).unwrap();
                before.extend(requests.into_iter().map(wait));
            }
        }
        before
    };
    let before: Vec<_> = std::thread::scope(|scope| {
        let add = &add;
        let threads = (0..servers.len()).map(|socket| scope.spawn(move || add(socket)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (number, server) in servers.iter().enumerate() {
        let mut seen: Vec<u64> = before.iter().flat_map(|of| of[number].clone()).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..each * BATCH * count), "each value was seen once");
        assert_eq!(server.load_word(64).unwrap(), each * BATCH * count);
    }
    let stats = clients.stats();
    assert_eq!(total(&stats, |stats| stats.requests), each * BATCH * count * count);
}

/// s links for a pair of machines, where a client of each socket would open s * s.
fn links_are_of_matched_sockets(make: &Make) {
    let topology = sockets();
    let servers = servers(make, "links", &topology);
    let count = servers.len();
    let links = || servers.iter().map(MemoryServer::clients).sum::<usize>();
    // The addresses are in another order than the sockets: servers say where their memory is.
    let addresses: Vec<&str> = servers.iter().rev().map(MemoryServer::address).collect();
    let options = SocketOptions::default();
    let matched =
        SocketClients::open(&topology, &[make()], &addresses, &options, WATCHDOG).unwrap();
    for (memory, server) in matched.memories().iter().zip(servers.iter().rev()) {
        assert_eq!(
            (matched.socket_of(*memory), memory.socket()),
            (server.socket(), server.socket())
        );
    }
    assert!(matched.stats().iter().all(|stats| (stats.links, stats.port_socket) == (1, None)));
    until("only matched links are left", || links() == count);
    drop(matched);
    until("no link is left", || links() == 0);
    let all_to_all: Vec<MemoryClient> = (0..count)
        .map(|_| {
            let mut client = MemoryClient::new(&make(), &MemoryClientOptions::default()).unwrap();
            for to in &addresses {
                client.open(to, WATCHDOG).unwrap();
            }
            client
        })
        .collect();
    assert_eq!(links(), count * count);
    drop(all_to_all);
}

fn bytes_are_moved_through_proxies(make: &Make) {
    let topology = sockets();
    let servers = servers(make, "bytes", &topology);
    let clients = clients(make, &topology, &servers, &SocketOptions::default());
    for (number, memory) in clients.memories().iter().enumerate() {
        // Of the other socket, where there is one.
        let mut requester = clients.requester((number + 1) % servers.len()).unwrap();
        let buffer = requester.register(*memory, 8192).unwrap();
        let bytes: Vec<u8> = (0..4096_u32).map(|at| (at % 251) as u8).collect();
        buffer.write(0, &bytes).unwrap();
        let write = requester.write(memory.at(100), &buffer, 0..4096).unwrap();
        requester.wait(write, WATCHDOG).unwrap();
        let read = requester.read(memory.at(100), &buffer, 4096..8192).unwrap();
        assert_eq!(requester.wait(read, WATCHDOG), Ok(0));
        let (mut there, mut back) = (vec![0; 4096], vec![0; 4096]);
        servers[number].read(100, &mut there).unwrap();
        buffer.read(4096, &mut back).unwrap();
        assert!(there == bytes && back == bytes);
        let word = memory.at(8192);
        let swap = requester.compare_swap(word, 0, 7).unwrap();
        assert_eq!(requester.wait(swap, WATCHDOG), Ok(0));
        let word = requester.read_word(word).unwrap();
        assert_eq!(requester.wait(word, WATCHDOG), Ok(7));
        assert_eq!(code(requester.take(word)), ErrorCode::BadForm, "it was taken");
    }
}

fn batch_takes_one_doorbell(make: &Make) {
    let topology = sockets();
    let servers = servers(make, "doorbell", &topology);
    let client = MemoryClientOptions::default().in_call(false);
    let clients = clients(make, &topology, &servers, &SocketOptions::default().client(client));
    let (mut requester, memory) =
        (clients.requester(0).unwrap(), *clients.memories().last().unwrap());
    for batch in [1, 2, 16, 32] {
        let before = clients.stats();
        let add = |at: u64| requester.fetch_add(memory.at(at * 8), 1).unwrap();
        let requests: Vec<ProxiedRequestId> = (0..batch).map(add).collect();
        assert!(requester.take(requests[0]).unwrap().is_none(), "it was not submitted");
        requester.submit();
        for request in requests {
            requester.wait(request, WATCHDOG).unwrap();
        }
        let after = clients.stats();
        let more = |of| total(&after, of) - total(&before, of);
        let found = [
            more(|stats| stats.requests),
            more(|stats| stats.work_requests),
            more(|stats| stats.doorbells),
        ];
        assert_eq!(found, [batch, batch, 1]);
    }
}

/// A requester with few slots is refused; a client with fewer slots than its requesters serves all of them.
fn requests_wait_for_slots_and_none_is_lost(make: &Make) {
    let topology = sockets();
    let servers = servers(make, "slots", &topology);
    let client = MemoryClientOptions::default().requests_max(3);
    let options = SocketOptions::default().client(client).requests_max(8);
    let clients = clients(make, &topology, &servers, &options);
    let at = clients.memories()[0].at(64);
    let mut requesters: Vec<SocketRequester> =
        (0..3).map(|_| clients.requester(0).unwrap()).collect();
    for _ in 0..100 {
        let mut requests = Vec::new();
        for requester in &mut requesters {
            let added: Vec<_> = (0..8).map(|_| requester.fetch_add(at, 1).unwrap()).collect();
            assert_eq!(code(requester.fetch_add(at, 1)), ErrorCode::TooManyRequests);
            requester.submit();
            requests.push(added);
        }
        for (requester, mut added) in requesters.iter_mut().zip(requests) {
            // What is forgotten is executed.
            requester.forget(added.pop().unwrap());
            for request in added {
                requester.wait(request, WATCHDOG).unwrap();
            }
            until("the slots are free", || {
                let free = requester.fetch_add(at, 0);
                free.is_ok_and(|one| {
                    requester.wait(one, WATCHDOG).unwrap();
                    true
                })
            });
        }
    }
    // A requester that is dropped leaves what it has submitted.
    let mut last = clients.requester(0).unwrap();
    last.fetch_add(at, 1).unwrap();
    last.submit();
    drop(last);
    until("all have been added", || servers[0].load_word(64).unwrap() == 3 * 8 * 100 + 1);
}

fn wrong_requests_fail_alone(make: &Make) {
    let topology = sockets();
    let servers = servers(make, "wrong", &topology);
    let clients = clients(make, &topology, &servers, &SocketOptions::default());
    let (mut requester, memory) = (clients.requester(0).unwrap(), clients.memories()[0]);
    let buffer = requester.register(memory, 64).unwrap();
    let mut foreign =
        MemoryClient::new(&fabrics::mem()(), &MemoryClientOptions::default()).unwrap();
    let foreign_buffer = foreign.register(64).unwrap();
    let wrong = [
        (requester.read(memory.at(0), &buffer, 8..8), ErrorCode::ZeroSize),
        (requester.read(memory.at(BYTES), &buffer, 0..8), ErrorCode::OutOfBounds),
        (requester.fetch_add(memory.at(4), 1), ErrorCode::Misaligned),
        (requester.write(memory.at(0), &foreign_buffer, 0..8), ErrorCode::BadForm),
    ];
    let good = requester.fetch_add(memory.at(0), 1).unwrap();
    for (request, expected) in wrong {
        assert_eq!(code(requester.wait(request.unwrap(), WATCHDOG)), expected);
    }
    assert_eq!(requester.wait(good, WATCHDOG), Ok(0));
    let unrelated = foreign.open("nothing", Duration::ZERO);
    assert!(unrelated.is_err());
    let mut other = MemoryClient::new(&make(), &MemoryClientOptions::default()).unwrap();
    let other_memory = other.open(servers[0].address(), WATCHDOG).unwrap();
    assert_eq!(clients.socket_of(other_memory), None);
    assert_eq!(code(requester.fetch_add(other_memory.at(0), 1)), ErrorCode::BadForm);
    assert_eq!(code(clients.requester(9)), ErrorCode::BadConfiguration);

    let open = |fabrics: usize, options: &SocketOptions, address: &str| {
        let fabrics: Vec<_> = (0..fabrics).map(|_| make()).collect();
        code(SocketClients::open(&topology, &fabrics, &[address], options, WATCHDOG))
    };
    let (options, address) = (SocketOptions::default(), servers[0].address());
    assert_eq!(open(0, &options, address), ErrorCode::BadConfiguration);
    assert_eq!(open(3, &options, address), ErrorCode::BadConfiguration);
    assert_eq!(open(1, &options.clone().requests_max(0), address), ErrorCode::BadConfiguration);
    assert_eq!(open(1, &options, &unique_name("absent")), ErrorCode::NoListener);
    let sparse = LendOptions::default()
        .kind(RegionKind::Sparse)
        .socket(Some(topology.socket(0).unwrap().clone()));
    let sparse = MemoryServer::lend(&make(), &unique_name("sparse"), BYTES, &sparse);
    assert_eq!(code(sparse), ErrorCode::BadConfiguration);
}

/// Whether it is an error of a server that has ended: its memory is revoked before its connections are lost.
fn is_end(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::PeerLost | ErrorCode::Indeterminate | ErrorCode::AccessDenied)
}

/// The server goes while requests are at its proxy: each has an outcome, and those of other memories succeed.
fn server_that_ends_fails_its_requests_alone(make: &Make) {
    let topology = sockets();
    let mut servers = servers(make, "ends", &topology);
    let second = MemoryServer::lend(&make(), &unique_name("stays"), BYTES, &LendOptions::default());
    servers.push(second.unwrap());
    let client = MemoryClientOptions::default().reconnect(Duration::ZERO);
    let clients = clients(make, &topology, &servers, &SocketOptions::default().client(client));
    let (ends, stays) = (clients.memories()[0], *clients.memories().last().unwrap());
    let mut requester = clients.requester(topology.sockets().len() - 1).unwrap();
    let ending = servers.remove(0);
    let mut ending = Some(ending);
    let mut errors = 0;
    while errors == 0 {
        let add = |_| requester.fetch_add(ends.at(64), 1).unwrap();
        let requests: Vec<ProxiedRequestId> = (0..64).map(add).collect();
        requester.submit();
        drop(ending.take());
        for request in requests {
            match requester.wait(request, WATCHDOG) {
                Ok(_) => {}
                Err(error) => {
                    assert!(is_end(error.code), "{error}");
                    errors += 1;
                }
            }
        }
        let added = requester.fetch_add(stays.at(64), 1).unwrap();
        requester.wait(added, WATCHDOG).unwrap();
    }
    let added = requester.fetch_add(ends.at(64), 1).unwrap();
    assert!(is_end(code(requester.wait(added, WATCHDOG))));
}

/// The proxies end while threads wait for them.
fn ended_proxies_answer_everything(make: &Make) {
    let topology = sockets();
    let servers = servers(make, "answers", &topology);
    let clients = clients(make, &topology, &servers, &SocketOptions::default());
    let at = clients.memories()[0].at(64);
    let mut requesters: Vec<_> = (0..2).map(|_| clients.requester(0).unwrap()).collect();
    let run = |requester: &mut SocketRequester| {
        let (mut added, mut unknown) = (0, 0);
        loop {
            let requests: Vec<_> = (0..16).map(|_| requester.fetch_add(at, 1)).collect();
            for request in requests {
                match request.and_then(|request| requester.wait(request, WATCHDOG)) {
                    Ok(_) => added += 1,
                    Err(error) if error.code == ErrorCode::Indeterminate => unknown += 1,
                    Err(error) => {
                        assert_eq!(error.code, ErrorCode::PeerLost, "{error}");
                        if requester.fetch_add(at, 1).is_err() {
                            return (added, unknown);
                        }
                    }
                }
            }
        }
    };
    let counts: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let run = &run;
        let threads = requesters.iter_mut().map(|one| scope.spawn(move || run(one)));
        let threads: Vec<_> = threads.collect();
        until("some were added", || servers[0].load_word(64).unwrap() > 1000);
        drop(clients);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (added, unknown) = counts.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let word = servers[0].load_word(64).unwrap();
    assert!((added..=added + unknown).contains(&word), "{word}: {added} and {unknown}");
}

/// It is asleep again and again when a request comes.
fn idle_proxy_sleeps(make: &Make) {
    let topology = sockets();
    let servers = servers(make, "idle", &topology);
    let clients = clients(make, &topology, &servers, &SocketOptions::default());
    let (mut requester, at) = (clients.requester(0).unwrap(), clients.memories()[0].at(64));
    let wake_ups = || clients.stats()[0].wake_ups;
    for _ in 0..3 {
        let before = wake_ups();
        until("it has slept", || {
            let added = requester.fetch_add(at, 1).unwrap();
            requester.wait(added, WATCHDOG).unwrap();
            wake_ups() > before
        });
    }
}

/// A thread sleeps for an outcome that cannot come, and the proxy ends.
#[test]
fn waiting_thread_is_woken_by_the_end_of_the_proxy() {
    let (way, server, fabric) = cut_pair("cut-proxy");
    let topology: Topology = sockets().sockets()[0].processors()[0].to_string().parse().unwrap();
    let options = SocketOptions::default();
    let address = server.address();
    let clients = SocketClients::open(&topology, &[fabric], &[address], &options, WATCHDOG);
    let clients = clients.unwrap();
    let (mut requester, memory) = (clients.requester(0).unwrap(), clients.memories()[0]);
    let first = requester.fetch_add(memory.at(0), 1).unwrap();
    assert_eq!(requester.wait(first, WATCHDOG), Ok(0));
    way.silence(true);
    let word = requester.read_word(memory.at(0)).unwrap();
    assert_eq!(code(requester.wait(word, Duration::from_millis(1))), ErrorCode::TimedOut);
    let thread = std::thread::spawn(move || code(requester.wait(word, WATCHDOG)));
    drop(clients);
    assert_eq!(thread.join().unwrap(), ErrorCode::PeerLost);
}

/// Proxies are bound to their sockets, as the system sees it.
#[test]
fn proxies_run_on_the_processors_of_their_sockets() {
    let (make, topology) = (fabrics::shm(), sockets());
    let servers = servers(&*make, "bound", &topology);
    let clients = clients(&*make, &topology, &servers, &SocketOptions::default());
    let is_bound = |task: std::path::PathBuf| {
        let read = |name: &str| std::fs::read_to_string(task.join(name)).ok();
        // Threads of other tests may end meanwhile; one that starts has no name yet.
        let (name, status) = (read("comm")?, read("status")?);
        let socket = name.trim().strip_prefix("farside-proxy-")?;
        let socket = topology.socket(socket.parse().unwrap()).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(list.unwrap().trim(), socket.processors()[0].to_string());
        Some(())
    };
    until("all proxies are seen", || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.filter_map(|task| is_bound(task.path())).count() >= clients.stats().len()
    });
}
