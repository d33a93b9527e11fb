//! Text, instructions and slots, each way.

use farside_rmc::assembler::{assemble, disassemble};
use farside_rmc::isa::{
    AluOp, AtomicOp, Condition, DecodeError, Instruction, Operand, Order, Register, Size, Wide,
    Width, decode, decode_all, encode,
};

fn registers() -> impl Iterator<Item = Register> {
    (0..11).filter_map(Register::new)
}

/// Every form of every instruction, with a few registers and numbers.
fn every_form() -> Vec<Instruction> {
    let mut all = vec![Instruction::Exit];
    let (dst, base) = (Register::R3, Register::R7);
    let widths = [Width::Word, Width::Double];
    let operands = [
        Operand::Register(Register::R9),
        Operand::Immediate(0),
        Operand::Immediate(-7),
        Operand::Immediate(i32::MAX),
    ];
    for width in widths {
        for src in operands {
            all.extend(AluOp::ALL.map(|op| Instruction::Alu { width, op, dst, src }));
            all.extend(Condition::ALL.map(|condition| {
                let offset = if condition == Condition::Equal { -1 } else { 300 };
                Instruction::JumpIf { width, condition, dst, src, offset }
            }));
        }
        for op in AtomicOp::ALL {
            for fetch in [false, true] {
                let src = Register::R2;
                all.push(Instruction::Atomic { width, op, fetch, base, offset: -16, src });
            }
        }
    }
    for size in Size::ALL {
        for order in [Order::Little, Order::Big, Order::Swapped] {
            all.push(Instruction::Bytes { order, size, dst });
        }
        for signed in [false, true] {
            all.push(Instruction::Load { size, signed, dst, base, offset: 24 });
        }
        let stores = operands.map(|src| Instruction::Store { size, base, offset: -8, src });
        all.extend(stores);
    }
    for value in [
        Wide::Value(0),
        Wide::Value(u64::MAX),
        Wide::Value(0x0123_4567_89ab_cdef),
        Wide::Constant(8),
        Wide::StateHandle(3),
        Wide::Variable { shared: false, offset: 16 },
        Wide::Variable { shared: true, offset: 16 },
    ] {
        all.push(Instruction::LoadWide { dst, value });
    }
    all.extend([0, -1, 7, 40_000].map(|offset| Instruction::Jump { offset }));
    all.extend([0, -1, 70_000].map(|offset| Instruction::CallFunction { offset }));
    all.extend([1, 64, 9_999].map(|number| Instruction::CallHelper { number }));
    all.retain(|instruction| encode(*instruction).is_ok());
    all
}

#[test]
fn every_form_is_encoded_decoded_and_read_from_its_text() {
    let all = every_form();
    assert_eq!(all.len(), 277);
    for instruction in all {
        let (first, second) = encode(instruction).unwrap();
        let slots: Vec<u64> = [Some(first), second].into_iter().flatten().collect();
        assert_eq!(decode(&slots), Ok(instruction), "{instruction:?}");
        let text = disassemble(instruction);
        let program = assemble(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(program.code[0], instruction, "{text}");
    }
}

#[test]
fn whatever_decodes_encodes_to_the_same_slots() {
    let mut seed = 1u64;
    let mut decoded = 0;
    for _ in 0..2_000_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Bits that are rarely zero by chance are often zero in instructions.
        let rare = if seed >> 60 & 1 == 0 { 0 } else { seed >> 33 & 0x3f };
        let slot = seed >> 40 & 0xff | (seed >> 20 & 0xfff) << 8 | rare << 16 | (rare << 32);
        if let Ok(instruction) = decode(&[slot, 0]) {
            decoded += 1;
            let (first, _) = encode(instruction).unwrap();
            // A long jump that fits becomes a short one.
            if !matches!(instruction, Instruction::Jump { .. }) {
                assert_eq!(first, slot, "{instruction:?}");
            }
        }
    }
    assert!(decoded > 50_000, "{decoded}");
}

#[test]
fn slots_that_are_no_instructions_are_refused() {
    for (slots, error) in [
        (&[][..], DecodeError::Truncated),
        (&[0x18], DecodeError::Truncated),
        (&[0x18, 0x95], DecodeError::Truncated),
        (&[0x20], DecodeError::Legacy(0x20)),
        (&[0x0ff], DecodeError::Opcode(0xff)),
        (&[0xb_bf], DecodeError::Register(11)),
        (&[0xb_0bf], DecodeError::Register(11)),
        (&[0x1_0000_00bf], DecodeError::Reserved),
        (&[0x1_0095], DecodeError::Reserved),
        (&[0x2_0000_00db], DecodeError::Variant),
        (&[0x2_0085], DecodeError::Reserved),
        (&[0x2085], DecodeError::Variant),
        (&[0x00d4], DecodeError::Variant),
        (&[0x99], DecodeError::Opcode(0x99)),
        (&[0x1_0000_008d], DecodeError::CallByPointer),
        (&[0x04_0037], DecodeError::Variant),
        (&[0x1018, 0], DecodeError::Variant),
    ] {
        assert_eq!(decode(slots), Err(error), "{slots:x?}");
    }
    assert_eq!(decode_all(&[0x95, 0x18]), Err((1, DecodeError::Truncated)));
}

#[test]
fn texts_that_are_no_programs_are_refused_with_their_line() {
    for (text, line, says) in [
        ("r1 = 1\nr11 = 2\nexit", 2, "expected a register"),
        ("r1 + 2", 1, "no operation `+`"),
        ("goto nowhere", 1, "`nowhere`"),
        ("a:\na:\nexit", 2, "is defined twice"),
        ("r1 = 5000000000", 1, "write it with `ll`"),
        ("r1 += w2", 1, "same width"),
        ("r1 = -r2", 1, "negated"),
        ("r0 = *(s64 *)(r1 + 0)", 1, "no sign"),
        ("r0 = *(u64 *)(r1 + 40000)", 1, "16 bits"),
        ("lock *(u8 *)(r1 + 0) += r2", 1, "four or eight"),
        ("r1 = 1 2", 1, "too much"),
        ("call +", 1, "slots"),
        (".state a b 1 2 3 own", 1, "expected array"),
        (".nothing", 1, "no directive"),
        ("r1 = §", 1, "not understood"),
        ("if r1 ~ 2 goto +1", 1, "understood"),
        ("if r1", 1, "expected a comparison"),
    ] {
        let error = assemble(text).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.text.contains(says), "{text}: {error}");
    }
}

#[test]
fn labels_functions_and_data_become_a_program() {
    let program = assemble(
        "
        .constants 01 02 ff
        .own 16
        .state words map 8 16 100 shared
            r1 = state words       // its handle
            r2 = constant 2
            goto end
        end:
            call twice             # a function
            exit
        .function twice
            r0 = r1 ; comment
            r0 += r0
            exit
        ",
    )
    .unwrap();
    assert_eq!(program.code[4], Instruction::Jump { offset: 0 });
    assert_eq!(program.code[5], Instruction::CallFunction { offset: 1 });
    assert_eq!(program.functions.len(), 2);
    assert_eq!((program.functions[1].start, program.functions[1].end), (7, 10));
    assert_eq!((program.constants.len(), program.variables.own.len()), (3, 16));
    assert_eq!(program.line_at(5).unwrap().line, 9);
    assert_eq!(program.function_at(6), Some(0));
    assert_eq!(program.function_at(10), None);
    assert_eq!(registers().count(), 11);
}
