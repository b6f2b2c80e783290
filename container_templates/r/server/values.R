# Columns between the core's plain columns, in which all but numbers, bool and bytes are texts in the JSON form of docs/types.md, and R's
# vectors; README.md says which R type holds which SQL type. NULL is NA; in a list it is NULL.

# Conditions: a value that does not fit its type, and one that R cannot hold.
misfit <- function(row, what) stop(structure(class = c("misfit", "error", "condition"), list(message = what, call = NULL, row = row)))
out_of_range <- function(row, what) stop(structure(class = c("out_of_range", "error", "condition"), list(message = what, call = NULL, row = row)))

shown <- function(value) {
  text <- tryCatch(paste(deparse(value), collapse = " "), error = function(e) class(value)[1])
  if (nchar(text) > 60) paste0(substr(text, 1, 60), "...") else text
}

# Types whose values are not single elements of a vector: their columns are lists.
is_listed <- function(type) type$type %in% c("bytea", "array", "range", "composite", "interval")

parts_of <- function(type) {
  if (type$type != "range") return(type$attributes)
  flag <- function(name) list(type = "bool", text = "bool", name = name)
  bound <- function(name) modifyList(type$element, list(name = name))
  list(bound("lower"), bound("upper"), flag("lower_inc"), flag("upper_inc"), flag("empty"))
}

# Types whose values in JSON are arrays and objects.
is_nested <- function(type) type$type %in% c("array", "range", "composite", "interval")

# The kind of a plain column, as glue.c names it.
kind_of <- function(type) {
  switch(type$type, bool = "logical", int2 = , int4 = "integer", int8 = "integer64", float4 = , float8 = "double", bytea = "raw", "text")
}

# What a value beyond R is, of which glue.c has told the row.
beyond_of <- function(type) {
  switch(kind_of(type), integer = "-2147483648", integer64 = "-9223372036854775808", "a text with a zero byte")
}

# A plain column as an R vector or list.
from_plain <- function(type, column) {
  row <- attr(column, "beyond")
  if (!is.null(row)) out_of_range(row, beyond_of(type))
  if (is_nested(type)) return(read_column(type, lapply(column, function(text) if (!is.na(text)) jsonlite::parse_json(text, bigint_as_char = TRUE))))
  switch(type$type,
    int8 = structure(column, class = "integer64"),
    date = read_date(column),
    timestamp = read_timestamp(column, FALSE),
    timestamptz = read_timestamp(column, TRUE),
    column)
}

# One JSON value at a time: check says whether a value is right, and convert makes it an R value of length one.
each <- function(values, convert, empty) {
  column <- rep(empty, length(values))
  for (row in seq_along(values)) {
    value <- values[[row]]
    if (!is.null(value)) column[row] <- convert(value, row)
  }
  column
}

integer_text <- function(value, row) {
  if (is.character(value) && grepl("^[+-]?[0-9]+$", value)) return(sub("^\\+", "", value))
  if (is.numeric(value) && is.finite(value) && value == trunc(value) && abs(value) <= 2^53) return(sprintf("%.0f", value))
  misfit(row, shown(value))
}

read_integer <- function(values, limit) {
  each(values, function(value, row) {
    number <- as.numeric(integer_text(value, row))
    if (number < -limit || number >= limit) misfit(row, shown(value))
    # R's own NA.
    if (number == -2^31) out_of_range(row, shown(value))
    as.integer(number)
  }, NA_integer_)
}

read_int8 <- function(values) {
  texts <- each(values, integer_text, NA_character_)
  column <- suppressWarnings(bit64::as.integer64(texts))
  lost <- which(!is.na(texts) & is.na(column))
  if (length(lost)) {
    # The smallest integer is bit64's NA; what has more digits is no int8.
    if (texts[lost[1]] == "-9223372036854775808") out_of_range(lost[1], texts[lost[1]]) else misfit(lost[1], texts[lost[1]])
  }
  if (!length(values)) bit64::integer64(0) else column
}

