//! Merging the parts of a history, one file for each node.
//!
//! A node writes lines without `return_ns` while an operation is in flight, and one line when it has ended; all
//! of them have the same process and `invoke_ns`. The history contains the last line of each operation. An
//! operation that was in flight when its node was killed thus has no `return_ns`.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Returns the path of one node's part of a history.
pub(super) fn part_of(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("history.{part}"))
}

/// Concatenates the parts in the order of nodes. A node that never began has no part.
///
/// # Errors
/// A failure of a file, or a line that is not a line of a history.
pub(super) fn join(folder: &Path, parts: usize, whole: &mut impl Write) -> io::Result<()> {
    let mut whole = BufWriter::new(whole);
    for part in 0..parts {
        let file = match File::open(part_of(folder, part)) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened?,
        };
        copy(BufReader::new(file), &mut whole)?;
    }
    whole.flush()
}

/// The members that identify the operation of a line, and whether it has ended.
#[derive(Deserialize)]
struct Head {
    process: u64,
    invoke_ns: u64,
    return_ns: Option<u64>,
}

/// Copies the last line of each operation. Omits a line without a line feed: its node was killed while writing it.
fn copy(mut from: impl BufRead, to: &mut impl Write) -> io::Result<()> {
    let mut begun: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    let mut line = String::new();
    while from.read_line(&mut line)? > 0 && line.ends_with('\n') {
        let head: Head = serde_json::from_str(&line)?;
        if let Some((invoke_ns, before)) = begun.remove(&head.process)
            && invoke_ns != head.invoke_ns
        {
            to.write_all(before.as_bytes())?;
        }
        match head.return_ns {
            Some(_) => to.write_all(line.as_bytes())?,
            None => drop(begun.insert(head.process, (head.invoke_ns, line.clone()))),
        }
        line.clear();
    }
    begun.values().try_for_each(|(_, line)| to.write_all(line.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_command::result_file::TemporaryFolder;

    fn line(process: u64, value: &str, invoke_ns: u64, return_ns: &str, outcome: &str) -> String {
        format!(
            "{{\"process\":{process},\"operation\":\"update\",\"key\":\"k\",\"value\":{value},\
             \"invoke_ns\":{invoke_ns},\"return_ns\":{return_ns},\"outcome\":\"{outcome}\"}}\n"
        )
    }

    #[test]
    fn last_line_of_each_operation_is_copied() {
        let ended = line(1, "2", 10, "19", "ok");
        let in_flight = line(1, "4", 20, "null", "unknown");
        let other = line(2, "5", 15, "null", "unknown");
        let from = [
            line(1, "null", 10, "null", "unknown"),
            line(2, "null", 15, "null", "unknown"),
            line(1, "2", 10, "null", "unknown"),
            ended.clone(),
            line(1, "3", 20, "null", "unknown"),
            other.clone(),
            in_flight.clone(),
            "{\"process\":1,\"oper".to_owned(),
        ];
        let mut to = Vec::new();
        copy(from.concat().as_bytes(), &mut to).unwrap();
        assert_eq!(String::from_utf8(to).unwrap(), [ended, in_flight, other].concat());
    }

    #[test]
    fn unfinished_operation_before_another_is_copied() {
        let lost = line(1, "2", 10, "null", "unknown");
        let next = line(1, "3", 20, "29", "ok");
        let mut to = Vec::new();
        copy([lost.clone(), next.clone()].concat().as_bytes(), &mut to).unwrap();
        assert_eq!(String::from_utf8(to).unwrap(), [lost, next].concat());
    }

    #[test]
    fn junk_is_refused() {
        assert!(copy("junk\n".as_bytes(), &mut Vec::new()).is_err());
    }

    #[test]
    fn missing_parts_are_skipped() {
        let folder = TemporaryFolder::new().unwrap();
        let ended = line(3, "1", 1, "2", "ok");
        std::fs::write(part_of(folder.path(), 1), &ended).unwrap();
        let mut whole = Vec::new();
        join(folder.path(), 3, &mut whole).unwrap();
        assert_eq!(String::from_utf8(whole).unwrap(), ended);
    }
}
