//! Which container calls of an expression may be made ahead of it, and for which rows.
//!
//! A call that the expression around it may skip (CASE, COALESCE, AND, OR) is made ahead for exactly the rows for which
//! the executor would evaluate it: its *guards* say which. A call is left where it is, to be made row by row, if its
//! guards cannot be evaluated ahead (they are VOLATILE, or hold a subplan), or if we do not know that part of the
//! language. Of nested calls the innermost is found first; the ones around it, and those that it guards, follow once it
//! has become a column.

use std::rc::Rc;

use pgrx::pg_sys;

use super::effects::Watcher;
use super::{calls_container, may_batch};
use crate::pg::{list, nodes};

/// Conditions that may stand before a call which is lifted: each is evaluated for it once more.
const MOST_GUARDS: usize = 100;

/// Finds calls of functions in one language.
pub struct CallFinder {
    /// The oid of LANGUAGE container.
    pub language: pg_sys::Oid,
    /// Where an expression may be evaluated more than once per row, or for no row at all: calls of VOLATILE functions do not count
    /// there, nor those that act by what they evaluate, as this says.
    pub leaves_out_acts: Option<Rc<Watcher>>,
    /// Execution parameters that the node sets while it computes its target list, so that calls with them cannot be made before.
    pub set_late: *mut pg_sys::Bitmapset,
}

/// One walk over an expression.
struct Walk<'a> {
    finder: &'a CallFinder,
    /// Whether a call waits until all calls in its arguments have become columns.
    waits: bool,
    found: Vec<FoundCall>,
}

/// A call that may be made ahead.
#[derive(Clone)]
pub struct FoundCall {
    pub call: *mut pg_sys::FuncExpr,
    /// Conditions, none of which is ever NULL, to be evaluated in this order: the call is made if all are true.
    pub guards: Vec<*mut pg_sys::Node>,
}

/// What is known at one place of an expression.
#[derive(Clone)]
enum Guards {
    /// The place is reached if all of these are true.
    Known(Vec<*mut pg_sys::Node>),
    /// It cannot be said ahead whether the place is reached.
    Unknown,
}

impl CallFinder {
    /// Finds calls in what a node evaluates once per row.
    pub fn new(language: pg_sys::Oid) -> CallFinder {
        CallFinder { language, leaves_out_acts: None, set_late: std::ptr::null_mut() }
    }

    /// Leaves out calls with results of the subqueries of an UPDATE that sets several columns at once, which are evaluated with the
    /// node's own target list.
    ///
    /// # Safety
    /// `targets` is the node's target list.
    pub unsafe fn without_late_parameters(mut self, targets: *mut pg_sys::List) -> CallFinder {
        // SAFETY: the caller says that the list is valid.
        unsafe {
            if !pg_sys::contain_subplans(targets.cast()) {
                return self;
            }
            for subplan in nodes::subplans_of(targets.cast()) {
                if (*subplan).subLinkType == pg_sys::SubLinkType::MULTIEXPR_SUBLINK {
                    for parameter in list::integers((*subplan).setParam) {
                        self.set_late = pg_sys::bms_add_member(self.set_late, parameter);
                    }
                }
            }
        }
        self
    }

    /// The innermost calls in `expression`, left to right.
    ///
    /// # Safety
    /// `expression` is null or a valid expression tree of a finished plan.
    pub unsafe fn find(&self, expression: *mut pg_sys::Node) -> Vec<FoundCall> {
        // SAFETY: the caller says that the tree is valid.
        unsafe {
            if !self.has_calls(expression) {
                return Vec::new();
            }
            self.walk(|walk| walk.visit(expression, &Guards::Known(Vec::new())))
        }
    }

    /// As [`Self::find`], for an expression that is evaluated only where `condition` is true.
    ///
    /// # Safety
    /// As for [`Self::find`].
    pub unsafe fn find_under(&self, condition: *mut pg_sys::Node, expression: *mut pg_sys::Node) -> Vec<FoundCall> {
        // SAFETY: the caller says that both trees are valid.
        unsafe {
            let guards =
                self.and(&Guards::Known(Vec::new()), test(condition, pg_sys::BoolTestType::IS_TRUE), condition);
            self.walk(|walk| walk.visit(expression, &guards))
        }
    }

