# The functions of the conformance suite, as docs/conformance.md describes them.

types <- c("bool", "int2", "int4", "int8", "float4", "float8", "text", "bytea", "date", "timestamp", "timestamptz", "numeric", "uuid", "json", "time", "timetz", "interval", "inet", "cidr", "macaddr", "datetime2", "array", "range", "composite", "decimals")
for (type in types) assign(paste0("echo_", type), function(x) x)

constant <- function() 7L

add <- function(a, b) a + b

fail_at <- function(x) {
  if (x == 13L) stop("13 is bad")
  x
}

wait <- function(seconds) {
  Sys.sleep(seconds)
  seconds
}

repeat_ <- function(n) if (is.na(n)) integer(0) else seq_len(n)
assign("repeat", repeat_)

table_lookup <- function(key) shared_table("numbers")$lookup(key)$name

total <- list(
  init = function() bit64::as.integer64(0L),
  step = function(state, x) if (is.na(x)) state else state + x,
  merge = function(state, other) state + other,
  finish = function(state) state
)
