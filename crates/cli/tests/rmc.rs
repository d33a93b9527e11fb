//! Tests the commands of `farside rmc` with valid programs, refused programs and invalid files.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, json, output, report, text};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Returns the path of a library object.
fn library(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rmc/library");
    folder.join(file).display().to_string()
}

fn rmc(arguments: &[&str]) -> Output {
    output(&[], &[&["rmc"], arguments].concat())
}

/// Returns the output of a command with `--json`.
fn value(arguments: &[&str]) -> Value {
    report(&rmc(&[arguments, &["--json"]].concat()))
}

/// Returns the exit code, the name or kind of the error, and its text; asserts that the output is one object.
fn failure(arguments: &[&str]) -> (Option<i32>, String, String) {
    let done = rmc(&[arguments, &["--json"]].concat());
    assert_eq!(text(&done.stdout).lines().count(), 1, "{arguments:?}: {}", text(&done.stdout));
    common::failure(&done)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a `--memory` argument with a list of two nodes: key 5, value 50 at 24; key 7, value 70 at 72.
fn list(folder: &Folder) -> String {
    let mut memory = vec![0; 128];
    memory[24..48].copy_from_slice(&words(&[5, 50, 72]));
    memory[72..96].copy_from_slice(&words(&[7, 70, 0]));
    let file = folder.file("list.bin", &memory);
    format!("0={file}")
}

#[test]
fn library_is_listed_with_worst_cases() {
    let listed = value(&["list"]);
    let programs = listed["programs"].as_array().unwrap();
    let named = |name: &str| programs.iter().find(|one| one["name"] == name).unwrap();
    assert_eq!(named("list_search")["parameters_bytes"], 16);
    assert_eq!(named("list_search")["metered"], true);
    assert_eq!(named("log_append")["worst"]["helper_calls"], 3);
    assert!(programs.iter().all(|one| one["accepted"] == true && one["sentence"].is_string()));
    let printed = text(&rmc(&["list"]).stdout);
    assert!(printed.contains("hash_lookup (buckets, mask, key)"), "{printed}");
    let of = value(&["list", "--of", &library("multi_cas.o")]);
    let names = of["programs"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["multi_cas", "multi_cas_recover"]);
}

#[test]
fn check_reports_location_and_reason_of_refusals() {
    let folder = Folder::new();
    let good = folder.file("good.s", b"r0 = 7\nexit\n");
    let bad = folder.file("bad.s", b"r0 = 7\n\nr0 += r3\nexit\n");
    let done = rmc(&["check", &good, &library("checksum.o"), &bad]);
    assert_eq!(done.status.code(), Some(1));
    let said = text(&done.stdout);
    for part in
        ["good.s: good: accepted", "checksum_xxhash64: accepted", "bad.s:3, slot 1 `r0 += r3`"]
    {
        assert!(said.contains(part), "{said}");
    }
    assert!(text(&done.stderr).contains("bad is refused"), "{}", text(&done.stderr));
    let done = rmc(&["check", &bad, "--json"]);
    let report = json(&text(&done.stdout));
    assert_eq!(report["error"]["kind"], "check", "{report}");
    let refusal = &report["files"][0]["programs"][0]["refusal"];
    assert_eq!((&refusal["line"], &refusal["slot"]), (&3.into(), &1.into()));
    assert!(refusal["problem"].as_str().unwrap().contains("r3"), "{refusal}");
    let facts = &value(&["check", &good])["files"][0]["programs"][0];
    assert_eq!((&facts["worst"]["instructions"], &facts["slots"]), (&2.into(), &2.into()));
    let listed = text(&rmc(&["check", &library("list_search.o"), "--disassemble"]).stdout);
    assert!(
        listed.contains("call read") && listed.contains("; library/list_search.c:"),
        "{listed}"
    );
}

#[test]
fn check_of_several_files_prints_one_object() {
    let folder = Folder::new();
    let good = folder.file("good.s", b"r0 = 7\nexit\n");
    let bad = folder.file("bad.s", b"r0 += r3\nexit\n");
    let (none, empty) = (folder.path("none.o"), folder.file("empty.o", b""));
    let done = rmc(&["check", &good, &bad, &none, &empty, "--json"]);
    assert_eq!(done.status.code(), Some(1));
    let report = json(&text(&done.stdout));
    let files = report["files"].as_array().unwrap();
    assert_eq!(files[0]["programs"][0]["accepted"], true);
    assert_eq!(files[1]["programs"][0]["accepted"], false);
    assert_eq!(
        (&files[2]["error"]["kind"], &files[3]["error"]["kind"]),
        (&"system".into(), &"check".into())
    );
    let why = report["error"]["text"].as_str().unwrap();
    assert!(why.contains("bad is refused") && why.contains("none.o"), "{why}");
    // Standard error has the same text, once.
    assert_eq!(text(&done.stderr).trim_end(), format!("farside: {why}"));
}

#[test]
fn invalid_program_files_are_refused() {
    let folder = Folder::new();
    let object = std::fs::read(library("multi_cas.o")).unwrap();
    let of_another_machine = {
        let mut object = object.clone();
        object[18] = 62;
        object
    };
    let cases: [(&str, &[u8], &str); 7] = [
        ("empty.o", b"", "no relocatable ELF object"),
        (
            "text.o",
            b"not an object, but long enough for a header of ELF, by far.......",
            "no relocatable",
        ),
        ("cut.o", &object[..object.len() / 2], "cut.o: "),
        ("machine.o", &of_another_machine, "another machine"),
        ("large.o", &vec![0; (1 << 20) + 1], "over the limit"),
        ("words.s", b"r0 = 1\nr0 ~= 2\n", "line 2"),
        ("bytes.s", b"\xff\xfe", "not UTF-8"),
    ];
    for (name, bytes, said) in cases {
        let file = folder.file(name, bytes);
        for command in [&["check", &file][..], &["list", "--of", &file], &["run", &file]] {
            let (code, kind, text) = failure(command);
            assert_eq!((code, kind.as_str()), (Some(1), "check"), "{command:?}: {text}");
            assert!(text.contains(said) && text.contains(name), "{command:?}: {text}");
        }
    }
    for length in (0..object.len()).step_by(97) {
        let file = folder.file("cut.o", &object[..length]);
        let (code, ..) = failure(&["check", &file]);
        assert_eq!(code, Some(1), "{length}");
    }
    // A program name with a control sequence that clears the screen.
    let mut object = object;
    for at in 0..object.len() - 4 {
        if object[at..].starts_with(b"multi_cas") {
            object[at..at + 4].copy_from_slice(b"\x1b[2J");
        }
    }
    let hostile = folder.file("hostile.o", &object);
    let done = rmc(&["check", &hostile]);
    assert!(done.status.success());
    assert!(text(&done.stdout).contains("[2Ji_cas: accepted"), "{}", text(&done.stdout));
    assert!(!done.stdout.contains(&0x1b));
    let missing = folder.path("missing.o");
    assert_eq!(failure(&["check", &missing]).0, Some(1));
    assert_eq!(failure(&["run", &missing]).1, "system");
    let source = folder.file("source.c", b"");
    let (code, kind, said) = failure(&["check", &source]);
    assert_eq!((code, kind.as_str()), (Some(2), "usage"));
    assert!(said.contains("farside rmc build"), "{said}");
}

#[test]
fn engines_agree_on_calls_on_files() {
    let folder = Folder::new();
    let memory = list(&folder);
    for engine in ["checked", "fast", "compiled"] {
        if engine == "compiled" && !cfg!(target_arch = "x86_64") {
            continue;
        }
        let run = |key: &str| {
            let parameters = format!("24,{key}");
            value(&[
                "run",
                "list_search",
                "--parameters",
                &parameters,
                "--memory",
                &memory,
                "--engine",
                engine,
            ])
        };
        let found = run("7");
        assert_eq!(found["returned"]["result"], 70, "{engine}");
        assert_eq!(found["counts"]["helpers"]["read"], 2, "{engine}");
        assert_eq!(found["one_sided"]["round_trips"], 2, "{engine}");
        assert_eq!(found["one_sided"]["bytes_back"], 48, "{engine}");
        // Paper 003, section 4.1: 24 bytes out, 8 back.
        assert_eq!(
            (&found["as_call"]["bytes_out"], &found["as_call"]["bytes_back"]),
            (&24.into(), &8.into())
        );
        assert_eq!(run("8")["returned"]["status"], "FARSIDE_NOT_FOUND", "{engine}");
    }
    // The same parameters as bytes and from a file, with the object's path.
    let parameters = folder.file("parameters", &words(&[24, 5]));
    let object = library("list_search.o");
    let by_file =
        value(&["run", &object, "--parameters", &format!("@{parameters}"), "--memory", &memory]);
    let bytes = "hex:1800000000000000 0500000000000000";
    let by_bytes = value(&["run", &object, "--parameters", bytes, "--memory", &memory]);
    assert_eq!(by_file["returned"]["result"], 50);
    assert_eq!(by_file, by_bytes);
}

#[test]
fn accesses_of_every_kind_are_counted() {
    let folder = Folder::new();
    // Vectors of two versions and two pieces.
    let mut memory = vec![0; 256];
    memory[..16].copy_from_slice(&words(&[2, 4]));
    memory[64..72].copy_from_slice(b"one.two.");
    let file = folder.file("memory.bin", &memory);
    let region = format!("0={file}");
    let parameters = folder.file("pieces", &words(&[0, 2, 0, 64, 3, 8, 68, 4, 0, 0, 0, 0, 0, 0]));
    let at = format!("@{parameters}");
    let read = value(&["run", "multi_read", "--parameters", &at, "--memory", &region]);
    assert_eq!(read["output"], "02000000000000000400000000000000".to_owned() + "6f6e6574776f2e");
    assert_eq!((&read["counts"]["accesses"], &read["counts"]["requests"]), (&3.into(), &6.into()));
    assert_eq!(read["one_sided"]["bytes_back"], 16 + 7 + 16);
    // Atomics, a buffer and single words.
    let mut cas = words(&[0, 32, 40, 2, 0, 2, 3, 8, 4, 5]);
    cas.resize(224, 0);
    let at = format!("@{}", folder.file("words", &cas));
    let call = ["run", "multi_cas", "--parameters", &at, "--memory", &region, "--write-back"];
    let done = value(&call);
    assert_eq!((&done["returned"]["result"], &done["counts"]["accesses"]), (&0.into(), &7.into()));
    assert_eq!(std::fs::read(&file).unwrap()[..16], words(&[3, 5]));
    let helpers = &done["counts"]["helpers"];
    assert_eq!((&helpers["compare_swap"], &helpers["write"]), (&5.into(), &1.into()));
    // A vectored write, a counter of declared state, and output.
    let vector = "
        .state hits counters 0 8 4 shared
        *(u64 *)(r10 - 16) = 0x11
        *(u64 *)(r10 - 8) = 0x22
        *(u64 *)(r10 - 48) = 200
        *(u64 *)(r10 - 40) = 8
        *(u64 *)(r10 - 32) = 216
        *(u64 *)(r10 - 24) = 8
        r1 = 0
        r2 = r10
        r2 += -48
        r3 = 2
        r4 = r10
        r4 += -16
        r5 = 16
        call write_vector
        r1 = state 0
        r2 = 1
        r3 = 5
        call counter_add
        *(u64 *)(r10 - 8) = r0
        r1 = r10
        r1 += -8
        r2 = 8
        call emit
        r0 = 0
        exit
    ";
    let vector = folder.file("vector.s", vector.as_bytes());
    let done = value(&["run", &vector, "--memory", &region, "--write-back"]);
    assert_eq!(
        (&done["output"], &done["counts"]["other_calls"]),
        (&"0500000000000000".into(), &1.into())
    );
    assert_eq!((&done["counts"]["accesses"], &done["counts"]["requests"]), (&1.into(), &2.into()));
    assert_eq!(std::fs::read(&file).unwrap()[200..232], words(&[0x11, 0, 0x22, 0]));
    // Atomics need aligned words.
    let misaligned = folder.file("misaligned.s", b"r1 = 0\nr2 = 4\nr3 = 1\ncall fetch_add\nexit\n");
    let (code, _, said) = failure(&["run", &misaligned, "--memory", &region]);
    assert_eq!(code, Some(1));
    assert!(said.contains("misaligned.s:4"), "{said}");
}

#[test]
fn files_change_only_with_write_back_and_atomically() {
    let folder = Folder::new();
    let file = folder.file("log.bin", &[0; 256]);
    let memory = format!("3={file}");
    let log = format!("0x{:x}", 3_u64 << 48);
    let parameters = {
        let record = "61".repeat(5) + &"00".repeat(123);
        let number = |words: &[u64]| -> String {
            words
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .map(|byte| format!("{byte:02x}"))
                .collect()
        };
        format!("hex:{}{record}", number(&[3 << 48, 4, 24, 5]))
    };
    let call = ["run", "log_append", "--parameters", &parameters, "--memory", &memory];
    assert_eq!(value(&call)["returned"]["result"], 0);
    assert_eq!(std::fs::read(&file).unwrap(), [0; 256]);
    for slot in 0..3 {
        let done = value(&[&call[..], &["--write-back"]].concat());
        assert_eq!(done["returned"]["result"], slot);
        assert_eq!(done["written_back"][0], file);
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(
            (bytes[0], &bytes[16 + 24 * slot..21 + 24 * slot]),
            (slot as u8 + 1, &b"aaaaa"[..])
        );
    }
    // A symbolic link remains; its target changes.
    let link = folder.path("link.bin");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let by_link = format!("3={link}");
    let call = ["run", "log_append", "--parameters", &parameters, "--memory", &by_link];
    assert_eq!(value(&[&call[..], &["--write-back"]].concat())["returned"]["result"], 3);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(std::fs::read(&file).unwrap()[0], 4);
    // A call that is stopped after a write leaves the file unchanged.
    let stopping = folder.file(
        "stopping.s",
        format!("r1 = {log} ll\nr1 >>= 48\nr6 = r1\nr2 = 0\nr3 = 99\ncall store_u64\nr1 = r6\nr2 = 256\ncall load_u64\nexit\n").as_bytes(),
    );
    let before = std::fs::read(&file).unwrap();
    let (code, kind, said) = failure(&["run", &stopping, "--memory", &memory, "--write-back"]);
    assert_eq!((code, kind.as_str()), (Some(1), "check"), "{said}");
    assert!(said.contains("stopping.s:9"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let folder = Folder::new();
    let memory = list(&folder);
    let object = library("multi_cas.o");
    let cases: [(&[&str], &str); 5] = [
        (&["run", &object], "multi_cas, multi_cas_recover"),
        (&["run", &object, "--program", "absent"], "no program `absent`"),
        (&["run", "list_search", "--parameters", "24"], "16 B of parameters"),
        (
            &["run", "list_search", "--parameters", &format!("hex:{}", "00".repeat(4_097))],
            "at most 4096 B",
        ),
        (&["build", &object, "-o", &object], "would replace its source"),
    ];
    for (arguments, said) in cases {
        let (code, kind, text) = failure(arguments);
        assert_eq!((code, kind.as_str()), (Some(2), "usage"), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
    let other = format!("0={}", folder.file("other.bin", &[0; 64]));
    let same = format!("1={}", memory.split_once('=').unwrap().1);
    for (second, said) in [(&other, "region 0 is "), (&same, "a file is one region")] {
        let run = ["run", "list_search", "--parameters", "1,2", "--memory", &memory];
        let (code, _, text) = failure(&[&run[..], &["--memory", second]].concat());
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
    for arguments in [
        &["run", "list_search", "--parameters", "24;7"][..],
        &["run", "list_search", "--memory", "nodes.bin"],
        &["run", "list_search", "--engine", "steam"],
        &["check"],
        &["dance"],
    ] {
        assert_eq!(rmc(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let (code, kind, said) =
        failure(&["run", "list_search", "--parameters", "1,2", "--memory", "0=/nowhere/at/all"]);
    assert_eq!((code, kind.as_str()), (Some(1), "system"), "{said}");
    let (code, _, said) = failure(&["build", "a.c", "--clang", &folder.path("no-clang")]);
    assert_eq!(code, Some(1));
    assert!(said.contains("apt-get install clang"), "{said}");
}

/// Whether clang with the eBPF target is installed.
fn clang() -> bool {
    let done = Command::new("clang").arg("--print-targets").output();
    done.is_ok_and(|done| text(&done.stdout).contains("bpf"))
}

#[test]
fn build_writes_only_accepted_objects() {
    if !clang() {
        skipped("clang is not installed");
        return;
    }
    let folder = Folder::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rmc/tests/c");
    let read = |file: &str| std::fs::read(sources.join(file)).unwrap();
    let source = folder.file("search.c", &read("search.c"));
    let built = value(&["build", &source]);
    let object = folder.path("search.o");
    assert_eq!(built["object"], object);
    assert_eq!(built["programs"][0]["worst"]["helper_calls"], 64);
    let memory = list(&folder);
    let search = ["run", &object, "--program", "search", "--memory", &memory];
    let found = value(&[&search[..], &["--parameters", "0,24,7"]].concat());
    assert_eq!(found["returned"]["result"], 70);
    // A refused program and a source that does not compile leave the existing object unchanged.
    let before = std::fs::read(&object).unwrap();
    for (bytes, said) in
        [(read("wrong.c"), "refused: wrong"), (b"int x = ;".to_vec(), "did not compile")]
    {
        let source = folder.file("other.c", &bytes);
        let done = rmc(&["build", &source, "-o", &object]);
        assert_eq!(done.status.code(), Some(1));
        assert!(text(&done.stderr).contains(said), "{}", text(&done.stderr));
        assert_eq!(std::fs::read(&object).unwrap(), before);
    }
    // Builds are reproducible in another folder.
    let elsewhere = folder.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(format!("{elsewhere}/search.c"), read("search.c")).unwrap();
    for path in [folder.path(""), elsewhere] {
        let mut command = common::farside(&[]);
        let done =
            command.current_dir(&path).args(["rmc", "build", "search.c", "-o", "same.o"]).output();
        assert!(done.unwrap().status.success());
    }
    let same = |path: &str| std::fs::read(folder.path(path)).unwrap();
    assert!(same("same.o") == same("elsewhere/same.o"), "equal sources, unequal objects");
    let left: Vec<_> =
        std::fs::read_dir(folder.path("")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("part")), "{left:?}");
}

#[test]
fn build_reports_accepted_only_after_writing_the_object() {
    if !clang() {
        skipped("clang is not installed");
        return;
    }
    let folder = Folder::new();
    // `index` is a function of the C library, and `stdint.h` needs no C library.
    let source = b"#include <stdint.h>\n#include \"farside_rmc.h\"\n\
        FARSIDE_MAP(index, uint64_t, uint64_t, 16, FARSIDE_PER_QUEUE_PAIR);\n\
        FARSIDE_PROGRAM(find)(const uint64_t *key, uint64_t size) {\n\
            uint64_t value;\n\
            return farside_map_get(&index, key, &value) ? 0 : value;\n\
        }\n";
    let source = folder.file("index.c", source);
    let nowhere = folder.path("no/such/folder.o");
    let done = rmc(&["build", &source, "-o", &nowhere]);
    assert_eq!((done.status.code(), text(&done.stdout).as_str()), (Some(1), ""));
    assert!(text(&done.stderr).contains(&nowhere), "{}", text(&done.stderr));
    let done = rmc(&["build", &source, "-o", &nowhere, "--json"]);
    let report = json(&text(&done.stdout));
    assert_eq!((&report["object"], &report["error"]["kind"]), (&Value::Null, &"system".into()));
    let done = rmc(&["build", &source]);
    assert!(text(&done.stdout).contains("index.o: find: accepted"), "{}", text(&done.stdout));
    let wrong =
        b"#include \"farside_rmc.h\"\nFARSIDE_PROGRAM(wrong)(farside_u64 *p, farside_u64 size) \
        { return *(farside_u64 *)p[0]; }\n";
    let wrong = folder.file("wrong.c", wrong);
    let done = rmc(&["build", &wrong, "--json"]);
    let report = json(&text(&done.stdout));
    assert_eq!(
        (&report["object"], &report["programs"][0]["accepted"]),
        (&Value::Null, &false.into())
    );
    assert!(report["error"]["text"].as_str().unwrap().contains("refused: wrong"), "{report}");
}

/// A program has all state of its file, including state that only another program uses.
#[test]
fn unused_state_is_reported() {
    let folder = Folder::new();
    if !clang() {
        skipped("clang is not installed");
        return;
    }
    let two = b"#include \"farside_rmc.h\"\nFARSIDE_COUNTERS(calls, 1, FARSIDE_PER_QUEUE_PAIR);\n\
        FARSIDE_PROGRAM(count)(void *p, farside_u64 size) \
        { return farside_counter_add(&calls, 0, 1); }\n\
        FARSIDE_PROGRAM(seven)(void *p, farside_u64 size) { return 7; }\n";
    let two = folder.file("two.c", two);
    let said = text(&rmc(&["build", &two]).stdout);
    assert_eq!(said.matches("state       calls: ").count(), 2, "{said}");
    let (count, seven) = said.split_once("seven: accepted").unwrap();
    let unused = "which it does not use";
    assert!(!count.contains(unused) && seven.contains(unused), "{said}");
    let programs = &value(&["build", &two])["programs"];
    assert_eq!(programs[0]["unused_states"], Value::Array(vec![]));
    assert_eq!(programs[1]["unused_states"][0], "calls");
}

#[expect(clippy::print_stderr, reason = "reports a skipped test")]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}
