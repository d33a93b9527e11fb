//! Runs the guide to the first remote memory call.
//!
//! Every line of its shell blocks runs in order, in a temporary folder; C blocks are written to the files named in
//! their first lines. Each line of an output block must be printed, in order; `...` matches any text. Commands that
//! install packages, create the folder or run `cargo` are left out. Names and ports are replaced by free ones.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, name, text};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

/// A fenced block.
struct Block {
    kind: String,
    text: String,
}

fn blocks(guide: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for line in guide.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(kind), None) => open = Some(Block { kind: kind.to_owned(), text: String::new() }),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

/// Whether a line matches a line of the guide.
fn matches_line(line: &str, shown: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        open = part.is_empty();
    }
    open || rest.is_empty()
}

/// Asserts that the shown lines are printed in order.
fn check(said: &str, shown: &str) {
    let mut lines = said.lines();
    for wanted in shown.lines() {
        assert!(
            lines.any(|line| matches_line(line, wanted)),
            "the guide shows `{wanted}`, but the output is:\n{said}"
        );
    }
}

/// Runs the guide's commands.
struct Terminal {
    folder: Folder,
    /// Names used in place of the guide's `lists` and `near`.
    names: [String; 2],
    /// Serving processes; the second accesses the memory of the first.
    servers: Vec<Running>,
    listener: Option<Running>,
    port: String,
    /// Whether callers need the server's key.
    keyed: bool,
    /// Output of the commands of the last block.
    said: String,
}

impl Terminal {
    fn run(&mut self, line: &str) {
        let line = self.with_names(line);
        if let Some(words) = line.strip_prefix("farside rmc serve ") {
            self.serve(words);
            return;
        }
        if let Some(words) = line.strip_prefix("farside rmc listen ") {
            let words: Vec<_> = words.split(' ').collect();
            let mut listener = Running::start(&[], &[&["rmc", "listen"], &words[..]].concat());
            let head = listener.line();
            self.say(&format!("{head}\n"));
            self.listener = Some(listener);
            return;
        }
        let line = line.replace("127.0.0.1:7471", &self.port);
        let program = Path::new(env!("CARGO_BIN_EXE_farside"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", program.parent().unwrap().display());
        let mut command = Command::new("sh");
        command.args(["-c", &line]).current_dir(self.folder.path("")).env("PATH", path);
        let done = command.output().unwrap();
        let keyless = self.keyed && line.contains("rmc call") && !line.contains("--key");
        let fails = ["wrong.c", "absent", "--parameters 64\n", "0=circle.bin"];
        let fails = fails.iter().any(|part| format!("{line}\n").contains(part)) || keyless;
        let (out, err) = (text(&done.stdout), text(&done.stderr));
        assert_eq!(done.status.success(), !fails, "{line}: {out}{err}");
        self.say(&(out + &err));
    }

    /// Replaces the names in a command.
    fn with_names(&self, line: &str) -> String {
        if !line.starts_with("farside rmc ") {
            return line.to_owned();
        }
        let named = |word| match word {
            "lists" => self.names[0].as_str(),
            "near" => self.names[1].as_str(),
            word => word,
        };
        line.split(' ').map(named).collect::<Vec<_>>().join(" ")
    }

    /// Appends output, with the guide's names.
    fn say(&mut self, said: &str) {
        let [lists, near] = &self.names;
        self.said += &said.replace(lists, "lists").replace(near, "near");
    }

    fn serve(&mut self, words: &str) {
        if !words.contains("--beside") {
            self.end();
        }
        let words = words.replace("127.0.0.1:7471", "127.0.0.1:0");
        self.keyed = words.contains("--key");
        let words = ["nodes.bin", "cluster.key"]
            .iter()
            .fold(words, |words, file| words.replace(file, &self.folder.path(file)));
        let words: Vec<_> = words.split(' ').collect();
        let mut server = Running::start(&[], &[&["rmc", "serve"], &words[..]].concat());
        let (head, region) = (server.line(), server.line());
        let address = head.strip_prefix("serving at ").unwrap().split(' ').next().unwrap();
        self.port = address.trim_end_matches("/rmc").to_owned();
        self.say(&format!("{head}\n{region}\n").replace(&self.folder.path(""), ""));
        self.servers.push(server);
    }

    /// Reads the listener's output until it ends.
    fn read_listener(&mut self) {
        let Some(mut listener) = self.listener.take() else { return };
        loop {
            let line = listener.line();
            self.say(&format!("{line}\n"));
            if line.ends_with(" received") {
                assert_eq!(listener.end(), (Some(0), String::new()));
                return;
            }
        }
    }

    /// Ends the serving processes with SIGINT.
    fn end(&mut self) {
        for server in self.servers.drain(..).rev() {
            server.signal(Signal::INT);
            assert_eq!(server.end(), (Some(0), String::new()));
        }
    }
}

#[test]
fn process_guide_commands_print_the_shown_output() {
    let guide =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/first-remote-memory-call.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let clang = Command::new("clang").arg("--print-targets").output();
    if !clang.is_ok_and(|done| text(&done.stdout).contains("bpf")) {
        skipped("clang is not installed");
        return;
    }
    let (folder, names) = (Folder::new(), [name(), name()]);
    let mut terminal = Terminal {
        folder,
        names,
        servers: Vec::new(),
        listener: None,
        port: String::new(),
        keyed: false,
        said: String::new(),
    };
    let (mut ran, mut checked, mut fresh) = (0, 0, true);
    for block in blocks(&guide) {
        match block.kind.as_str() {
            "c" => {
                let first = block.text.lines().next().unwrap();
                let file = first.trim_start_matches("/* ").trim_end_matches(" */");
                terminal.folder.file(file, block.text.as_bytes());
            }
            "sh" => {
                if std::mem::take(&mut fresh) {
                    terminal.said.clear();
                }
                let others = ["sudo ", "cargo ", "mkdir "];
                let lines = block.text.lines();
                for line in lines.filter(|line| !others.iter().any(|other| line.starts_with(other)))
                {
                    terminal.run(line);
                    ran += 1;
                }
            }
            "text" => {
                terminal.read_listener();
                check(&terminal.said, &block.text);
                checked += 1;
                fresh = true;
            }
            _ => {}
        }
    }
    terminal.end();
    assert!(
        ran >= 30 && checked >= 14,
        "too few blocks in the guide: {ran} commands, {checked} outputs"
    );
}

#[test]
fn lines_with_ellipsis_are_matched() {
    assert!(matches_line("a 1 b 2", "a ... b ..."));
    assert!(matches_line("a", "a") && matches_line("a 1", "a ..."));
    assert!(
        !matches_line("a 1", "a")
            && !matches_line("b 1", "a ...")
            && !matches_line("a 1 c", "a ... b")
    );
    assert!(matches_line("x", "...") && !matches_line("a 1 b 2", "a ... b"));
}

#[expect(clippy::print_stderr, reason = "reports a skipped test")]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}
