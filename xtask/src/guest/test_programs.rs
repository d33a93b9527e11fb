//! Builds tests with cargo, and finds the resulting programs.

use super::payload::quoted;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that cargo has built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TestProgram {
    pub(crate) path: PathBuf,
    /// The name of its target, as in Cargo.toml or of its file.
    name: String,
    /// The folder of its package, in which cargo would run it.
    pub(crate) package: PathBuf,
    /// Whether it is a test program; otherwise tests start it.
    is_test: bool,
}

/// Builds tests as `cargo test` with these options would.
pub(crate) fn build(options: &[String]) -> Result<Vec<TestProgram>, String> {
    let mut command = Command::new("cargo");
    command.args(["test", "--no-run", "--message-format", "json-render-diagnostics"]);
    command.args(options).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("the tests could not be built: cargo test {}", options.join(" ")));
    }
    let programs: Vec<_> = text.lines().filter_map(program).collect();
    match programs.iter().any(|program| program.is_test) {
        true => Ok(programs),
        false => Err(format!("no test program results from cargo test {}", options.join(" "))),
    }
}

/// Builds the command `farside` as for a release, and returns its path.
pub(crate) fn command() -> Result<PathBuf, String> {
    let words = ["build", "--release", "-p", "farside-cli"];
    let mut command = Command::new("cargo");
    command.args(words).args(["--message-format", "json-render-diagnostics"]);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().filter_map(program).find(|program| program.name == "farside");
    let built = found.filter(|_| output.status.success());
    built.map(|program| program.path).ok_or(format!("failed: cargo {}", words.join(" ")))
}

/// Returns a script that runs every test program, and fails as cargo does if one failed.
pub(crate) fn script(programs: &[TestProgram], arguments: &[String]) -> String {
    let arguments: String = arguments.iter().map(|word| format!(" {}", quoted(word))).collect();
    let mut script = String::from("failed=\n");
    for program in programs.iter().filter(|program| !program.is_test) {
        let path = quoted(&program.path.display().to_string());
        // Names with a `-` cannot be shell variables; tests find such programs by their path.
        if !program.name.contains('-') {
            script.push_str(&format!("export CARGO_BIN_EXE_{}={path}\n", program.name));
        }
    }
    for program in programs.iter().filter(|program| program.is_test) {
        let folder = quoted(&program.package.display().to_string());
        let path = quoted(&program.path.display().to_string());
        let name = file_name(&program.path);
        script.push_str(&format!(
            "cd {folder} && export CARGO_MANIFEST_DIR={folder} || exit 125\n\
             echo {}\n{path}{arguments} || failed=\"$failed {name}\"\n",
            quoted(&format!("     Running {} ({name})", program.name)),
        ));
    }
    script.push_str(
        "[ -z \"$failed\" ] || { echo \"failed in the guest:$failed\" >&2; exit 101; }\n",
    );
    script
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the program of one of cargo's messages, if any.
fn program(message: &str) -> Option<TestProgram> {
    // Cargo writes one object per line, always in the same form.
    if !message.contains(r#""reason":"compiler-artifact""#) {
        return None;
    }
    let profile = message.split_once(r#""profile":{"#)?.1.split_once('}')?.0;
    let manifest = PathBuf::from(text_of(message, "manifest_path")?);
    Some(TestProgram {
        path: text_of(message, "executable")?.into(),
        name: text_of(message.split_once(r#""target":{"#)?.1, "name")?,
        package: manifest.parent()?.to_owned(),
        is_test: profile.contains(r#""test":true"#),
    })
}

/// Returns the text of a member; `None` if it is absent or null.
fn text_of(object: &str, member: &str) -> Option<String> {
    let rest = object.split_once(&format!(r#""{member}":""#))?.1;
    let mut text = String::new();
    let mut letters = rest.chars();
    loop {
        match letters.next()? {
            '"' => return Some(text),
            '\\' => text.push(unescaped(&mut letters)?),
            letter => text.push(letter),
        }
    }
}

/// Returns the character of an escape sequence after `\`.
fn unescaped(letters: &mut std::str::Chars<'_>) -> Option<char> {
    match letters.next()? {
        'n' => Some('\n'),
        't' => Some('\t'),
        'u' => {
            let digits: String = letters.by_ref().take(4).collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
        }
        letter => Some(letter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = r#"{"reason":"compiler-artifact","package_id":"p","manifest_path":"/a b/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"mine","src_path":"/a b/tests/mine.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":1,"test":true},"features":[],"filenames":["/t/mine-1"],"executable":"/t/\"q\"/mine-1","fresh":true}"#;

    #[test]
    fn programs_are_parsed_from_cargo_messages() {
        let expected = TestProgram {
            path: "/t/\"q\"/mine-1".into(),
            name: "mine".into(),
            package: "/a b".into(),
            is_test: true,
        };
        assert_eq!(program(TEST), Some(expected));
        let helper = TEST.replace(r#""debuginfo":1,"test":true"#, r#""debuginfo":1,"test":false"#);
        assert!(program(&helper).is_some_and(|program| !program.is_test));
        let library = TEST.replace(r#""/t/\"q\"/mine-1","fresh"#, r#"null,"fresh"#);
        assert_eq!(program(&library), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn script_runs_all_programs_and_fails_if_one_fails() {
        let folder = std::env::temp_dir();
        let program = |path: &str| TestProgram {
            path: path.into(),
            name: "x".to_owned(),
            package: folder.clone(),
            is_test: true,
        };
        let run = |paths: &[&str]| {
            let programs: Vec<_> = paths.iter().map(|path| program(path)).collect();
            let text = script(&programs, &["it's".to_owned()]);
            let output = Command::new("sh").args(["-c", &text]).output().unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let (code, text) = run(&["/bin/false", "/bin/echo"]);
        assert_eq!(code, Some(101));
        assert!(text.contains("Running x (echo)\nit's\n"), "{text}");
        assert_eq!(run(&["/bin/true"]).0, Some(0));
    }
}
