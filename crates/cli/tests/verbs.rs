//! The verbs fabric of the command without libibverbs, and with a fake one.
#![forbid(unsafe_code)]

use farside_fabric_verbs_fake::Fake;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder with a `libibverbs.so.1` that the loader searches before all others.
struct Library(PathBuf);

impl Library {
    fn folder() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farside-verbs-test-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("libibverbs.so.1")
    }

    /// A file that is not a library.
    fn broken() -> Self {
        let library = Self::folder();
        std::fs::write(library.file(), "no library").unwrap();
        library
    }

    /// The fake library, without real devices.
    fn fake() -> Self {
        let library = Self::folder();
        let fake = Fake::path().expect("the library of the test");
        std::os::unix::fs::symlink(fake, library.file()).unwrap();
        library
    }

    fn farside(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farside"));
        command.env("LD_LIBRARY_PATH", &self.0).args(words);
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.farside(words).output().unwrap()
    }

    /// Returns the output of `farside info` about verbs, as JSON and as text.
    fn info(&self) -> (Value, String) {
        let done = self.output(&["info", "--json"]);
        let value: Value = serde_json::from_slice(&done.stdout).unwrap();
        let fabrics = value["fabrics"].as_array().unwrap();
        let found = fabrics.iter().find(|fabric| fabric["name"] == "verbs").unwrap();
        let text = self.output(&["info"]);
        (found.clone(), String::from_utf8(text.stdout).unwrap())
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn missing_library_is_reported_with_its_package() {
    let library = Library::broken();
    let (value, text) = library.info();
    assert_eq!((&value["usable"], &value["devices"]), (&false.into(), &Value::Array(vec![])));
    let error = value["error"]["text"].as_str().unwrap();
    assert!(error.contains("install rdma-core"), "{error}");
    assert!(text.contains("not usable: verbs fabric: not available: libibverbs.so.1"), "{text}");
    for end in [["--listen", "127.0.0.1:0"], ["127.0.0.1:1", "--test=write"]] {
        let words = [&["bench", "fabric", "--fabric", "verbs"], &end[..]].concat();
        let done = library.output(&words);
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("install rdma-core"), "{said}");
    }
}

#[test]
fn info_shows_the_chosen_device_and_reasons() {
    let library = Library::fake();
    let (value, text) = library.info();
    assert_eq!(value["usable"], true, "{value}");
    let choice = &value["choice"];
    let device = (&choice["device"], &choice["port"], &choice["network"]);
    assert_eq!(device, (&"fake0".into(), &1.into(), &"RoCE".into()));
    assert_eq!((&choice["gid_index"], &choice["mtu_bytes"]), (&0.into(), &1024.into()));
    let reason = choice["gid_reason"].as_str().unwrap();
    assert!(reason.contains("RoCE v2"), "{choice}");
    let device_reason = choice["device_reason"].as_str().unwrap();
    assert!(text.contains("would use RoCE fake0 port 1") && text.contains(reason), "{text}");
    assert!(text.contains(device_reason) && text.contains("device fake0 port 1: up"), "{text}");
}

#[test]
fn unknown_device_is_refused_with_a_list_of_devices() {
    let library = Library::fake();
    let serve = ["bench", "fabric", "--json", "--fabric", "verbs", "--listen", "127.0.0.1:0"];
    let serve = |device: &str| library.farside(&[&serve[..], &["--device", device]].concat());
    let mut child = serve("fake0:1:0").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let said: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(said["fabric"], "verbs", "{said}");
    assert!(said["listening"].as_str().unwrap().starts_with("127.0.0.1:"), "{said}");
    for (device, expected) in [("fake7", "there are: fake0"), ("fake0:1:9", "GID")] {
        let done = serve(device).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(serve("fake0:0").output().unwrap().status.code(), Some(2));
}

#[test]
fn unsupported_device_options_are_refused_by_name() {
    let library = Library::fake();
    let (value, text) = library.info();
    assert_eq!(value["choice"]["on_demand_paging"], false, "{value}");
    assert_eq!(value["devices"][0]["on_demand_paging"], "none", "{value}");
    assert!(text.contains("memory pinned") && text.contains("on-demand paging of none"), "{text}");
    assert!(text.contains("65536 memory windows") && text.contains("on every link"), "{text}");
    assert!(value["choice"]["keys"].as_str().unwrap().contains("were not requested"), "{value}");
    let serve = ["bench", "fabric", "--fabric", "verbs", "--listen", "127.0.0.1:0", "--rdma"];
    for (asked, expected) in [
        ("on-demand-paging", "fake0 lacks on-demand paging"),
        ("connection-manager", "fake0 needs rdma_cm (as asked for)"),
        ("connection-manager,on-demand-paging", "fake0 lacks on-demand paging"),
    ] {
        let done = library.output(&[&serve[..], &[asked]].concat());
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let done = library.output(&[&serve[..], &["bananas"]].concat());
    assert_eq!(done.status.code(), Some(2));
}
