# Columns as they lie in memory (docs/protocol.md §7): the buffers of the Arrow columnar format, and a header in JSON that
# says where each begins. Vectors are read as they are; other values through their JSON form (values.R).

columns_type <- "application/vnd.transship.columns"
alignment <- 64
# Every buffer begins at a multiple of this.
read_alignment <- 8

broken <- function(...) call_error("protocol_violation", paste0("the request cannot be read: ", ...))

padded <- function(size, unit) ceiling(size / unit) * unit

segment_path <- function(name) {
  folder <- Sys.getenv("TRANSSHIP_SEGMENT_DIR")
  if (folder == "" || !is.character(name) || length(name) != 1 || !grepl("^[0-9a-f]{32}$", name)) broken("there is no segment ", shown(name))
  path <- file.path(folder, name)
  if (!file.exists(path)) broken("segment ", name, " cannot be opened")
  path
}

# Header and data of a request.
read_frame <- function(body) {
  length <- if (length(body) >= 4) sum(as.integer(body[1:4]) * 256^(0:3)) else Inf
  if (4 + length > length(body)) broken("its header is cut off")
  text <- rawToChar(body[4 + seq_len(length)])
  Encoding(text) <- "UTF-8"
  header <- tryCatch(jsonlite::parse_json(text, bigint_as_char = TRUE), error = function(e) broken(conditionMessage(e)))
  # Places that are no numbers, or too large for one, have no right value either.
  places <- suppressWarnings(if (is.list(header)) as.numeric(unlist(header$buffers)))
  is_right <- is.list(header) && is.list(header$buffers) && length(places) == length(header$buffers) && !anyNA(places) && all(places >= 0 & places == trunc(places)) && length(places) %% 2 == 0
  if (!is_right) broken("it has no buffers")
  header$buffers <- places
  if (is.null(header$segment)) {
    data <- body[seq_len(max(0, length(body) - padded(4 + length, read_alignment))) + padded(4 + length, read_alignment)]
  } else {
    path <- segment_path(header$segment)
    size <- max(0, colSums(matrix(places, nrow = 2)))
    # A size that is not there must not cost its memory.
    if (file.size(path) < size) broken("segment ", header$segment, " has less than ", size, " bytes")
    data <- readBin(path, "raw", size)
  }
  list(header = header, data = data)
}

# What takes the next buffer, of at least so many bytes.
buffer_reader <- function(places, data) {
  position <- 0
  list(
    take = function(least = 0) {
      if (position == length(places)) broken("it has fewer buffers than columns")
      offset <- places[position + 1]
      size <- places[position + 2]
      position <<- position + 2
      if (offset %% read_alignment != 0 || offset + size > length(data)) broken("no buffer of ", size, " bytes can be at ", offset)
      if (size < least) broken("a buffer has ", size, " bytes, not ", least)
      if (size == 0) raw(0) else data[(offset + 1):(offset + size)]
    },
    finish = function() if (position != length(places)) broken("it has more buffers than columns"))
}

# Buffers are taken in their order: R would take one that is an argument when it is first looked at, or never.
bits_of <- function(bytes, rows) {
  force(bytes)
  if (rows) as.logical(rawToBits(bytes))[seq_len(rows)] else logical(0)
}

take_offsets <- function(reader, rows) {
  if (!rows) {
    reader$take()
    return(0L)
  }
  offsets <- readBin(reader$take(4 * (rows + 1)), "integer", rows + 1, endian = "little")
  if (anyNA(offsets) || is.unsorted(offsets) || offsets[1] < 0) broken("offsets descend")
  offsets
}

# 64-bit integers: bit64 keeps them in the bits of doubles.
int8s <- function(bytes, rows) structure(readBin(bytes, "double", rows, endian = "little"), class = "integer64")

# The bytes of each row.
text_slices <- function(bytes, offsets, rows) {
  force(bytes)
  lapply(seq_len(rows), function(row) if (offsets[row + 1] > offsets[row]) bytes[(offsets[row] + 1):offsets[row + 1]] else raw(0))
}

as_text <- function(slices) {
  if (any(vapply(slices, function(slice) any(slice == 0), NA))) broken("R's texts hold no NUL character")
  texts <- vapply(slices, rawToChar, "")
  if (!all(validUTF8(texts))) broken("a text is not UTF-8")
  Encoding(texts) <- "UTF-8"
  texts
}

# Numbers of days and microseconds since 1970 that R's classes hold exactly.
days_as_date <- function(days, valid) {
  row <- which(valid & (is.na(days) | days < -719162 | days > 2932896))[1]
  if (!is.na(row)) out_of_range(row, "a date that is infinite, or outside of the years 1 to 9999")
  as.Date(ifelse(valid, days, NA), origin = "1970-01-01")
}

micros_as_time <- function(micros, valid) {
  numbers <- suppressWarnings(as.numeric(micros))
  row <- which(valid & (is.na(numbers) | abs(numbers) >= last_exact_second * 1e6))[1]
  if (!is.na(row)) out_of_range(row, "a timestamp that is infinite, or that R does not keep to the microsecond")
  as.POSIXct(ifelse(valid, numbers / 1e6, NA), origin = "1970-01-01", tz = "UTC")
}

