//! Inputs that are not regular files: without a length, endless, or with a name that is not UTF-8.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, farside, signal, text};
use rustix::fs::{CWD, mkfifoat};
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Returns the output of the shell pipeline in `farside wordcount --help`.
fn pipeline(input: &[u8]) -> String {
    let script = "tr -cs '[:alpha:]' '\\n' | sort | uniq -c";
    let mut run = Command::new("sh");
    run.args(["-c", script]).env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    run.stdin.take().unwrap().write_all(input).unwrap();
    text(&run.wait_with_output().unwrap().stdout)
}

fn wordcount(files: &[&OsStr], stdin: Stdio) -> Output {
    let mut run = farside(&[]);
    run.args(["wordcount", "--nodes", "2"]).args(files).stdin(stdin).output().unwrap()
}

fn assert_counts(done: &Output, input: &[u8]) {
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout), pipeline(input));
}

fn odd_name(folder: &Folder) -> PathBuf {
    PathBuf::from(folder.path("")).join(OsStr::from_bytes(b"caf\xe9"))
}

#[test]
fn kernel_file_is_counted_in_full() {
    // Its contents do not change while the machine runs.
    let file = "/proc/filesystems";
    let done = wordcount(&[file.as_ref()], Stdio::null());
    assert_counts(&done, &std::fs::read(file).unwrap());
    let folder = Folder::new();
    let ordinary = folder.file("ordinary", b"ends in a word");
    let both = [OsStr::new(&ordinary), file.as_ref(), OsStr::new(&ordinary)];
    let whole = both.map(|file| std::fs::read(file).unwrap()).concat();
    assert_counts(&wordcount(&both, Stdio::null()), &whole);
}

#[test]
fn file_with_a_non_utf_8_name_is_counted() {
    let folder = Folder::new();
    let path = odd_name(&folder);
    std::fs::write(&path, b"a b a\n").unwrap();
    assert_counts(&wordcount(&[path.as_os_str()], Stdio::null()), b"a b a\n");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn standard_input_of_any_kind_is_counted() {
    let folder = Folder::new();
    let contents = b"-- from a file and from a pipe";
    let file = folder.file("text", contents);
    let input = || File::open(&file).unwrap();
    assert_counts(&wordcount(&["/dev/stdin".as_ref()], input().into()), contents);
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(contents).unwrap();
    drop(writer);
    assert_counts(&wordcount(&["/dev/stdin".as_ref()], reader.into()), contents);
    // An open file that has been unlinked.
    let unnamed = input();
    std::fs::remove_file(&file).unwrap();
    assert_counts(&wordcount(&["/dev/stdin".as_ref()], unnamed.into()), contents);
}

#[test]
fn fifo_is_counted() {
    let folder = Folder::new();
    let fifo = folder.path("fifo");
    mkfifoat(CWD, &fifo, 0o600.into()).unwrap();
    let writer = std::thread::spawn({
        let fifo = fifo.clone();
        move || std::fs::write(fifo, "word ".repeat(200_000)).unwrap()
    });
    let done = wordcount(&[OsStr::new(&fifo)], Stdio::null());
    writer.join().unwrap();
    assert_counts(&done, "word ".repeat(200_000).as_bytes());
}

#[test]
fn endless_input_is_interrupted_by_a_signal() {
    let (idle, _writer) = std::io::pipe().unwrap();
    for (input, stdin) in [("/dev/zero", Stdio::null()), ("/dev/stdin", idle.into())] {
        let mut run = farside(&[]);
        run.args(["wordcount", "--nodes", "1", input]).stdin(stdin).stderr(Stdio::piped());
        let mut child = run.stdout(Stdio::null()).spawn().unwrap();
        // The reading thread starts after the cluster and the signal handlers.
        let reads = |process: u32| {
            let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            tasks
                .filter_map(Result::ok)
                .any(|task| name(task).is_ok_and(|name| name == "farside-input\n"))
        };
        while !reads(child.id()) {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        signal(child.id(), Signal::INT);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{input}: {said}");
    }
}

#[test]
fn regions_and_parameters_accept_any_name_and_refuse_endless_files() {
    let folder = Folder::new();
    let path = odd_name(&folder);
    std::fs::write(&path, [0; 64]).unwrap();
    let joined = |prefix: &str, path: &OsStr| {
        let mut argument = OsString::from(prefix);
        argument.push(path);
        argument
    };
    let run = |memory: OsString, parameters: OsString| {
        let mut run = farside(&[]);
        run.args(["rmc", "run", "list_search", "--memory"]).arg(memory);
        run.arg("--parameters").arg(parameters).output().unwrap()
    };
    let parameters = odd_name(&folder).with_extension("parameters");
    std::fs::write(&parameters, [0; 16]).unwrap();
    let done = run(joined("0=", path.as_os_str()), joined("@", parameters.as_os_str()));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let endless = run(joined("0=", path.as_os_str()), "@/dev/zero".into());
    assert_eq!(endless.status.code(), Some(2));
    assert!(text(&endless.stderr).contains("/dev/zero: more than"), "{}", text(&endless.stderr));
    let directory = wordcount(&[OsStr::new(&folder.path(""))], Stdio::null());
    assert_eq!(directory.status.code(), Some(1));
    assert!(text(&directory.stderr).contains("is a directory"), "{}", text(&directory.stderr));
}
