//! Programs in C, from source to result, wherever clang is installed (or named by `FARSIDE_CLANG`).

mod clang;
mod common;
mod host;

use common::{BUDGET, Variables};
use farside_rmc::helpers::{HELPERS, crc32c};
use farside_rmc::program::load;
use farside_rmc::run::{Lent, Machine, Outcome};
use farside_rmc::{HEADER, Limits, Program, Verified, verify};
use host::TestHost;
use std::path::Path;

fn programs(file: &str) -> Option<Vec<Program>> {
    let bytes = clang::compiled(&format!("tests/c/{file}"), &[])?;
    Some(load(&bytes, &Limits::DEFAULT).unwrap_or_else(|error| panic!("{file}: {error}")))
}

fn named(programs: &[Program], name: &str) -> Verified {
    let program = programs.iter().find(|program| program.name == name);
    let program = program.unwrap_or_else(|| panic!("no {name}")).clone();
    verify(program, &Limits::DEFAULT).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn the_list_search_finds_what_native_code_finds() {
    let Some(programs) = programs("search.c") else {
        return;
    };
    let (search, by_words) = (named(&programs, "search"), named(&programs, "search_words"));
    assert!(!search.metered() && by_words.metered());
    assert_eq!((search.worst().helper_calls, search.worst().bytes), (64, 64 * 24));
    for length in [1, 8, 64] {
        // The place of node k depends on a hash of k.
        let place = |k: u64| 24 * (1 + k * 37 % 101);
        let mut memory = vec![0; 24 * 128];
        for k in 0..length {
            let next = if k + 1 < length { place(k + 1) } else { 0 };
            let node = words(&[k * 11 + 3, k * k, next]);
            let at = place(k) as usize;
            memory[at..at + 24].copy_from_slice(&node);
        }
        for (key, expected) in (0..length).map(|k| (k * 11 + 3, k * k)).chain([(9_999, u64::MAX)]) {
            let context = words(&[0, place(0), key]);
            for verified in [&search, &by_words] {
                let near = || TestHost::new(vec![memory.clone()]);
                let (outcome, _, _) = common::run_both_near(verified, &context, near);
                assert_eq!(outcome, Outcome::Returned(expected), "{length} {key}");
            }
        }
    }
}

/// Run by a process test of the command, since nothing here has a global memory.
#[test]
fn programs_of_the_global_memory_have_a_worst_case() {
    let Some(programs) = programs("global.c") else {
        return;
    };
    let (find, push) = (named(&programs, "find"), named(&programs, "push"));
    assert!(!find.metered() && !push.metered());
    assert_eq!((find.worst().helper_calls, find.worst().bytes), (65, 64 * 24));
    assert_eq!(push.worst().helper_calls, 1 + 2 * 100);
}

#[test]
fn the_hash_of_a_buffer_is_its_crc32c() {
    let Some(programs) = programs("hash.c") else {
        return;
    };
    let (hash, there) = (named(&programs, "hash"), named(&programs, "hash_there"));
    assert_eq!((there.worst().helper_calls, there.worst().bytes), (1, 65_536));
    let memory: Vec<u8> = (0..70_000u32).map(|at| ((at.wrapping_mul(at)) >> 7) as u8).collect();
    for length in [0, 1, 255, 256, 257, 4_096, 65_536] {
        let context = words(&[0, 100, length]);
        let expected = crc32c(&memory[100..100 + length as usize], 0);
        for verified in [&hash, &there] {
            let near = || TestHost::new(vec![memory.clone()]);
            let (outcome, _, _) = common::run_both_near(verified, &context, near);
            assert_eq!(outcome, Outcome::Returned(u64::from(expected)), "{length}");
        }
    }
}

#[test]
fn functions_data_and_state_are_linked() {
    let Some(programs) = programs("kitchen.c") else {
        return;
    };
    let squared = named(&programs, "squared");
    assert_eq!(squared.program().functions.len(), 3);
    for n in 0..8u64 {
        let (outcome, output, _) =
            common::run_both_near(&squared, &words(&[n]), || TestHost::new(vec![]));
        let expected = (0..n).map(|k| k * k).sum::<u64>() + n * n;
        assert_eq!((outcome, &output[..]), (Outcome::Returned(expected), &b"hello"[..]));
    }
    let count = named(&programs, "count");
    let mut variables = Variables::of(count.program());
    let mut machine = Machine::new();
    for turn in 1..4 {
        machine.start(&count, &words(&[5]), BUDGET).unwrap();
        let outcome = machine.run(&count, variables.lend(), &mut host::TestHost::new(vec![]));
        let expected = (100 + turn) * 1_000_000 + 5 * turn * 1_000 + 7 + 5 * turn;
        assert_eq!(outcome, Outcome::Returned(expected));
    }
    let remember = named(&programs, "remember");
    assert_eq!(remember.program().states.len(), 2);
    let mut host = TestHost::for_program(vec![], remember.program());
    for (key, expected) in [(1, 1), (1, 3), (2, 4), (1, 7)] {
        machine.start(&remember, &words(&[key, 9]), BUDGET).unwrap();
        let outcome = machine.run(&remember, variables.lend(), &mut host);
        assert_eq!(outcome, Outcome::Returned(expected), "{key}");
    }
}

#[test]
fn a_refusal_names_the_line_of_the_source() {
    let Some(programs) = programs("wrong.c") else {
        return;
    };
    let refusal = verify(programs[0].clone(), &Limits::DEFAULT).unwrap_err();
    let line = refusal.line.as_ref().expect("it was compiled with -g");
    assert!(line.file.ends_with("wrong.c"), "{refusal}");
    assert_eq!(line.line, 12, "{refusal}");
}

#[test]
fn refused_objects_say_where_and_what_to_do_instead() {
    let cases = [
        &["program `by_pointer`, ", "refused.c:9, section rmc/by_pointer, slot ", "switch"][..],
        &["program `address`, ", "refused.c:16, ", "the address of function `"],
        &["function `helper`, ", "refused.c:23, ", "`elsewhere` is not defined", "is one file"],
        &["program `library`, ", "refused.c:31, ", "`memcpy`", "write __builtin_memcpy"],
        &["section .farside.state, byte 20: state `odd_kind`: there is no kind 9: ", "FARSIDE_MAP"],
        &["state `odd_scope`: there is no scope 7: ", "FARSIDE_PER_QUEUE_PAIR"],
        &["state `word`: 8 B are not a declaration"],
        &["section .rodata, byte 0: the first value of `colours` holds addresses", "indices"],
    ];
    for (case, parts) in cases.iter().enumerate() {
        let option = format!("-DCASE={}", case + 1);
        let Some(object) = clang::compiled("tests/c/refused.c", &[&option]) else {
            return;
        };
        let refusal = load(&object, &Limits::DEFAULT).unwrap_err();
        let said = refusal.to_string();
        for part in *parts {
            assert!(said.contains(part), "{option}: {said}");
        }
        // What knows its slot knows the function, and the line that it says.
        assert_eq!(refusal.slot.is_some(), refusal.within.is_some(), "{said}");
        assert_eq!(refusal.slot.is_some(), refusal.line.is_some(), "{said}");
    }
    // Without line information the function is still known.
    let object = clang::compiled("tests/c/refused.c", &["-DCASE=1", "-g0"]).unwrap();
    let said = load(&object, &Limits::DEFAULT).unwrap_err().to_string();
    assert!(said.starts_with("program `by_pointer`, section rmc/by_pointer, slot "), "{said}");
}

#[test]
fn damaged_objects_are_errors() {
    let Some(bytes) = clang::compiled("tests/c/kitchen.c", &[]) else {
        return;
    };
    let mut seed = 5u64;
    let mut loaded = 0;
    for turn in 0..20_000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + turn % 4 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 20) as usize % damaged.len();
            damaged[at] = (seed >> 56) as u8;
        }
        if turn % 7 == 0 {
            damaged.truncate(seed as usize % damaged.len());
        }
        let Ok(programs) = load(&damaged, &Limits::DEFAULT) else {
            continue;
        };
        for program in programs {
            loaded += 1;
            let Ok(verified) = verify(program, &Limits::DEFAULT) else {
                continue;
            };
            let mut variables = Variables::of(verified.program());
            let mut machine = Machine::new();
            machine.start(&verified, &[0; 4_096], BUDGET).unwrap();
            let outcome =
                machine.run_checked(verified.program(), variables.lend(), &mut host::Zero);
            assert!(!host::is_fault(&outcome), "turn {turn}: {outcome:?}");
        }
    }
    assert!(loaded > 1_000, "{loaded}");
}