read_float <- function(values) {
  each(values, function(value, row) {
    if (is.numeric(value)) return(as.numeric(value))
    number <- if (is.character(value) && grepl("^(NaN|-?Infinity|[+-]?[0-9.]+([eE][+-]?[0-9]+)?)$", value)) suppressWarnings(as.numeric(sub("Infinity", "Inf", value)))
    if (is.null(number)) misfit(row, shown(value))
    number
  }, NA_real_)
}

read_text <- function(values, pattern = NULL) {
  each(values, function(value, row) {
    if (!is.character(value) || (!is.null(pattern) && !grepl(pattern, value))) misfit(row, shown(value))
    value
  }, NA_character_)
}

# Infinity, and years with a sign: those before the first one and after 9999.
refuse_beyond <- function(texts) {
  row <- which(grepl("^(-?infinity|[+-][0-9]{4,}-.*)$", texts))[1]
  if (!is.na(row)) out_of_range(row, texts[row])
}

read_date <- function(texts) {
  refuse_beyond(texts)
  column <- as.Date(texts, format = "%Y-%m-%d")
  row <- which(!is.na(texts) & (is.na(column) | !grepl("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", texts)))[1]
  if (!is.na(row)) misfit(row, texts[row])
  column
}

# Seconds as a double keep microseconds until then.
last_exact_second <- 2^33

read_timestamp <- function(texts, has_zone) {
  refuse_beyond(texts)
  pattern <- paste0("^([0-9]{4,})-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,6})?", if (has_zone) "(Z|[+-][0-9]{2}:[0-9]{2})$" else "$")
  row <- which(!is.na(texts) & !grepl(pattern, texts))[1]
  if (!is.na(row)) misfit(row, texts[row])
  seconds <- as.numeric(as.POSIXct(sub("[.Z+].*", "", sub("-[0-9]{2}:[0-9]{2}$", "", texts)), format = "%Y-%m-%dT%H:%M:%S", tz = "UTC"))
  fraction <- ifelse(grepl("\\.", texts), as.numeric(sub("^[^.]*(\\.[0-9]*).*$", "\\1", texts)), 0)
  if (has_zone) {
    offset <- ifelse(grepl("[+-][0-9]{2}:[0-9]{2}$", texts), sub("^.*([+-][0-9]{2}:[0-9]{2})$", "\\1", texts), "+00:00")
    minutes <- as.numeric(substr(offset, 2, 3)) * 60 + as.numeric(substr(offset, 5, 6))
    seconds <- seconds - ifelse(substr(offset, 1, 1) == "-", -1, 1) * minutes * 60
  }
  row <- which(!is.na(texts) & (is.na(seconds) | abs(seconds) >= last_exact_second))[1]
  if (!is.na(row)) (if (is.na(seconds[row])) misfit else out_of_range)(row, texts[row])
  as.POSIXct(seconds + fraction, origin = "1970-01-01", tz = "UTC")
}

# A column of JSON values, as jsonlite reads them without simplifying, as an R vector or list.
read_column <- function(type, values) {
  present <- function(convert) lapply(seq_along(values), function(row) if (!is.null(values[[row]])) convert(values[[row]], row))
  switch(type$type,
    bool = each(values, function(value, row) if (is.logical(value)) value else misfit(row, shown(value)), NA),
    int2 = read_integer(values, 2^15),
    int4 = read_integer(values, 2^31),
    int8 = read_int8(values),
    float4 = , float8 = read_float(values),
    bytea = present(function(value, row) if (is.character(value)) jsonlite::base64_dec(value) else misfit(row, shown(value))),
    date = read_date(read_text(values)),
    timestamp = read_timestamp(read_text(values), FALSE),
    timestamptz = read_timestamp(read_text(values), TRUE),
    uuid = read_text(values, "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"),
    # Microseconds that a double does not hold come as text.
    interval = present(function(value, row) if (is.list(value) && all(vapply(value, is.numeric, NA))) value else misfit(row, shown(value))),
    array = present(function(value, row) if (is.list(value) && is.null(names(value))) in_row(row, read_column(type$element, value)) else misfit(row, shown(value))),
    range = , composite = present(function(value, row) {
      if (!is.list(value) || is.null(names(value))) misfit(row, shown(value))
      parts <- lapply(parts_of(type), function(part) one(in_row(row, read_column(part, list(value[[part$name]])))))
      setNames(parts, vapply(parts_of(type), function(part) part$name, ""))
    }),
    read_text(values))
}

