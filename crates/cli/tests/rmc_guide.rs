//! The guide to the first remote memory call, done as it is written.
//!
//! Every line of its shell blocks runs, in order, in a folder of its own; C blocks are written to the files
//! that their first lines name. Of each block of output, each line has to come, in order; `...` stands for
//! anything. What is left out: installing, the folder, and what `cargo` does. Names and ports are replaced by ones that are
//! free.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, name, text};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

/// A block between fences.
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
    assert!(open.is_none(), "a block has no end");
    found
}

/// Whether a line is as the guide has it.
fn is_like(line: &str, shown: &str) -> bool {
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

/// Checks that lines come in order.
fn check(said: &str, shown: &str) {
    let mut lines = said.lines();
    for wanted in shown.lines() {
        assert!(
            lines.any(|line| is_like(line, wanted)),
            "the guide has `{wanted}`, not so:\n{said}"
        );
    }
}

/// Where the guide's commands run.
struct Terminal {
    folder: Folder,
    /// What the guide calls `lists` and `near`.
    names: [String; 2],
    /// What serves; the second works on the first one's memory.
    servers: Vec<Running>,
    listener: Option<Running>,
    port: String,
    /// Whether callers need the server's key.
    keyed: bool,
    /// What the commands of the last block said.
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
        let fails = ["wrong.c", "nobody", "--parameters 64\n", "0=circle.bin"];
        let fails = fails.iter().any(|part| format!("{line}\n").contains(part)) || keyless;
        let (out, err) = (text(&done.stdout), text(&done.stderr));
        assert_eq!(done.status.success(), !fails, "{line}: {out}{err}");
        self.say(&(out + &err));
    }

    /// A command with names of its own.
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

    /// What was said, with the guide's names.
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

    /// Takes what who listens still says.
    fn hear(&mut self) {
        let Some(mut listener) = self.listener.take() else { return };
        loop {
            let line = listener.line();
            self.say(&format!("{line}\n"));
            if line.ends_with(" heard") {
                assert_eq!(listener.end(), (Some(0), String::new()));
                return;
            }
        }
    }

    /// Ends what serves, by Ctrl-C.
    fn end(&mut self) {
        for server in self.servers.drain(..).rev() {
            server.signal(Signal::INT);
            assert_eq!(server.end(), (Some(0), String::new()));
        }
    }
}

#[test]
fn process_the_guide_is_as_it_is_written() {
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
                terminal.hear();
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
        "the guide has become short: {ran} commands, {checked} outputs"
    );
}

#[test]
fn lines_with_gaps_are_compared() {
    assert!(is_like("a 1 b 2", "a ... b ..."));
    assert!(is_like("a", "a") && is_like("a 1", "a ..."));
    assert!(!is_like("a 1", "a") && !is_like("b 1", "a ...") && !is_like("a 1 c", "a ... b"));
    assert!(is_like("x", "...") && !is_like("a 1 b 2", "a ... b"));
}

#[expect(clippy::print_stderr, reason = "what is skipped is said")]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}
