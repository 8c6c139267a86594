//! What the rules of a GBNF grammar say about each other: which can end, which recurse, and which
//! recurse only at one end, so that they are regular expressions.

use std::collections::HashSet;

use crate::gbnf::{Gbnf, Node, NodeId, RuleId};

/// Rules that refer to each other and are made one expression each. The expression of the last can
/// have as many parts as two to this power.
const LINEAR_RULES_MAX: usize = 4;

pub fn children(node: &Node) -> &[NodeId] {
    match node {
        Node::Sequence(items) | Node::Choice(items) => items,
        Node::Repeat(item, _, _) => std::slice::from_ref(item),
        _ => &[],
    }
}

/// The nodes of a body, children first, without those of other rules.
pub fn nodes_of(grammar: &Gbnf, body: NodeId) -> Vec<NodeId> {
    let mut seen = HashSet::from([body]);
    let mut nodes = vec![body];
    let mut next = 0;
    while next < nodes.len() {
        let inner = children(&grammar.nodes[nodes[next]]);
        nodes.extend(inner.iter().filter(|&&child| seen.insert(child)));
        next += 1;
    }
    nodes.sort_unstable(); // a child is always made before its parent
    nodes
}

/// Groups of rules that refer to each other, those that a group refers to before it; only what the
/// root reaches.
pub fn groups(grammar: &Gbnf) -> Vec<Vec<RuleId>> {
    Groups::new(grammar).find()
}

/// Tarjan's algorithm without recursion.
struct Groups {
    references: Vec<Vec<RuleId>>,
    order: Vec<usize>, // when a rule was reached; 0: not yet
    lowest: Vec<usize>,
    waiting: Vec<RuleId>,
    waits: Vec<bool>,
    groups: Vec<Vec<RuleId>>,
    root: RuleId,
}

fn references(grammar: &Gbnf, rule: RuleId) -> Vec<RuleId> {
    let nodes = nodes_of(grammar, grammar.rules[rule]);
    nodes
        .into_iter()
        .filter_map(|id| match grammar.nodes[id] {
            Node::Rule(rule) => Some(rule),
            _ => None,
        })
        .collect()
}

impl Groups {
    fn new(grammar: &Gbnf) -> Groups {
        let count = grammar.rules.len();
        Groups {
            references: (0..count).map(|rule| references(grammar, rule)).collect(),
            order: vec![0; count],
            lowest: vec![0; count],
            waiting: Vec::new(),
            waits: vec![false; count],
            groups: Vec::new(),
            root: grammar.root,
        }
    }

    fn enter(&mut self, rule: RuleId, reached: &mut usize) {
        *reached += 1;
        self.order[rule] = *reached;
        self.lowest[rule] = *reached;
        self.waiting.push(rule);
        self.waits[rule] = true;
    }

    fn find(mut self) -> Vec<Vec<RuleId>> {
        let mut reached = 0;
        let mut path = vec![(self.root, 0)];
        self.enter(self.root, &mut reached);
        while let Some(&mut (rule, ref mut next)) = path.last_mut() {
            if let Some(&other) = self.references[rule].get(*next) {
                *next += 1;
                if self.order[other] == 0 {
                    self.enter(other, &mut reached);
                    path.push((other, 0));
                } else if self.waits[other] {
                    self.lowest[rule] = self.lowest[rule].min(self.order[other]);
                }
                continue;
            }
            path.pop();
            if let Some(&(parent, _)) = path.last() {
                self.lowest[parent] = self.lowest[parent].min(self.lowest[rule]);
            }
            if self.lowest[rule] == self.order[rule] {
                self.close(rule);
            }
        }
        self.groups
    }

    fn close(&mut self, first: RuleId) {
        let begin = self.waiting.iter().rposition(|&rule| rule == first).unwrap_or_default();
        let group = self.waiting.split_off(begin);
        group.iter().for_each(|&rule| self.waits[rule] = false);
        self.groups.push(group);
    }
}

/// Whether a rule of the group refers to one of them.
pub fn recursive(grammar: &Gbnf, group: &[RuleId]) -> bool {
    group.iter().any(|&rule| references(grammar, rule).iter().any(|other| group.contains(other)))
}

/// Takes away the alternatives that no text matches, so that an output cannot enter one and then
/// never end. False: no text matches the grammar at all.
pub fn prune(grammar: &mut Gbnf, groups: &[Vec<RuleId>]) -> bool {
    let mut ends = vec![false; grammar.nodes.len()];
    let mut rule_ends = vec![false; grammar.rules.len()];
    for group in groups {
        let mut changed = true;
        while changed {
            changed = false;
            for &rule in group {
                for id in nodes_of(grammar, grammar.rules[rule]) {
                    ends[id] = match &grammar.nodes[id] {
                        Node::Text(_) | Node::Token { .. } => true,
                        Node::Chars(ranges) => !ranges.is_empty(),
                        Node::Rule(rule) => rule_ends[*rule],
                        Node::Sequence(items) => items.iter().all(|&item| ends[item]),
                        Node::Choice(items) => items.iter().any(|&item| ends[item]),
                        Node::Repeat(item, min, _) => *min == 0 || ends[*item],
                    };
                }
                changed |= ends[grammar.rules[rule]] && !rule_ends[rule];
                rule_ends[rule] = ends[grammar.rules[rule]];
            }
        }
    }
    for node in &mut grammar.nodes {
        match node {
            Node::Choice(items) => items.retain(|&item| ends[item]),
            Node::Repeat(item, _, max) if !ends[*item] || *max == Some(0) => {
                *node = Node::Sequence(Vec::new());
            }
            Node::Text(text) if text.is_empty() => *node = Node::Sequence(Vec::new()),
            _ => (),
        }
    }
    rule_ends[grammar.root]
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Right,
    Left,
}

