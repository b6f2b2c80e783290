//! The columns of a Container Batch node: which parts of the expressions above it its child computes, which calls it makes
//! itself, and how either is written as a Var.

use pgrx::pg_sys;

use super::effects::Watcher;
use super::find_calls::{FoundCall, is_volatile};
use crate::pg::{list, nodes};

/// A call that becomes a column.
pub struct LiftedCall {
    pub call: *mut pg_sys::FuncExpr,
    /// Every place where it was found: the call is made for a row that the guards of one of them let through.
    places: Vec<FoundCall>,
    /// Whether equal calls have equal results.
    is_repeatable: bool,
}

/// The columns of a new node: plain parts of the old expressions, which the child computes, and calls.
pub struct Columns {
    calls: Vec<LiftedCall>,
    pub atoms: Vec<*mut pg_sys::Node>,
}

impl Columns {
    /// The columns that `moved` expressions need when `calls` in them have become columns.
    pub unsafe fn new(calls: Vec<LiftedCall>, moved: &[*mut pg_sys::Node]) -> Columns {
        // SAFETY: the caller passes valid expressions; the walks change nothing and their copies are dropped.
        unsafe {
            let mut atoms: Vec<*mut pg_sys::Node> = Vec::new();
            let mut note = |node: *mut pg_sys::Node| {
                if is_atom(node) && !atoms.iter().any(|atom| is_same_atom(*atom, node)) {
                    atoms.push(node);
                }
                is_atom(node).then_some(node)
            };
            for lifted in &calls {
                nodes::replace(lifted.call.cast(), &mut note);
                for guard in lifted.places.iter().flat_map(|place| &place.guards) {
                    nodes::replace(*guard, &mut note);
                }
            }
            for expression in moved {
                nodes::replace(*expression, &mut |node| match position_of(&calls, node) {
                    Some(_) => Some(node),
                    None => note(node),
                });
            }
            Columns { calls, atoms }
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.atoms.len() + self.calls.len()
    }

    /// Where a noted plain part is among the columns.
    unsafe fn atom_position(&self, node: *mut pg_sys::Node) -> Option<usize> {
        // SAFETY: both are valid nodes.
        self.atoms.iter().position(|atom| unsafe { is_same_atom(*atom, node) })
    }

    /// The expression over the new node's scan tuple: plain parts first, calls behind them.
    pub unsafe fn over_scan_tuple(&self, expression: *mut pg_sys::Node) -> *mut pg_sys::Node {
        // SAFETY: the caller passes a valid expression.
        unsafe {
            nodes::replace(expression, &mut |node| {
                let position = match position_of(&self.calls, node) {
                    Some(call) => self.atoms.len() + call,
                    None => self.atom_position(node)?,
                };
                Some(column(pg_sys::INDEX_VAR, position, node).cast())
            })
        }
    }

    /// Conditions that a window node asks of its own results, by their places among `targets`, for the columns that it has
    /// from now on. Each such result is one of them, since a window function is a plain part.
    pub unsafe fn over_own_targets(
        &self,
        conditions: *mut pg_sys::List,
        targets: &[*mut pg_sys::TargetEntry],
    ) -> *mut pg_sys::List {
        // SAFETY: the caller passes the node's conditions and its target list.
        unsafe {
            nodes::replace(conditions.cast(), &mut |node| {
                let var = node.cast::<pg_sys::Var>();
                if nodes::tag(node) != pg_sys::NodeTag::T_Var {
                    return None;
                }
                let before = targets.get(usize::try_from((*var).varattno - 1).ok()?)?;
                let position = self.atom_position((**before).expr.cast())?;
                let moved = pg_sys::copyObjectImpl(var.cast()).cast::<pg_sys::Var>();
                (*moved).varattno = attribute_number(position);
                Some(moved.cast())
            })
            .cast()
        }
    }

    /// The calls as entries of the scan tuple, over the child's columns.
    pub unsafe fn call_entries(&self) -> Vec<*mut pg_sys::TargetEntry> {
        let mut entries = Vec::new();
        for (i, lifted) in self.calls.iter().enumerate() {
            // SAFETY: calls are valid expressions, whose plain parts were noted.
            unsafe { entries.push(entry_of(self.over_child(lifted.call.cast()).cast(), self.atoms.len() + i)) };
        }
        entries
    }

    /// The calls' conditions, over the child's columns; null for a call that is made for every row.
    pub unsafe fn conditions(&self) -> Vec<*mut pg_sys::Node> {
        // SAFETY: guards are valid expressions, whose plain parts were noted.
        self.calls.iter().map(|lifted| unsafe { self.over_child(lifted.condition()) }).collect()
    }

    unsafe fn over_child(&self, expression: *mut pg_sys::Node) -> *mut pg_sys::Node {
        // SAFETY: the caller passes null or a valid expression, whose plain parts were noted.
        unsafe {
            nodes::replace(expression, &mut |node| {
                Some(column(pg_sys::OUTER_VAR, self.atom_position(node)?, node).cast())
            })
        }
    }

    /// The child's columns as entries of the scan tuple.
    pub unsafe fn outer_entries(&self) -> Vec<*mut pg_sys::TargetEntry> {
        // SAFETY: atoms are valid expressions.
        let entry =
            |(i, atom): (usize, &*mut pg_sys::Node)| unsafe { entry_of(column(pg_sys::OUTER_VAR, i, *atom).cast(), i) };
        self.atoms.iter().enumerate().map(entry).collect()
    }

    /// The child's new target list.
    pub unsafe fn child_targets(&self) -> Vec<*mut pg_sys::TargetEntry> {
        // SAFETY: atoms are valid expressions.
        let entry =
            |(i, atom): (usize, &*mut pg_sys::Node)| unsafe { entry_of(pg_sys::copyObjectImpl(atom.cast()).cast(), i) };
        self.atoms.iter().enumerate().map(entry).collect()
    }
}

/// Whether two plain parts are one: equal ones are, but for window functions with VOLATILE arguments, each of which PostgreSQL
/// evaluates for itself (ExecInitWindowAgg).
unsafe fn is_same_atom(one: *mut pg_sys::Node, other: *mut pg_sys::Node) -> bool {
    // SAFETY: the caller passes valid nodes; the tag says which struct a node is.
    unsafe {
        if std::ptr::eq(one, other) {
            return true;
        }
        // Most are columns, and each is looked for among all others.
        let column_of = |node: *mut pg_sys::Node| {
            let var = node.cast::<pg_sys::Var>();
            (nodes::tag(node) == pg_sys::NodeTag::T_Var).then(|| ((*var).varno, (*var).varattno))
        };
        if column_of(one) != column_of(other) {
            return false;
        }
        let is_own = || nodes::tag(one) == pg_sys::NodeTag::T_WindowFunc && pg_sys::contain_volatile_functions(one);
        pg_sys::equal(one.cast(), other.cast()) && !is_own()
    }
}

/// Parts of an expression that only the node they belong to can compute.
unsafe fn is_atom(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: the caller passes a valid node.
    matches!(unsafe { nodes::tag(node) }, T_Var | T_Aggref | T_WindowFunc | T_GroupingFunc)
}

impl LiftedCall {
    fn is_unconditional(&self) -> bool {
        self.places.iter().any(|place| place.guards.is_empty())
    }

