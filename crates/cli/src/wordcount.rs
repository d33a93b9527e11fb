//! `farside wordcount`: counts the words of files in a shared table, and prints what the usual pipeline
//! of `tr`, `sort` and `uniq -c` prints.

use crate::arguments::Wordcount;
use crate::cluster::{Cluster, unexpected};
use crate::failure::Failure;
use crate::hosts::Hosts;
use crate::output::Output;
use crate::worker::{Answer, Command, NodeSpec};
use farside_apps::wordcount::{Input, write_counts};
use serde_json::json;
use std::path::PathBuf;

/// Memory of each node: the least, and what each byte of text may take at worst, when every word is a
/// new one.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
const MEMORY_PER_TEXT: u64 = 64;
/// Words that the table needs room for at most, however long the text.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// Bytes of text that a worker counts together, where text is sent to it, and of one line of it.
const TEXT_BYTES_MIN: u64 = 64 << 10;
const TEXT_BYTES_MAX: u64 = 4 << 20;
const LINE_BYTES: usize = 256 << 10;

/// Counts and prints.
pub(crate) fn run(arguments: &Wordcount, output: Output) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::system(e.to_string());
    let hosts = Hosts::of(&arguments.places)?;
    let input = Input::open(&arguments.files).map_err(failed)?;
    let words =
        if input.bytes() == 0 { Vec::new() } else { counted(arguments, &hosts, &input, output)? };
    output.value(&json!({ "words": words }));
    let words: Vec<_> = words.into_iter().map(|(word, count)| (word.into_bytes(), count)).collect();
    let mut lines = Vec::new();
    write_counts(&words, &mut lines).map_err(failed)?;
    output.text(&lines)
}

/// Splits the text among nodes and gathers the table.
fn counted(
    arguments: &Wordcount,
    hosts: &Hosts,
    input: &Input,
    output: Output,
) -> Result<Vec<(String, u64)>, Failure> {
    let nodes = u64::from(arguments.nodes);
    let memory = input.bytes().saturating_mul(MEMORY_PER_TEXT).min(MEMORY_BYTES_MAX) / nodes;
    let spec = NodeSpec {
        cluster: format!("wordcount-{}", std::process::id()),
        create: true,
        memory_bytes: memory.max(MEMORY_BYTES_MIN),
        cache_bytes: 64 << 20,
        line_bytes: None,
        cache_shares: None,
        spin_ns: None,
        processor: None,
        host: None,
    };
    let mut cluster = Cluster::start(hosts, &spec, usize::from(arguments.nodes))?;
    let create = Command::CreateTable {
        nodes: (0..cluster.len()).map(|index| cluster.node(index)).collect(),
        record_line_bytes: Some(64),
    };
    let root = match cluster.ask(0, create)? {
        Answer::Address(root) => root,
        other => return Err(unexpected(&other)),
    };
    let open = (1..cluster.len()).map(|index| (index, Command::OpenTable { root })).collect();
    all(cluster.ask_all(open, |_| {})?)?;
    let bar = output.bar("bytes", input.bytes());
    if hosts.shares_files() {
        let files = absolute(&arguments.files)?;
        let parts = (0..cluster.len()).zip(0..u32::from(arguments.nodes)).map(|(index, part)| {
            let (files, parts) = (files.clone(), u32::from(arguments.nodes));
            (index, Command::Words { files, part, parts })
        });
        all(cluster.ask_all(parts.collect(), |more| bar.inc(more))?)?;
    } else {
        send(&mut cluster, input, |more| bar.inc(more))?;
    }
    bar.finish_and_clear();
    let words = match cluster.ask(0, Command::AllWords)? {
        Answer::Words(words) => words,
        other => return Err(unexpected(&other)),
    };
    cluster.leave()?;
    Ok(words)
}

