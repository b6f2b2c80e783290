# The shared tables of the call that runs (docs/protocol.md §4.13). R runs one call at a time.

call_tables <- list2env(list(work = NULL, opened = list()))

# Answers a call with its tables, which are closed afterwards.
with_tables <- function(work, reply) {
  call_tables$work <- work
  on.exit({
    for (table in call_tables$opened) .Call(core_close_table, table$pointer)
    call_tables$work <- NULL
    call_tables$opened <- list()
  })
  reply
}

# For handlers: a shared table that the function's key `tables` names, as README.md describes it.
shared_table <- function(name) {
  if (!is.character(name) || length(name) != 1 || is.na(name)) stop("the name of a shared table is a text")
  if (is.null(call_tables$work)) stop("no shared table \"", name, "\": no call runs here", call. = FALSE)
  found <- call_tables$opened[[name]]
  if (is.null(found)) {
    pointer <- .Call(core_open_table, call_tables$work, name)
    found <- list(pointer = pointer, table = new_table(pointer))
    call_tables$opened[[name]] <- found
  }
  found$table
}

# A type by its text. Shared tables have no composite types and no ranges.
type_of <- function(text) {
  if (endsWith(text, "[]")) list(type = "array", text = text, element = type_of(substr(text, 1, nchar(text) - 2))) else list(type = text, text = text)
}

new_table <- function(pointer) {
  told <- setNames(.Call(core_describe_table, pointer), c("rows", "batches", "names", "types", "formats", "key"))
  types <- lapply(told$types, type_of)
  key <- order(told$key)[sort(told$key) > 0]

  # Rows as a data frame with these columns.
  frame <- function(rows, count, columns) {
    numbers <- match(columns, told$names)
    if (anyNA(numbers)) stop("the table has no column \"", columns[is.na(numbers)][1], "\"", call. = FALSE)
    values <- lapply(numbers, function(number) {
      type <- types[[number]]
      tryCatch(from_plain(type, .Call(core_rows_column, rows, number - 1, count, kind_of(type))),
        out_of_range = function(e) stop("R cannot hold ", conditionMessage(e), " of type ", type$text, " of column \"", told$names[number], "\"", call. = FALSE))
    })
    structure(values, names = columns, class = "data.frame", row.names = .set_row_names(count))
  }

  # What is found of keys, a list of the key's columns.
  find <- function(keys, all, read) {
    if (!length(key)) stop("the table has no key", call. = FALSE)
    if (length(keys) != length(key)) stop("the key has ", length(key), " columns: ", paste(told$names[key], collapse = ", "), call. = FALSE)
    plain <- Map(function(number, values) {
      tryCatch(to_plain(types[[number]], values), misfit = function(e) {
        stop("the keys do not fit column \"", told$names[number], "\" of type ", told$types[number], ": ", conditionMessage(e), call. = FALSE)
      })
    }, key, keys)
    rows <- .Call(core_lookup, pointer, length(plain[[1]]), unname(plain), told$formats[key], all)
    on.exit(.Call(core_free_rows, rows))
    read(rows, setNames(.Call(core_describe_rows, rows), c("count", "is_found", "positions")))
  }

  columns_of <- function(keys) {
    if (length(key) == 1 && !is.data.frame(keys)) return(list(keys))
    if (is.null(names(keys))) return(as.list(keys))
    missing <- setdiff(told$names[key], names(keys))
    if (length(missing)) stop("the keys have no column \"", missing[1], "\"", call. = FALSE)
    as.list(keys)[told$names[key]]
  }

  list(
    nrow = told$rows,
    key = told$names[key],
    columns = told$names,
    get = function(...) {
      parts <- list(...)
      if (length(parts) == 1 && length(key) > 1 && is.list(parts[[1]])) parts <- parts[[1]]
      if (length(key) > 1 && !is.null(names(parts))) parts <- columns_of(parts)
      find(lapply(parts, list), FALSE, function(rows, found) {
        if (found$is_found) lapply(unclass(frame(rows, 1, told$names)), one)
      })
    },
    lookup = function(keys, columns = told$names) {
      find(columns_of(keys), FALSE, function(rows, found) frame(rows, found$count, columns))
    },
    matches = function(keys, columns = told$names) {
      find(columns_of(keys), TRUE, function(rows, found) {
        list(positions = if (is.null(found$positions)) integer(0) else found$positions, rows = frame(rows, found$count, columns))
      })
    },
    batch = function(number, columns = told$names) {
      if (number < 1 || number > told$batches) stop("the table has ", told$batches, " batches", call. = FALSE)
      rows <- .Call(core_batch, pointer, number - 1)
      on.exit(.Call(core_free_rows, rows))
      frame(rows, .Call(core_describe_rows, rows)[[1]], columns)
    },
    batches = told$batches)
}
