# Columns between the JSON form of docs/types.md and R's vectors; README.md says which R type holds which SQL type. NULL is
# NA; in a list it is NULL.

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

refuse_infinite <- function(texts) {
  row <- which(texts %in% c("infinity", "-infinity"))[1]
  if (!is.na(row)) out_of_range(row, texts[row])
  texts
}

read_date <- function(values) {
  texts <- refuse_infinite(read_text(values))
  column <- as.Date(texts, format = "%Y-%m-%d")
  row <- which(!is.na(texts) & (is.na(column) | !grepl("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", texts)))[1]
  if (!is.na(row)) misfit(row, texts[row])
  column
}

# Seconds as a double keep microseconds until then.
last_exact_second <- 2^33

read_timestamp <- function(values, has_zone) {
  texts <- refuse_infinite(read_text(values))
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
    date = read_date(values),
    timestamp = read_timestamp(values, FALSE),
    timestamptz = read_timestamp(values, TRUE),
    uuid = read_text(values, "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"),
    interval = present(function(value, row) if (is.list(value)) value else misfit(row, shown(value))),
    array = present(function(value, row) if (is.list(value) && is.null(names(value))) in_row(row, read_column(type$element, value)) else misfit(row, shown(value))),
    range = , composite = present(function(value, row) {
      if (!is.list(value) || is.null(names(value))) misfit(row, shown(value))
      parts <- lapply(parts_of(type), function(part) one(in_row(row, read_column(part, list(value[[part$name]])))))
      setNames(parts, vapply(parts_of(type), function(part) part$name, ""))
    }),
    read_text(values))
}

# Whether values of a type are, or hold, values of one of these.
holds <- function(names, type) {
  if (type$type %in% c("array", "range")) return(holds(names, type$element))
  type$type %in% names || (type$type == "composite" && any(vapply(type$attributes, function(part) holds(names, part), NA)))
}

# The types of which jsonlite may round values in this JSON: doubles round decimals, and the others where these have no room for a number.
rounded_types <- function(json) {
  if (grepl("900719925474099|[0-9][eE]|[0-9]{309}", json, perl = TRUE)) c("numeric", "int8", "float4", "float8") else "numeric"
}

# A number's digits without an exponent, as docs/types.md has them; NULL if numeric has no room for them.
digits_of <- function(number) {
  parts <- regmatches(number, regexec("^(-?)([0-9]+)(\\.([0-9]+))?([eE]([+-]?[0-9]+))?$", number))[[1]]
  if (!nzchar(parts[6])) return(number)
  digits <- paste0(parts[3], parts[5])
  if (!grepl("[1-9]", digits)) return(paste0(parts[2], "0"))
  point <- nchar(parts[3]) + as.numeric(parts[7])
  # PostgreSQL's largest decimal has 131072 digits before the point and 16383 behind it.
  if (point > 131072 || nchar(digits) - point > 16383) return(NULL)
  if (point <= 0) return(paste0(parts[2], "0.", strrep("0", -point), digits))
  digits <- paste0(digits, strrep("0", max(0, point - nchar(digits))))
  left <- sub("^0+(?=.)", "", substr(digits, 1, point), perl = TRUE)
  paste0(parts[2], left, if (point < nchar(digits)) paste0(".", substring(digits, point + 1)))
}

# JSON with a string in place of each number. Strings are passed over as a whole.
quote_numbers <- function(text) gsub('"(?:[^"\\\\]++|\\\\.)*+"(*SKIP)(*FAIL)|(-?[0-9][0-9.eE+-]*)', '"\\1"', text, perl = TRUE)

