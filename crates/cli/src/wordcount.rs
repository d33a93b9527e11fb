//! `farside wordcount`: counts the words of files in a shared table, and prints what the usual pipeline
//! of `tr`, `sort` and `uniq -c` prints.

use crate::settings::Wordcount;
use farside_apps::wordcount::{Input, WORD_BYTES_MAX, too_long, write_counts};
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::signals;
use farside_launcher::cluster::{Cluster, unexpected};
use farside_launcher::hosts::Hosts;
use farside_launcher::worker::{Answer, Command, NodeSpec, WirePath};
use serde_json::json;
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Least memory of a node.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Table bytes for each byte of text in the worst case: no word occurs twice.
const MEMORY_PER_TEXT: u64 = 64;
/// Most memory of all nodes for the table, however long the text.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// Least bytes of a part of text that is sent to a worker.
const TEXT_BYTES_MIN: u64 = 64 << 10;
/// Most bytes of a part of text that is sent to a worker.
const TEXT_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of text in one command to a worker.
const LINE_BYTES: usize = 256 << 10;
/// Bytes of a stream that are read before the nodes start.
const HEAD_BYTES: u64 = 8 << 20;
/// Parts that may be read ahead.
const PARTS_PENDING: usize = 2;
/// How often a command that waits for its input checks for a signal.
const SIGNAL_PERIOD: Duration = Duration::from_millis(100);

/// Counts the words and prints the counts.
pub(crate) fn run(arguments: &Wordcount, output: Output) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::system(e.to_string());
    let hosts = Hosts::of(&arguments.places)?;
    let input = Input::open(&arguments.files).map_err(failed)?;
    let words = counted(arguments, &hosts, &input, output)?;
    output.value(&json!({ "words": words }));
    let words: Vec<_> = words.into_iter().map(|(word, count)| (word.into_bytes(), count)).collect();
    let mut lines = Vec::new();
    write_counts(&words, &mut lines).map_err(failed)?;
    output.text(&lines);
    Ok(())
}

/// Splits the text among nodes and collects the table.
fn counted(
    arguments: &Wordcount,
    hosts: &Hosts,
    input: &Input,
    output: Output,
) -> Result<Vec<(String, u64)>, Failure> {
    let by_path = hosts.shares_files() && input.bytes().is_some();
    let mut text =
        if by_path { None } else { Some(Text::read(input, usize::from(arguments.nodes))?) };
    let bytes = text.as_ref().map_or(input.bytes(), |text| text.bytes);
    if bytes == Some(0) {
        return Ok(Vec::new());
    }
    let nodes = u64::from(arguments.nodes);
    let memory = bytes.unwrap_or(u64::MAX).saturating_mul(MEMORY_PER_TEXT).min(MEMORY_BYTES_MAX);
    let spec = NodeSpec {
        cluster: format!("wordcount-{}", std::process::id()),
        create: true,
        memory_bytes: (memory / nodes).max(MEMORY_BYTES_MIN),
        cache_bytes: 64 << 20,
        line_bytes: None,
        nodes_max: None,
        spin_ns: None,
        processor: None,
        host: None,
        keep_stopped: false,
        state: None,
        state_copies: Vec::new(),
    };
    let mut cluster = Cluster::start(hosts, &spec, usize::from(arguments.nodes))?;
    let create = Command::CreateTable {
        nodes: (0..cluster.workers_count()).map(|index| cluster.node(index)).collect(),
        record_line_bytes: Some(64),
        logged: false,
    };
    let root = match cluster.ask(0, create)? {
        Answer::Address(root) => root,
        other => return Err(unexpected(&other)),
    };
    let open =
        (1..cluster.workers_count()).map(|index| (index, Command::OpenTable { root })).collect();
    all(cluster.ask_all(open, |_| {})?)?;
    let bar = output.bar("bytes", bytes.unwrap_or(0));
    match &mut text {
        Some(text) => send(&mut cluster, text, |more| bar.inc(more))?,
        None => {
            let files: Vec<_> = input.paths().into_iter().map(WirePath).collect();
            let parts = (0..cluster.workers_count()).zip(0..u32::from(arguments.nodes));
            let parts = parts.map(|(index, part)| {
                let (files, parts) = (files.clone(), u32::from(arguments.nodes));
                (index, Command::Words { files, part, parts })
            });
            all(cluster.ask_all(parts.collect(), |more| bar.inc(more))?)?;
        }
    }
    bar.finish_and_clear();
    let words = match cluster.ask(0, Command::AllWords)? {
        Answer::Words(words) => words,
        other => return Err(unexpected(&other)),
    };
    cluster.leave()?;
    Ok(words)
}

