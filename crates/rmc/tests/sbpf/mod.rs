//! solana-sbpf as an oracle, in its version 3, in which pointers describe memory.
//!
//! | who | may touch | when |
//! | --- | --- | --- |
//! | the engine | stack and input | during `execute_program` |
//! | we | stack and input | before and after it, while no engine exists |

use std::ptr::NonNull;
use std::sync::Arc;

use solana_sbpf::aligned_memory::AlignedMemory;
use solana_sbpf::ebpf;
use solana_sbpf::elf::Executable;
use solana_sbpf::error::ProgramResult;
use solana_sbpf::memory_region::{MemoryMapping, MemoryRegion};
use solana_sbpf::program::{BuiltinProgram, FunctionRegistry, SBPFVersion};
use solana_sbpf::vm::{CallFrame, ContextObject, EbpfVm, ExecutionMode};

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

/// What the engine returns of this code with R1 at these bytes, or what it says against it.
pub(crate) fn run(code: &[u8], input: &mut [u8]) -> Result<u64, String> {
    let loader = Arc::new(BuiltinProgram::new_mock());
    let functions = FunctionRegistry::default();
    let version = SBPFVersion::V3;
    let executable =
        Executable::<Context>::from_text_bytes(code, loader.clone(), version, functions)
            .map_err(|error| error.to_string())?;
    let config = executable.get_config();
    let mut stack = AlignedMemory::<{ ebpf::HOST_ALIGN }>::zero_filled(config.stack_size());
    let stack_bytes = stack.len();
    let regions = vec![
        executable.get_ro_region(),
        MemoryRegion::new(&mut stack, ebpf::MM_STACK_START),
        MemoryRegion::new(&raw mut *input, ebpf::MM_INPUT_START),
    ];
    // SAFETY: stack and input outlive the engine, no other code accesses them meanwhile, and they are plain bytes.
    let mapping = unsafe { MemoryMapping::new(regions, config, version) };
    let mapping = mapping.map_err(|error| error.to_string())?;
    let mut context = Context { left: 100_000, mapping };
    let mut frames = vec![CallFrame::default(); config.max_call_depth];
    let mut engine = EbpfVm::new(loader, version, &mut context, stack_bytes);
    engine.registers[1] = ebpf::MM_INPUT_START;
    let (_, result) =
        engine.execute_program(&executable, &mut ExecutionMode::Interpreted, &mut frames);
    match result {
        ProgramResult::Ok(value) => Ok(value),
        ProgramResult::Err(error) => Err(error.to_string()),
    }
}
