//! Shares of words, and whole counts against the pipeline of coreutils.

use super::input::Input;
use super::input::WORD_BYTES_MAX;
use super::words::words_of;
use super::{count, counts, write_counts};
use crate::dht::{Dht, DhtOptions};
use crate::ycsb::WorkloadRandom;
use farside::{Config, Node};
use std::io;
use std::path::PathBuf;
use std::process::Command;

/// A temporary folder for a test's files, removed when the test ends.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("farside-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn files(&self, texts: &[&[u8]]) -> Vec<PathBuf> {
        let write = |(number, text): (usize, &&[u8])| {
            let path = self.0.join(number.to_string());
            std::fs::write(&path, text).unwrap();
            path
        };
        texts.iter().enumerate().map(write).collect()
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn words_in(text: &[u8]) -> Vec<Vec<u8>> {
    let runs = text.split(|byte| !byte.is_ascii_alphabetic());
    runs.filter(|run| !run.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Text of random words and gaps.
fn text(random: &mut WorkloadRandom, runs: u64) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..runs {
        let letter = b"abZ"[random.bits() as usize % 3];
        let gap = b" \n0\xc3-"[random.bits() as usize % 5];
        text.extend(std::iter::repeat_n(letter, random.bits() as usize % 5));
        text.extend(std::iter::repeat_n(gap, random.bits() as usize % 3));
    }
    text
}

#[test]
fn text_in_memory_is_counted_like_a_file() {
    let folder = TemporaryFolder::new("text");
    let text = text(&mut WorkloadRandom::new(7), 200_000);
    assert!(text.len() > 1 << 18, "more than a block");
    let (file, text) = (Input::open(&folder.files(&[&text])).unwrap(), Input::of_text(text));
    assert_eq!(file.bytes(), text.bytes());
    let words = |input: &Input, worker| {
        let mut words = Vec::new();
        let each = |word: &[u8]| {
            words.push(word.to_vec());
            Ok::<_, io::Error>(())
        };
        words_of(input, worker, 3, each, |_| {}).unwrap();
        words
    };
    for worker in 0..3 {
        assert_eq!(words(&file, worker), words(&text, worker));
    }
    assert!(words(&Input::of_text(Vec::new()), 0).is_empty());
}

#[test]
fn every_word_belongs_to_one_share() {
    let folder = TemporaryFolder::new("shares");
    for seed in 0..150 {
        let mut random = WorkloadRandom::new(seed);
        let texts: Vec<_> = (0..1 + seed % 4).map(|_| text(&mut random, seed % 30)).collect();
        let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        let whole = texts.concat();
        let input = Input::open(&folder.files(&texts)).unwrap();
        assert_eq!(input.bytes(), Some(whole.len() as u64));
        for workers in [1, 2, 3, 7, 40] {
            let (mut found, mut told) = (Vec::new(), 0);
            for worker in 0..workers {
                let each = |word: &[u8]| {
                    found.push(word.to_vec());
                    Ok::<(), io::Error>(())
                };
                words_of(&input, worker, workers, each, |bytes| told += bytes).unwrap();
            }
            assert_eq!(found, words_in(&whole), "seed {seed}, {workers} workers, {whole:?}");
            assert!(told <= whole.len() as u64, "seed {seed}, {workers} workers");
        }
    }
}

/// Blocks are 256 KiB: words and gaps that span several of them, and shares that end within.
#[test]
fn long_runs_span_blocks() {
    let folder = TemporaryFolder::new("blocks");
    let text =
        [vec![b'a'; 700_000], vec![b' '; 600_000], vec![b'b'; 5], vec![b' '; 262_144]].concat();
    let input = Input::open(&folder.files(&[&text])).unwrap();
    for workers in [1, 2, 3, 8] {
        let mut found = Vec::new();
        for worker in 0..workers {
            let each = |word: &[u8]| {
                found.push(word.len());
                Ok::<(), io::Error>(())
            };
            words_of(&input, worker, workers, each, |_| {}).unwrap();
        }
        assert_eq!(found, [700_000, 5], "{workers} workers");
    }
}

#[test]
fn files_without_a_length_are_streams_and_read_in_full() {
    let folder = TemporaryFolder::new("streams");
    let text = folder.files(&[b"some words", b""]);
    let kernel = PathBuf::from("/proc/self/status");
    let input = Input::open(&[&text[0], &kernel, &text[1]]).unwrap();
    assert_eq!(input.bytes(), None);
    let mut read = Vec::new();
    let all = input.read(0, |block| {
        read.extend_from_slice(block);
        Ok(true)
    });
    all.unwrap();
    assert!(read.starts_with(b"some wordsName:"), "{}", String::from_utf8_lossy(&read));
    let shared = words_of(&input, 0, 2, |_| Ok::<(), io::Error>(()), |_| {});
    assert_eq!(shared.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    // Empty files have a length, which is 0.
    assert_eq!(Input::open(&text[1..]).unwrap().bytes(), Some(0));
}

#[test]
fn fifo_is_not_opened_before_it_is_read() {
    let folder = TemporaryFolder::new("fifo");
    let path = folder.0.join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // Opening it would block: no process writes to it yet.
    let input = Input::open(std::slice::from_ref(&path)).unwrap();
    assert_eq!(input.bytes(), None);
    let writer = std::thread::spawn(move || std::fs::write(path, b"a b").unwrap());
    let mut read = Vec::new();
    let all = input.read(0, |block| {
        read.extend_from_slice(block);
        Ok(true)
    });
    all.unwrap();
    writer.join().unwrap();
    assert_eq!(read, b"a b");
}

#[test]
fn endless_word_is_refused_with_the_name_of_its_file() {
    let folder = TemporaryFolder::new("endless");
    let path = folder.0.join("word");
    let block = vec![b'a'; 1 << 20];
    let mut file = std::fs::File::create(&path).unwrap();
    for _ in 0..=WORD_BYTES_MAX / block.len() {
        io::Write::write_all(&mut file, &block).unwrap();
    }
    let input = Input::open(std::slice::from_ref(&path)).unwrap();
    let error = words_of(&input, 0, 1, |_| Ok::<(), io::Error>(()), |_| {}).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
}

#[test]
fn unusable_path_fails_with_its_reason() {
    let folder = TemporaryFolder::new("none");
    let missing = Input::open(&[folder.0.join("missing")]).unwrap_err();
    assert!(missing.kind() == io::ErrorKind::NotFound && missing.to_string().contains("missing"));
    let directory = Input::open(std::slice::from_ref(&folder.0)).unwrap_err();
    assert_eq!(directory.kind(), io::ErrorKind::InvalidInput);
    let cut = folder.files(&[b"some words"]);
    let input = Input::open(&cut).unwrap();
    std::fs::write(&cut[0], b"some").unwrap();
    let read = words_of(&input, 0, 1, |_| Ok::<(), io::Error>(()), |_| {});
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

fn pipeline(paths: &[PathBuf]) -> Vec<u8> {
    let script = r#"cat "$@" | tr -cs '[:alpha:]' '\n' | sort | uniq -c"#;
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .args(paths)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Counts with one worker on each node; returns the output of `write_counts`.
fn printed_by(nodes: &[Node], paths: &[PathBuf]) -> Vec<u8> {
    let input = &Input::open(paths).unwrap();
    let options =
        DhtOptions { nodes: nodes.iter().map(Node::id).collect(), ..DhtOptions::default() };
    let root = Dht::create(&mut nodes[0].session().unwrap(), &options).unwrap().root();
    std::thread::scope(|scope| {
        for (worker, node) in nodes.iter().enumerate() {
            scope.spawn(move || {
                let mut session = node.session().unwrap();
                let mut table = Dht::open(&mut session, root).unwrap();
                let mut table = table.with(&mut session);
                count(&mut table, input, worker as u32, nodes.len() as u32, |_| {}).unwrap();
            });
        }
    });
    let mut session = nodes[nodes.len() - 1].session().unwrap();
    let mut table = Dht::open(&mut session, root).unwrap();
    let mut printed = Vec::new();
    write_counts(&counts(&mut table.with(&mut session)).unwrap(), &mut printed).unwrap();
    printed
}

#[test]
fn counts_equal_those_of_coreutils() {
    let folder = TemporaryFolder::new("pipeline");
    let config = Config::new(format!("words-{}", std::process::id()))
        .memory_bytes(64 << 20)
        .cache_bytes(16 << 20);
    let mut nodes = vec![Node::create(&config).unwrap()];
    nodes.extend((1..3).map(|_| Node::join(&config).unwrap()));
    let x = |count| vec![b'x'; count];
    let long = [x(70_000), b" ".to_vec(), x(70_001), vec![b' '], x(70_000)].concat();
    let many = text(&mut WorkloadRandom::new(1), 20_000);
    let cases: [&[&[u8]]; 9] = [
        &[b""],
        &[b"one"],
        &[b" "],
        &[b"\n\n12\n"],
        &[b"no newline at the end", b"s of files\n"],
        &[b", begins without", b"", b" a word"],
        &[b"na\xc3\xafve caf\xe9 na\xc3\xafve A a B b\n"],
        &[&long],
        &[&many, &many],
    ];
    for (number, texts) in cases.iter().enumerate() {
        let paths = folder.files(texts);
        let printed = String::from_utf8(printed_by(&nodes, &paths)).unwrap();
        let wanted = String::from_utf8(pipeline(&paths)).unwrap();
        assert!(printed == wanted, "case {number}: {printed:.300} for {wanted:.300}");
    }
}
