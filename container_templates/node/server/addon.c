/* transship_core.h for JavaScript: core.ts declares what this module exports. Everything here runs on the main thread, on which
 * the event loop watches the server's descriptor. Values are copied at this border, so that neither side can reach memory that
 * the other has released. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
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

/* A plain column: [its format, bits of validity or null, values or offsets, bytes or null, the bit with which bits begin]. */
static napi_value column_of(napi_env env, const struct ArrowArray *column, char format) {
  const size_t rows = (size_t)column->length, first = (size_t)column->offset, bit = first % 8, bits = (bit + rows + 7) / 8;
  const char *values = column->buffers[1];
  napi_value parts[5], list;
  CHECK(napi_create_string_utf8(env, &format, 1, &parts[0]));
  CHECK(napi_get_null(env, &parts[1]));
  CHECK(napi_get_null(env, &parts[3]));
  CHECK(napi_create_uint32(env, (uint32_t)bit, &parts[4]));
  if (column->buffers[0] && column->null_count != 0) CHECK(copied(env, (const char *)column->buffers[0] + first / 8, bits, &parts[1]));
  if (format == 'b') {
    CHECK(copied(env, values + first / 8, rows > 0 ? bits : 0, &parts[2]));
  } else if (format == 'l' || format == 'g') {
    CHECK(copied(env, values + first * 8, rows * 8, &parts[2]));
  } else {
    const int32_t *offsets = (const int32_t *)values + first;
    const int32_t start = rows > 0 ? offsets[0] : 0;
    void *rebased = NULL;
    CHECK(napi_create_arraybuffer(env, (rows + 1) * sizeof(int32_t), &rebased, &parts[2]));
    for (size_t row = 0; row <= rows; row++) ((int32_t *)rebased)[row] = rows > 0 ? offsets[row] - start : 0;
    const size_t size = rows > 0 ? (size_t)(offsets[rows] - start) : 0;
    CHECK(copied(env, size > 0 ? (const char *)column->buffers[2] + start : NULL, size, &parts[3]));
  }
  CHECK(napi_create_array_with_length(env, 5, &list));
  for (uint32_t i = 0; i < 5; i++) CHECK(napi_set_element(env, list, i, parts[i]));
  return list;
}

static napi_value columns_of(napi_env env, const transship_work *work) {
  struct ArrowArray array;
  struct ArrowSchema schema;
  napi_value columns = NULL;
  if (transship_work_batch(work, &array, &schema) != TRANSSHIP_OK) return refuse_by_library(env);
  if (napi_create_array_with_length(env, (size_t)array.n_children, &columns) != napi_ok) columns = refuse(env, "no array");
  for (int64_t i = 0; columns && i < array.n_children; i++) {
    const napi_value column = column_of(env, array.children[i], schema.children[i]->format[0]);
    if (!column || napi_set_element(env, columns, (uint32_t)i, column) != napi_ok) columns = refuse(env, "no column");
  }
  array.release(&array);
  schema.release(&schema);
  return columns;
}

