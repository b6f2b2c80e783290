# Starts the server: main.R [serve | describe], the forms of docs/protocol.md §6 and §7 over HTTP.

root <- Sys.getenv("TRANSSHIP_ROOT", "/opt/transship")
for (file in c("values.R", "functions.R", "columns.R")) source(file.path(root, "server", file))

exchange_idle_s <- 600
transports <- c("json", "socket", if (Sys.getenv("TRANSSHIP_SEGMENT_DIR") != "") "shm")
exchanges <- new.env()

to_json <- function(value) as.character(jsonlite::toJSON(value, auto_unbox = TRUE, null = "null"))

find_function <- function(functions, path) {
  name <- httpuv::decodeURIComponent(sub("^/v1/functions/", "", path))
  # [[ would take a part of a name.
  if (!(name %in% names(functions))) call_error("function_not_found", paste0("there is no function \"", name, "\""))
  functions[[name]]
}

find_groups <- function(request, entry) {
  for (name in ls(exchanges)) if (difftime(Sys.time(), exchanges[[name]]$used, units = "secs") > exchange_idle_s) rm(list = name, envir = exchanges)
  name <- request$exchange
  if (is.character(name) && identical(as.numeric(request$batch), 0)) assign(name, new_groups(entry), exchanges)
  groups <- if (is.character(name)) get0(name, exchanges, inherits = FALSE)
  if (is.null(groups) || groups$entry$name != entry$name) call_error("protocol_violation", paste0("there is no exchange ", shown(name), " of ", entry$name))
  groups$used <- Sys.time()
  groups
}

reply_to <- function(functions, asked) {
  path <- asked$PATH_INFO
  if (asked$REQUEST_METHOD == "GET" && path == "/v1") {
    return(to_json(list(protocol = 1, server = "transship-r/0.2.0", functions = I(names(functions)), transports = I(transports), pipelining = FALSE)))
  }
  if (asked$REQUEST_METHOD == "DELETE" && startsWith(path, "/v1/exchanges/")) {
    rm(list = intersect(sub("^/v1/exchanges/", "", path), ls(exchanges)), envir = exchanges)
    return("{}")
  }
  entry <- find_function(functions, path)
  if (asked$REQUEST_METHOD == "GET") {
    arguments <- lapply(entry$arguments, function(argument) list(name = argument$name, type = argument$type$text))
    return(to_json(list(name = entry$name, kind = entry$kind, arguments = arguments, returns = entry$returns$text)))
  }
  if (identical(asked$CONTENT_TYPE, columns_type)) {
    frame <- read_frame(asked$rook.input$read())
    done <- run(entry, frame$header, memory_columns(entry, frame))
    return(memory_reply(entry, frame, done$reply, done$micros))
  }
  body <- rawToChar(asked$rook.input$read())
  Encoding(body) <- "UTF-8"
  request <- tryCatch(jsonlite::parse_json(body, bigint_as_char = TRUE), error = function(e) call_error("protocol_violation", paste("the request cannot be read:", conditionMessage(e))))
  if (!is.list(request) || is.null(names(request))) call_error("protocol_violation", "the request cannot be read: it is not an object")
  # docs/protocol.md §6: jsonlite rounds what has more digits than a double.
  rounded <- rounded_types(body)
  if (any(vapply(entry$call_types, function(type) holds(rounded, type), NA)) && is.list(request$columns) && length(request$columns) == length(entry$call_types)) {
    texts <- jsonlite::parse_json(quote_numbers(body))$columns
    request$columns <- Map(function(type, column, text) with_digits(list(type = "array", element = type), column, text), entry$call_types, request$columns, texts)
  }
  done <- run(entry, request, read_columns(entry, request))
  texts <- vapply(done$reply, function(column) paste0("[", paste(column, collapse = ","), "]"), "")
  sprintf("{\"batch\":%.0f,\"rows\":%d,\"micros\":%.0f,\"columns\":[%s]}", if (is.null(request$batch)) 0 else request$batch, length(done$reply[[1]]), done$micros, paste(texts, collapse = ","))
}

# The reply's columns, as JSON texts, and the microseconds that they took.
run <- function(entry, request, columns) {
  # What is wrong with them is not the handler's doing.
  force(columns)
  start <- Sys.time()
  reply <- if (entry$kind == "aggregate") {
    answer_groups(find_groups(request, entry), columns, request$rows, request$step)
  } else {
    answer(entry, columns, request$rows)
  }
  list(reply = reply, micros = as.numeric(difftime(Sys.time(), start, units = "secs")) * 1e6)
}

respond <- function(functions, asked) {
  status <- 200L
  body <- tryCatch(reply_to(functions, asked), error = function(e) {
    kind <- if (inherits(e, "call_error")) e$kind else "protocol_violation"
    status <<- switch(kind, function_not_found = 404L, protocol_violation = 400L, 500L)
    error <- list(kind = kind, message = conditionMessage(e), row = e$row, traceback = e$traceback)
    to_json(list(error = Filter(Negate(is.null), error)))
  })
  list(status = status, headers = list("Content-Type" = if (is.raw(body)) columns_type else "application/json"), body = body)
}

serve <- function(functions) {
  app <- list(call = function(asked) respond(functions, asked))
  folder <- Sys.getenv("TRANSSHIP_SOCKET_DIR")
  port <- Sys.getenv("TRANSSHIP_HTTP_PORT")
  if (folder == "" && port == "") stop("set TRANSSHIP_SOCKET_DIR or TRANSSHIP_HTTP_PORT", call. = FALSE)
  if (folder != "") {
    socket <- file.path(folder, "http.sock")
    unlink(socket)
    # The engine that connects is another user than this one; the directory around the socket decides who gets here.
    httpuv::startPipeServer(socket, 0L, app)
    Sys.chmod(socket, "0777", use_umask = FALSE)
  }
  if (port != "") httpuv::startServer("0.0.0.0", as.integer(port), app)
  message("transship: ready, ", length(functions), " functions")
  # R runs one call at a time, and looks between them whether it is to end (run.sh).
  stop_file <- Sys.getenv("TRANSSHIP_STOP_FILE")
  while (stop_file == "" || !file.exists(stop_file)) httpuv::service(200)
  # What was answered last may still be on its way.
  for (i in 1:5) httpuv::service(20)
}

# What the handler prints is a log, not an answer.
command <- c(commandArgs(trailingOnly = TRUE), "serve")[1]
functions <- local({
  sink(stderr())
  on.exit(sink())
  load_functions(root)
})
if (command == "describe") {
  # The text is kept, and not written anew: R's lists would turn some arrays of one into their element.
  manifest <- readChar(file.path(root, "manifest.json"), file.size(file.path(root, "manifest.json")), useBytes = TRUE)
  cat(manifest)
} else {
  sink(stderr())
  serve(functions)
}
