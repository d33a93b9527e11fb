//! Names of ports between processes: what killed ones leave, what other users can do, and what
//! namespaces see. Tests that need root report if it is missing.

mod common;

use common::{TestNode, name, node, node_of};
use farside_base::LinkId;
use farside_fabric::{Fabric, FabricError, LinkEvent, Loss, PortSpec};
use farside_fabric_shm::{ShmFabric, ShmOptions};
use farside_testkit::{Process, WATCHDOG, role, unique_name};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The user that is not the one of this test.
const OTHER: u32 = 65_534;

/// The role of a child process; does nothing in an ordinary run.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let role: Vec<&str> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["listen", listen] => serve(listen),
        ["join", listen] => join(listen),
        ["alone", listen] => alone(listen),
        ["unmapped", listen] => unmapped(listen),
        ["attack", folder, listen] => attack(Path::new(folder), listen),
        _ => panic!("unknown role {role:?}"),
    }
}

/// Accepts every link, until it is killed.
fn serve(listen: &str) {
    let mut node = node(Some(listen));
    loop {
        match node.event() {
            LinkEvent::Requested { link, .. } => {
                let token = node.region.token.encode();
                // The peer may have ended already.
                let _ = node.port.accept(link, &token, node.queue);
            }
            LinkEvent::Lost { link, .. } => node.port.close(link),
            other => panic!("{other:?}"),
        }
    }
}

fn join(listen: &str) {
    let mut node = node(None);
    let (link, region) = node.connect(listen);
    node.works(link, region);
}

/// There is no such name in this process's folder.
fn alone(listen: &str) {
    let mut node = node(None);
    let connected = node.port.connect(listen, b"", node.queue);
    assert!(matches!(connected, Err(FabricError::NoListener(_))), "{connected:?}");
}

/// Runs as a process whose user is not mapped in its user namespace: other users may have the same
/// number.
fn unmapped(listen: &str) {
    let mut node = node(None);
    let connected = node.port.connect(listen, b"", node.queue).map(drop);
    let spec = PortSpec { listen: Some("another".to_owned()) };
    for refused in [connected, node.fabric.open(&spec).map(drop)] {
        let Err(FabricError::NotPermitted(text)) = refused else { panic!("{refused:?}") };
        assert!(text.contains("user namespace"), "{text}");
    }
}

/// Everything that another user can try with the names of `folder`.
fn attack(folder: &Path, listen: &str) {
    let given = ShmOptions { folder: Some(folder.to_owned()), ..ShmOptions::DEFAULT };
    let fabric = ShmFabric::with_options(given).expect("a fabric");
    let spec = PortSpec { listen: Some(listen.to_owned()) };
    let listens = fabric.open(&spec).map(drop);
    assert!(matches!(listens, Err(FabricError::NotPermitted(_))), "{listens:?}");
    for file in [listen, "squatted", "."] {
        let bound = std::os::unix::net::UnixListener::bind(folder.join(file));
        assert_eq!(bound.expect_err("no entry").kind(), ErrorKind::PermissionDenied);
        let removed = std::fs::remove_file(folder.join(file));
        assert_eq!(removed.expect_err("no entry").kind(), ErrorKind::PermissionDenied);
    }
    let moved = std::fs::rename(folder, folder.with_extension("moved"));
    assert_eq!(moved.expect_err("a sticky parent").kind(), ErrorKind::PermissionDenied);
    for _ in 0..2000 {
        let refused = connect(&folder.join(listen)).expect_err("no entry");
        assert_eq!(refused, rustix::io::Errno::ACCESS);
    }
    // The same name in this user's own folder is another one.
    let own = folder.with_extension("other");
    let given = ShmOptions { folder: Some(own.clone()), ..ShmOptions::DEFAULT };
    let fabric = ShmFabric::with_options(given).expect("a fabric");
    drop(fabric.open(&spec).expect("a name of its own"));
    std::fs::remove_dir(own).expect("an empty folder");
}