time_texts <- function(micros) {
  seconds <- micros %/% 1e6
  sprintf("%02.0f:%02.0f:%02.0f.%06.0f", seconds %/% 3600, seconds %/% 60 %% 60, seconds %% 60, micros %% 1e6)
}

# The next column, as R's vector or list.
take_column <- function(reader, type, rows) {
  validity <- reader$take()
  if (length(validity) && length(validity) * 8 < rows) broken("a validity buffer is too short")
  valid <- if (length(validity)) bits_of(validity, rows) else rep(TRUE, rows)
  fixed <- function(width) reader$take(rows * width)
  with_na <- function(values, na) {
    values[!valid] <- na
    values
  }
  refuse_na <- function(values, what) {
    row <- which(valid & is.na(values))[1]
    if (!is.na(row)) out_of_range(row, what)
    values
  }
  present <- function(values) {
    force(values)
    column <- vector("list", rows)
    for (row in which(valid)) if (!is.null(values[[row]])) column[[row]] <- values[[row]]
    column
  }
  switch(type$type,
    bool = with_na(bits_of(reader$take(ceiling(rows / 8)), rows), NA),
    int2 = with_na(readBin(fixed(2), "integer", rows, size = 2, endian = "little"), NA_integer_),
    int4 = with_na(refuse_na(readBin(fixed(4), "integer", rows, endian = "little"), "-2147483648"), NA_integer_),
    int8 = with_na(refuse_na(int8s(fixed(8), rows), "-9223372036854775808"), bit64::NA_integer64_),
    float4 = with_na(readBin(fixed(4), "double", rows, size = 4, endian = "little"), NA_real_),
    float8 = with_na(readBin(fixed(8), "double", rows, endian = "little"), NA_real_),
    date = days_as_date(readBin(fixed(4), "integer", rows, endian = "little"), valid),
    timestamp = , timestamptz = micros_as_time(int8s(fixed(8), rows), valid),
    time = with_na(time_texts(as.numeric(int8s(fixed(8), rows))), NA_character_),
    uuid = {
      bytes <- matrix(sprintf("%02x", as.integer(fixed(16)[seq_len(rows * 16)])), nrow = 16)
      part <- function(from, to) apply(bytes[from:to, , drop = FALSE], 2, paste, collapse = "")
      with_na(if (rows) paste(part(1, 4), part(5, 6), part(7, 8), part(9, 10), part(11, 16), sep = "-") else character(0), NA_character_)
    },
    interval = {
      bytes <- fixed(16)
      parts <- readBin(bytes, "integer", rows * 4, endian = "little")
      nanoseconds <- int8s(bytes, rows * 2)[seq_len(rows) * 2]
      present(lapply(seq_len(rows), function(row) {
        value <- list(months = parts[row * 4 - 3], days = parts[row * 4 - 2], microseconds = as.numeric(nanoseconds[row] %/% 1000))
        rest <- as.numeric(nanoseconds[row] %% 1000)
        if (rest != 0) c(value, nanoseconds = rest) else value
      }))
    },
    bytea = {
      offsets <- take_offsets(reader, rows)
      present(text_slices(reader$take(offsets[rows + 1]), offsets, rows))
    },
    array = {
      offsets <- take_offsets(reader, rows)
      elements <- take_column(reader, type$element, offsets[rows + 1])
      present(lapply(seq_len(rows), function(row) elements[seq_len(offsets[row + 1] - offsets[row]) + offsets[row]]))
    },
    range = , composite = {
      parts <- lapply(parts_of(type), function(part) take_column(reader, part, rows))
      names <- vapply(parts_of(type), function(part) part$name, "")
      present(lapply(seq_len(rows), function(row) setNames(lapply(parts, function(part) one(part[row])), names)))
    },
    {
      offsets <- take_offsets(reader, rows)
      with_na(as_text(text_slices(reader$take(offsets[rows + 1]), offsets, rows)), NA_character_)
    })
}

# The columns of a batch.
memory_columns <- function(entry, frame) {
  rows <- frame$header$rows
  if (!is.numeric(rows) || length(rows) != 1 || is.na(rows) || rows < 0 || rows > .Machine$integer.max / 16) broken("it has no number of rows that could be")
  reader <- buffer_reader(frame$header$buffers, frame$data)
  columns <- lapply(seq_along(entry$call_types), function(position) {
    type <- entry$call_types[[position]]
    tryCatch(take_column(reader, type, rows),
      out_of_range = function(e) call_error("out_of_range", paste0("R cannot hold ", conditionMessage(e), " of type ", type$text, "."), e$row - 1))
  })
  reader$finish()
  columns
}

