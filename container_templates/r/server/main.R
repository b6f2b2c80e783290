# Starts the server: main.R [serve | describe]. The core speaks the protocol; R's one thread pulls calls from it.

root <- Sys.getenv("TRANSSHIP_ROOT", "/opt/transship")
for (file in c("values.R", "functions.R", "tables.R")) source(file.path(root, "server", file))
core <- dyn.load(file.path(root, "transship.so"))
for (name in c("create", "functions", "describe", "start", "next", "column", "is_cancelled", "answer", "fail",
               "open_table", "close_table", "describe_table", "lookup", "batch", "describe_rows", "rows_column", "free_rows")) {
  assign(paste0("core_", name), getNativeSymbolInfo(paste0("core_", name), core))
}

# Steps of work, transship_step.
step_call <- 0
step_end <- 6

# The reply to a unit of work.
reply_to <- function(entry, exchanges, given) {
  columns <- read_columns(entry, given$work, given$rows)
  if (given$step == step_call) return(answer(entry, given$work, columns, given$rows, given$row_errors != 0))
  name <- sprintf("%.0f", given$exchange)
  if (is.null(exchanges[[name]])) assign(name, new_groups(entry), exchanges)
  answer_groups(exchanges[[name]], given$work, columns, given$rows, given$step)
}

serve <- function(functions) {
  exchanges <- new.env()
  # An error that nobody handles ends a script, unless this is set: then it goes to the restart below.
  options(error = quote(invisible()))
  .Call(core_start)
  while (!is.null(given <- .Call(core_next))) {
    names(given) <- c("work", "function", "step", "row_errors", "exchange", "rows")
    if (given$step == step_end) {
      rm(list = intersect(sprintf("%.0f", given$exchange), ls(exchanges)), envir = exchanges)
      .Call(core_answer, given$work, 0, list(), character(0))
      next
    }
    entry <- functions[[given[["function"]] + 1]]
    fail <- function(kind, message, traceback = NULL, row = NULL) .Call(core_fail, given$work, kind, message, traceback, if (is.null(row)) -1 else row)
    # Handlers may also abort, or stop with a condition that is no error.
    withRestarts(tryCatch({
      reply <- with_tables(given$work, reply_to(entry, exchanges, given))
      formats <- if (given$row_errors != 0) c(entry$formats, "z") else entry$formats
      .Call(core_answer, given$work, if (length(reply)) length(reply[[1]]) else 0, reply, formats)
    }, error = function(e) {
      fail(if (inherits(e, "call_error")) e$kind else "user_code", message_of(e), e[["traceback"]], e[["row"]])
    }), abort = function() fail("user_code", "The handler stopped without an error."))
  }
}

command <- c(commandArgs(trailingOnly = TRUE), "serve")[1]
# What the handler prints is a log, not an answer.
sink(stderr())
invisible(.Call(core_create, "{\"server\": \"transship-r/0.2.0\", \"columns\": \"plain\", \"tables\": true, \"one_thread\": true}"))
functions <- load_functions(root)
if (command == "describe") {
  merging <- which(vapply(functions, function(entry) entry$kind == "aggregate" && is.function(entry$target$merge), NA)) - 1L
  sink()
  cat(.Call(core_describe, unname(merging)))
} else {
  serve(functions)
}
