//! Two hosts, as network namespaces with a cable between, which is pulled and put back. Needs root;
//! without it the test reports so and passes.

mod common;

use common::{TestNode, node, node_at};
use farside_base::{
    CompletionKind, CompletionStatus, LinkId, Operation, RemoteRegionId, RemoteSlice, Source,
};
use farside_fabric::{LinkEvent, Loss, Waiter};
use farside_fabric_tcp::TcpOptions;
use farside_testkit::{Process, WATCHDOG, role};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(2);

fn options() -> TcpOptions {
    let (lease, connect_timeout) = (LEASE, Duration::from_millis(500));
    TcpOptions { lease, connect_timeout, ..TcpOptions::default() }
}

/// The role of a child process; does nothing in an ordinary run.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let mut node = node_at(&role[1], options());
    loop {
        node.until("anything", |node| {
            (!node.events.is_empty() || !node.completions.is_empty()).then_some(())
        });
        for event in std::mem::take(&mut node.events) {
            if let LinkEvent::Requested { link, .. } = event {
                node.accept_link(link);
            }
        }
        for received in std::mem::take(&mut node.completions) {
            if received.kind == CompletionKind::Receive {
                let word = node.word_of(&received);
                node.post_receive(received.id.0);
                node.try_send(received.link, word + 1);
            }
        }
    }
}

/// Runs `ip` with these arguments. Returns false if it fails.
fn ip(words: &str) -> bool {
    let words = words.split(' ').filter(|word| !word.is_empty());
    let run = Command::new("ip").args(words).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// A namespace for the other host and one for a router between. Removed when dropped.
struct Cable {
    space: String,
    router: String,
    near: String,
    far: String,
    address: String,
}

/// How the path is interrupted.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// The link of the far host is down, and its neighbour sees it.
    LinkDown,
    /// A router drops everything, and neither end notices.
    Vanish,
}

impl Cable {
    /// Returns `None` if this user may not create one.
    fn new(number: u32) -> Option<Self> {
        let unique = std::process::id() % 10_000 * 4 + number;
        let net = format!("10.{}.{}", 100 + unique / 250 % 100, unique % 250);
        let name = |what: &str| format!("fs{what}{unique}");
        let (space, router, near, far) = (name("s"), name("r"), name("n"), name("f"));
        let cable = Self { space, router, near, far, address: format!("{net}.6:7000") };
        let Self { space, router, near, far, .. } = &cable;
        let made = ip(&format!("netns add {space}"))
            && ip(&format!("netns add {router}"))
            && ip(&format!("link add {near} type veth peer name left netns {router}"))
            && ip(&format!("-n {router} link add right type veth peer name {far} netns {space}"))
            && ip(&format!("addr add {net}.1/30 dev {near}"))
            && ip(&format!("-n {router} addr add {net}.2/30 dev left"))
            && ip(&format!("-n {router} addr add {net}.5/30 dev right"))
            && ip(&format!("-n {space} addr add {net}.6/30 dev {far}"))
            && ip(&format!("link set {near} up"))
            && ip(&format!("-n {router} link set left up"))
            && ip(&format!("-n {router} link set right up"))
            && ip(&format!("-n {space} link set {far} up"))
            && ip(&format!("-n {space} link set lo up"))
            && ip(&format!("route add {net}.4/30 via {net}.2"))
            && ip(&format!("-n {space} route add default via {net}.5"))
            && cable.forward(true);
        made.then_some(cable)
    }

    /// Has the router pass packets on, or drop them.
    fn forward(&self, on: bool) -> bool {
        let file = "/proc/sys/net/ipv4/ip_forward";
        let command = format!("echo {} > {file}", u8::from(on));
        let run = ["netns", "exec", &self.router, "sh", "-c", &command];
        Command::new("ip").args(run).status().is_ok_and(|status| status.success())
    }

    fn pull(&self, how: Outage) {
        assert!(match how {
            Outage::LinkDown => ip(&format!("-n {} link set {} down", self.space, self.far)),
            Outage::Vanish => self.forward(false),
        });
    }

    fn put_back(&self, how: Outage) {
        assert!(match how {
            // The route went with the link.
            Outage::LinkDown => {
                let router = self.address.replace(".6:7000", ".5");
                ip(&format!("-n {} link set {} up", self.space, self.far))
                    && ip(&format!("-n {} route add default via {router}", self.space))
            }
            Outage::Vanish => self.forward(true),
        });
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.near));
        ip(&format!("netns del {}", self.space));
        ip(&format!("netns del {}", self.router));
    }
}

/// Sets up a cable, a child at its other end, and a link to it.
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn linked(number: u32) -> Option<(Cable, Process, TestNode, LinkId, RemoteRegionId)> {
    let Some(cable) = Cable::new(number) else {
        println!("SKIPPED: no network namespaces here (they need root and `ip`)");
        return None;
    };
    let wrapper = ["ip", "netns", "exec", &cable.space];
    let helper = Process::start(Process::command(&wrapper, &format!("echo {}", cable.address)));
    let mut node = node(options());
    let (link, region) = node.connect(&format!("{}/p", cable.address));
    node.works(link, region);
    Some((cable, helper, node, link, region))
}

