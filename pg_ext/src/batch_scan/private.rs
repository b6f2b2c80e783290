//! What the planner hands to the executor: one serde struct in a String node, so that plans can be copied, cached and
//! sent to parallel workers.

use std::ffi::{CStr, CString};

use pgrx::pg_sys;
use serde::{Deserialize, Serialize};

use crate::pg::list;

/// The private data of a Container Batch node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Private {
    /// Columns of the child. In `custom_scan_tlist` they come first; each further entry is a lifted call.
    pub child_columns: usize,
    /// The columns, of the child and of calls behind them, that nobody above looks at, by position.
    pub unused: Vec<usize>,
    /// Per call, the arguments that are results of calls before it. Left out behind the last call that has any.
    pub inputs: Vec<Vec<Input>>,
    /// Of a call that returns a set, which then is the only one: what becomes of a row without results.
    pub set: Option<SetJoin>,
    /// Whether `custom_exprs` ends with the count and the offset of the first rows that are asked for.
    pub is_bounded: bool,
    /// Whether no more than these rows are ever asked for.
    pub is_bound_exact: bool,
    /// Whether nothing is read before all before it was returned: batches of one row, one at a time.
    pub is_stepwise: bool,
    /// Whether the run of the statement says how many rows are asked for (`runs.rs`).
    pub may_be_stopped: bool,
    /// Whether the batches have one row if these are not all.
    pub is_stepwise_if_stopped: bool,
}

/// An argument of a fused call: the result of another call of the node, which does not become an SQL value on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Which argument.
    pub argument: usize,
    /// Whose result.
    pub call: usize,
}

/// How a row of the child meets the results of a call that returns a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetJoin {
    /// A row without results is left out.
    Inner,
    /// A row without results is kept, with NULL for the result.
    Left,
}

impl Private {
    /// The arguments of one call that are results of others.
    pub fn inputs_of(&self, call: usize) -> &[Input] {
        self.inputs.get(call).map_or(&[], Vec::as_slice)
    }

    /// Whether the results of a call are an argument of another.
    pub fn is_input(&self, call: usize) -> bool {
        self.inputs.iter().flatten().any(|input| input.call == call)
    }

    /// Of how many calls, each the argument of the next, the longest row is.
    pub fn depth(&self) -> usize {
        let mut depths: Vec<usize> = Vec::with_capacity(self.inputs.len());
        for inputs in &self.inputs {
            let below = inputs.iter().filter_map(|input| depths.get(input.call)).max();
            depths.push(1 + below.copied().unwrap_or(0));
        }
        depths.into_iter().max().unwrap_or(1)
    }

    /// As `CustomScan.custom_private`.
    pub fn to_list(&self) -> *mut pg_sys::List {
        let text = serde_json::to_string(self).expect("a number is JSON");
        let text = CString::new(text).expect("JSON escapes NUL");
        // SAFETY: pstrdup copies the string into the current memory context, and makeString keeps that copy.
        let node = unsafe { pg_sys::makeString(pg_sys::pstrdup(text.as_ptr())) };
        list::from_elements(&[node])
    }

    /// From `CustomScan.custom_private`.
    ///
    /// # Safety
    /// `scan` is a Container Batch node.
    pub unsafe fn from_plan(scan: *mut pg_sys::CustomScan) -> Private {
        // SAFETY: `to_list` made the list, of one String node, whether copied or read back since.
        unsafe {
            let nodes = list::elements::<pg_sys::String>((*scan).custom_private);
            let text = CStr::from_ptr((*nodes[0]).sval);
            serde_json::from_slice(text.to_bytes()).expect("to_list wrote it")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_as_deep_as_those_in_their_arguments() {
        let inputs = |calls: &[usize]| calls.iter().map(|call| Input { argument: 0, call: *call }).collect::<Vec<_>>();
        for (all, depth) in [
            (vec![], 1),
            (vec![inputs(&[]), inputs(&[0])], 2),
            (vec![inputs(&[]), inputs(&[]), inputs(&[0, 1]), inputs(&[1])], 2),
            (vec![inputs(&[]), inputs(&[0]), inputs(&[1, 0]), inputs(&[])], 3),
        ] {
            assert_eq!(Private { inputs: all, ..Private::default() }.depth(), depth);
        }
    }

    #[test]
    fn what_the_planner_says_comes_back_from_its_text() {
        for set in [None, Some(SetJoin::Inner), Some(SetJoin::Left)] {
            let private = Private { child_columns: 3, unused: vec![0, 2], set, is_bounded: true, ..Private::default() };
            let text = serde_json::to_string(&private).unwrap();
            let back: Private = serde_json::from_str(&text).unwrap();
            assert_eq!((back.child_columns, back.unused, back.set), (3, vec![0, 2], set));
            assert!(back.is_bounded && !back.is_stepwise);
        }
    }
}
