/* transship_core.h for JavaScript: core.ts declares what this module exports. Everything here runs on the main thread, on which
 * the event loop watches the server's descriptor. Values are copied at this border, so that neither side can reach memory that
 * the other has released. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <node_api.h>
#include <uv.h>

#include "transship_core.h"

/* Throws in JavaScript, and returns from the function, if a call of Node-API fails. */
#define CHECK(call)                                                                  \
  do {                                                                               \
    if ((call) != napi_ok) return refuse(env, #call);                                \
  } while (0)

static transship_server *server;
static uv_poll_t poll_handle;
static napi_env poll_env;
static napi_ref on_ready;
static napi_async_context ready_context;

static napi_value refuse(napi_env env, const char *fact) {
  bool is_pending = false;
  if (napi_is_exception_pending(env, &is_pending) == napi_ok && !is_pending) napi_throw_error(env, NULL, fact);
  return NULL;
}

static napi_value refuse_by_library(napi_env env) {
  const char *message = transship_message();
  return refuse(env, message[0] ? message : "the server core failed");
}

/* A text of JavaScript, which the caller frees. NULL for null and undefined, and if an exception is pending. */
static char *text_of(napi_env env, napi_value value) {
  napi_valuetype type;
  size_t length = 0;
  if (napi_typeof(env, value, &type) != napi_ok || type == napi_null || type == napi_undefined) return NULL;
  if (napi_get_value_string_utf8(env, value, NULL, 0, &length) != napi_ok) return refuse(env, "a text is expected"), NULL;
  char *text = malloc(length + 1);
  if (!text) return refuse(env, "out of memory"), NULL;
  if (napi_get_value_string_utf8(env, value, text, length + 1, &length) != napi_ok) {
    free(text);
    return refuse(env, "a text is expected"), NULL;
  }
  return text;
}

/* A unit of work: what the external points to is NULL once it has ended. */
static transship_work **work_of(napi_env env, napi_value value) {
  void *found = NULL;
  if (napi_get_value_external(env, value, &found) != napi_ok || !*(transship_work **)found) {
    refuse(env, "the work has ended");
    return NULL;
  }
  return found;
}

static void forget_work(napi_env env, void *data, void *hint) {
  (void)env, (void)hint;
  transship_work **work = data;
  if (*work) transship_work_fail(*work, "user_code", "the server has lost the call", NULL, -1);
  free(work);
}

static napi_value create(napi_env env, napi_callback_info info) {
  napi_value argument;
  size_t count = 1;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  if (server) return refuse(env, "there is a server already");
  char *config = text_of(env, argument);
  const transship_status status = transship_server_new(config, &server);
  free(config);
  return status == TRANSSHIP_OK ? NULL : refuse_by_library(env);
}

static napi_status set_text(napi_env env, napi_value object, const char *name, const char *text) {
  napi_value value;
  const napi_status status = napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &value);
  return status == napi_ok ? napi_set_named_property(env, object, name, value) : status;
}

static napi_status set_number(napi_env env, napi_value object, const char *name, double number) {
  napi_value value;
  const napi_status status = napi_create_double(env, number, &value);
  return status == napi_ok ? napi_set_named_property(env, object, name, value) : status;
}

static napi_value functions(napi_env env, napi_callback_info info) {
  (void)info;
  napi_value list;
  CHECK(napi_create_array(env, &list));
  for (size_t i = 0; i < transship_server_functions(server); i++) {
    transship_function function;
    if (transship_server_function(server, i, &function) != TRANSSHIP_OK) return refuse_by_library(env);
    napi_value entry;
    CHECK(napi_create_object(env, &entry));
    CHECK(set_text(env, entry, "name", function.name));
    CHECK(set_text(env, entry, "kind", function.kind));
    CHECK(set_text(env, entry, "batch", function.batch));
    CHECK(set_text(env, entry, "format", function.result_format));
    CHECK(set_number(env, entry, "concurrency", (double)transship_server_concurrency(server, i)));
    CHECK(napi_set_element(env, list, (uint32_t)i, entry));
  }
  return list;
}

