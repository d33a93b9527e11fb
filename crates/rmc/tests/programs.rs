//! Programs as the library's are pass, each within its kind of proof.

#[path = "../examples/programs/mod.rs"]
mod programs;

use farside_rmc::assembler::assemble;
use farside_rmc::{Limits, verify};

#[test]
fn programs_of_the_library_pass() {
    for (name, text) in programs::PROGRAMS {
        let program = assemble(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let verified =
            verify(program, &Limits::DEFAULT).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(verified.unreached(), 0, "{name}");
        // All but the search by words end by themselves.
        assert_eq!(verified.metered(), name == "list search by words", "{name}");
    }
    assert_eq!(programs::LIST_BY_READS, programs::PROGRAMS[1].1);
    assert_eq!(programs::LIST_BY_WORDS, programs::PROGRAMS[0].1);
}