#[test]
fn the_header_has_every_helper() {
    for helper in HELPERS {
        let name = format!("(*const farside_{})(", helper.name);
        let line = HEADER.lines().find(|line| line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("no {}", helper.name));
        assert!(line.ends_with(&format!("(void *){};", helper.number)), "{line}");
        let arguments = line.split_once(&name).unwrap().1.split_once(')').unwrap().0;
        let count = if arguments == "void" { 0 } else { arguments.split(',').count() };
        assert_eq!(count, helper.arguments.len(), "{line}");
    }
    assert_eq!(HEADER.matches("(*const farside_").count(), HELPERS.len());
    let _ = Lent::default();
}

/// The arguments of clang in the header's first comment: the line that starts with its name.
fn flags_of_the_header() -> Vec<&'static str> {
    let line = HEADER.lines().find_map(|line| line.strip_prefix(" *     clang "));
    let words = line.expect("the header says how to compile").split(' ');
    words.take_while(|word| *word != "-c").collect()
}

/// Lines in the header's comments that are set in are code, and one file in the order they stand in.
#[test]
fn the_examples_of_the_header_are_accepted_when_compiled_as_it_says() {
    let lines = HEADER.lines().filter_map(|line| line.strip_prefix(" *     "));
    let code: Vec<_> = lines.filter(|line| !line.starts_with("clang ")).collect();
    assert!(code.len() > 10, "{code:?}");
    let text = format!("#include \"farside_rmc.h\"\n{}\n", code.join("\n"));
    let source = clang::temporary("c");
    std::fs::write(&source, text).unwrap();
    let object = clang::tried(&source, &[&flags_of_the_header()[..], &["-Werror"]].concat());
    let _ = std::fs::remove_file(source);
    let Some(object) = object else {
        return;
    };
    let object = object.unwrap_or_else(|error| panic!("{error}"));
    let programs = load(&object, &Limits::DEFAULT).unwrap();
    let names: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
    assert_eq!(names, ["middle", "last_of"]);
    names.iter().for_each(|name| drop(named(&programs, name)));
}

/// What the header says does not work, with what it says does instead.
#[test]
fn what_the_header_advises_instead_of_other_c_is_accepted() {
    let accepted = |case: usize, more: &[&str]| {
        let case = format!("-DCASE={case}");
        let options = [&flags_of_the_header()[..], &[&case], more].concat();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/language.c");
        let object = clang::tried(&source, &options)?;
        let loaded = |object: Vec<u8>| load(&object, &Limits::DEFAULT).map_err(|e| e.to_string());
        let verified = |mut programs: Vec<Program>| {
            verify(programs.remove(0), &Limits::DEFAULT).map_err(|refusal| refusal.to_string())
        };
        Some(object.and_then(loaded).and_then(verified))
    };
    for case in 1..=11 {
        let Some(outcome) = accepted(case, &["-DWRONG"]) else {
            return;
        };
        assert!(outcome.is_err(), "case {case} works, and the header says that it does not");
        let instead = accepted(case, &["-Werror"]).unwrap();
        instead.unwrap_or_else(|error| panic!("case {case}: {error}"));
    }
}