static napi_value describe(napi_env env, napi_callback_info info) {
  napi_value list;
  size_t count = 1;
  uint32_t length = 0;
  CHECK(napi_get_cb_info(env, info, &count, &list, NULL, NULL));
  CHECK(napi_get_array_length(env, list, &length));
  size_t *merging = calloc(length + 1, sizeof *merging);
  if (!merging) return refuse(env, "out of memory");
  for (uint32_t i = 0; i < length; i++) {
    napi_value value;
    uint32_t number = 0;
    if (napi_get_element(env, list, i, &value) != napi_ok || napi_get_value_uint32(env, value, &number) != napi_ok) {
      free(merging);
      return refuse(env, "numbers of functions are expected");
    }
    merging[i] = number;
  }
  char *text = NULL;
  const transship_status status = transship_server_describe(server, merging, length, &text);
  free(merging);
  if (status != TRANSSHIP_OK) return refuse_by_library(env);
  napi_value described;
  const napi_status made = napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &described);
  transship_text_free(text);
  CHECK(made);
  return described;
}

static void tell_ready(uv_poll_t *handle, int status, int events) {
  (void)handle, (void)status, (void)events;
  napi_handle_scope scope;
  napi_value receiver, callback, exception;
  if (napi_open_handle_scope(poll_env, &scope) != napi_ok) return;
  if (napi_get_global(poll_env, &receiver) == napi_ok && napi_get_reference_value(poll_env, on_ready, &callback) == napi_ok &&
      napi_make_callback(poll_env, ready_context, receiver, callback, 0, NULL, NULL) == napi_pending_exception &&
      napi_get_and_clear_last_exception(poll_env, &exception) == napi_ok) {
    napi_fatal_exception(poll_env, exception);
  }
  napi_close_handle_scope(poll_env, scope);
}

static napi_value start(napi_env env, napi_callback_info info) {
  napi_value callback, name;
  size_t count = 1;
  uv_loop_t *loop;
  CHECK(napi_get_cb_info(env, info, &count, &callback, NULL, NULL));
  CHECK(napi_create_reference(env, callback, 1, &on_ready));
  CHECK(napi_create_string_utf8(env, "transship", NAPI_AUTO_LENGTH, &name));
  CHECK(napi_async_init(env, NULL, name, &ready_context));
  CHECK(napi_get_uv_event_loop(env, &loop));
  poll_env = env;
  if (transship_server_start(server) != TRANSSHIP_OK) return refuse_by_library(env);
  if (uv_poll_init(loop, &poll_handle, transship_server_descriptor(server)) != 0 || uv_poll_start(&poll_handle, UV_READABLE, tell_ready) != 0) {
    return refuse(env, "the event loop cannot wait for work");
  }
  return NULL;
}

/* Bytes that JavaScript gets a copy of. */
static napi_status copied(napi_env env, const void *bytes, size_t size, napi_value *buffer) {
  void *data = NULL;
  const napi_status status = napi_create_arraybuffer(env, size, &data, buffer);
  if (status == napi_ok && size > 0) memcpy(data, bytes, size);
  return status;
}

/* A column: [its format, bits of validity or null, values or offsets, bytes or null]. */
static napi_value column_of(napi_env env, const transship_column *column, size_t rows) {
  const size_t bits = (rows + 7) / 8;
  const char format = column->format;
  napi_value parts[4], list;
  CHECK(napi_create_string_utf8(env, &format, 1, &parts[0]));
  CHECK(napi_get_null(env, &parts[1]));
  CHECK(napi_get_null(env, &parts[3]));
  if (column->validity) CHECK(copied(env, column->validity, bits, &parts[1]));
  if (format == 'z') {
    const int32_t *offsets = column->values;
    void *rebased = NULL;
    CHECK(napi_create_arraybuffer(env, (rows + 1) * sizeof(int32_t), &rebased, &parts[2]));
    for (size_t row = 0; row <= rows; row++) ((int32_t *)rebased)[row] = offsets[row] - offsets[0];
    CHECK(copied(env, column->bytes + offsets[0], (size_t)(offsets[rows] - offsets[0]), &parts[3]));
  } else {
    CHECK(copied(env, column->values, format == 'b' ? bits : rows * 8, &parts[2]));
  }
  CHECK(napi_create_array_with_length(env, 4, &list));
  for (uint32_t i = 0; i < 4; i++) CHECK(napi_set_element(env, list, i, parts[i]));
  return list;
}

static napi_value columns_of(napi_env env, const transship_work *work, size_t rows) {
  const size_t count = transship_work_columns(work);
  napi_value columns;
  CHECK(napi_create_array_with_length(env, count, &columns));
  for (size_t i = 0; i < count; i++) {
    transship_column column;
    if (transship_work_column(work, i, &column) != TRANSSHIP_OK) return refuse_by_library(env);
    const napi_value list = column_of(env, &column, rows);
    if (!list) return NULL;
    CHECK(napi_set_element(env, columns, (uint32_t)i, list));
  }
  return columns;
}

