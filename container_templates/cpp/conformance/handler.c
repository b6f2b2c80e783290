/* The functions of the conformance suite, as docs/conformance.md describes them, in C. */
#define _POSIX_C_SOURCE 199309L
#include <time.h>

#include "transship.h"

#define ECHO(name) \
  TRANSSHIP_EXPORT void echo_##name(transship_call *call, const transship_value *arguments, transship_value *result) { \
    (void)call; \
    *result = arguments[0]; \
  }
ECHO(bool) ECHO(int2) ECHO(int4) ECHO(int8) ECHO(float4) ECHO(float8) ECHO(text) ECHO(bytea) ECHO(date) ECHO(timestamp)
ECHO(timestamptz) ECHO(numeric) ECHO(uuid) ECHO(json) ECHO(time) ECHO(timetz) ECHO(interval) ECHO(inet) ECHO(cidr)
ECHO(macaddr) ECHO(datetime2) ECHO(array) ECHO(range) ECHO(composite) ECHO(decimals)

TRANSSHIP_EXPORT void constant(transship_call *call, const transship_value *arguments, transship_value *result) {
  (void)call, (void)arguments;
  result->integer = 7;
}

TRANSSHIP_EXPORT void add(transship_call *call, size_t rows, const transship_value *const *columns, transship_value *results) {
  (void)call;
  for (size_t row = 0; row < rows; row++) {
    results[row].is_null = columns[0][row].is_null || columns[1][row].is_null;
    results[row].integer = columns[0][row].integer + columns[1][row].integer;
  }
}

TRANSSHIP_EXPORT void fail_at(transship_call *call, const transship_value *arguments, transship_value *result) {
  if (arguments[0].integer == 13) call->fail(call, "13 is bad");
  *result = arguments[0];
}

TRANSSHIP_EXPORT void wait(transship_call *call, const transship_value *arguments, transship_value *result) {
  (void)call;
  const double seconds = arguments[0].real;
  const struct timespec span = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&span, NULL);
  *result = arguments[0];
}

TRANSSHIP_EXPORT void repeat(transship_call *call, const transship_value *arguments, transship_value *result) {
  (void)result;
  for (int64_t i = 1; !arguments[0].is_null && i <= arguments[0].integer; i++) {
    const transship_value value = {0, i, 0, NULL, 0};
    if (!call->emit(call, &value)) return;
  }
}

TRANSSHIP_EXPORT void table_lookup(transship_call *call, const transship_value *arguments, transship_value *result) {
  const transship_shared_table *numbers = call->table(call, "numbers");
  const transship_found *found = numbers->get(numbers, arguments);
  if (found) *result = *found->column(found, "name");
  else result->is_null = 1;
}

TRANSSHIP_EXPORT void running_sum(transship_call *call, const transship_value *arguments, transship_value *result) {
  (void)arguments, (void)result;
  transship_value row, sum = {0, 0, 0, NULL, 0};
  while (call->next(call, &row)) {
    if (!row.is_null) sum.integer += row.integer;
    if (!call->emit(call, &sum)) return;
  }
}

TRANSSHIP_EXPORT size_t total_state_size = sizeof(int64_t);

TRANSSHIP_EXPORT void total_step(transship_call *call, void *state, const transship_value *arguments) {
  (void)call;
  if (!arguments[0].is_null) *(int64_t *)state += arguments[0].integer;
}

TRANSSHIP_EXPORT void total_merge(transship_call *call, void *state, const void *other) {
  (void)call;
  *(int64_t *)state += *(const int64_t *)other;
}

TRANSSHIP_EXPORT void total_finish(transship_call *call, const void *state, transship_value *result) {
  (void)call;
  result->integer = *(const int64_t *)state;
}
