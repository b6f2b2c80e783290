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

/// An element of a list of pointers, counted from zero; none if there are fewer.
///
/// # Safety
/// `list` is NIL or a valid list of pointers to `T`.
pub unsafe fn element<T>(list: *mut pg_sys::List, position: usize) -> Option<*mut T> {
    // SAFETY: the caller says that the list is valid, so it has `length` cells that hold pointers.
    unsafe {
        let length = list.as_ref().map_or(0, |list| usize::try_from(list.length).unwrap_or(0));
        (position < length).then(|| (*(*list).elements.add(position)).ptr_value.cast())
    }
}

/// The elements of a list of integers; none for NIL.
///
/// # Safety
/// `list` is NIL or a valid list of integers.
pub unsafe fn integers(list: *mut pg_sys::List) -> Vec<i32> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller says that the list is valid, so it has `length` cells that hold integers.
    unsafe {
        let length = usize::try_from((*list).length).unwrap_or(0);
        (0..length).map(|i| (*(*list).elements.add(i)).int_value).collect()
    }
}

/// The elements of a list of oids; none for NIL.
///
/// # Safety
/// `list` is NIL or a valid list of oids.
pub unsafe fn oids(list: *mut pg_sys::List) -> Vec<pg_sys::Oid> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller says that the list is valid, so it has `length` cells that hold oids.
    unsafe {
        let length = usize::try_from((*list).length).unwrap_or(0);
        (0..length).map(|i| (*(*list).elements.add(i)).oid_value).collect()
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
