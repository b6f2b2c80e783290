/* What a handler in C is written against: functions that the server finds by name in the handler's shared library.
 *
 * A scalar function NAME is a transship_row_function, or with batch = "columns" a transship_column_function. A table
 * function is a transship_row_function that calls emit for each result. A map function is a transship_row_function without
 * arguments that calls next for each row, and emit for each result. An aggregate function NAME has a size_t
 * NAME_state_size; its states are so many bytes, zero at first, that travel as they are, so without pointers. NAME_step
 * is a transship_step_function, NAME_finish a transship_finish_function, and NAME_merge, which is optional, a
 * transship_merge_function. */
#ifndef TRANSSHIP_H
#define TRANSSHIP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRANSSHIP_EXPORT __attribute__((visibility("default")))

/* A value. SQL's bool and integers are integer, floats are real, all else is text: bytes for bytea, and for any other type
 * the JSON form of docs/types.md, without the quotes of a string. */
typedef struct transship_value {
  int is_null;
  int64_t integer;
  double real;
  const char *data;
  size_t size;
} transship_value;

/* Rows of a shared table, which last until the function returns, and in a map function until it calls next; results may point to them. */
typedef struct transship_found {
  size_t rows;
  /* The number of each row's key among the keys. */
  const size_t *keys;
  /* The values of a column of the table, one per row. If there is no such column, the call has failed, and all are NULL. */
  const transship_value *(*column)(const struct transship_found *found, const char *name);
} transship_found;

/* A shared table of the call, which never changes. The thread that runs the function may use it until the batch is answered. A key is a value
 * for each column of the table's key, in the key's order: in the member that its type has, as arguments are. */
typedef struct transship_shared_table {
  size_t rows, columns, key_columns;
  /* Of each column, the type as docs/types.md writes it. */
  const char *const *names, *const *types;
  /* The numbers of the key's columns, counted from 0. */
  const size_t *key;
  /* The row of a key; NULL if there is none, or if the call has failed, because the key has several rows. */
  const transship_found *(*get)(const struct transship_shared_table *table, const transship_value *key);
  /* One row per key, in their order; all its columns are NULL where the table has no such row. `columns` are those of the key. If a key has
   * several rows, the call has failed, and all values are NULL. */
  const transship_found *(*lookup)(const struct transship_shared_table *table, size_t keys, const transship_value *const *columns);
  /* All rows of all keys, in the order of the keys. */
  const transship_found *(*matches)(const struct transship_shared_table *table, size_t keys, const transship_value *const *columns);
} transship_shared_table;

/* A call. What allocate gives lives until the batch is answered; results may point to it, to arguments, or to constants.
 * emit copies what it is given, which may be freed after it, and gives 0 if the client has gone or the call has failed: the function then
 * returns, since nobody waits for the rest. fail makes the call an error; the function then returns. */
typedef struct transship_call {
  void *(*allocate)(struct transship_call *call, size_t size);
  void (*fail)(struct transship_call *call, const char *message);
  int (*emit)(struct transship_call *call, const transship_value *result);
  /* Of a map function: waits for the next row, whose values last until the row after it. 0 if there are no more, or if the
   * function is to return because its results are of no use any more. */
  int (*next)(struct transship_call *call, transship_value *arguments);
  /* As fail, with another kind of error: "out_of_range" for an argument that the function's own types cannot hold, "bad_result" for a
   * result that the declared type cannot. It fails the batch even where rows have errors of their own. */
  void (*refuse)(struct transship_call *call, const char *kind, const char *message);
  /* A shared table that the function's key `tables` names; not NULL. If the call does not have it, the call has failed, and no key finds a
   * row. */
  const transship_shared_table *(*table)(struct transship_call *call, const char *name);
  /* 1 if the call has failed. */
  int (*is_failed)(struct transship_call *call);
} transship_call;

typedef void transship_row_function(transship_call *call, const transship_value *arguments, transship_value *result);
typedef void transship_column_function(transship_call *call, size_t rows, const transship_value *const *columns,
                                       transship_value *results);
typedef void transship_step_function(transship_call *call, void *state, const transship_value *arguments);
typedef void transship_merge_function(transship_call *call, void *state, const void *other);
typedef void transship_finish_function(transship_call *call, const void *state, transship_value *result);

#ifdef __cplusplus
}
#endif
#endif
