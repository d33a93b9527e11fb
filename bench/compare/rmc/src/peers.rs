//! Other eBPF engines: rbpf, whose code checks no access, and solana-sbpf.
//!
//! | who | may touch | when |
//! | --- | --- | --- |
//! | rbpf's code | the list and its parameters, reading | during a search |
//! | rbpf's helper | 24 bytes of its program's stack | during its call |
//! | solana-sbpf | its stack and the list | while its engine exists: as long as the case |

use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Arc;

use solana_sbpf::aligned_memory::AlignedMemory;
use solana_sbpf::ebpf;
use solana_sbpf::elf::Executable;
use solana_sbpf::error::ProgramResult;
use solana_sbpf::memory_region::{MemoryMapping, MemoryRegion};
use solana_sbpf::program::{BuiltinProgram, FunctionRegistry, SBPFVersion};
use solana_sbpf::verifier::RequisiteVerifier;
use solana_sbpf::vm::{CallFrame, ContextObject, EbpfVm, ExecutionMode};

use crate::list::{HEAD, NODES, key, region, value};
use crate::ours::slots;
use crate::rounds::Case;

/// The search by direct loads: R1 points to the region, whose first two words are the parameters.
const DIRECT: &str = "
        r6 = *(u64 *)(r1 + 0)
        r7 = *(u64 *)(r1 + 8)
    again:
        r2 = r1
        r2 += r6
        r0 = *(u64 *)(r2 + 0)
        if r0 == r7 goto found
        r6 = *(u64 *)(r2 + 16)
        if r6 != 0 goto again
        r0 = -1
        exit
    found:
        r0 = *(u64 *)(r2 + 8)
        exit
";

/// The search by one helper call for each node, which copies the node to the stack.
const HELPER: &str = "
        r6 = *(u64 *)(r1 + 0)
        r7 = *(u64 *)(r1 + 8)
    again:
        r1 = 0
        r2 = r6
        r3 = r10
        r3 += -24
        r4 = 24
        call read
        if r0 != 0 goto lost
        r1 = *(u64 *)(r10 - 24)
        if r1 == r7 goto found
        r6 = *(u64 *)(r10 - 8)
        if r6 != 0 goto again
    lost:
        r0 = -1
        exit
    found:
        r0 = *(u64 *)(r10 - 16)
        exit
";