/* The next unit of work; null if none waits, undefined if there will be none. */
static napi_value next(napi_env env, napi_callback_info info) {
  (void)info;
  transship_work *found = NULL;
  napi_value result, external, columns;
  const transship_status status = transship_next(server, 0, &found);
  if (status == TRANSSHIP_NOTHING) {
    CHECK(napi_get_null(env, &result));
    return result;
  }
  if (status == TRANSSHIP_ENDED) return NULL;
  if (status != TRANSSHIP_OK) return refuse_by_library(env);
  transship_work **kept = malloc(sizeof(transship_work *));
  if (!kept) {
    transship_work_fail(found, "user_code", "out of memory", NULL, -1);
    return refuse(env, "out of memory");
  }
  *kept = found;
  if (napi_create_external(env, kept, forget_work, NULL, &external) != napi_ok) {
    forget_work(env, kept, NULL);
    return refuse(env, "no external");
  }
  transship_work_info told;
  if (transship_work_info_of(found, &told) != TRANSSHIP_OK) return refuse_by_library(env);
  columns = columns_of(env, found, told.rows);
  if (!columns) return NULL;
  CHECK(napi_create_object(env, &result));
  CHECK(napi_set_named_property(env, result, "work", external));
  CHECK(napi_set_named_property(env, result, "columns", columns));
  CHECK(set_number(env, result, "function", (double)told.function));
  CHECK(set_number(env, result, "step", told.step));
  CHECK(set_number(env, result, "rowErrors", told.row_errors));
  CHECK(set_number(env, result, "exchange", (double)told.exchange));
  CHECK(set_number(env, result, "rows", (double)told.rows));
  return result;
}

/* takeBatch(work): the next batch of a map function's stream, as [rows, columns]; null if there is none yet, undefined after the last, and
 * false if nobody waits for results any more. */
static napi_value take_batch(napi_env env, napi_callback_info info) {
  napi_value argument, result, rows_value, columns;
  size_t count = 1, rows;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  transship_work **work = work_of(env, argument);
  if (!work) return NULL;
  const transship_status status = transship_work_next_columns(*work, 0, &rows);
  if (status < 0) return refuse_by_library(env);
  if (status == TRANSSHIP_ENDED) return NULL;
  if (status == TRANSSHIP_NOTHING) {
    CHECK(napi_get_null(env, &result));
    return result;
  }
  if (status == TRANSSHIP_UNWANTED) {
    CHECK(napi_get_boolean(env, false, &result));
    return result;
  }
  columns = columns_of(env, *work, rows);
  if (!columns) return NULL;
  CHECK(napi_create_double(env, (double)rows, &rows_value));
  CHECK(napi_create_array_with_length(env, 2, &result));
  CHECK(napi_set_element(env, result, 0, rows_value));
  CHECK(napi_set_element(env, result, 1, columns));
  return result;
}

static napi_value boolean_of(napi_env env, bool value) {
  napi_value result;
  CHECK(napi_get_boolean(env, value, &result));
  return result;
}

static napi_value is_cancelled(napi_env env, napi_callback_info info) {
  napi_value argument;
  size_t count = 1;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  transship_work **work = work_of(env, argument);
  return work ? boolean_of(env, transship_work_is_cancelled(*work) != 0) : NULL;
}

static napi_value is_behind(napi_env env, napi_callback_info info) {
  napi_value argument;
  size_t count = 1;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  transship_work **work = work_of(env, argument);
  return work ? boolean_of(env, transship_work_is_behind(*work) != 0) : NULL;
}

/* Where a typed array's bytes lie; NULL if it has fewer than so many, or is none. */
static const void *bytes_of(napi_env env, napi_value value, size_t least) {
  bool is_typed = false;
  void *data = NULL;
  size_t length = 0;
  napi_typedarray_type kind;
  if (napi_is_typedarray(env, value, &is_typed) != napi_ok || !is_typed ||
      napi_get_typedarray_info(env, value, &kind, &length, &data, NULL, NULL) != napi_ok) {
    return NULL;
  }
  const size_t width = kind == napi_float64_array || kind == napi_bigint64_array ? 8 : kind == napi_int32_array ? 4 : 1;
  // An empty array may lie nowhere.
  static const int64_t nothing = 0;
  return length * width < least ? NULL : least == 0 ? &nothing : data;
}

