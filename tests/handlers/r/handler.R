# Handlers that misbehave; judge.py says what must come of each.

started <- 0

right <- function(x) x

wrong_type <- function(x) if (x == 2L) "text" else x

throws <- function(x) {
  if (x == 2L) invokeRestart("abort")
  x
}

waits <- function(x) {
  started <<- started + 1
  if (x == 100L) cat("the call of 100 has begun\n", file = stderr())
  Sys.sleep(0.2)
  if (x == 3L || x == 5L) stop("bad ", x)
  x
}

count <- function() started

loops <- function(x) {
  cat("the loop has begun\n", file = stderr())
  repeat started <<- started + 0
}

exits <- function(x) quit(status = 3)

# R takes it for NA.
no_integer <- function(x) if (x == 2) NaN else 1

same_day <- function(day) day

same_moment <- function(moment) moment