    /// When the call is made; null for always.
    pub unsafe fn condition(&self) -> *mut pg_sys::Node {
        if self.is_unconditional() {
            return std::ptr::null_mut();
        }
        let join = |parts: &[*mut pg_sys::Node], operator| match parts {
            [only] => *only,
            // SAFETY: the list holds valid boolean expressions.
            _ => unsafe { pg_sys::makeBoolExpr(operator, list::from_elements(parts), -1).cast() },
        };
        let places: Vec<_> =
            self.places.iter().map(|place| join(&place.guards, pg_sys::BoolExprType::AND_EXPR)).collect();
        join(&places, pg_sys::BoolExprType::OR_EXPR)
    }
}

/// Equal calls once, unless they may have other results: then each is a call of its own. `is_still` says that nothing in the
/// statement is VOLATILE but calls, so that STABLE arguments are the same for one row wherever they stand.
pub unsafe fn distinct_calls(calls: &[FoundCall], watcher: &Watcher, is_still: bool) -> Vec<LiftedCall> {
    let mut distinct: Vec<LiftedCall> = Vec::new();
    for found in calls {
        pgrx::check_for_interrupts!();
        // SAFETY: the caller passes valid calls.
        let is_repeatable = unsafe { is_repeatable(found.call, watcher, is_still) };
        // SAFETY: as above.
        let equal = distinct
            .iter_mut()
            .find(|lifted| unsafe { is_repeatable && pg_sys::equal(lifted.call.cast(), found.call.cast()) });
        match equal {
            Some(lifted) => lifted.places.push(found.clone()),
            None => distinct.push(LiftedCall { call: found.call, places: vec![found.clone()], is_repeatable }),
        }
    }
    distinct
}

/// Which of `calls` has the value of a node: it was found there, or is made for every row and equal. An equal call at a
/// place that was not found may be needed for other rows.
pub unsafe fn position_of(calls: &[LiftedCall], node: *mut pg_sys::Node) -> Option<usize> {
    // SAFETY: the caller passes valid nodes.
    unsafe {
        if nodes::tag(node) != pg_sys::NodeTag::T_FuncExpr {
            return None;
        }
        let function = (*node.cast::<pg_sys::FuncExpr>()).funcid;
        calls.iter().position(|lifted| {
            (*lifted.call).funcid == function
                && (lifted.places.iter().any(|place| std::ptr::eq(place.call.cast(), node))
                    || (lifted.is_repeatable
                        && lifted.is_unconditional()
                        && pg_sys::equal(lifted.call.cast(), node.cast())))
        })
    }
}

/// Whether equal calls have equal results: neither the function nor an argument is VOLATILE, nor does an argument depend on
/// what may have changed in between. The watcher knows of domains' constraints, PostgreSQL of container functions in arguments.
unsafe fn is_repeatable(call: *mut pg_sys::FuncExpr, watcher: &Watcher, is_still: bool) -> bool {
    // SAFETY: the caller passes a valid call.
    unsafe {
        !is_volatile((*call).funcid)
            && !pg_sys::contain_volatile_functions(call.cast())
            && (is_still
                || !(pg_sys::contain_mutable_functions((*call).args.cast())
                    || watcher.of_expressions(&[(*call).args.cast()]).reads))
    }
}

/// A Var for column `position`, counted from zero, with the type of `like`.
pub unsafe fn column(varno: i32, position: usize, like: *mut pg_sys::Node) -> *mut pg_sys::Var {
    // SAFETY: the caller passes a valid expression.
    unsafe {
        pg_sys::makeVar(
            varno,
            attribute_number(position),
            pg_sys::exprType(like),
            pg_sys::exprTypmod(like),
            pg_sys::exprCollation(like),
            0,
        )
    }
}

/// A Var of OUTER_VAR as the same column of `varno`; none for anything else.
pub unsafe fn child_column_as(varno: i32, node: *mut pg_sys::Node) -> Option<*mut pg_sys::Node> {
    // SAFETY: the caller passes a valid node; the tag says which struct it is.
    unsafe {
        if nodes::tag(node) != pg_sys::NodeTag::T_Var || (*node.cast::<pg_sys::Var>()).varno != pg_sys::OUTER_VAR {
            return None;
        }
        let copy = pg_sys::copyObjectImpl(node.cast()).cast::<pg_sys::Var>();
        (*copy).varno = varno;
        Some(copy.cast())
    }
}

pub unsafe fn entry_of(expression: *mut pg_sys::Expr, position: usize) -> *mut pg_sys::TargetEntry {
    // SAFETY: the caller passes a valid expression.
    unsafe { pg_sys::makeTargetEntry(expression, attribute_number(position), std::ptr::null_mut(), false) }
}

/// Whether a node may have so many columns: PostgreSQL allows rows of at most 1,664 (MaxTupleAttributeNumber), and a join or a
/// second node may add to them.
pub fn fits(columns: usize) -> bool {
    const MOST_COLUMNS: usize = 1600;
    columns <= MOST_COLUMNS
}

fn attribute_number(position: usize) -> i16 {
    i16::try_from(position + 1).unwrap_or(i16::MAX)
}
