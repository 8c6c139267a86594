//! The compiler pass over minijinja's instructions: puts the filters of `operators` in their place,
//! and refuses what Jinja2 does differently.

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::ValueKind;
use minijinja::Value;

use crate::methods;
use crate::operators::{
    ADD, CHANGED, CONCAT, CYCLE, EQ, GE, GT, IN, ITEM, LE, LIST, LOOPED, LT, MAP, MUL, NE,
    PRESERVING, REM, SLICE, TUPLE,
};

const NO_CACHE: u8 = !0; // no cached lookup

/// What Jinja2 does with a program and minijinja would do differently, and its line.
pub fn refused(program: &Instructions<'static>) -> Option<(String, usize)> {
    let mut enclosed: Vec<&str> = Vec::new(); // by the next macro
    let mut last: Option<&Value> = None;
    let mut index = 0;
    while let Some(instruction) = program.get(index) {
        let message = match instruction {
            Instruction::PushAutoEscape if last.is_none_or(Value::is_true) => {
                Some("{% autoescape %} is not supported".to_string())
            }
            Instruction::BuildMacro(name, ..) => {
                let found = enclosed.drain(..).find(|name| matches!(*name, "varargs" | "kwargs"));
                found.map(|found| format!("{found} of the macro {name} is not supported"))
            }
            _ => None,
        };
        if let Some(message) = message {
            return Some((message, program.get_line(index).unwrap_or(1)));
        }
        match instruction {
            Instruction::Enclose(name) => enclosed.push(name),
            Instruction::GetClosure | Instruction::LoadConst(_) => {}
            _ => enclosed.clear(),
        }
        last = match instruction {
            Instruction::LoadConst(value) => Some(value),
            _ => None,
        };
        index += 1;
    }
    None
}

/// What stands for one instruction, if it is not one instruction.
fn expansion(instruction: &Instruction<'static>) -> Option<[Instruction<'static>; 2]> {
    match instruction {
        Instruction::PushLoop(flags) => Some([
            Instruction::ApplyFilter(LOOPED, Some(1), NO_CACHE),
            Instruction::PushLoop(*flags),
        ]),
        Instruction::CompareAndPreserve(operator) => {
            let name = PRESERVING[*operator as usize];
            Some([Instruction::ApplyFilter(name, Some(2), NO_CACHE), Instruction::UnpackList(2)])
        }
        _ => None,
    }
}

/// The program with some instructions replaced by two.
pub fn expand(
    program: &Instructions<'static>,
    name: &'static str,
    source: &'static str,
) -> Instructions<'static> {
    let mut places = Vec::new(); // of the old instructions in the new program
    let mut place = 0u32;
    while let Some(instruction) = program.get(places.len() as u32) {
        places.push(place);
        place += if expansion(instruction).is_some() { 2 } else { 1 };
    }
    places.push(place);
    let moved = |target: u32| places.get(target as usize).copied().unwrap_or(target);
    let mut made = Instructions::new(name, source);
    for index in 0..places.len() as u32 - 1 {
        let Some(instruction) = program.get(index) else { break };
        let mut instruction = instruction.clone();
        match &mut instruction {
            Instruction::Iterate(target)
            | Instruction::Jump(target)
            | Instruction::JumpIfFalse(target)
            | Instruction::JumpIfFalseOrPop(target)
            | Instruction::JumpIfTrueOrPop(target)
            | Instruction::BuildMacro(_, target, _) => *target = moved(*target),
            _ => {}
        }
        let pair = expansion(&instruction);
        for instruction in pair.into_iter().flatten().chain(match expansion(&instruction) {
            Some(_) => None,
            None => Some(instruction),
        }) {
            match (program.get_span(index), program.get_line(index)) {
                (Some(span), _) => made.add_with_span(instruction, span),
                (None, Some(line)) => made.add_with_line(instruction, line as u16),
                (None, None) => made.add(instruction),
            };
        }
    }
    made
}