    /// Walks at first so that outer calls wait for inner ones; if that finds nothing, inner ones stay where they are.
    fn walk(&self, visit: impl Fn(&mut Walk<'_>)) -> Vec<FoundCall> {
        for waits in [true, false] {
            let mut walk = Walk { finder: self, waits, found: Vec::new() };
            visit(&mut walk);
            if !walk.found.is_empty() {
                return walk.found;
            }
        }
        Vec::new()
    }

    /// The guards of a place behind `source`, which passed `condition`.
    unsafe fn and(&self, guards: &Guards, condition: *mut pg_sys::Node, source: *mut pg_sys::Node) -> Guards {
        // SAFETY: the caller passes valid expressions.
        unsafe {
            match guards {
                Guards::Known(before)
                    if before.len() < MOST_GUARDS
                        && !pg_sys::contain_volatile_functions(source)
                        && !pg_sys::contain_subplans(source)
                        && !self.has_calls(source) =>
                {
                    Guards::Known(before.iter().copied().chain([condition]).collect())
                }
                _ => Guards::Unknown,
            }
        }
    }

    /// Whether any call of a container function is left anywhere in an expression or list of expressions.
    unsafe fn has_calls(&self, node: *mut pg_sys::Node) -> bool {
        // SAFETY: the caller passes a valid expression; the tag says which struct a node is.
        unsafe {
            nodes::has(node, &mut |part| {
                nodes::tag(part) == pg_sys::NodeTag::T_FuncExpr
                    && calls_container((*part.cast::<pg_sys::FuncExpr>()).funcid, self.language)
            })
        }
    }

    unsafe fn may_lift(&self, call: *mut pg_sys::FuncExpr) -> bool {
        // SAFETY: the caller passes a valid call.
        unsafe {
            !(*call).funcretset
                && may_batch((*call).funcid, self.language)
                && self.leaves_out_acts.as_ref().is_none_or(|watcher| {
                    !pg_sys::contain_volatile_functions(call.cast()) && !watcher.of_expressions(&[call.cast()]).acts
                })
                && (self.set_late.is_null()
                    || !pg_sys::bms_overlap(nodes::parameters_of(&[call.cast()], std::ptr::null_mut()), self.set_late))
        }
    }
}

impl Walk<'_> {
    unsafe fn visit_list(&mut self, items: *mut pg_sys::List, guards: &Guards) {
        // SAFETY: lists of a valid expression tree hold nodes.
        unsafe {
            for item in list::elements::<pg_sys::Node>(items) {
                self.visit(item, guards);
            }
        }
    }

    /// Visits parts of which each is evaluated only if all before it passed `passes`.
    unsafe fn visit_in_turn(
        &mut self,
        items: *mut pg_sys::List,
        guards: &Guards,
        passes: unsafe fn(*mut pg_sys::Node) -> *mut pg_sys::Node,
    ) {
        let mut guards = guards.clone();
        // SAFETY: lists of a valid expression tree hold nodes.
        unsafe {
            for item in list::elements::<pg_sys::Node>(items) {
                self.visit(item, &guards);
                guards = self.finder.and(&guards, passes(item), item);
            }
        }
    }

    unsafe fn visit_case(&mut self, case: *mut pg_sys::CaseExpr, guards: &Guards) {
        // SAFETY: the caller passes a valid node.
        unsafe {
            let argument: *mut pg_sys::Node = (*case).arg.cast();
            self.visit(argument, guards);
            let mut guards = guards.clone();
            for arm in list::elements::<pg_sys::CaseWhen>((*case).args) {
                // CASE x WHEN 1: the condition compares a placeholder for x. Calls in it stay where they are.
                let condition = if argument.is_null() {
                    self.visit((*arm).expr.cast(), &guards);
                    Some((*arm).expr.cast())
                } else {
                    fill_placeholders((*arm).expr.cast(), argument)
                };
                let (passed, failed) = match condition {
                    Some(condition) => (
                        self.finder.and(&guards, test(condition, pg_sys::BoolTestType::IS_TRUE), condition),
                        self.finder.and(&guards, test(condition, pg_sys::BoolTestType::IS_NOT_TRUE), condition),
                    ),
                    None => (Guards::Unknown, Guards::Unknown),
                };
                self.visit((*arm).result.cast(), &passed);
                guards = failed;
            }
            self.visit((*case).defresult.cast(), &guards);
        }
    }

