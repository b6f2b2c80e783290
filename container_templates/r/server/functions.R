# The user's functions: how a batch of plain columns becomes columns of results.

call_error <- function(kind, message, row = NULL, traceback = NULL) {
  stop(structure(class = c("call_error", "error", "condition"), list(message = message, call = NULL, kind = kind, row = row, traceback = traceback)))
}

# The text of an error. Handlers may raise what has none, or what is not UTF-8.
message_of <- function(e) {
  text <- tryCatch(paste(as.character(conditionMessage(e)), collapse = "\n"), error = function(e) "")
  iconv(text, "UTF-8", "UTF-8", sub = "byte")
}

# Runs the handler's code; row is that of the batch from one, or NULL where no single row is to blame.
guarded <- function(row, expression) {
  frames <- sys.nframe()
  trace <- NULL
  tryCatch(
    withCallingHandlers(expression, error = function(e) {
      calls <- sys.calls()
      # What lies between the guard and the handler's code, and behind its stop(), says nothing.
      calls <- calls[seq_along(calls) > frames + 8 & seq_along(calls) < length(calls) - 1]
      trace <<- paste(c(vapply(calls, function(call) paste(deparse(call), collapse = " "), ""), paste("Error:", message_of(e))), collapse = "\n")
    }),
    call_error = function(e) stop(e),
    error = function(e) call_error("user_code", message_of(e), if (is.null(row)) NULL else row - 1, trace))
}

int4 <- list(type = "int4", text = "int4")
int8 <- list(type = "int8", text = "int8")
bytea <- list(type = "bytea", text = "bytea")

# Whether the client has gone is looked at before each row.
look <- function(work) {
  if (.Call(core_is_cancelled, work)) call_error("user_code", "cancelled")
}

# The image's functions, in the manifest's order; stops with what is wrong with them.
load_functions <- function(root) {
  described <- jsonlite::fromJSON(file.path(root, "functions.json"), simplifyVector = FALSE)
  listed <- setNames(.Call(core_functions), c("name", "kind", "batch", "format"))
  handler <- new.env(parent = globalenv())
  # Files beside the handler are found by their names.
  setwd(file.path(root, "function"))
  sys.source(file.path(root, "function", described$handler), handler, keep.source = TRUE)
  declared <- setNames(described$functions, vapply(described$functions, function(entry) entry$name, ""))
  Map(function(name, format) bind(declared[[name]], format, get0(name, handler, inherits = FALSE)), listed$name, listed$format)
}

bind <- function(entry, format, target) {
  refuse <- function(...) stop("function \"", entry$name, "\": ", ..., call. = FALSE)
  if (!(entry$kind %in% c("scalar", "table", "aggregate")) || !(entry$batch == "row" || (entry$kind == "scalar" && entry$batch == "columns"))) {
    refuse("there are no ", entry$kind, " functions with batch = \"", entry$batch, "\" in R")
  }
  if (entry$kind == "aggregate") {
    if (!is.list(target) || !all(c("init", "step", "finish") %in% names(target))) refuse("an aggregate function is a list of the functions init, step and finish, and merge if queries may run in parallel")
  } else if (!is.function(target)) {
    refuse("the handler has no function of that name")
  }
  types <- lapply(entry$arguments, function(argument) argument$type)
  entry$call_types <- if (entry$kind == "aggregate") c(list(int8), types, list(bytea)) else types
  # Formats of a reply's columns.
  entry$formats <- switch(entry$kind, table = c("l", format), aggregate = c(format, "z"), format)
  entry$target <- target
  entry
}

# The handler's values of a batch.
read_columns <- function(entry, work, rows) {
  lapply(seq_along(entry$call_types), function(position) {
    type <- entry$call_types[[position]]
    tryCatch(from_plain(type, .Call(core_column, work, position - 1, rows, kind_of(type))),
      misfit = function(e) call_error("protocol_violation", paste0("row ", e$row - 1, " of column ", position, " holds ", conditionMessage(e), ", which is not of type ", type$text)),
      out_of_range = function(e) call_error("out_of_range", paste0("R cannot hold ", conditionMessage(e), " of type ", type$text, "."), e$row - 1))
  })
}

row_of <- function(columns, row) lapply(columns, function(column) if (is.list(column)) column[[row]] else column[row])

results_as_column <- function(entry, results, rows = seq_along(results)) {
  tryCatch(to_plain(entry$returns, results), misfit = function(e) {
    call_error("bad_result", paste0("It returned ", conditionMessage(e), "; the declared result is ", entry$returns$text, "."), rows[e$row] - 1)
  })
}

integers <- function(numbers) as.vector(unclass(bit64::as.integer64(numbers)))

# The reply's columns.
answer <- function(entry, work, columns, rows, has_row_errors) {
  if (entry$batch == "columns") {
    results <- guarded(NULL, if (length(columns)) do.call(entry$target, columns) else entry$target(rows))
    if (length(results) != rows) call_error("bad_result", paste0("It returned ", length(results), " values for ", rows, " rows."))
    return(list(results_as_column(entry, results)))
  }
  results <- vector("list", rows)
  errors <- rep(NA_character_, rows)
  for (row in seq_len(rows)) {
    look(work)
    result <- tryCatch(guarded(row, do.call(entry$target, row_of(columns, row))), call_error = function(e) {
      if (!has_row_errors || e$kind != "user_code") stop(e)
      errors[row] <<- message_of(e)
      NULL
    })
    if (!is.null(result)) results[[row]] <- result
  }
  if (entry$kind == "scalar") {
    column <- results_as_column(entry, results)
    return(if (has_row_errors) list(column, errors) else list(column))
  }
  counts <- lengths(results)
  numbers <- rep(seq_len(rows), counts)
  flat <- do.call(c, lapply(results, as.list))
  list(integers(numbers - 1L), results_as_column(entry, if (is.null(flat)) list() else flat, numbers))
}

# Aggregate functions: states by number. States travel in R's serial form.
new_groups <- function(entry) list2env(list(entry = entry, states = new.env()))

# The reply's columns; steps without results have none.
answer_groups <- function(groups, work, columns, rows, step) {
  entry <- groups$entry
  numbers <- as.character(columns[[1]])
  state <- function(row) {
    if (!exists(numbers[row], groups$states, inherits = FALSE)) put(row, guarded(row, entry$target$init()))
    get(numbers[row], groups$states, inherits = FALSE)
  }
  put <- function(row, value) assign(numbers[row], value, groups$states)
  each_row <- function(work_of_row) {
    lapply(seq_len(rows), function(row) {
      look(work)
      work_of_row(row)
    })
  }
  switch(step,
    each_row(function(row) put(row, guarded(row, do.call(entry$target$step, c(list(state(row)), row_of(columns[-c(1, length(columns))], row)))))),
    each_row(function(row) {
      if (is.null(entry$target$merge)) call_error("bad_result", paste0("List ", entry$name, " has no function merge, which parallel queries need."), row - 1)
      put(row, guarded(row, entry$target$merge(state(row), unserialize(columns[[length(columns)]][[row]]))))
    }),
    {
      results <- each_row(function(row) guarded(row, entry$target$finish(state(row))))
      return(list(results_as_column(entry, results), vector("list", rows)))
    },
    {
      states <- each_row(function(row) guarded(row, serialize(state(row), NULL)))
      return(list(to_plain(entry$returns, vector("list", rows)), states))
    },
    rm(list = intersect(numbers, ls(groups$states, all.names = TRUE)), envir = groups$states))
  list()
}
