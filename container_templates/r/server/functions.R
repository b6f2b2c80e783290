# The user's functions: how a batch of columns becomes columns of JSON texts (docs/protocol.md §4 and §6).

call_error <- function(kind, message, row = NULL, traceback = NULL) {
  stop(structure(class = c("call_error", "error", "condition"), list(message = message, call = NULL, kind = kind, row = row, traceback = traceback)))
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
      trace <<- paste(c(vapply(calls, function(call) paste(deparse(call), collapse = " "), ""), paste("Error:", conditionMessage(e))), collapse = "\n")
    }),
    call_error = function(e) stop(e),
    error = function(e) call_error("user_code", conditionMessage(e), if (is.null(row)) NULL else row - 1, trace))
}

int4 <- list(type = "int4", text = "int4")
int8 <- list(type = "int8", text = "int8")
bytea <- list(type = "bytea", text = "bytea")

# The image's functions by name; stops with what is wrong with them.
load_functions <- function(root) {
  manifest <- jsonlite::fromJSON(file.path(root, "functions.json"), simplifyVector = FALSE)
  handler <- new.env(parent = globalenv())
  # Files beside the handler are found by their names.
  setwd(file.path(root, "function"))
  sys.source(file.path(root, "function", manifest$handler), handler, keep.source = TRUE)
  functions <- lapply(manifest$functions, function(entry) bind(entry, get0(entry$name, handler, inherits = FALSE)))
  setNames(functions, vapply(functions, function(entry) entry$name, ""))
}

bind <- function(entry, target) {
  refuse <- function(...) stop("function \"", entry$name, "\": ", ..., call. = FALSE)
  if (is.null(entry$returns)) refuse("transship.toml must give its arguments and result")
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
  entry$reply_types <- switch(entry$kind, table = list(int4, entry$returns), aggregate = list(entry$returns, bytea), list(entry$returns))
  entry$target <- target
  entry
}

# Columns of a request.
read_columns <- function(entry, request) {
  violation <- function(...) call_error("protocol_violation", paste0(...))
  rows <- request$rows
  columns <- request$columns
  if (!is.numeric(rows) || !is.list(columns) || length(columns) != length(entry$call_types)) violation(entry$name, " takes ", length(entry$call_types), " columns")
  lapply(seq_along(columns), function(position) {
    type <- entry$call_types[[position]]
    if (!is.list(columns[[position]]) || length(columns[[position]]) != rows) violation("columns and rows do not match")
    tryCatch(read_column(type, columns[[position]]),
      misfit = function(e) violation("row ", e$row - 1, " of column ", position, " holds ", conditionMessage(e), ", which is not of type ", type$text),
      out_of_range = function(e) call_error("out_of_range", paste0("R cannot hold ", conditionMessage(e), " of type ", type$text, "."), e$row - 1))
  })
}

row_of <- function(columns, row) lapply(columns, function(column) if (is.list(column)) column[[row]] else column[row])

results_as_json <- function(entry, results, rows = seq_along(results)) {
  tryCatch(write_column(entry$returns, results), misfit = function(e) {
    call_error("bad_result", paste0("It returned ", conditionMessage(e), "; the declared result is ", entry$returns$text, "."), rows[e$row] - 1)
  })
}

# The reply's columns, each as JSON texts.
answer <- function(entry, columns, rows) {
  if (entry$batch == "columns") {
    results <- guarded(NULL, if (length(columns)) do.call(entry$target, columns) else entry$target(rows))
    if (length(results) != rows) call_error("bad_result", paste0("It returned ", length(results), " values for ", rows, " rows."))
    return(list(results_as_json(entry, results)))
  }
  results <- vector("list", rows)
  for (row in seq_len(rows)) {
    result <- guarded(row, do.call(entry$target, row_of(columns, row)))
    if (!is.null(result)) results[[row]] <- result
  }
  if (entry$kind == "scalar") return(list(results_as_json(entry, results)))
  counts <- lengths(results)
  numbers <- rep(seq_len(rows), counts)
  flat <- do.call(c, lapply(results, as.list))
  list(sprintf("%d", numbers - 1L), results_as_json(entry, if (is.null(flat)) list() else flat, numbers))
}

# The groups of one exchange of an aggregate function: states by number. States travel in R's serial form.
new_groups <- function(entry) list2env(list(entry = entry, states = new.env(), used = Sys.time()))

answer_groups <- function(groups, columns, rows, step) {
  entry <- groups$entry
  numbers <- as.character(columns[[1]])
  state <- function(row) {
    if (!exists(numbers[row], groups$states, inherits = FALSE)) put(row, guarded(row, entry$target$init()))
    get(numbers[row], groups$states, inherits = FALSE)
  }
  put <- function(row, value) assign(numbers[row], value, groups$states)
  rows <- seq_len(rows)
  switch(if (is.character(step)) step else "",
    accumulate = for (row in rows) put(row, guarded(row, do.call(entry$target$step, c(list(state(row)), row_of(columns[-c(1, length(columns))], row))))),
    merge = for (row in rows) {
      if (is.null(entry$target$merge)) call_error("bad_result", paste0("List ", entry$name, " has no function merge, which parallel queries need."), row - 1)
      put(row, guarded(row, entry$target$merge(state(row), unserialize(columns[[length(columns)]][[row]]))))
    },
    finish = {
      results <- lapply(rows, function(row) guarded(row, entry$target$finish(state(row))))
      return(list(results_as_json(entry, results), rep("null", length(rows))))
    },
    state = return(list(rep("null", length(rows)), write_column(bytea, lapply(rows, function(row) serialize(state(row), NULL))))),
    forget = rm(list = intersect(numbers, ls(groups$states, all.names = TRUE)), envir = groups$states),
    call_error("protocol_violation", paste("there is no step", shown(step))))
  list(character(0), character(0))
}