# Lays out columns of JSON texts, as write_column gives them.
lay_out <- function(types, columns) {
  places <- numeric(0)
  pieces <- list()
  size <- 0
  add <- function(bytes) {
    if (!length(bytes)) {
      places <<- c(places, 0, 0)
      return(invisible())
    }
    padding <- padded(size, alignment) - size
    places <<- c(places, size + padding, length(bytes))
    pieces[[length(pieces) + 1]] <<- raw(padding)
    pieces[[length(pieces) + 1]] <<- bytes
    size <<- size + padding + length(bytes)
  }
  bits <- function(flags) packBits(c(flags, rep(FALSE, -length(flags) %% 8)), "raw")
  integers <- function(values, size) writeBin(as.integer(values), raw(), size = size, endian = "little")
  offsets <- function(lengths) add(integers(c(0, cumsum(lengths)), 4))
  longs <- function(values) writeBin(unclass(bit64::as.integer64(values)), raw(), endian = "little")
  column <- function(type, values) {
    missing <- vapply(values, is.null, NA)
    if (any(missing)) add(bits(!missing)) else add(raw(0))
    if (!length(values) && !(type$type %in% c("array", "range", "composite"))) {
      add(raw(0))
      if (!(type$type %in% c("bool", "int2", "int4", "int8", "float4", "float8", "date", "timestamp", "timestamptz", "time", "uuid", "interval"))) add(raw(0))
      return(invisible())
    }
    filled <- function(empty) {
      values[missing] <- list(empty)
      values
    }
    vector <- function(empty) unlist(filled(empty))
    switch(type$type,
      bool = add(bits(vector(FALSE))),
      int2 = add(integers(vector(0), 2)),
      int4 = add(integers(vector(0), 4)),
      int8 = add(longs(vapply(filled(0), function(value) if (is.character(value)) value else sprintf("%.0f", value), ""))),
      float4 = add(writeBin(floats(filled(0)), raw(), size = 4, endian = "little")),
      float8 = add(writeBin(floats(filled(0)), raw(), endian = "little")),
      date = add(integers(as.numeric(as.Date(vector("1970-01-01"))), 4)),
      timestamp = , timestamptz = {
        has_zone <- type$type == "timestamptz"
        times <- read_timestamp(filled(if (has_zone) "1970-01-01T00:00:00Z" else "1970-01-01T00:00:00"), has_zone)
        add(longs(sprintf("%.0f", round(as.numeric(times) * 1e6))))
      },
      time = {
        parts <- strsplit(vector("00:00:00"), ":", fixed = TRUE)
        add(longs(vapply(parts, function(part) sprintf("%.0f", round((as.numeric(part[1]) * 3600 + as.numeric(part[2]) * 60 + as.numeric(part[3])) * 1e6)), "")))
      },
      uuid = {
        digits <- gsub("-", "", vector(strrep("0", 32)), fixed = TRUE)
        add(as.raw(strtoi(substring(paste(digits, collapse = ""), seq(1, 32 * length(digits), 2), seq(2, 32 * length(digits), 2)), 16L)))
      },
      interval = {
        part <- function(value, name) if (is.null(value[[name]])) "0" else if (is.character(value[[name]])) value[[name]] else sprintf("%.0f", value[[name]])
        add(do.call(c, lapply(filled(list()), function(value) {
          nanoseconds <- bit64::as.integer64(part(value, "microseconds")) * 1000L + bit64::as.integer64(part(value, "nanoseconds"))
          c(integers(part(value, "months"), 4), integers(part(value, "days"), 4), longs(nanoseconds))
        })))
      },
      array = {
        offsets(lengths(values))
        column(type$element, do.call(c, c(list(list()), values)))
      },
      range = , composite = for (part in parts_of(type)) column(part, lapply(values, function(value) value[[part$name]])),
      {
        bytes <- lapply(filled(""), if (type$type == "bytea") jsonlite::base64_dec else function(text) charToRaw(enc2utf8(text)))
        offsets(lengths(bytes))
        add(do.call(c, bytes))
      })
  }
  for (i in seq_along(types)) {
    text <- paste0("[", paste(columns[[i]], collapse = ","), "]")
    column(types[[i]], jsonlite::parse_json(text, bigint_as_char = TRUE))
  }
  list(places = places, data = if (length(pieces)) do.call(c, pieces) else raw(0))
}

floats <- function(values) {
  vapply(values, function(value) if (is.character(value)) as.numeric(sub("Infinity", "Inf", value)) else as.numeric(value), 0)
}

# The body of the reply.
memory_reply <- function(entry, frame, reply, micros) {
  laid <- lay_out(entry$reply_types, reply)
  number <- if (is.null(frame$header$batch)) 0 else frame$header$batch
  segment <- frame$header$reply_segment
  if (!is.null(segment)) {
    file <- file(segment_path(segment), "r+b")
    on.exit(close(file))
    writeBin(laid$data, file)
  }
  text <- sprintf("{\"batch\":%.0f,\"rows\":%d,\"micros\":%.0f,%s\"buffers\":[%s]}", number, length(reply[[1]]), micros,
    if (is.null(segment)) "" else sprintf("\"segment\":\"%s\",", segment), paste(sprintf("%.0f", laid$places), collapse = ","))
  head <- c(writeBin(nchar(text, "bytes"), raw(), endian = "little"), charToRaw(text))
  c(head, raw(padded(length(head), read_alignment) - length(head)), if (is.null(segment)) laid$data)
}