/// Sends the text to workers that do not see the files, in turn, and waits until each has counted its
/// parts.
fn send(
    cluster: &mut Cluster,
    input: &Input,
    mut progress: impl FnMut(u64),
) -> Result<(), Failure> {
    let count = cluster.len();
    let part_bytes = input.bytes().div_ceil(count as u64).clamp(TEXT_BYTES_MIN, TEXT_BYTES_MAX);
    let mut cutter = Cutter::new(usize::try_from(part_bytes).unwrap_or(usize::MAX));
    let (mut commands, mut parts, mut done) = (Vec::new(), 0, Ok(()));
    let mut deal = |part: &str, cluster: &mut Cluster, last: bool| {
        if !part.is_empty() {
            commands.extend(lines(part).map(|text| (parts % count, text)));
            parts += 1;
        }
        if parts % count == 0 || last {
            all(cluster.ask_all(std::mem::take(&mut commands), &mut progress)?)?;
        }
        Ok(())
    };
    let read = input.read(0, |block| {
        if let Some(part) = cutter.take(block) {
            done = deal(&part, cluster, false);
        }
        done.is_ok()
    });
    read.map_err(|e| Failure::system(e.to_string()))?;
    done?;
    deal(&cutter.rest(), cluster, true)
}

/// The commands that bring a part to its worker.
fn lines(part: &str) -> impl Iterator<Item = Command> {
    let count = part.len().div_ceil(LINE_BYTES);
    // Letters and blanks alone: each byte is a character.
    let text = move |at: usize| {
        let end = part.len().min((at + 1) * LINE_BYTES);
        part[at * LINE_BYTES..end].to_owned()
    };
    (0..count).map(move |at| Command::Text { text: text(at), end: at + 1 == count })
}

/// Cuts a text into parts that can be counted one by one: each but the first begins with a word, and none
/// ends within one. What is no letter becomes a blank.
struct Cutter {
    held: String,
    /// Least bytes of a part, the last excepted.
    bytes: usize,
}

impl Cutter {
    fn new(bytes: usize) -> Self {
        Self { held: String::new(), bytes }
    }

    /// Takes more of the text; a part, when there is one.
    fn take(&mut self, block: &[u8]) -> Option<String> {
        let letter = |byte: &u8| if byte.is_ascii_alphabetic() { char::from(*byte) } else { ' ' };
        self.held.extend(block.iter().map(letter));
        if self.held.len() < self.bytes {
            return None;
        }
        let bytes = self.held.as_bytes();
        let begins = |at: &usize| bytes[*at] != b' ' && bytes[at - 1] == b' ';
        let at = (1..bytes.len()).rev().find(begins)?;
        let next = self.held.split_off(at);
        Some(std::mem::replace(&mut self.held, next))
    }

    fn rest(self) -> String {
        self.held
    }
}

fn all(answers: Vec<Result<Answer, Failure>>) -> Result<(), Failure> {
    answers.into_iter().try_for_each(|answer| answer.map(|_| ()))
}

/// Paths that mean the same in any process.
fn absolute(files: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let one = |path: &PathBuf| {
        std::path::absolute(path).map_err(|e| Failure::system(format!("{}: {e}", path.display())))
    };
    files.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_text_and_begin_with_words() {
        let text = b"- one, two\xe9three;\nfour five six".repeat(9);
        for (bytes, block) in [(1, 1), (1, 7), (10, 3), (64, 5), (1 << 20, 64)] {
            let mut cutter = Cutter::new(bytes);
            let mut parts: Vec<_> =
                text.chunks(block).filter_map(|block| cutter.take(block)).collect();
            parts.push(cutter.rest());
            for (at, part) in parts.iter().enumerate() {
                assert!(at == 0 || !part.starts_with(' '), "{parts:?}");
                assert!(at + 1 == parts.len() || part.ends_with(' '), "{parts:?}");
            }
            let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let whole: String = text
                .iter()
                .map(|byte| if byte.is_ascii_alphabetic() { char::from(*byte) } else { ' ' })
                .collect();
            assert_eq!(words(&parts.concat()), words(&whole), "{bytes} {block}");
            assert_eq!(parts.len() > 1, bytes < 1 << 20, "{bytes} {block}");
        }
    }

    #[test]
    fn a_word_of_any_length_stays_whole() {
        let mut cutter = Cutter::new(10);
        let word = "a".repeat(3 * LINE_BYTES + 1);
        assert_eq!(cutter.take(word.as_bytes()), None);
        assert_eq!(cutter.take(b" b"), Some(format!("{word} ")));
        let commands: Vec<_> = lines(&word).collect();
        let ends: Vec<_> =
            commands.iter().map(|line| matches!(line, Command::Text { end: true, .. })).collect();
        assert_eq!(ends, [false, false, false, true]);
    }
}