    unsafe fn visit(&mut self, node: *mut pg_sys::Node, guards: &Guards) {
        use pg_sys::NodeTag::*;
        if node.is_null() || matches!(guards, Guards::Unknown) {
            return;
        }
        // SAFETY: the tag says which struct the node is.
        unsafe {
            match nodes::tag(node) {
                T_FuncExpr => {
                    let call = node.cast::<pg_sys::FuncExpr>();
                    let before = self.found.len();
                    self.visit_list((*call).args, guards);
                    if let Guards::Known(guards) = guards
                        && self.found.len() == before
                        && calls_container((*call).funcid, self.finder.language)
                        && !(self.waits && self.finder.has_calls((*call).args.cast()))
                        && self.finder.may_lift(call)
                    {
                        self.found.push(FoundCall { call, guards: guards.clone() });
                    }
                }
                // All arguments are evaluated before the operator is.
                T_OpExpr | T_DistinctExpr | T_NullIfExpr => {
                    self.visit_list((*node.cast::<pg_sys::OpExpr>()).args, guards);
                }
                T_ScalarArrayOpExpr => self.visit_list((*node.cast::<pg_sys::ScalarArrayOpExpr>()).args, guards),
                T_MinMaxExpr => self.visit_list((*node.cast::<pg_sys::MinMaxExpr>()).args, guards),
                T_ArrayExpr => self.visit_list((*node.cast::<pg_sys::ArrayExpr>()).elements, guards),
                T_RowExpr => self.visit_list((*node.cast::<pg_sys::RowExpr>()).args, guards),
                // AND ends with the first false part, OR with the first true one, COALESCE with the first that is not NULL.
                T_BoolExpr => {
                    let expression = node.cast::<pg_sys::BoolExpr>();
                    let passes: unsafe fn(*mut pg_sys::Node) -> *mut pg_sys::Node = match (*expression).boolop {
                        pg_sys::BoolExprType::AND_EXPR => is_not_false,
                        _ => is_not_true,
                    };
                    self.visit_in_turn((*expression).args, guards, passes);
                }
                T_CoalesceExpr => {
                    self.visit_in_turn((*node.cast::<pg_sys::CoalesceExpr>()).args, guards, is_null);
                }
                T_CaseExpr => self.visit_case(node.cast(), guards),
                T_RelabelType => self.visit((*node.cast::<pg_sys::RelabelType>()).arg.cast(), guards),
                T_CoerceViaIO => self.visit((*node.cast::<pg_sys::CoerceViaIO>()).arg.cast(), guards),
                T_ArrayCoerceExpr => self.visit((*node.cast::<pg_sys::ArrayCoerceExpr>()).arg.cast(), guards),
                T_ConvertRowtypeExpr => {
                    self.visit((*node.cast::<pg_sys::ConvertRowtypeExpr>()).arg.cast(), guards);
                }
                T_CoerceToDomain => self.visit((*node.cast::<pg_sys::CoerceToDomain>()).arg.cast(), guards),
                T_FieldSelect => self.visit((*node.cast::<pg_sys::FieldSelect>()).arg.cast(), guards),
                T_SubscriptingRef => self.visit((*node.cast::<pg_sys::SubscriptingRef>()).refexpr.cast(), guards),
                T_NullTest => self.visit((*node.cast::<pg_sys::NullTest>()).arg.cast(), guards),
                T_BooleanTest => self.visit((*node.cast::<pg_sys::BooleanTest>()).arg.cast(), guards),
                T_TargetEntry => self.visit((*node.cast::<pg_sys::TargetEntry>()).expr.cast(), guards),
                // Everything else keeps its calls: subplans, aggregates, and what is not listed above.
                _ => {}
            }
        }
    }
}

/// Whether a function is VOLATILE.
pub fn is_volatile(oid: pg_sys::Oid) -> bool {
    // SAFETY: a lookup in the system cache; the function exists, since a plan calls it.
    unsafe { pg_sys::func_volatile(oid) as u8 == pg_sys::PROVOLATILE_VOLATILE }
}

/// `node IS [NOT] TRUE`, and so on.
unsafe fn test(node: *mut pg_sys::Node, kind: pg_sys::BoolTestType::Type) -> *mut pg_sys::Node {
    // SAFETY: the struct belongs to the tag.
    unsafe {
        let test = nodes::make::<pg_sys::BooleanTest>(pg_sys::NodeTag::T_BooleanTest);
        (*test).arg = node.cast();
        (*test).booltesttype = kind;
        (*test).location = -1;
        test.cast()
    }
}

unsafe fn is_not_false(node: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // SAFETY: the caller passes a valid expression.
    unsafe { test(node, pg_sys::BoolTestType::IS_NOT_FALSE) }
}

unsafe fn is_not_true(node: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // SAFETY: the caller passes a valid expression.
    unsafe { test(node, pg_sys::BoolTestType::IS_NOT_TRUE) }
}

unsafe fn is_null(node: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // SAFETY: the struct belongs to the tag.
    unsafe {
        let test = nodes::make::<pg_sys::NullTest>(pg_sys::NodeTag::T_NullTest);
        (*test).arg = node.cast();
        (*test).nulltesttype = pg_sys::NullTestType::IS_NULL;
        (*test).location = -1;
        test.cast()
    }
}

/// A condition of `CASE argument WHEN ...` with `argument` in place of the placeholder; none where a placeholder may be
/// another expression's.
unsafe fn fill_placeholders(condition: *mut pg_sys::Node, argument: *mut pg_sys::Node) -> Option<*mut pg_sys::Node> {
    use pg_sys::NodeTag::*;
    let mut is_clear = true;
    // SAFETY: the caller passes valid expressions.
    unsafe {
        let filled = nodes::replace(condition, &mut |node| match nodes::tag(node) {
            T_CaseTestExpr => Some(argument),
            // What is converted to another type stands there as a placeholder as well.
            #[cfg(not(feature = "pg15"))]
            T_JsonConstructorExpr | T_JsonExpr => {
                is_clear = false;
                Some(node)
            }
            T_CaseExpr | T_ArrayCoerceExpr => {
                is_clear = false;
                Some(node)
            }
            _ => None,
        });
        is_clear.then_some(filled)
    }
}