/* Reads [format, bits of validity or null, values or offsets, bytes or null]; the pointers are good until JavaScript runs. */
static bool read_column(napi_env env, napi_value list, size_t rows, transship_column *column) {
  napi_value parts[4];
  napi_valuetype type;
  char format[2] = {0};
  size_t length;
  for (uint32_t i = 0; i < 4; i++) {
    if (napi_get_element(env, list, i, &parts[i]) != napi_ok) return false;
  }
  if (napi_get_value_string_utf8(env, parts[0], format, sizeof format, &length) != napi_ok || napi_typeof(env, parts[1], &type) != napi_ok) return false;
  const size_t bits = (rows + 7) / 8;
  column->format = format[0];
  if (type != napi_null && !(column->validity = bytes_of(env, parts[1], bits))) return false;
  column->values = bytes_of(env, parts[2], format[0] == 'b' ? bits : format[0] == 'z' ? (rows + 1) * 4 : rows * 8);
  if (!column->values) return false;
  if (format[0] != 'z') return true;
  const int32_t end = ((const int32_t *)column->values)[rows];
  column->bytes = bytes_of(env, parts[3], end > 0 ? (size_t)end : 0);
  return column->bytes != NULL;
}

/* The columns of a reply of JavaScript, which the caller frees; NULL if they are malformed. */
static transship_column *read_columns(napi_env env, napi_value rows_value, napi_value list, size_t *rows, size_t *count) {
  uint32_t length = 0;
  int64_t number = 0;
  if (napi_get_array_length(env, list, &length) != napi_ok || napi_get_value_int64(env, rows_value, &number) != napi_ok || number < 0) return NULL;
  transship_column *columns = calloc(length + 1, sizeof *columns);
  for (uint32_t i = 0; columns && i < length; i++) {
    napi_value column;
    if (napi_get_element(env, list, i, &column) != napi_ok || !read_column(env, column, (size_t)number, &columns[i])) {
      free(columns);
      return NULL;
    }
  }
  *rows = (size_t)number;
  *count = length;
  return columns;
}

static napi_value has_tables(napi_env env, napi_callback_info info) {
  napi_value argument;
  size_t count = 1;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  transship_work **work = work_of(env, argument);
  return work ? boolean_of(env, transship_work_has_tables(*work) != 0) : NULL;
}

/* What an external points to: a table that is open, or rows of one; NULL once it was closed. */
struct held {
  void *what;
  /* Bytes that JavaScript's collector is told of, because rows wait for it. */
  int64_t bytes;
};

static void **held_of(napi_env env, napi_value value) {
  void *found = NULL;
  if (napi_get_value_external(env, value, &found) != napi_ok || !((struct held *)found)->what) {
    refuse(env, "the shared table is closed: its call has ended");
    return NULL;
  }
  return &((struct held *)found)->what;
}

static void end_rows(napi_env env, struct held *held) {
  int64_t all;
  if (held->what) napi_adjust_external_memory(env, -held->bytes, &all);
  transship_rows_free(held->what);
  held->what = NULL;
}

static void forget_table(napi_env env, void *data, void *hint) {
  (void)env, (void)hint;
  transship_table_close(((struct held *)data)->what);
  free(data);
}

static void forget_rows(napi_env env, void *data, void *hint) {
  (void)hint;
  end_rows(env, data);
  free(data);
}

static napi_value hold_table(napi_env env, transship_table *table) {
  napi_value external;
  struct held *held = malloc(sizeof *held);
  if (held) *held = (struct held){table, 0};
  if (held && napi_create_external(env, held, forget_table, NULL, &external) == napi_ok) return external;
  transship_table_close(table);
  free(held);
  return refuse(env, "out of memory");
}

static napi_value hold_rows(napi_env env, const transship_table *table, transship_rows *rows) {
  napi_value external;
  int64_t all;
  transship_rows_info told = {0};
  transship_rows_info_of(rows, &told);
  struct held *held = malloc(sizeof *held);
  /* Texts may take more, numbers take less. */
  if (held) *held = (struct held){rows, (int64_t)(told.rows * transship_table_fields(table) * 16)};
  if (held && napi_create_external(env, held, forget_rows, NULL, &external) == napi_ok) {
    napi_adjust_external_memory(env, held->bytes, &all);
    return external;
  }
  transship_rows_free(rows);
  free(held);
  return refuse(env, "out of memory");
}

