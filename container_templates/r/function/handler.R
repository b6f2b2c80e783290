# One row at a time: int8 is bit64's integer64, NULL is NA.
add_one <- function(x) x + 1L

# A whole batch at a time (batch = "columns" in transship.toml): one vector per argument, one result per row.
hypotenuse <- function(a, b) sqrt(a^2 + b^2)

# A table function: any number of results for each row.
words <- function(text) {
  words <- strsplit(text, "[[:space:]]+")[[1]]
  words[words != ""]
}

# An aggregate function: states go from one function to the next; merge lets queries run in parallel.
longest <- list(
  init = function() NA_character_,
  step = function(state, text) if (!is.na(text) && (is.na(state) || nchar(text) > nchar(state))) text else state,
  merge = function(state, other) longest$step(state, other),
  finish = function(state) state
)