# The only element of a column.
one <- function(column) if (is.list(column)) column[[1]] else column[1]

# What is wrong inside of a value is told of the value's row.
in_row <- function(row, expression) {
  tryCatch(expression, misfit = function(e) misfit(row, conditionMessage(e)), out_of_range = function(e) out_of_range(row, conditionMessage(e)))
}

quoted <- function(texts) {
  if (!length(texts)) return(character(0))
  texts <- checked_texts(texts)
  vapply(texts, function(text) if (is.na(text)) "null" else as.character(jsonlite::toJSON(text, auto_unbox = TRUE)), "", USE.NAMES = FALSE)
}

float_texts <- function(x) {
  texts <- sprintf("%.17g", x)
  texts[x == 0 & 1 / x < 0] <- "-0.0"
  texts[is.nan(x)] <- "\"NaN\""
  texts[is.infinite(x)] <- ifelse(x[is.infinite(x)] > 0, "\"Infinity\"", "\"-Infinity\"")
  texts[is.na(x) & !is.nan(x)] <- "null"
  texts
}

# Results as a plain column: a vector, or a list with one result per element. A result that does not fit is a misfit of its row.
to_plain <- function(type, results) {
  if (is_nested(type)) {
    texts <- write_column(type, results)
    texts[texts == "null"] <- NA_character_
    return(texts)
  }
  if (type$type == "bytea") {
    if (!is.list(results)) misfit(1, shown(results))
    return(lapply(seq_along(results), function(row) {
      value <- results[[row]]
      if (is.null(value) || is.raw(value)) return(value)
      if (length(value) == 1 && is.na(value)) NULL else misfit(row, shown(value))
    }))
  }
  if (!is.list(results)) return(plain_vector(type, results))
  null <- switch(kind_of(type), logical = NA, integer = , integer64 = plain_null, double = NA_real_, NA_character_)
  vapply(seq_along(results), function(row) {
    value <- results[[row]]
    if (is.null(value)) return(null)
    if (length(value) != 1) misfit(row, shown(value))
    in_row(row, plain_vector(type, value))
  }, null, USE.NAMES = FALSE)
}

# NULL among integers.
plain_null <- unclass(bit64::NA_integer64_)

# A vector of results of a type that is not listed: logical, doubles that hold the bits of an integer64, doubles, or texts.
plain_vector <- function(type, x) {
  if (is.logical(x) && all(is.na(x))) x <- switch(kind_of(type), logical = x, text = rep(NA_character_, length(x)), rep(NA_real_, length(x)))
  else if (is.factor(x)) x <- as.character(x)
  check_vector(type, x)
  switch(kind_of(type),
    logical = as.vector(x),
    integer = , integer64 = as.vector(unclass(bit64::as.integer64(x))),
    double = as.vector(as.numeric(x)),
    if (is.character(x)) as.vector(checked_texts(x)) else text_of(type, x))
}

# Stops if a vector is not of a type.
check_vector <- function(type, x) {
  wants <- function(is_right) {
    if (!is_right) misfit(1, shown(x[1]))
  }
  in_range <- function(is_right) {
    row <- which(!is.na(x) & !is_right)[1]
    if (!is.na(row)) misfit(row, shown(x[row]))
  }
  # A NaN would be NULL.
  refuse_nan <- function() {
    if (is.double(x) && !bit64::is.integer64(x) && any(is.nan(x))) misfit(which(is.nan(x))[1], "NaN")
  }
  switch(type$type,
    bool = wants(is.logical(x)),
    int2 = , int4 = {
      wants(is.numeric(x))
      refuse_nan()
      limit <- if (type$type == "int2") 2^15 else 2^31
      number <- as.numeric(x)
      in_range(is.finite(number) & number == trunc(number) & number >= -limit & number < limit)
    },
    int8 = {
      wants(is.numeric(x))
      if (!bit64::is.integer64(x)) in_range(is.finite(x) & x == trunc(x) & abs(x) <= 2^53)
      refuse_nan()
    },
    float4 = , float8 = {
      wants(is.numeric(x) && !bit64::is.integer64(x))
      if (type$type == "float4") in_range(is.infinite(x) | is.nan(x) | abs(x) <= 3.4028235677973366e38)
    },
    date = {
      if (is.character(x) && all(is.na(x))) return()
      wants(inherits(x, "Date"))
      in_range(unclass(x) == trunc(unclass(x)))
    },
    timestamp = , timestamptz = {
      if (is.character(x) && all(is.na(x))) return()
      wants(inherits(x, "POSIXct"))
      seconds <- as.numeric(x)
      in_range(is.finite(seconds) & abs(seconds) < last_exact_second)
    },
    wants(is.character(x)))
}

