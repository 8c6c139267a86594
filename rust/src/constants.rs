//! Limits the size of a template's constants after folding. minijinja folds while it compiles, so
//! `'a' * 100000000` would use its memory before any budget counts. This pass over the syntax tree
//! adds up the folded sizes and refuses a template that exceeds the limit.
//!
//! Recursive like the tree, whose depth `nesting` has limited.

use std::iter;

use minijinja::machinery::ast::{BinOp, BinOpKind, Call, CallArg, Compare, Expr, Macro, Stmt};
use minijinja::machinery::Span;
use minijinja::value::ValueKind;
use minijinja::Value;

use crate::Failure;

/// For all folded constants of one template together.
const CONSTANT_BYTES_MAX: u64 = 4 << 20;
/// An element of a list or a map.
const NODE_BYTES: u64 = 32;
/// A number as text.
const NUMBER_BYTES: u64 = 40;

/// Upper bounds for a folded constant.
#[derive(Clone, Copy)]
struct Constant {
    bytes: u64,     // of text and elements; none for a number
    magnitude: u64, // of a number
    whole: bool,    // a number without a fraction
}

impl Constant {
    fn of(value: &Value) -> Constant {
        let mut constant = Constant { bytes: 0, magnitude: 1, whole: true };
        match value.kind() {
            ValueKind::Number => {
                constant.whole = value.is_integer();
                let number = f64::try_from(value.clone()).map_or(f64::MAX, f64::abs);
                constant.magnitude = number.ceil() as u64; // saturates
            }
            _ => constant.bytes = value.as_str().map_or(0, |text| text.len() as u64),
        }
        constant
    }

    fn binary(op: BinOpKind, a: Constant, b: Constant) -> Constant {
        let whole = a.whole && b.whole;
        let mut bytes = a.bytes.saturating_add(b.bytes);
        let magnitude = match op {
            BinOpKind::Mul => {
                let repeated = a.bytes.saturating_mul(b.magnitude);
                bytes = bytes.max(repeated).max(b.bytes.saturating_mul(a.magnitude));
                a.magnitude.saturating_mul(b.magnitude)
            }
            BinOpKind::Add | BinOpKind::Sub => a.magnitude.saturating_add(b.magnitude),
            BinOpKind::Pow | BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem if !whole => {
                u64::MAX
            }
            BinOpKind::Pow => {
                a.magnitude.saturating_pow(u32::try_from(b.magnitude).unwrap_or(u32::MAX))
            }
            BinOpKind::Concat => {
                bytes = bytes.saturating_add(2 * NUMBER_BYTES);
                1
            }
            _ => a.magnitude.max(b.magnitude),
        };
        // A power of a negative exponent is a fraction too.
        let fraction = matches!(op, BinOpKind::Div | BinOpKind::Pow);
        Constant { bytes, magnitude, whole: whole && !fraction }
    }
}