/// Connects to a socket without any check.
fn connect(path: &Path) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A folder for the names of one test; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(what: &str) -> Self {
        Self(std::env::temp_dir().join(unique_name(&format!("farside-{what}"))))
    }

    fn fabric(&self) -> ShmFabric {
        let folder = Some(self.0.clone());
        ShmFabric::with_options(ShmOptions { folder, ..ShmOptions::DEFAULT }).expect("a fabric")
    }

    /// Returns a child that has its names in this folder.
    fn child(&self, role: &str) -> Command {
        let mut command = Process::command(&[], role);
        command.env("FARSIDE_RUNTIME_DIR", &self.0);
        command
    }

    fn entries(&self) -> usize {
        std::fs::read_dir(&self.0).into_iter().flatten().count()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns whether this test has what it needs.
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: it starts processes of another user or namespace, which only root can");
    }
    root
}

/// Waits until a name can be connected to.
fn wait_for(path: &Path) {
    let start = Instant::now();
    while connect(path).is_err() {
        assert!(start.elapsed() < WATCHDOG, "no process listens at {}", path.display());
        std::thread::yield_now();
    }
}

#[test]
fn two_hundred_killed_processes_leave_next_to_nothing() {
    let scratch = Scratch::new("killed");
    for number in 0..200 {
        let listen = format!("victim-{number}");
        let mut victim = Process::start(scratch.child(&format!("listen {listen}")));
        wait_for(&scratch.0.join(&listen));
        victim.kill();
        // Each has removed the socket that the previous one left.
        assert_eq!(scratch.entries(), 1, "after {number}");
    }
    let listen = Some("last".to_owned());
    let last = scratch.fabric().open(&PortSpec { listen }).expect("a free name");
    assert_eq!(scratch.entries(), 1);
    drop(last);
    assert_eq!(scratch.entries(), 0);
}

#[test]
fn the_setting_names_the_folder_and_must_be_right() {
    let scratch = Scratch::new("setting");
    let mut node = node_of(scratch.fabric(), Some("there"));
    let joiner = Process::start(scratch.child("join there"));
    node.accept();
    assert!(joiner.succeeds(), "it finds the same folder");
    let mut elsewhere = scratch.child("alone there");
    elsewhere.env_remove("FARSIDE_RUNTIME_DIR");
    assert!(Process::start(elsewhere).succeeds(), "another folder has other names");
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn another_user_cannot_take_names_connect_or_disturb() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("guarded");
    let mut node = node_of(scratch.fabric(), Some("guarded"));
    let mut other = node_of(scratch.fabric(), None);
    let link = link_to(&mut other, &mut node, "guarded");
    let mut attacker = scratch.child(&format!("attack {} guarded", scratch.0.display()));
    attacker.uid(OTHER).gid(OTHER);
    let Ok(attacker) = Process::try_start(attacker) else {
        return println!("SKIPPED: another user cannot run this executable");
    };
    assert!(attacker.succeeds());
    let token = node.region.token;
    let region = other.port.import(link, &token).expect("a region");
    other.works(link, region);
    assert_eq!((node.events.len(), other.events.len()), (0, 0));
    link_to(&mut other, &mut node, "guarded");
}

fn link_to(from: &mut TestNode, to: &mut TestNode, listen: &str) -> LinkId {
    let link = from.port.connect(listen, b"", from.queue).expect("a listener");
    to.accept();
    let event = from.event();
    assert!(matches!(event, LinkEvent::Connected { link: same, .. } if same == link), "{event:?}");
    link
}