/// The compiled form of `{% set variable.name = value %}`, after the value has been computed.
pub struct Assignment {
    index: u32, // of the first of its two instructions
    pub variable: &'static str,
    pub name: &'static str,
}

/// The assignments of a program; None if one goes deeper than `variable.name`, which Jinja2 does
/// not have.
pub fn assignments(instructions: &mut Instructions<'static>) -> Option<Vec<Assignment>> {
    let mut found = Vec::new();
    let mut variable = None;
    let mut index = 0;
    while let Some(instruction) = instructions.get_mut(index) {
        if let Instruction::SetAttr(name) = instruction {
            found.push(Assignment { index: index - 1, variable: variable?, name });
        }
        variable = match instruction {
            Instruction::Lookup(name) => Some(*name),
            _ => None,
        };
        index += 1;
    }
    Some(found)
}

/// Compiles `assignment` to the filter of that name, which takes the value and returns nothing.
pub fn rewrite_assignment(
    instructions: &mut Instructions<'static>,
    assignment: &Assignment,
    filter: &'static str,
) {
    if let Some(instruction) = instructions.get_mut(assignment.index) {
        *instruction = Instruction::ApplyFilter(filter, Some(1), NO_CACHE);
    }
    if let Some(instruction) = instructions.get_mut(assignment.index + 1) {
        *instruction = Instruction::DiscardTop;
    }
}

/// Replaces the instructions in place, one for one, so that jumps stay correct. Returns the size
/// of the longest literal text in bytes.
pub fn rewrite(instructions: &mut Instructions<'static>) -> usize {
    let mut longest_literal = 0;
    let mut index = 0;
    let mut plain_key = false;
    while let Some(instruction) = instructions.get_mut(index) {
        let has_plain_key = plain_key;
        plain_key = matches!(instruction, Instruction::LoadConst(value)
            if value.as_str().is_none_or(|name| methods::known(name).is_none()));
        let (name, operands) = match instruction {
            Instruction::GetAttr(name) if methods::dotted(name).is_some() => {
                (methods::dotted(name).unwrap_or_default(), 1)
            }
            Instruction::GetItem if !has_plain_key => (ITEM, 2),
            Instruction::Rem => (REM, 2),
            Instruction::Lt => (LT, 2),
            Instruction::Lte => (LE, 2),
            Instruction::Gt => (GT, 2),
            Instruction::Gte => (GE, 2),
            Instruction::CallMethod("cycle", Some(operands)) => (CYCLE, *operands),
            Instruction::Add => (ADD, 2),
            Instruction::Mul => (MUL, 2),
            Instruction::StringConcat => (CONCAT, 2),
            Instruction::Eq => (EQ, 2),
            Instruction::Ne => (NE, 2),
            Instruction::In => (IN, 2),
            Instruction::BuildList(Some(n)) if (1..=0xffff).contains(n) => (LIST, *n as u16),
            Instruction::BuildTuple(Some(n)) if (1..=0xffff).contains(n) => (TUPLE, *n as u16),
            Instruction::BuildMap(n) if (1..=0x7fff).contains(n) => (MAP, 2 * *n as u16),
            Instruction::Slice => (SLICE, 4),
            Instruction::CallMethod("changed", Some(operands)) => (CHANGED, *operands),
            Instruction::LoadConst(value) if value.kind() == ValueKind::Iterable => {
                // A folded `[0] * 3`, which is lazy.
                *value =
                    Value::from(value.try_iter().into_iter().flatten().collect::<Vec<Value>>());
                ("", 0)
            }
            Instruction::Include(ignore_missing) => {
                *ignore_missing = false; // there is nothing to include, and Jinja2 says so
                ("", 0)
            }
            Instruction::EmitRaw(text) => {
                longest_literal = longest_literal.max(text.len());
                ("", 0)
            }
            _ => ("", 0),
        };
        if operands > 0 {
            *instruction = Instruction::ApplyFilter(name, Some(operands), NO_CACHE);
        }
        index += 1;
    }
    longest_literal
}