/* openTable(work, name): the table. */
static napi_value open_table(napi_env env, napi_callback_info info) {
  napi_value arguments[2];
  size_t count = 2;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  transship_work **work = work_of(env, arguments[0]);
  if (!work) return NULL;
  char *name = text_of(env, arguments[1]);
  if (!name) return refuse(env, "the name of a shared table is a text");
  transship_table *table = NULL;
  const transship_status status = transship_work_table(*work, name, &table);
  free(name);
  return status == TRANSSHIP_OK ? hold_table(env, table) : refuse_by_library(env);
}

static napi_value close_table(napi_env env, napi_callback_info info) {
  napi_value argument;
  size_t count = 1;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  void **table = held_of(env, argument);
  if (!table) return NULL;
  transship_table_close(*table);
  *table = NULL;
  return NULL;
}

/* describeTable(table): { rows, batches, fields: [{ name, type, format, key }] }. */
static napi_value describe_table(napi_env env, napi_callback_info info) {
  napi_value argument, result, list;
  size_t count = 1;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  void **table = held_of(env, argument);
  if (!table) return NULL;
  CHECK(napi_create_object(env, &result));
  CHECK(napi_create_array(env, &list));
  CHECK(set_number(env, result, "rows", (double)transship_table_rows(*table)));
  CHECK(set_number(env, result, "batches", (double)transship_table_batches(*table)));
  CHECK(napi_set_named_property(env, result, "fields", list));
  for (size_t i = 0; i < transship_table_fields(*table); i++) {
    transship_field field;
    napi_value entry;
    if (transship_table_field(*table, i, &field) != TRANSSHIP_OK) return refuse_by_library(env);
    const char format[] = {field.format, 0};
    CHECK(napi_create_object(env, &entry));
    CHECK(set_text(env, entry, "name", field.name));
    CHECK(set_text(env, entry, "type", field.type));
    CHECK(set_text(env, entry, "format", format));
    CHECK(set_number(env, entry, "key", field.key));
    CHECK(napi_set_element(env, list, (uint32_t)i, entry));
  }
  return result;
}

/* tableBatch(table, number): rows. */
static napi_value table_batch(napi_env env, napi_callback_info info) {
  napi_value arguments[2];
  size_t count = 2;
  int64_t number = 0;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  CHECK(napi_get_value_int64(env, arguments[1], &number));
  void **table = held_of(env, arguments[0]);
  if (!table) return NULL;
  transship_rows *rows = NULL;
  if (transship_table_batch_columns(*table, (size_t)number, &rows) != TRANSSHIP_OK) return refuse_by_library(env);
  return hold_rows(env, *table, rows);
}

/* freeRows(rows). */
static napi_value free_rows(napi_env env, napi_callback_info info) {
  napi_value argument;
  size_t count = 1;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  void **rows = held_of(env, argument);
  if (rows) end_rows(env, (struct held *)rows);
  return NULL;
}

/* describeRows(rows): [how many, bits of validity or null, positions of keys or null]. */
static napi_value describe_rows(napi_env env, napi_callback_info info) {
  napi_value argument, parts[3], list;
  size_t count = 1;
  transship_rows_info told;
  CHECK(napi_get_cb_info(env, info, &count, &argument, NULL, NULL));
  void **rows = held_of(env, argument);
  if (!rows) return NULL;
  if (transship_rows_info_of(*rows, &told) != TRANSSHIP_OK) return refuse_by_library(env);
  CHECK(napi_create_double(env, (double)told.rows, &parts[0]));
  CHECK(napi_get_null(env, &parts[1]));
  CHECK(napi_get_null(env, &parts[2]));
  if (told.validity) CHECK(copied(env, told.validity, (told.rows + 7) / 8, &parts[1]));
  if (told.positions) CHECK(copied(env, told.positions, told.rows * sizeof *told.positions, &parts[2]));
  CHECK(napi_create_array_with_length(env, 3, &list));
  for (uint32_t i = 0; i < 3; i++) CHECK(napi_set_element(env, list, i, parts[i]));
  return list;
}