/// Root may enter every folder. The kernel reports another user, so each of its connections is closed
/// before it takes an entry.
#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn connections_of_another_user_are_closed_at_once() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("foreign");
    std::fs::create_dir(&scratch.0).expect("a folder");
    std::fs::set_permissions(&scratch.0, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .expect("a mode");
    chown(&scratch.0, Some(OTHER), Some(OTHER)).expect("another owner");
    let start = |role: &str| {
        let mut command = scratch.child(role);
        command.uid(OTHER).gid(OTHER);
        Process::try_start(command)
    };
    let Ok(_victim) = start("listen foreign") else {
        return println!("SKIPPED: another user cannot run this executable");
    };
    let path = scratch.0.join("foreign");
    wait_for(&path);
    let strangers: Vec<_> = (0..400).map(|_| connect(&path).expect("a listener")).collect();
    assert!(start("join foreign").expect("a child").succeeds(), "its own user joins meanwhile");
    for stranger in &strangers {
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::empty();
        // Without a deadline: it ends because the victim closes it.
        let received = rustix::net::recv(stranger, &mut byte[..], flags);
        assert!(matches!(received, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)), "{received:?}");
    }
}

/// Returns a child in a new namespace of this kind; `None` if there can be none.
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn apart(kind: &str, first: &str, role: &str) -> Option<Process> {
    let tried = Command::new("unshare").args([kind, "true"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no namespaces here (unshare {kind})");
        return None;
    }
    // Opened before `first`, which may hide the folder that it is in.
    let script = format!("exec 9<\"$1\"; shift; {first} exec /proc/self/fd/9 \"$@\"");
    Some(Process::start(Process::command(&["unshare", kind, "sh", "-c", &script, "sh"], role)))
}

/// Names are in file systems: a process of another network namespace joins, and one with another
/// `/tmp` does not.
#[test]
fn network_namespaces_share_names_and_mount_namespaces_need_not() {
    if !is_root() {
        return;
    }
    let listen = name("namespaces");
    let mut node = node(Some(&listen));
    let Some(joiner) = apart("--net", "", &format!("join {listen}")) else {
        return;
    };
    let link = node.accept();
    assert!(joiner.succeeds());
    assert_eq!(node.event(), LinkEvent::Lost { link, loss: Loss::Ended });
    let hidden = "mount -t tmpfs none /tmp && mount -t tmpfs none /run &&";
    if let Some(alone) = apart("--mount", hidden, &format!("alone {listen}")) {
        assert!(alone.succeeds());
    }
    assert_eq!(node.events, []);
}

/// The kernel reports all unmapped users by one number, which identifies none of them.
#[test]
fn the_number_of_unmapped_users_is_no_user() {
    let scratch = Scratch::new("unmapped");
    let node = node_of(scratch.fabric(), Some("there"));
    let folder = format!("export FARSIDE_RUNTIME_DIR={};", scratch.0.display());
    if let Some(child) = apart("--user", &folder, "unmapped there") {
        assert!(child.succeeds());
    }
    assert_eq!(node.events, []);
}

/// Limits the descriptors of a process, or resets the limit to this process's.
fn limit_descriptors(process: &Process, most: Option<u64>) {
    let own = getrlimit(Resource::Nofile);
    let limit = Rlimit { current: most.or(own.current), maximum: own.maximum };
    let process = Pid::from_raw(process.id().cast_signed());
    prlimit(process, Resource::Nofile, limit).expect("to limit a child");
}

/// A listener whose process has no descriptor left accepts again once there are some.
#[test]
fn connections_that_wait_for_descriptors_are_accepted_when_there_are_some() {
    let scratch = Scratch::new("starved");
    let victim = Process::start(scratch.child("listen starved"));
    let path = scratch.0.join("starved");
    wait_for(&path);
    limit_descriptors(&victim, Some(0));
    let _waiting: Vec<_> = (0..20).map(|_| connect(&path).expect("a listener")).collect();
    let mut node = node_of(scratch.fabric(), None);
    let link = node.port.connect("starved", b"test", node.queue).expect("a listener");
    limit_descriptors(&victim, None);
    let event = node.event();
    assert!(matches!(event, LinkEvent::Connected { link: same, .. } if same == link), "{event:?}");
}