#[derive(Default)]
struct Sum<'a> {
    bytes: u64,
    excess: Option<Span>, // where the limit was passed
    names: Vec<&'a str>,  // variables that were read
    misread: Option<(&'a str, Span)>,
    // The block around, up to the loop, that a break would leave without its end.
    inside: Option<&'static str>,
    left: Option<(&'static str, Span)>,
}

impl<'a> Sum<'a> {
    /// A name that `exprs` would read inside the scope that they begin; in Jinja2 they read the one
    /// before it, or an argument, in an order that minijinja does not have.
    fn scope(&mut self, exprs: impl IntoIterator<Item = &'a Expr<'a>>, made: &[&'a Expr<'a>]) {
        let made: Vec<&str> = made
            .iter()
            .filter_map(|expr| match expr {
                Expr::Var(var) => Some(var.id),
                _ => None,
            })
            .collect();
        for expr in exprs {
            self.names.clear();
            self.top(expr);
            if let Some(name) = self.names.iter().find(|name| made.contains(name)) {
                self.misread.get_or_insert((*name, expr.span()));
            }
        }
    }

    /// A constant that is not part of a larger one.
    fn add(&mut self, constant: Option<Constant>, span: Span) {
        self.bytes = self.bytes.saturating_add(constant.map_or(0, |made| made.bytes));
        if self.bytes > CONSTANT_BYTES_MAX && self.excess.is_none() {
            self.excess = Some(span);
        }
    }

    fn top(&mut self, expr: &'a Expr<'a>) {
        let made = self.expr(expr);
        self.add(made, expr.span());
    }

    fn tops(&mut self, exprs: impl IntoIterator<Item = &'a Expr<'a>>) {
        for expr in exprs {
            self.top(expr);
        }
    }

    fn args(&mut self, args: &'a [CallArg<'a>]) {
        for arg in args {
            match arg {
                CallArg::Pos(expr)
                | CallArg::Kwarg(_, expr)
                | CallArg::PosSplat(expr)
                | CallArg::KwargSplat(expr) => self.top(expr),
            }
        }
    }

    fn call(&mut self, call: &'a Call<'a>) {
        self.top(&call.expr);
        self.args(&call.args);
    }

    /// A literal folds if all of its elements are constant literals.
    fn literal(&mut self, items: impl Iterator<Item = &'a Expr<'a>>) -> Option<Constant> {
        let mut made = Constant { bytes: 0, magnitude: 1, whole: true };
        let mut folds = true;
        for item in items {
            match item {
                Expr::Const(value) => {
                    made.bytes += NODE_BYTES + Constant::of(&value.value).bytes;
                }
                other => {
                    folds = false;
                    self.top(other);
                }
            }
        }
        folds.then_some(made)
    }

    fn binary(&mut self, binary: &'a BinOp<'a>, span: Span) -> Option<Constant> {
        let (left, right) = (self.expr(&binary.left), self.expr(&binary.right));
        if let (Some(a), Some(b)) = (left, right) {
            return Some(Constant::binary(binary.op, a, b));
        }
        self.add(left, span);
        self.add(right, span);
        None
    }

    /// A chain such as 1 < 2 < 3. Its value is a truth value.
    fn comparison(&mut self, compare: &'a Compare<'a>) -> Option<Constant> {
        let operands = iter::once(&compare.expr).chain(compare.ops.iter().map(|op| &op.expr));
        let parts: Vec<_> = operands.map(|expr| (self.expr(expr), expr.span())).collect();
        let folds = parts.iter().all(|(part, _)| part.is_some());
        if folds {
            let bytes = parts.iter().flat_map(|(part, _)| part).map(|made| made.bytes);
            let bytes = bytes.fold(0, u64::saturating_add);
            return Some(Constant { bytes, magnitude: 1, whole: true });
        }
        for (part, span) in parts {
            self.add(part, span);
        }
        None
    }

    /// The folded form of `expr`; None if it is not constant, and then its constants are added.
    fn expr(&mut self, expr: &'a Expr<'a>) -> Option<Constant> {
        match expr {
            Expr::Const(value) => return Some(Constant::of(&value.value)),
            Expr::UnaryOp(unary) => return self.expr(&unary.expr),
            Expr::BinOp(binary) => return self.binary(binary, binary.span()),
            Expr::List(list) => return self.literal(list.items.iter()),
            Expr::Tuple(tuple) => return self.literal(tuple.items.iter()),
            Expr::Map(map) => return self.literal(map.keys.iter().chain(&map.values)),
            Expr::Var(var) => self.names.push(var.id),
            Expr::Compare(compare) => return self.comparison(compare),
            Expr::IfExpr(choice) => {
                self.tops([&choice.test_expr, &choice.true_expr]);
                self.tops(&choice.false_expr);
            }
            Expr::Filter(filter) => {
                self.tops(&filter.expr);
                self.args(&filter.args);
            }
            Expr::Test(test) => {
                self.top(&test.expr);
                self.args(&test.args);
            }
            Expr::GetAttr(attribute) => self.top(&attribute.expr),
            Expr::GetItem(item) => self.tops([&item.expr, &item.subscript_expr]),
            Expr::Slice(slice) => {
                self.top(&slice.expr);
                self.tops([&slice.start, &slice.stop, &slice.step].into_iter().flatten());
            }
            Expr::Call(call) => self.call(call),
        }
        None
    }

    fn body_of(&mut self, body: &'a [Stmt<'a>], inside: Option<&'static str>) {
        let outer = std::mem::replace(&mut self.inside, inside);
        self.body(body);
        self.inside = outer;
    }

    fn leave(&mut self, at: Span) {
        if let Some(block) = self.inside {
            self.left.get_or_insert((block, at));
        }
    }

    fn body(&mut self, body: &'a [Stmt<'a>]) {
        for stmt in body {
            self.stmt(stmt);
        }
    }

    fn declared(&mut self, declared: &'a Macro<'a>) {
        let made: Vec<&Expr> = declared.args.iter().collect();
        self.scope(&declared.defaults, &made);
        self.body(&declared.body);
    }

    fn stmt(&mut self, stmt: &'a Stmt<'a>) {
        match stmt {
            Stmt::Template(node) => self.body(&node.children),
            Stmt::EmitExpr(node) => self.top(&node.expr),
            Stmt::ForLoop(node) => {
                self.top(&node.iter);
                self.tops(&node.filter_expr);
                self.body_of(&node.body, None);
                self.body(&node.else_body);
            }
            Stmt::IfCond(node) => {
                self.top(&node.expr);
                self.body(&node.true_body);
                self.body(&node.false_body);
            }
            Stmt::WithBlock(node) => {
                let made: Vec<&Expr> = node.assignments.iter().map(|(target, _)| target).collect();
                for (place, (_, value)) in node.assignments.iter().enumerate() {
                    self.scope([value], &made[..place]);
                }
                self.body_of(&node.body, Some("with"));
            }
            Stmt::Set(node) => self.top(&node.expr),
            Stmt::SetBlock(node) => {
                self.tops(&node.filter);
                self.body_of(&node.body, Some("set"));
            }
            Stmt::AutoEscape(node) => {
                self.top(&node.enabled);
                self.body(&node.body);
            }
            Stmt::FilterBlock(node) => {
                self.top(&node.filter);
                self.body_of(&node.body, Some("filter"));
            }
            Stmt::Block(node) => self.body(&node.body),
            Stmt::Import(node) => self.top(&node.expr),
            Stmt::FromImport(node) => self.top(&node.expr),
            Stmt::Extends(node) => self.top(&node.name),
            Stmt::Include(node) => self.top(&node.name),
            Stmt::Macro(node) => self.declared(node),
            Stmt::CallBlock(node) => {
                self.call(&node.call);
                self.declared(&node.macro_decl);
            }
            Stmt::Do(node) => self.call(&node.call),
            Stmt::EmitRaw(_) => {}
            Stmt::Continue(node) => self.leave(node.span()),
            Stmt::Break(node) => self.leave(node.span()),
        }
    }
}

/// Refuses a template whose constants would be too large when folded, one with names that minijinja
/// would look up in another scope than Jinja2, and one with jumps that it compiles wrongly.
pub fn check(tree: &Stmt) -> Result<(), Failure> {
    let mut sum = Sum::default();
    sum.stmt(tree);
    if let Some((block, at)) = sum.left {
        return Err(Failure::Invalid(format!(
            "{{% break %}} and {{% continue %}} must not leave a {{% {block} %}} (chat template, line {})",
            at.start_line
        )));
    }
    if let Some((name, at)) = sum.misread {
        return Err(Failure::Invalid(format!(
            "a default of a macro, or a value of {{% with %}}, must not name {name:?} of the same \
             tag (chat template, line {})",
            at.start_line
        )));
    }
    match sum.excess {
        Some(at) => Err(Failure::Limit(format!(
            "the constants take more than {CONSTANT_BYTES_MAX} bytes (chat template, line {}, \
             column {})",
            at.start_line,
            at.start_col + 1
        ))),
        None => Ok(()),
    }
}
