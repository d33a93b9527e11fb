//! Counting words in the shared table.

use super::threads::ThreadContext;
use super::wire::Answer;
use farside_apps::wordcount::{Input, WordCountError, count, counts};
use farside_command::failure::Failure;
use std::path::PathBuf;

/// Adds the words of one share of the files to the table.
pub(super) fn add(
    mut context: ThreadContext<'_>,
    files: &[PathBuf],
    part: u32,
    parts: u32,
) -> Result<Answer, Failure> {
    let input = Input::open(files).map_err(|e| Failure::system(e.to_string()))?;
    add_share(&mut context, &input, part, parts)
}

/// Adds the words of a text to the table.
pub(super) fn add_text(mut context: ThreadContext<'_>, text: Vec<u8>) -> Result<Answer, Failure> {
    add_share(&mut context, &Input::of_text(text), 0, 1)
}

fn add_share(
    context: &mut ThreadContext<'_>,
    input: &Input,
    part: u32,
    parts: u32,
) -> Result<Answer, Failure> {
    let progress = context.progress;
    let mut table = context.table.with(&mut context.session);
    count(&mut table, input, part, parts, |more| progress.add(more)).map_err(refused)?;
    Ok(Answer::Nothing)
}

/// Returns every word of the table and its count, in order.
pub(super) fn all(mut context: ThreadContext<'_>) -> Result<Answer, Failure> {
    let words = counts(&mut context.table.with(&mut context.session)).map_err(refused)?;
    let text = |word: Vec<u8>| String::from_utf8_lossy(&word).into_owned();
    Ok(Answer::Words(words.into_iter().map(|(word, count)| (text(word), count)).collect()))
}

fn refused(error: WordCountError) -> Failure {
    match error {
        WordCountError::Table(error) => error.into(),
        WordCountError::Memory(error) => error.into(),
        WordCountError::Input(_) => Failure::system(error.to_string()),
        _ => Failure::check(error.to_string()),
    }
}
