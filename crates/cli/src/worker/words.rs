//! Counting words in the shared table.

use super::threads::Hand;
use super::wire::Answer;
use crate::bench::failed;
use crate::failure::Failure;
use farside_apps::wordcount::{Input, WordCountError, count, counts};
use std::path::PathBuf;

/// Adds the words of one share of the files to the table.
pub(super) fn add(
    mut hand: Hand<'_>,
    files: &[PathBuf],
    part: u32,
    parts: u32,
) -> Result<Answer, Failure> {
    let input = Input::open(files).map_err(|e| Failure::system(e.to_string()))?;
    add_share(&mut hand, &input, part, parts)
}

/// Adds the words of a text to the table.
pub(super) fn add_text(mut hand: Hand<'_>, text: Vec<u8>) -> Result<Answer, Failure> {
    add_share(&mut hand, &Input::of_text(text), 0, 1)
}

fn add_share(hand: &mut Hand<'_>, input: &Input, part: u32, parts: u32) -> Result<Answer, Failure> {
    let done = hand.done;
    let mut table = hand.table.with(&mut hand.session);
    count(&mut table, input, part, parts, |more| done.add(more)).map_err(refused)?;
    Ok(Answer::Nothing)
}

/// Every word of the table and its count, in order.
pub(super) fn all(mut hand: Hand<'_>) -> Result<Answer, Failure> {
    let words = counts(&mut hand.table.with(&mut hand.session)).map_err(refused)?;
    let text = |word: Vec<u8>| String::from_utf8_lossy(&word).into_owned();
    Ok(Answer::Words(words.into_iter().map(|(word, count)| (text(word), count)).collect()))
}

fn refused(error: WordCountError) -> Failure {
    match error {
        WordCountError::Table(error) => failed(error),
        WordCountError::Memory(error) => error.into(),
        WordCountError::Input(_) => Failure::system(error.to_string()),
        _ => Failure::check(error.to_string()),
    }
}