# Dates and times as texts.
text_of <- function(type, x) {
  if (type$type == "date") {
    texts <- format(x, "%Y-%m-%d")
  } else {
    seconds <- as.numeric(x)
    micros <- round((seconds - floor(seconds)) * 1e6)
    whole <- floor(seconds) + (!is.na(micros) & micros == 1e6)
    text <- format(as.POSIXct(whole, origin = "1970-01-01", tz = "UTC"), "%Y-%m-%dT%H:%M:%S", tz = "UTC")
    texts <- sprintf("%s.%06.0f%s", text, micros %% 1e6, if (type$type == "timestamptz") "Z" else "")
  }
  texts[is.na(x)] <- NA_character_
  as.vector(texts)
}

checked_texts <- function(texts) {
  # Text in another encoding that R knows is converted; no conversion would find what is wrong with the rest.
  row <- which(!is.na(texts) & Encoding(texts) != "latin1" & !validUTF8(texts))[1]
  if (!is.na(row)) misfit(row, "text that is not UTF-8")
  enc2utf8(texts)
}

# Values within arrays, ranges and composite types as JSON texts.
write_column <- function(type, results) {
  if (is.list(results)) {
    return(vapply(seq_along(results), function(row) {
      value <- results[[row]]
      if (is.null(value) || (!is_listed(type) && length(value) == 1 && is.na(value) && !is.nan(suppressWarnings(as.numeric(value))))) return("null")
      in_row(row, if (is_listed(type)) write_listed(type, value) else if (length(value) == 1) write_vector(type, value) else misfit(1, shown(value)))
    }, ""))
  }
  if (is_listed(type)) misfit(1, shown(results))
  write_vector(type, results)
}

write_vector <- function(type, x) {
  if (is.logical(x) && all(is.na(x)) && type$type != "bool") return(rep("null", length(x)))
  if (is.factor(x)) x <- as.character(x)
  check_vector(type, x)
  texts <- switch(type$type,
    bool = ifelse(x, "true", "false"),
    int2 = , int4 = sprintf("%.0f", as.numeric(x)),
    int8 = if (bit64::is.integer64(x)) {
      texts <- as.character(x)
      ifelse(nchar(sub("-", "", texts)) > 15, paste0("\"", texts, "\""), texts)
    } else {
      sprintf("%.0f", x)
    },
    float4 = , float8 = return(float_texts(as.numeric(x))),
    if (is.character(x)) quoted(x) else paste0("\"", text_of(type, x), "\""))
  texts[is.na(x)] <- "null"
  texts
}

write_listed <- function(type, value) {
  switch(type$type,
    bytea = if (is.raw(value)) paste0("\"", gsub("\n", "", jsonlite::base64_enc(value), fixed = TRUE), "\"") else misfit(1, shown(value)),
    interval = {
      if (!is.list(value) || !all(names(value) %in% c("months", "days", "microseconds", "nanoseconds"))) misfit(1, shown(value))
      paste0("{", paste0("\"", names(value), "\":", vapply(value, function(part) write_vector(list(type = "int8"), part), ""), collapse = ","), "}")
    },
    array = paste0("[", paste(write_column(type$element, if (is_listed(type$element)) as.list(value) else value), collapse = ","), "]"),
    {
      parts <- parts_of(type)
      names <- vapply(parts, function(part) part$name, "")
      if (!is.list(value) || !all(names %in% names(value))) misfit(1, shown(value))
      texts <- vapply(parts, function(part) write_column(part, list(value[[part$name]])), "")
      paste0("{", paste0(quoted(names), ":", texts, collapse = ","), "}")
    })
}