/// Sends the text to workers that cannot read the files themselves, one part to each, and waits until they
/// have counted their parts.
fn send(
    cluster: &mut Cluster,
    text: &mut Text,
    mut progress: impl FnMut(u64),
) -> Result<(), Failure> {
    let count = cluster.workers_count();
    let (mut commands, mut sent) = (Vec::new(), 0);
    while let Some(part) = text.next()? {
        commands.extend(lines(&part).map(|text| (sent % count, text)));
        sent += 1;
        if sent % count == 0 {
            all(cluster.ask_all(std::mem::take(&mut commands), &mut progress)?)?;
        }
    }
    all(cluster.ask_all(commands, &mut progress)?)
}

/// The text of an input in parts, read by a separate thread: while it blocks on a pipe, a signal still ends the
/// command.
struct Text {
    /// Parts that were read to find out whether a stream is short.
    head: VecDeque<String>,
    parts: Receiver<String>,
    reader: Option<JoinHandle<io::Result<()>>>,
    /// Bytes of the whole input, if known.
    bytes: Option<u64>,
}

impl Text {
    /// Starts to read for this number of workers. Reads the head of a stream at once: a short one needs little
    /// memory.
    fn read(input: &Input, workers: usize) -> Result<Self, Failure> {
        signals::watch(|| true)?;
        let bytes = input.bytes().unwrap_or(u64::MAX);
        let part_bytes = bytes.div_ceil(workers as u64).clamp(TEXT_BYTES_MIN, TEXT_BYTES_MAX);
        let mut cutter = Cutter::new(usize::try_from(part_bytes).unwrap_or(usize::MAX));
        let (sender, parts) = sync_channel(PARTS_PENDING);
        let (read, thread) = (input.clone(), std::thread::Builder::new());
        let reader = thread.name("farside-input".to_owned()).spawn(move || {
            read.read(0, |block| {
                let part = cutter.take(block)?;
                Ok(part.is_none_or(|part| sender.send(part).is_ok()))
            })?;
            // The send fails if the command has ended already.
            let rest = Some(cutter.rest()).filter(|rest| !rest.is_empty());
            rest.into_iter().for_each(|rest| drop(sender.send(rest)));
            Ok(())
        });
        let reader = reader.map_err(|e| Failure::system(format!("a thread for input: {e}")))?;
        let head = VecDeque::new();
        let mut text = Self { head, parts, reader: Some(reader), bytes: input.bytes() };
        if text.bytes.is_none() {
            text.read_head()?;
        }
        Ok(text)
    }

    fn read_head(&mut self) -> Result<(), Failure> {
        let mut bytes = 0;
        while bytes < HEAD_BYTES {
            let Some(part) = self.receive()? else {
                self.bytes = Some(bytes);
                break;
            };
            bytes += part.len() as u64;
            self.head.push_back(part);
        }
        Ok(())
    }