static napi_status set_number(napi_env env, napi_value object, const char *name, double number) {
  napi_value value;
  const napi_status status = napi_create_double(env, number, &value);
  return status == napi_ok ? napi_set_named_property(env, object, name, value) : status;
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
  columns = columns_of(env, found);
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

/* What a column of a reply keeps until the library releases it. */
struct reply_column {
  struct ArrowArray array;
  struct ArrowSchema schema;
  const void *buffers[3];
};

struct reply {
  size_t count;
  struct reply_column *columns;
  struct ArrowArray **arrays;
  struct ArrowSchema **schemas;
  const void *nothing;
};

static void release_column(struct ArrowArray *array) {
  for (int64_t i = 0; i < array->n_buffers; i++) free((void *)array->buffers[i]);
  array->release = NULL;
}

static void release_nothing(struct ArrowSchema *schema) { schema->release = NULL; }

static void free_reply(struct reply *reply) {
  for (size_t i = 0; reply->columns && i < reply->count; i++) {
    if (reply->columns[i].array.release) reply->columns[i].array.release(&reply->columns[i].array);
  }
  free(reply->columns);
  free(reply->arrays);
  free(reply->schemas);
  free(reply);
}

static void release_reply(struct ArrowArray *array) {
  free_reply(array->private_data);
  array->release = NULL;
}

/* A copy of a typed array's bytes, which has at least so many. NULL for null, and if an exception is pending. */
static void *bytes_of(napi_env env, napi_value value, size_t least, bool *has_failed) {
  napi_valuetype type;
  bool is_typed = false;
  if (napi_typeof(env, value, &type) == napi_ok && type == napi_null && least == 0) return NULL;
  void *data = NULL;
  size_t length = 0;
  napi_typedarray_type kind;
  if (napi_is_typedarray(env, value, &is_typed) == napi_ok && is_typed &&
      napi_get_typedarray_info(env, value, &kind, &length, &data, NULL, NULL) == napi_ok) {
    const size_t width = kind == napi_float64_array || kind == napi_bigint64_array || kind == napi_biguint64_array ? 8
                         : kind == napi_int32_array || kind == napi_uint32_array || kind == napi_float32_array   ? 4
                         : kind == napi_int16_array || kind == napi_uint16_array                                 ? 2
                                                                                                                 : 1;
    void *copy = length * width >= least ? malloc(least + 8) : NULL;
    if (copy) {
      memcpy(copy, data, least);
      return copy;
    }
  }
  *has_failed = true;
  return NULL;
}

/* Takes over [format, bits of validity or null, NULLs, values or offsets, bytes or null]. */
static bool read_reply_column(napi_env env, napi_value list, size_t rows, struct reply_column *column) {
  napi_value parts[5];
  char format[2] = {0};
  size_t length;
  uint32_t nulls = 0;
  bool has_failed = false;
  for (uint32_t i = 0; i < 5; i++) {
    if (napi_get_element(env, list, i, &parts[i]) != napi_ok) return false;
  }
  if (napi_get_value_string_utf8(env, parts[0], format, sizeof format, &length) != napi_ok || napi_get_value_uint32(env, parts[2], &nulls) != napi_ok) return false;
  const size_t bits = (rows + 7) / 8, size = format[0] == 'b' ? bits : format[0] == 'z' ? (rows + 1) * 4 : rows * 8;
  column->schema = (struct ArrowSchema){.format = format[0] == 'b' ? "b" : format[0] == 'l' ? "l" : format[0] == 'g' ? "g" : "z", .name = "", .flags = ARROW_FLAG_NULLABLE, .release = release_nothing};
  column->array = (struct ArrowArray){.length = (int64_t)rows, .null_count = nulls, .n_buffers = format[0] == 'z' ? 3 : 2, .buffers = column->buffers, .release = release_column};
  column->buffers[0] = bytes_of(env, parts[1], nulls > 0 ? bits : 0, &has_failed);
  column->buffers[1] = bytes_of(env, parts[3], size, &has_failed);
  if (format[0] == 'z' && !has_failed) {
    const int32_t end = ((const int32_t *)column->buffers[1])[rows];
    column->buffers[2] = bytes_of(env, parts[4], end > 0 ? (size_t)end : 0, &has_failed);
  }
  return !has_failed;
}

/* The reply of JavaScript: a number of rows, and columns. */
static bool read_reply(napi_env env, napi_value rows_value, napi_value list, struct ArrowArray *array, struct ArrowSchema *schema) {
  uint32_t count = 0;
  int64_t rows = 0;
  if (napi_get_array_length(env, list, &count) != napi_ok || napi_get_value_int64(env, rows_value, &rows) != napi_ok || rows < 0) return false;
  struct reply *reply = calloc(1, sizeof *reply);
  if (!reply) return false;
  reply->count = count;
  reply->columns = calloc(count + 1, sizeof *reply->columns);
  reply->arrays = calloc(count + 1, sizeof *reply->arrays);
  reply->schemas = calloc(count + 1, sizeof *reply->schemas);
  bool is_read = reply->columns && reply->arrays && reply->schemas;
  for (uint32_t i = 0; is_read && i < count; i++) {
    napi_value column;
    reply->arrays[i] = &reply->columns[i].array;
    reply->schemas[i] = &reply->columns[i].schema;
    is_read = napi_get_element(env, list, i, &column) == napi_ok && read_reply_column(env, column, (size_t)rows, &reply->columns[i]);
  }
  if (!is_read) {
    free_reply(reply);
    return false;
  }
  *array = (struct ArrowArray){.length = rows, .n_buffers = 1, .buffers = &reply->nothing, .n_children = count, .children = reply->arrays, .release = release_reply, .private_data = reply};
  *schema = (struct ArrowSchema){.format = "+s", .name = "", .n_children = count, .children = reply->schemas, .release = release_nothing};
  return true;
}

/* part(work, rows, columns): whether somebody waits for the rest. */
static napi_value part(napi_env env, napi_callback_info info) {
  napi_value arguments[3];
  size_t count = 3;
  struct ArrowArray array;
  struct ArrowSchema schema;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  transship_work **work = work_of(env, arguments[0]);
  if (!work) return NULL;
  if (!read_reply(env, arguments[1], arguments[2], &array, &schema)) return refuse(env, "the reply is malformed");
  const transship_status status = transship_work_part(*work, &array, &schema);
  return status < 0 ? refuse_by_library(env) : boolean_of(env, status == TRANSSHIP_OK);
}

/* answer(work, rows, columns); columns are null for a step without results. */
static napi_value answer(napi_env env, napi_callback_info info) {
  napi_value arguments[3];
  napi_valuetype type;
  size_t count = 3;
  struct ArrowArray array;
  struct ArrowSchema schema;
  CHECK(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  CHECK(napi_typeof(env, arguments[2], &type));
  transship_work **work = work_of(env, arguments[0]);
  if (!work) return NULL;
  if (type != napi_null && !read_reply(env, arguments[1], arguments[2], &array, &schema)) return refuse(env, "the reply is malformed");
  transship_work *ended = *work;
  *work = NULL;
  // A reply that cannot be read is an error that the client gets.
  if (type == napi_null) transship_work_answer(ended, NULL, NULL);
  else transship_work_answer(ended, &array, &schema);
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
      {"stopWaiting", stop_waiting},
  };
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
    napi_value function;
    CHECK(napi_create_function(env, entries[i].name, NAPI_AUTO_LENGTH, entries[i].function, NULL, &function));
    CHECK(napi_set_named_property(env, exports, entries[i].name, function));
  }
  return exports;
}

NAPI_MODULE(transship, initialize)