/// A rule as `factors[0] group[0] | factors[1] group[1] | ... | rest` (or with the rules first).
/// None: nothing.
struct Equation {
    factors: Vec<Option<NodeId>>,
    rest: Option<NodeId>,
}

/// Recursion at one end of a rule, as in `chars ::= "" | [a-z] chars`, becomes repetition. Then the
/// rule may be one lexeme, and a long text is not as many rules that end at once.
pub fn repeat_linear(grammar: &mut Gbnf, groups: &[Vec<RuleId>]) {
    for group in groups {
        if group.len() > LINEAR_RULES_MAX || !recursive(grammar, group) {
            continue;
        }
        for end in [End::Right, End::Left] {
            let mut equations = Vec::with_capacity(group.len());
            for &rule in group {
                let body = grammar.rules[rule];
                equations.extend(Linear { grammar, group, end }.equation(body));
            }
            if equations.len() == group.len() {
                solve(grammar, group, end, equations);
                break;
            }
        }
    }
}

fn choice(grammar: &mut Gbnf, a: Option<NodeId>, b: Option<NodeId>) -> Option<NodeId> {
    match (a, b) {
        (Some(a), Some(b)) => Some(grammar.add(Node::Choice(vec![a, b]))),
        (a, b) => a.or(b),
    }
}

/// `outer` is farther from the end at which the recursion is.
fn join(grammar: &mut Gbnf, end: End, outer: NodeId, inner: NodeId) -> NodeId {
    let items = match end {
        End::Right => vec![outer, inner],
        End::Left => vec![inner, outer],
    };
    grammar.add(Node::Sequence(items))
}

fn solve(grammar: &mut Gbnf, group: &[RuleId], end: End, mut equations: Vec<Equation>) {
    for i in 0..equations.len() {
        if let Some(factor) = equations[i].factors[i].take() {
            let repeated = grammar.add(Node::Repeat(factor, 0, None));
            let equation = &mut equations[i];
            for part in equation.factors.iter_mut().chain([&mut equation.rest]) {
                *part = part.map(|part| join(grammar, end, repeated, part));
            }
        }
        for k in 0..equations.len() {
            let Some(factor) = equations[k].factors[i].take().filter(|_| k != i) else { continue };
            for j in 0..equations.len() {
                let part = equations[i].factors[j].map(|part| join(grammar, end, factor, part));
                equations[k].factors[j] = choice(grammar, equations[k].factors[j], part);
            }
            let part = equations[i].rest.map(|part| join(grammar, end, factor, part));
            equations[k].rest = choice(grammar, equations[k].rest, part);
        }
    }
    for (&rule, equation) in group.iter().zip(equations) {
        let nothing = || Node::Choice(Vec::new());
        grammar.rules[rule] = equation.rest.unwrap_or_else(|| grammar.add(nothing()));
    }
}

struct Linear<'a> {
    grammar: &'a mut Gbnf,
    group: &'a [RuleId],
    end: End,
}

impl Linear<'_> {
    fn refers(&self, id: NodeId) -> bool {
        nodes_of(self.grammar, id).into_iter().any(|id| match self.grammar.nodes[id] {
            Node::Rule(rule) => self.group.contains(&rule),
            _ => false,
        })
    }

    fn constant(&self, rest: Option<NodeId>) -> Equation {
        Equation { factors: vec![None; self.group.len()], rest }
    }

    fn equation(&mut self, id: NodeId) -> Option<Equation> {
        if !self.refers(id) {
            return Some(self.constant(Some(id)));
        }
        match self.grammar.nodes[id].clone() {
            Node::Rule(rule) => {
                let mut equation = self.constant(None);
                let index = self.group.iter().position(|&other| other == rule)?;
                equation.factors[index] = Some(self.grammar.add(Node::Sequence(Vec::new())));
                Some(equation)
            }
            Node::Choice(items) => {
                let mut sum = self.constant(None);
                for item in items {
                    let part = self.equation(item)?;
                    for (factor, other) in sum.factors.iter_mut().zip(part.factors) {
                        *factor = choice(self.grammar, *factor, other);
                    }
                    sum.rest = choice(self.grammar, sum.rest, part.rest);
                }
                Some(sum)
            }
            Node::Sequence(mut items) => {
                let last = match self.end {
                    End::Right => items.pop()?,
                    End::Left => items.remove(0),
                };
                if items.iter().any(|&item| self.refers(item)) {
                    return None;
                }
                let others = self.grammar.add(Node::Sequence(items));
                let mut equation = self.equation(last)?;
                for part in equation.factors.iter_mut().chain([&mut equation.rest]) {
                    *part = part.map(|part| join(self.grammar, self.end, others, part));
                }
                Some(equation)
            }
            Node::Repeat(item, 0, Some(1)) => {
                let mut equation = self.equation(item)?;
                let empty = self.grammar.add(Node::Sequence(Vec::new()));
                equation.rest = choice(self.grammar, equation.rest, Some(empty));
                Some(equation)
            }
            _ => None,
        }
    }
}