/// Keeps the node going for so long.
fn pass(node: &mut TestNode, time: Duration) {
    let (start, waiter) = (Instant::now(), node.port.waiter());
    while start.elapsed() < time {
        node.poll();
        if !node.port.arm() {
            Waiter::wait(&*waiter, Some(Duration::from_millis(20)));
        }
        node.port.disarm();
    }
}

fn echo(node: &mut TestNode, link: LinkId, word: u64) {
    assert!(node.try_send(link, word));
    assert_eq!(node.message(), word + 1);
}

/// With little in flight, the link survives an outage shorter than a third of its lease and resumes
/// soon.
#[test]
#[allow(clippy::print_stdout, reason = "a figure for people")]
fn a_short_outage_is_survived() {
    let Some((cable, _helper, mut node, link, region)) = linked(0) else { return };
    let outages = [200, 400, 600].into_iter();
    let outages = outages.flat_map(|ms| [(Outage::LinkDown, ms), (Outage::Vanish, ms)]);
    for (round, (how, outage_ms)) in outages.enumerate() {
        cable.pull(how);
        // Requests are in flight when the cable is pulled, and more are posted while it is.
        assert!(node.try_send(link, 100));
        pass(&mut node, Duration::from_millis(outage_ms));
        assert_eq!(node.events, [], "lost within the lease");
        cable.put_back(how);
        let healed = Instant::now();
        assert_eq!(node.message(), 101);
        println!("{how:?} for {outage_ms} ms: goes on after {:?}", healed.elapsed());
        echo(&mut node, link, round as u64);
        node.works(link, region);
    }
}

/// The same with much in flight.
#[test]
#[allow(clippy::print_stdout, reason = "a figure for people")]
fn a_short_outage_under_load_is_survived() {
    let Some((cable, _helper, mut node, link, region)) = linked(1) else { return };
    let slices = [node.slice(0, 60_000)];
    let to = RemoteSlice { region, offset: 256 << 10 };
    let write = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
    let outages = [200, 400, 600].into_iter();
    for (how, outage_ms) in outages.flat_map(|ms| [(Outage::LinkDown, ms), (Outage::Vanish, ms)]) {
        let mut flying = 0;
        let mut load = |node: &mut TestNode, time: Duration| {
            let start = Instant::now();
            while start.elapsed() < time {
                while flying < 16 {
                    let work = node.work(link, 1, write);
                    flying += node.port.post(&[work]).accepted;
                }
                node.poll();
                flying -= node.completions.len();
                for done in node.completions.drain(..) {
                    assert_eq!(done.status, CompletionStatus::Success, "{done:?}");
                }
                std::thread::yield_now();
            }
            flying
        };
        load(&mut node, Duration::from_millis(50));
        cable.pull(how);
        let left = load(&mut node, Duration::from_millis(outage_ms));
        assert_eq!(node.events, [], "lost within the lease");
        cable.put_back(how);
        let healed = Instant::now();
        for at in 0..left {
            let done = node.completion();
            assert_eq!(done.status, CompletionStatus::Success, "{done:?}");
            if at == 0 {
                let after = healed.elapsed();
                println!("{how:?} for {outage_ms} ms under load: goes on after {after:?}");
            }
        }
        echo(&mut node, link, 7);
    }
}

/// A longer outage ends the link on this side within the lease; once the cable is back, a new link works.
#[test]
fn a_long_outage_is_unreachable() {
    let Some((cable, _helper, mut node, link, region)) = linked(2) else { return };
    let slices = [node.slice(0, 8)];
    let from = RemoteSlice { region, offset: 0 };
    cable.pull(Outage::Vanish);
    let read = node.work(link, 5, Operation::Read { into: &slices, from });
    assert_eq!(node.port.post(&[read, read]).accepted, 2);
    assert_eq!(node.event(), LinkEvent::Lost { link, loss: Loss::Unreachable });
    assert_eq!(node.completion().status, CompletionStatus::Unreachable);
    assert_eq!(node.completion().status, CompletionStatus::Flushed);
    let again = node.port.connect(&format!("{}/p", cable.address), b"", node.queue);
    let again = again.expect("an address");
    match node.event() {
        LinkEvent::NotReached { link, .. } => assert_eq!(link, again),
        other => panic!("reached without a cable: {other:?}"),
    }
    cable.put_back(Outage::Vanish);
    let start = Instant::now();
    let (link, region) = node.connect(&format!("{}/p", cable.address));
    assert!(start.elapsed() < WATCHDOG);
    echo(&mut node, link, 1);
    node.works(link, region);
}