fn bytes(text: &str) -> Vec<u8> {
    slots(text).into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Returns the region with the parameters of a search in its first two words.
fn parameters(n: u64) -> Vec<u8> {
    let mut memory = region();
    memory[..8].copy_from_slice(&HEAD.to_le_bytes());
    memory[8..16].copy_from_slice(&key(n).to_le_bytes());
    memory
}

thread_local! {
    /// The region of rbpf's helper; the engine cannot pass it as an argument.
    static REGION: &'static [u8] = Vec::leak(region());
}

fn read(_: u64, offset: u64, out: u64, length: u64, _: u64) -> u64 {
    let node = REGION.with(|region| {
        let from = offset as usize;
        region.get(from..from.checked_add(length as usize)?)
    });
    let Some(node) = node else {
        return u64::MAX;
    };
    // SAFETY: the program passes the last 24 bytes of its stack.
    unsafe { core::ptr::copy_nonoverlapping(node.as_ptr(), out as *mut u8, node.len()) };
    0
}

fn rbpf(code: &'static [u8]) -> rbpf::EbpfVmRaw<'static> {
    let mut engine = rbpf::EbpfVmRaw::new(None).expect("no program is given yet");
    engine.set_program(code).expect("the program passes");
    engine.register_helper(5, read).expect("the helper is valid");
    engine.jit_compile().expect("the program is compiled");
    engine
}

fn rbpf_searches(cases: &mut Vec<Case>) {
    for (name, text) in [("rbpf, direct", DIRECT), ("rbpf, helper", HELPER)] {
        let code: &'static [u8] = Vec::leak(bytes(text));
        for n in NODES {
            let engine = rbpf(code);
            let memory = Vec::leak(parameters(n));
            let (start, length) = (memory.as_mut_ptr(), memory.len());
            cases.push(Case::search(name, n, move |iterations| {
                for _ in 0..iterations {
                    // SAFETY: the memory is leaked and used only here; the program reads within it.
                    let found = unsafe {
                        let memory = core::slice::from_raw_parts_mut(black_box(start), length);
                        engine.execute_program_jit(memory)
                    };
                    assert_eq!(found.ok(), Some(value(n)));
                }
            }));
        }
    }
}

struct Context {
    left: u64,
    mapping: MemoryMapping,
}

impl ContextObject for Context {
    fn consume(&mut self, amount: u64) {
        self.left = self.left.saturating_sub(amount);
    }

    fn get_remaining(&self) -> u64 {
        self.left
    }

    fn active_mapping_ptr(&mut self) -> NonNull<MemoryMapping> {
        NonNull::from(&mut self.mapping)
    }
}

fn sbpf(code: &[u8]) -> Executable<Context> {
    let loader = Arc::new(BuiltinProgram::new_mock());
    let functions = FunctionRegistry::default();
    let version = SBPFVersion::V3;
    let executable = Executable::from_text_bytes(code, loader, version, functions)
        .expect("the program is well-formed");
    executable.verify::<RequisiteVerifier>().expect("the program passes");
    executable.jit_compile().expect("the program is compiled");
    executable
}

/// Adds the searches by solana-sbpf; the engine is kept between searches.
fn sbpf_searches(cases: &mut Vec<Case>) {
    for n in NODES {
        let executable = sbpf(&bytes(DIRECT));
        let memory = Vec::leak(parameters(n));
        cases.push(Case::search("solana-sbpf, direct", n, move |iterations| {
            let config = executable.get_config();
            let mut stack = AlignedMemory::<{ ebpf::HOST_ALIGN }>::zero_filled(config.stack_size());
            let stack_bytes = stack.len();
            let regions = vec![
                executable.get_ro_region(),
                MemoryRegion::new(&mut stack, ebpf::MM_STACK_START),
                MemoryRegion::new(&raw mut *memory, ebpf::MM_INPUT_START),
            ];
            let version = SBPFVersion::V3;
            // SAFETY: stack and list outlive the engine, no other code accesses them meanwhile, and
            // they are plain bytes.
            let mapping = unsafe { MemoryMapping::new(regions, config, version) };
            let mapping = mapping.expect("the regions do not overlap");
            let mut context = Context { left: 0, mapping };
            let mut frames = vec![CallFrame::default(); config.max_call_depth];
            let loader = executable.get_loader().clone();
            let context_at = &raw mut context;
            let mut engine = EbpfVm::new(loader, version, &mut context, stack_bytes);
            for _ in 0..iterations {
                // SAFETY: the engine does not run.
                unsafe { (*context_at).left = 1 << 20 };
                engine.registers[1] = black_box(ebpf::MM_INPUT_START);
                let mut mode = ExecutionMode::Jit;
                let (_, result) = engine.execute_program(&executable, &mut mode, &mut frames);
                assert!(
                    matches!(result, ProgramResult::Ok(found) if found == value(n)),
                    "{result:?}"
                );
            }
        }));
    }
}

/// Adds the searches.
pub(crate) fn searches(cases: &mut Vec<Case>) {
    rbpf_searches(cases);
    sbpf_searches(cases);
}

/// Adds registrations: loading and compiling the search.
pub(crate) fn registrations(cases: &mut Vec<Case>) {
    let code: &'static [u8] = Vec::leak(bytes(DIRECT));
    cases.push(Case::registration("rbpf", "list search by words", move |iterations| {
        for _ in 0..iterations {
            let _ = black_box(rbpf(black_box(code)));
        }
    }));
    cases.push(Case::registration("solana-sbpf", "list search by words", move |iterations| {
        for _ in 0..iterations {
            let _ = black_box(sbpf(black_box(code)));
        }
    }));
}
