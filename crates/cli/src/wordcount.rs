//! `farside wordcount`: counts the words of files in a shared table, and prints what the usual pipeline
//! of `tr`, `sort` and `uniq -c` prints.

use crate::arguments::Wordcount;
use crate::cluster::{Cluster, unexpected};
use crate::failure::Failure;
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

/// Counts and prints.
pub(crate) fn run(arguments: &Wordcount, output: Output) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::system(e.to_string());
    let input = Input::open(&arguments.files).map_err(failed)?;
    let words = if input.bytes() == 0 { Vec::new() } else { counted(arguments, &input, output)? };
    output.value(&json!({ "words": words }));
    let words: Vec<_> = words.into_iter().map(|(word, count)| (word.into_bytes(), count)).collect();
    let mut lines = Vec::new();
    write_counts(&words, &mut lines).map_err(failed)?;
    output.text(&lines)
}

/// Splits the text among nodes and gathers the table.
fn counted(
    arguments: &Wordcount,
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
    };
    let mut cluster = Cluster::start(&spec, usize::from(arguments.nodes))?;
    let create = Command::CreateTable {
        nodes: (0..cluster.len()).map(|index| cluster.node(index)).collect(),
        record_line_bytes: Some(64),
    };
    let root = match cluster.ask(0, create)? {
        Answer::Address(root) => root,
        other => return Err(unexpected(&other)),
    };
    let files = absolute(&arguments.files)?;
    let open = (1..cluster.len()).map(|index| (index, Command::OpenTable { root })).collect();
    all(cluster.ask_all(open, |_| {})?)?;
    let bar = output.bar("bytes", input.bytes());
    let parts = (0..cluster.len()).zip(0..u32::from(arguments.nodes)).map(|(index, part)| {
        let command =
            Command::Words { files: files.clone(), part, parts: u32::from(arguments.nodes) };
        (index, command)
    });
    let parts = parts.collect();
    all(cluster.ask_all(parts, |more| bar.inc(more))?)?;
    bar.finish_and_clear();
    let words = match cluster.ask(0, Command::AllWords)? {
        Answer::Words(words) => words,
        other => return Err(unexpected(&other)),
    };
    cluster.leave()?;
    Ok(words)
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
