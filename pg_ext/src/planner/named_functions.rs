//! Which plans may call containers: looks at no more than the functions that a finished plan names, so that a statement
//! without container functions pays little for the library.
//!
//! A plan notes every function that is not built in, so that it is thrown away when one changes. What it notes is the hash
//! of the function's entry in the system cache, not the function. That hash is one that can be undone.

use pgrx::pg_sys;

use crate::pg::{list, raw};

/// Whether the plan names a function in LANGUAGE container, or one that is not found.
///
/// # Safety
/// `statement` is a finished plan. Of the caller's frame holds what [`raw`] says.
pub unsafe fn may_call_container(statement: *const pg_sys::PlannedStmt) -> bool {
    // SAFETY: the caller says that the plan is valid, so this is NIL or a list of PlanInvalItem.
    unsafe {
        let items = (*statement).invalItems;
        let count = if items.is_null() { 0 } else { usize::try_from((*items).length).unwrap_or(0) };
        for position in 0..count {
            let item = (*(*items).elements.add(position)).ptr_value.cast::<pg_sys::PlanInvalItem>();
            if (*item).cacheId == pg_sys::SysCacheIdentifier::PROCOID as i32
                && raw::may_be_in_language(pg_sys::Oid::from(undo_murmurhash32((*item).hashValue)), c"container")
            {
                return true;
            }
        }
        false
    }
}

/// The functions that a plan notes.
///
/// # Safety
/// `statement` is a finished plan.
pub unsafe fn functions_named_in(statement: *const pg_sys::PlannedStmt) -> Vec<pg_sys::Oid> {
    // SAFETY: the caller says that the plan is valid.
    unsafe {
        let items = list::elements::<pg_sys::PlanInvalItem>((*statement).invalItems).into_iter();
        let functions = items.filter(|item| (**item).cacheId == pg_sys::SysCacheIdentifier::PROCOID as i32);
        functions.map(|item| pg_sys::Oid::from(undo_murmurhash32((*item).hashValue))).collect()
    }
}

/// The number whose `murmurhash32` (common/hashfn.h) this is. The hash takes each number to another one, so there is one.
const fn undo_murmurhash32(hash: u32) -> u32 {
    // The inverses of PostgreSQL's two factors, modulo 2^32.
    const FIRST: u32 = inverse_of(0x85eb_ca6b);
    const SECOND: u32 = inverse_of(0xc2b2_ae35);
    let number = (hash ^ hash >> 16).wrapping_mul(SECOND);
    let number = (number ^ number >> 13 ^ number >> 26).wrapping_mul(FIRST);
    number ^ number >> 16
}

/// What an odd number is to be multiplied with for one, modulo 2^32.
const fn inverse_of(odd: u32) -> u32 {
    // Newton's iteration: an odd number is its own inverse in the last three bits, and each step doubles the right bits.
    let (mut inverse, mut bits) = (odd, 3);
    while bits < u32::BITS {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn murmurhash32(number: u32) -> u32 {
        let number = (number ^ number >> 16).wrapping_mul(0x85eb_ca6b);
        let number = (number ^ number >> 13).wrapping_mul(0xc2b2_ae35);
        number ^ number >> 16
    }

    #[test]
    fn the_hash_is_undone() {
        let few = 0..100_000;
        let everywhere = (0..100_000u32).map(|number| number.wrapping_mul(0x9e37_79b9));
        for number in few.chain(everywhere).chain([u32::MAX]) {
            assert_eq!(undo_murmurhash32(murmurhash32(number)), number);
        }
    }
}
