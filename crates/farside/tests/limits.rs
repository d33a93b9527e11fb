//! A node without sufficient resources is refused at its start, with the resource named: each test starts
//! nodes in a child process with lowered limits, and reads the outcome.

use farside::{Config, ErrorCode, LineSize, Node};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::Duration;

const LIMIT: &str = "FARSIDE_TEST_LIMIT";

fn config(name: &str) -> Config {
    let name = format!("limits-{name}-{}", std::process::id());
    Config::new(name).memory_bytes(8 << 20).cache_bytes(4 << 20)
}

/// Not a test: the child process. It sets a limit, starts two nodes and uses their memory.
#[test]
#[expect(clippy::print_stdout, reason = "the parent process reads how it ended")]
fn child() {
    let Ok(limit) = std::env::var(LIMIT) else { return };
    let mut words = limit.split(' ');
    let (name, value) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let mut config = config("child");
    let resource = match name {
        "nofile" => Resource::Nofile,
        "nproc" => Resource::Nproc,
        "fsize" => Resource::Fsize,
        "as" => Resource::As,
        "cache" => return println!("\nENDED {}", private_bytes_of_a_node(value)),
        other => panic!("no limit {other}"),
    };
    if name == "as" {
        config.memory_bytes = 512 << 20;
    }
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) }).unwrap();
    match use_two_nodes(&config) {
        Ok(()) => println!("\nENDED Ok"),
        Err(error) => println!("\nENDED {:?}: {error}", error.code),
    }
}

/// The private memory of this process with a node that has a cache of this size, but no line in it.
fn private_bytes_of_a_node(cache_bytes: u64) -> u64 {
    let node = Node::create(&config("cache").cache_bytes(cache_bytes)).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    drop(node);
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

fn use_two_nodes(config: &Config) -> Result<(), farside::Error> {
    let first = Node::create(config)?;
    let second = Node::join(config)?;
    first.wait_for_members(2, Duration::from_secs(20))?;
    let (mut one, mut two) = (first.session()?, second.session()?);
    let address = one.alloc(64)?;
    one.write_u64(address, 7)?;
    one.fence()?;
    assert_eq!(two.read_u64(address)?, 7);
    Ok(())
}

/// The outcome of the child under a limit: `Ok`, or the code and text of the error. It ends by itself, not
/// by a signal or panic.
fn ended(limit: &str, prepare: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(LIMIT, limit);
    prepare(&mut command);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{limit}: {status}\n{out}\n{err}");
    assert!(!err.contains("panicked"), "{limit}: {err}");
    let line = out.lines().find_map(|line| line.strip_prefix("ENDED "));
    line.unwrap_or_else(|| panic!("{limit}: {out}")).to_owned()
}

/// Whether a refusal names the limit and its value.
fn assert_names(refusal: &str, limit: &str, value: u64) {
    assert!(refusal.contains(limit) && refusal.contains(&value.to_string()), "{refusal}");
    assert!(refusal.contains("raise"), "{refusal}");
}

#[test]
fn too_few_descriptors_are_named_with_their_limit() {
    let mut refused = 0;
    for most in 4.. {
        let said = ended(&format!("nofile {most}"), |_| {});
        if said == "Ok" {
            break;
        }
        if said.starts_with("NoSuchCluster") || said.starts_with("TimedOut") {
            // The other end did not accept the connection or the link; the joiner does not know its limit.
            assert!(said.contains("raise") && said.contains("RLIMIT_NOFILE"), "{said}");
        } else {
            assert_names(&said, "RLIMIT_NOFILE", most);
        }
        refused += 1;
    }
    assert!(refused > 4, "{refused}");
}

#[test]
fn too_few_threads_are_named_with_their_limit() {
    // The limit is per user, and the superuser has none.
    let user = 40_000 + std::process::id() % 20_000;
    let root = rustix::process::geteuid().is_root();
    let mut refused = 0;
    for most in 1_u64.. {
        let said = ended(&format!("nproc {most}"), |command| {
            if root {
                command.uid(user);
            }
        });
        if said == "Ok" {
            break;
        }
        assert_names(&said, "RLIMIT_NPROC", most);
        refused += 1;
        if !root {
            return; // other processes of this user count too
        }
    }
    assert!(refused > 0);
}

#[test]
fn memory_over_the_file_size_limit_is_refused() {
    for most in [0, 4096, 1 << 20] {
        assert_names(&ended(&format!("fsize {most}"), |_| {}), "RLIMIT_FSIZE", most);
    }
}

#[test]
fn memory_over_the_address_space_limit_is_refused() {
    let most = 600 << 20;
    let said = ended(&format!("as {most}"), |_| {});
    assert!(said.starts_with("BadConfiguration") && said.contains("memory_bytes"), "{said}");
    assert_names(&said, "RLIMIT_AS", most);
}

#[test]
fn memory_over_what_the_machine_has_is_refused() {
    let config = config("machine").memory_bytes(1 << 41);
    let error = Node::create(&config).unwrap_err();
    assert_eq!(error.code, ErrorCode::BadConfiguration);
    assert!(error.detail.contains("memory_bytes 2199023255552"), "{error}");
}

#[test]
fn cache_without_room_for_8_lines_is_refused() {
    let largest = config("cache").line_size(LineSize::MAX);
    let refused = [
        (largest.clone().cache_bytes((512 << 10) - 1), "raise cache_bytes to at least 524288"),
        (largest.clone().cache_bytes(4_096), "4096 B have no room for 8 lines of 65536 B"),
    ];
    for (config, part) in refused {
        let error = Node::create(&config).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadConfiguration);
        assert!(error.detail.contains(part), "{error}");
    }
    // The values that the refusals recommend are sufficient.
    for (line_size, cache_bytes) in [(LineSize::MAX, 524_288), (LineSize::DEFAULT, 4_096)] {
        let config = config("cache").line_size(line_size).cache_bytes(cache_bytes);
        use_two_nodes(&config).unwrap();
    }
}

/// Its tables have over 300 MiB of addresses.
#[test]
fn empty_cache_touches_little_of_its_tables() {
    let private = |bytes: u64| ended(&format!("cache {bytes}"), |_| {}).parse::<u64>().unwrap();
    let (small, large) = (private(1 << 20), private(512 << 20));
    assert!(large < small + (8 << 20), "{small} B with a small cache, {large} B with a large one");
}