/* rowsColumn(rows, number, how many). */
static napi_value rows_column(napi_env env, napi_callback_info info) {
  napi_value arguments[3];
  size_t count = 3;
  int64_t number = 0, length = 0;
  transship_column column;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  CHECK(napi_get_value_int64(env, arguments[1], &number));
  CHECK(napi_get_value_int64(env, arguments[2], &length));
  void **rows = held_of(env, arguments[0]);
  if (!rows) return NULL;
  if (transship_rows_column(*rows, (size_t)number, &column) != TRANSSHIP_OK) return refuse_by_library(env);
  return column_of(env, &column, (size_t)length);
}

/* part(work, rows, columns): whether somebody waits for the rest. */
static napi_value part(napi_env env, napi_callback_info info) {
  napi_value arguments[3];
  size_t count = 3, rows, width;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  transship_work **work = work_of(env, arguments[0]);
  if (!work) return NULL;
  transship_column *columns = read_columns(env, arguments[1], arguments[2], &rows, &width);
  if (!columns) return refuse(env, "the reply is malformed");
  const transship_status status = transship_work_part_columns(*work, rows, columns, width);
  free(columns);
  return status < 0 ? refuse_by_library(env) : boolean_of(env, status == TRANSSHIP_OK);
}

/* lookUp(table, keys, columns, all): rows. */
static napi_value look_up(napi_env env, napi_callback_info info) {
  napi_value arguments[4];
  size_t count = 4, keys, width;
  bool all = false;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  CHECK(napi_get_value_bool(env, arguments[3], &all));
  void **table = held_of(env, arguments[0]);
  if (!table) return NULL;
  transship_column *columns = read_columns(env, arguments[1], arguments[2], &keys, &width);
  if (!columns) return refuse(env, "the keys are malformed");
  transship_rows *rows = NULL;
  const transship_status status = transship_table_lookup_columns(*table, keys, columns, width, all, &rows);
  free(columns);
  return status == TRANSSHIP_OK ? hold_rows(env, *table, rows) : refuse_by_library(env);
}

/* answer(work, rows, columns). */
static napi_value answer(napi_env env, napi_callback_info info) {
  napi_value arguments[3];
  size_t count = 3, rows, width;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  transship_work **work = work_of(env, arguments[0]);
  if (!work) return NULL;
  transship_column *columns = read_columns(env, arguments[1], arguments[2], &rows, &width);
  if (!columns) return refuse(env, "the reply is malformed");
  transship_work *ended = *work;
  *work = NULL;
  // A reply that cannot be read is an error that the client gets.
  transship_work_answer_columns(ended, rows, columns, width);
  free(columns);
  return NULL;
}

/* fail(work, kind, message, traceback, row); traceback may be null, and row below zero. */
static napi_value fail(napi_env env, napi_callback_info info) {
  napi_value arguments[5];
  size_t count = 5;
  int64_t row = -1;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  CHECK(napi_get_value_int64(env, arguments[4], &row));
  transship_work **work = work_of(env, arguments[0]);
  if (!work) return NULL;
  char *kind = text_of(env, arguments[1]), *message = text_of(env, arguments[2]), *traceback = text_of(env, arguments[3]);
  transship_work_fail(*work, kind ? kind : "user_code", message ? message : "", traceback, row);
  *work = NULL;
  free(kind);
  free(message);
  free(traceback);
  return NULL;
}

/* Lets the process end once nothing else keeps it. */
static napi_value stop_waiting(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  uv_poll_stop(&poll_handle);
  return NULL;
}

static napi_value initialize(napi_env env, napi_value exports) {
  const struct {
    const char *name;
    napi_callback function;
  } entries[] = {
      {"create", create}, {"functions", functions}, {"describe", describe}, {"start", start}, {"next", next},
      {"isCancelled", is_cancelled}, {"isBehind", is_behind}, {"part", part}, {"answer", answer}, {"fail", fail},
      {"takeBatch", take_batch}, {"stopWaiting", stop_waiting}, {"hasTables", has_tables}, {"openTable", open_table},
      {"closeTable", close_table}, {"describeTable", describe_table}, {"tableBatch", table_batch}, {"lookUp", look_up},
      {"describeRows", describe_rows}, {"rowsColumn", rows_column}, {"freeRows", free_rows},
  };
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
    napi_value function;
    CHECK(napi_create_function(env, entries[i].name, NAPI_AUTO_LENGTH, entries[i].function, NULL, &function));
    CHECK(napi_set_named_property(env, exports, entries[i].name, function));
  }
  return exports;
}

NAPI_MODULE(transship, initialize)