# A JSON value with the digits of the numbers that may be rounded; text is the same value with texts for all numbers. What is not of the
# type stays as it is, and is refused.
with_digits <- function(type, value, text) {
  if (is.null(value) || !holds(c("numeric", "int8", "float4", "float8"), type)) return(value)
  if (is.numeric(value)) {
    digits <- switch(type$type,
      numeric = digits_of(text),
      int8 = if (is.finite(value) && abs(value) == 2^53) sub("\\.0*$", "", digits_of(text)),
      float4 = , float8 = if (is.infinite(value)) "a number that no double can hold")
    return(if (is.null(digits)) value else digits)
  }
  if (!is.list(value)) return(value)
  if (type$type == "array" && !is.null(names(value))) return(value)
  if (type$type == "array") return(lapply(seq_along(value), function(i) with_digits(type$element, value[[i]], text[[i]])))
  for (part in parts_of(type)) {
    if (!is.null(value[[part$name]])) value[[part$name]] <- with_digits(part, value[[part$name]], text[[part$name]])
  }
  value
}

# The only element of a column.
one <- function(column) if (is.list(column)) column[[1]] else column[1]

# What is wrong inside of a value is told of the value's row.
in_row <- function(row, expression) {
  tryCatch(expression, misfit = function(e) misfit(row, conditionMessage(e)), out_of_range = function(e) out_of_range(row, conditionMessage(e)))
}

quoted <- function(texts) {
  if (!length(texts)) return(character(0))
  texts <- enc2utf8(texts)
  row <- which(!is.na(texts) & !validUTF8(texts))[1]
  if (!is.na(row)) misfit(row, "text that is not UTF-8")
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

# Results as JSON texts: a vector, or a list with one result per element. A result that does not fit is a misfit of its row.
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
  wants <- function(is_right) {
    if (!is_right) misfit(1, shown(x[1]))
  }
  or_null <- function(texts) {
    texts[is.na(x)] <- "null"
    texts
  }
  in_range <- function(is_right) {
    row <- which(!is.na(x) & !is_right)[1]
    if (!is.na(row)) misfit(row, shown(x[row]))
  }
  if (is.factor(x)) x <- as.character(x)
  switch(type$type,
    bool = {
      wants(is.logical(x))
      or_null(ifelse(x, "true", "false"))
    },
    int2 = , int4 = {
      wants(is.numeric(x))
      limit <- if (type$type == "int2") 2^15 else 2^31
      number <- as.numeric(x)
      in_range(is.finite(number) & number == trunc(number) & number >= -limit & number < limit)
      or_null(sprintf("%.0f", number))
    },
    int8 = {
      wants(is.numeric(x))
      if (bit64::is.integer64(x)) {
        texts <- as.character(x)
        or_null(ifelse(nchar(sub("-", "", texts)) > 15, paste0("\"", texts, "\""), texts))
      } else {
        in_range(is.finite(x) & x == trunc(x) & abs(x) <= 2^53)
        or_null(sprintf("%.0f", x))
      }
    },
    float4 = , float8 = {
      wants(is.numeric(x) && !bit64::is.integer64(x))
      if (type$type == "float4") in_range(is.infinite(x) | is.nan(x) | abs(x) <= 3.4028235677973366e38)
      float_texts(as.numeric(x))
    },
    date = {
      wants(inherits(x, "Date"))
      in_range(unclass(x) == trunc(unclass(x)))
      or_null(paste0("\"", format(x, "%Y-%m-%d"), "\""))
    },
    timestamp = , timestamptz = {
      wants(inherits(x, "POSIXct"))
      seconds <- as.numeric(x)
      in_range(is.finite(seconds) & abs(seconds) < last_exact_second)
      micros <- round((seconds - floor(seconds)) * 1e6)
      whole <- floor(seconds) + (micros == 1e6)
      text <- format(as.POSIXct(whole, origin = "1970-01-01", tz = "UTC"), "%Y-%m-%dT%H:%M:%S", tz = "UTC")
      or_null(sprintf("\"%s.%06.0f%s\"", text, micros %% 1e6, if (type$type == "timestamptz") "Z" else ""))
    },
    {
      wants(is.character(x))
      quoted(x)
    })
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
