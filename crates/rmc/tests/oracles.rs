//! The instruction set, interpreted and compiled, against two independent engines: rbpf and solana-sbpf.

mod fuzz;
mod sbpf;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::Compiled;
use farside_rmc::run::{Far, Lent, Machine, Outcome};
use farside_rmc::{Limits, Program, verify};
use fuzz::FuzzRandom;

fn rbpf(code: &[u8], input: &mut [u8]) -> Result<u64, String> {
    let mut engine = rbpf::EbpfVmRaw::new(None).map_err(|error| error.to_string())?;
    // Its verifier does not know every instruction that its interpreter does.
    engine.set_verifier(|_| Ok(())).map_err(|error| error.to_string())?;
    engine.set_program(code).map_err(|error| error.to_string())?;
    engine.execute_program(input).map_err(|error| error.to_string())
}

#[test]
fn all_engines_agree() {
    let mut agreed = 0;
    for seed in 0..20_000 {
        let mut chance = FuzzRandom::new(seed);
        let code = fuzz::plain(&mut chance);
        let mut input = [0; 64];
        for word in input.chunks_exact_mut(8) {
            word.copy_from_slice(&chance.number().to_le_bytes());
        }
        let bytes = fuzz::bytes_of(&code);
        let program = Program::from_code("plain", code);
        let verified = verify(program, &Limits::DEFAULT).unwrap_or_else(|why| panic!("{why}"));
        let mut machine = Machine::new();
        machine.start(&verified, &input, Limits::DEFAULT.budget).unwrap();
        let ours = machine.run(&verified, Lent::default(), &mut Far);
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        {
            let compiled = Compiled::new(verified.clone()).unwrap();
            machine.start(&verified, &input, Limits::DEFAULT.budget).unwrap();
            let outcome = compiled.run(&mut machine, Lent::default(), &[], &mut Far);
            assert_eq!(ours, outcome, "compiled, seed {seed}");
        }
        let theirs = rbpf(&bytes, &mut input).unwrap();
        let code = &verified.program().code;
        assert_eq!(ours, Outcome::Returned(theirs), "rbpf, seed {seed}\n{code:#?}\n{input:x?}");
        let theirs = sbpf::run(&bytes, &mut input).unwrap();
        assert_eq!(ours, Outcome::Returned(theirs), "sbpf, seed {seed}\n{code:#?}\n{input:x?}");
        agreed += 1;
    }
    assert_eq!(agreed, 20_000);
}
