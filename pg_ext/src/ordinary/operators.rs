//! Operators as the functions they are, so that they are lifted as well.

use pgrx::pg_sys;

use crate::pg::nodes;

/// Puts calls in place of the operators in a node's target list and filters. Operators elsewhere, as in the conditions of an
/// index or in a subplan's test, are what the executor looks for there.
///
/// # Safety
/// `plan` is a valid plan that nobody else uses yet.
pub unsafe fn name_operators(plan: *mut pg_sys::Plan) {
    use pg_sys::NodeTag::*;
    if super::level() == super::Level::None {
        return;
    }
    // SAFETY: the caller says that the plan is valid; its tag says which struct it is.
    unsafe {
        let mut lists = vec![&raw mut (*plan).targetlist];
        // A window's filter compares what its run condition compares.
        if nodes::tag(plan) != T_WindowAgg {
            lists.push(&raw mut (*plan).qual);
        }
        if matches!(nodes::tag(plan), T_NestLoop | T_MergeJoin | T_HashJoin) {
            lists.push(&raw mut (*plan.cast::<pg_sys::Join>()).joinqual);
        }
        for list in lists {
            *list = as_calls((*list).cast()).cast();
        }
    }
}

unsafe fn as_calls(expression: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // SAFETY: the caller passes null or a valid expression or list of them.
    unsafe {
        nodes::replace(expression, &mut |node| match nodes::tag(node) {
            // A test of a subplan is an operator where it is hashed; what is looked for in a row of a view's is the same.
            pg_sys::NodeTag::T_SubPlan => Some(node),
            // One that is not lifted is shown as it was written.
            pg_sys::NodeTag::T_OpExpr if super::may_lift((*node.cast::<pg_sys::OpExpr>()).opfuncid) => {
                let operator = node.cast::<pg_sys::OpExpr>();
                let call = nodes::make::<pg_sys::FuncExpr>(pg_sys::NodeTag::T_FuncExpr);
                (*call).funcid = (*operator).opfuncid;
                (*call).funcresulttype = (*operator).opresulttype;
                (*call).funcretset = (*operator).opretset;
                (*call).funcformat = pg_sys::CoercionForm::COERCE_EXPLICIT_CALL;
                (*call).funccollid = (*operator).opcollid;
                (*call).inputcollid = (*operator).inputcollid;
                (*call).location = (*operator).location;
                (*call).args = as_calls((*operator).args.cast()).cast();
                Some(call.cast())
            }
            _ => None,
        })
    }
}