    /// Returns the next part; `None` at the end.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        match self.head.pop_front() {
            Some(part) => Ok(Some(part)),
            None => self.receive(),
        }
    }

    fn receive(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if signals::is_stopping() {
                return Err(Failure::Interrupted);
            }
            match self.parts.recv_timeout(SIGNAL_PERIOD) {
                Ok(part) => return Ok(Some(part)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let ended = self.reader.take().map_or(Ok(Ok(())), JoinHandle::join);
        let ended = ended.map_err(|_| Failure::system("the thread that reads input panicked"))?;
        ended.map(|()| None).map_err(|e| Failure::system(e.to_string()))
    }
}

/// Returns the commands that send a part to a worker.
fn lines(part: &str) -> impl Iterator<Item = Command> {
    let count = part.len().div_ceil(LINE_BYTES);
    // A part has only ASCII letters and spaces: each byte is a character.
    let text = move |at: usize| {
        let end = part.len().min((at + 1) * LINE_BYTES);
        part[at * LINE_BYTES..end].to_owned()
    };
    (0..count).map(move |at| Command::Text { text: text(at), end: at + 1 == count })
}

/// Cuts a text into parts that can be counted separately: each but the first begins with a word, and no word is
/// split. Bytes between words become one space, so that text without words needs no memory.
struct Cutter {
    held: String,
    /// Offset of the last word of `held`, where a part may end; 0 if there is none.
    last_word: usize,
    /// Least bytes of a part except the last.
    bytes: usize,
}

impl Cutter {
    fn new(bytes: usize) -> Self {
        Self { held: String::new(), last_word: 0, bytes }
    }

    /// Adds more text; returns a part if one is complete.
    ///
    /// # Errors
    /// `InvalidData` for a word that is too long for the table.
    fn take(&mut self, block: &[u8]) -> io::Result<Option<String>> {
        let mut is_space = self.held.ends_with(' ');
        for byte in block {
            match (byte.is_ascii_alphabetic(), is_space) {
                (true, _) => {
                    if is_space {
                        self.last_word = self.held.len();
                    }
                    self.held.push(char::from(*byte));
                    is_space = false;
                }
                (false, true) => {}
                (false, false) => {
                    self.held.push(' ');
                    is_space = true;
                }
            }
        }
        if self.held.len() - self.last_word > WORD_BYTES_MAX + 1 {
            return Err(too_long());
        }
        if self.held.len() < self.bytes || self.last_word == 0 {
            return Ok(None);
        }
        let next = self.held.split_off(self.last_word);
        self.last_word = 0;
        Ok(Some(std::mem::replace(&mut self.held, next)))
    }

    fn rest(self) -> String {
        self.held
    }
}

fn all(answers: Vec<Result<Answer, Failure>>) -> Result<(), Failure> {
    answers.into_iter().try_for_each(|answer| answer.map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_contain_all_words_and_begin_with_one() {
        let text = b"- one, two\xe9three;\nfour five six".repeat(9);
        for (bytes, block) in [(1, 1), (1, 7), (10, 3), (64, 5), (1 << 20, 64)] {
            let mut cutter = Cutter::new(bytes);
            let mut parts: Vec<_> =
                text.chunks(block).filter_map(|block| cutter.take(block).unwrap()).collect();
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
            let mut whole = words(&whole);
            // Spaces between words count as one; those before the first word are an empty word.
            whole.dedup_by(|one, two| one.is_empty() && two.is_empty());
            let whole: Vec<_> = whole
                .iter()
                .enumerate()
                .filter(|(at, word)| *at == 0 || !word.is_empty())
                .map(|(_, word)| word.clone())
                .collect();
            assert_eq!(words(&parts.concat()), whole, "{bytes} {block}");
            assert_eq!(parts.len() > 1, bytes < 1 << 20, "{bytes} {block}");
        }
    }

    #[test]
    fn endless_text_needs_bounded_memory() {
        let mut cutter = Cutter::new(64);
        for _ in 0..10_000 {
            assert_eq!(cutter.take(&[0; 4096]).unwrap(), None);
        }
        assert_eq!(cutter.held, " ");
        let block = vec![b'a'; 1 << 20];
        let refused = (0..=WORD_BYTES_MAX >> 20).find_map(|_| cutter.take(&block).err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::InvalidData);
        assert!(cutter.held.len() <= WORD_BYTES_MAX + block.len());
    }

    #[test]
    fn long_word_is_not_split() {
        let mut cutter = Cutter::new(10);
        let word = "a".repeat(3 * LINE_BYTES + 1);
        assert_eq!(cutter.take(word.as_bytes()).unwrap(), None);
        assert_eq!(cutter.take(b" b").unwrap(), Some(format!("{word} ")));
        let commands: Vec<_> = lines(&word).collect();
        let ends: Vec<_> =
            commands.iter().map(|line| matches!(line, Command::Text { end: true, .. })).collect();
        assert_eq!(ends, [false, false, false, true]);
    }
}
