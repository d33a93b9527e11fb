//! Words: maximal runs of the letters A to Z and a to z, which are `[:alpha:]` in the C locale.

use super::input::{Input, WORD_BYTES_MAX};
use std::io;

/// Calls `word` for each word that begins in the share of worker `worker` of `workers`. Calls `progress`
/// with the bytes of the share completed since its last call. Each word of the input begins in one share,
/// and is read to its end, wherever that is.
pub(super) fn words_of<E: From<io::Error>>(
    input: &Input,
    worker: u32,
    workers: u32,
    mut word: impl FnMut(&[u8]) -> Result<(), E>,
    mut progress: impl FnMut(u64),
) -> Result<(), E> {
    let share = input.share(worker, workers)?;
    if share.is_empty() {
        return Ok(());
    }
    // One byte earlier: a letter there means that the share begins within a word of another share.
    let mut at = share.start.saturating_sub(1);
    let mut inside_foreign = share.start > 0;
    let mut open = Vec::new();
    let mut failed = None;
    input.read(at, |block| {
        let mut rest = block;
        while !rest.is_empty() {
            let is_word = rest[0].is_ascii_alphabetic();
            let run = rest.iter().take_while(|byte| byte.is_ascii_alphabetic() == is_word).count();
            let (here, further) = rest.split_at(run);
            match (is_word, inside_foreign) {
                (true, true) => {}
                (true, false) if open.is_empty() && at >= share.end => return Ok(false),
                (true, false) if open.len() + run > WORD_BYTES_MAX => return Err(too_long()),
                (true, false) => open.extend_from_slice(here),
                (false, _) => {
                    inside_foreign = false;
                    if !open.is_empty()
                        && let Err(error) = word(&open)
                    {
                        failed = Some(error);
                        return Ok(false);
                    }
                    open.clear();
                }
            }
            at += run as u64;
            rest = further;
            if at >= share.end && open.is_empty() && !inside_foreign {
                return Ok(false);
            }
        }
        progress(at.min(share.end).saturating_sub((at - block.len() as u64).max(share.start)));
        // A word of another share may fill the whole share.
        Ok(!(inside_foreign && at >= share.end))
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    if !open.is_empty() {
        word(&open)?;
    }
    Ok(())
}

/// Whether the pipeline's `tr` begins with an empty line: the text begins with a character other than a
/// letter, which becomes one newline.
pub(super) fn begins_without_word(input: &Input) -> io::Result<bool> {
    let mut begins = false;
    input.read(0, |block| {
        begins = !block[0].is_ascii_alphabetic();
        Ok(false)
    })?;
    Ok(begins)
}

/// The error for a word that no table could hold, which is read no further: it may be endless.
pub fn too_long() -> io::Error {
    let text = format!("a word of more than {WORD_BYTES_MAX} bytes, which is the longest");
    io::Error::new(io::ErrorKind::InvalidData, text)
}
