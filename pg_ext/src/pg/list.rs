//! PostgreSQL's `List` of pointers.

use pgrx::pg_sys;

/// The elements of a list of pointers; none for NIL.
///
/// # Safety
/// `list` is NIL or a valid list of pointers to `T`.
pub unsafe fn elements<T>(list: *mut pg_sys::List) -> Vec<*mut T> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller says that the list is valid, so it has `length` cells that hold pointers.
    unsafe {
        let length = usize::try_from((*list).length).unwrap_or(0);
        (0..length).map(|i| (*(*list).elements.add(i)).ptr_value.cast()).collect()
    }
}

/// A new list of these pointers; NIL for none.
pub fn from_elements<T>(items: &[*mut T]) -> *mut pg_sys::List {
    let mut list = std::ptr::null_mut();
    for item in items {
        // SAFETY: lappend takes NIL or a list that it made itself, and any pointer.
        list = unsafe { pg_sys::lappend(list, item.cast()) };
    }
    list
}

/// Replaces each element in place.
///
/// # Safety
/// As for [`elements`]; `change` returns pointers that the list may hold.
pub unsafe fn replace_elements<T>(list: *mut pg_sys::List, mut change: impl FnMut(*mut T) -> *mut T) {
    // SAFETY: the caller says that the list is valid; the cells are those that `elements` reads.
    unsafe {
        for (i, item) in elements::<T>(list).into_iter().enumerate() {
            (*(*list).elements.add(i)).ptr_value = change(item).cast();
        }
    }
}
