//! Commands in the fenced blocks of documents.

/// Returns the command lines in fenced blocks, with their line numbers. The step `readme` uses it too.
pub(crate) fn fenced_commands(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let line = line.strip_prefix("$ ").unwrap_or(line);
        if fenced && (line.starts_with("cargo ") || line.starts_with("farside ")) {
            let command = line.split(" #").next().unwrap_or(line);
            found.push((at + 1, command.trim().to_owned()));
        }
    }
    found
}
