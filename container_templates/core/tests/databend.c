/* Answers calls on one thread, in either form of columns: databend FOLDER FORM, where the folder has manifest.json and the form is arrow
 * or plain. Functions of other names than those below return their argument. A client of Databend's calls them: the Rust test beside
 * it (databend.rs) and the Python template's test_server.py, which compile this. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transship_core.h"

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "databend.c:%d: %s: %s\n", __LINE__, #condition, transship_message()); \
      exit(1); \
    } \
  } while (0)

static int is_null(const transship_column *column, size_t row) {
  return column->validity && !(column->validity[row / 8] >> row % 8 & 1);
}

/* Sums of two columns of int64. */
static void add(transship_work *work, size_t rows) {
  transship_column a, b;
  CHECK(transship_work_column(work, 0, &a) == TRANSSHIP_OK && transship_work_column(work, 1, &b) == TRANSSHIP_OK);
  int64_t *sums = calloc(rows + 1, sizeof *sums);
  uint8_t *validity = calloc(rows / 8 + 1, 1);
  for (size_t row = 0; row < rows; row++) {
    if (is_null(&a, row) || is_null(&b, row)) continue;
    sums[row] = ((const int64_t *)a.values)[row] + ((const int64_t *)b.values)[row];
    validity[row / 8] |= (uint8_t)(1 << row % 8);
  }
  const transship_column reply = {.format = 'l', .validity = validity, .values = sums};
  CHECK(transship_work_answer_columns(work, rows, &reply, 1) == TRANSSHIP_OK);
  free(sums);
  free(validity);
}

/* For each row of int64 a row of a table, in a part of its own: (n, NULL). */
static void pairs(transship_work *work, size_t rows) {
  transship_column given;
  CHECK(transship_work_column(work, 0, &given) == TRANSSHIP_OK);
  for (size_t row = 0; row < rows; row++) {
    char text[64];
    const int length = snprintf(text, sizeof text, "{\"a\": %" PRId64 ", \"b\": null}", ((const int64_t *)given.values)[row]);
    const int64_t number = (int64_t)row;
    const int32_t offsets[] = {0, length};
    const transship_column part[] = {{.format = 'l', .values = &number}, {.format = 'z', .values = offsets, .bytes = (const uint8_t *)text}};
    CHECK(transship_work_part_columns(work, 1, part, 2) == TRANSSHIP_OK);
  }
  const transship_column rest[] = {{.format = 'l'}, {.format = 'z'}};
  CHECK(transship_work_answer_columns(work, 0, rest, 2) == TRANSSHIP_OK);
}

/* The argument, as the results of a table function behind the numbers of their rows if it is one. */
static void echo_plain(transship_work *work, size_t rows, int is_table) {
  transship_column columns[2] = {{.format = 'l'}};
  int64_t *numbers = calloc(rows + 1, sizeof *numbers);
  for (size_t row = 0; row < rows; row++) numbers[row] = (int64_t)row;
  columns[0].values = numbers;
  CHECK(transship_work_column(work, 0, &columns[1]) == TRANSSHIP_OK);
  CHECK(transship_work_answer_columns(work, rows, is_table ? columns : columns + 1, is_table ? 2 : 1) == TRANSSHIP_OK);
  free(numbers);
}

/* A reply of numbers of rows and a column of the batch, which it keeps. */
struct reply {
  struct ArrowArray batch, numbers, *columns[2];
  const void *buffers[2], *nothing;
};

static void release_reply(struct ArrowArray *array) {
  struct reply *reply = array->private_data;
  reply->batch.release(&reply->batch);
  free((void *)reply->buffers[1]);
  free(reply);
  array->release = NULL;
}

static void release_child(struct ArrowArray *array) { array->release = NULL; }
static void release_schema(struct ArrowSchema *schema) { schema->release = NULL; }

static void echo_arrow(transship_work *work, int is_table) {
  struct ArrowArray batch;
  struct ArrowSchema schema;
  CHECK(transship_work_batch(work, &batch, &schema) == TRANSSHIP_OK && batch.n_children == 1 && batch.offset == 0);
  if (!is_table) {
    CHECK(transship_work_answer(work, &batch, &schema) == TRANSSHIP_OK);
    return;
  }
  int32_t *numbers = calloc((size_t)batch.length + 1, sizeof *numbers);
  for (int32_t row = 0; row < batch.length; row++) numbers[row] = row;
  struct reply *reply = calloc(1, sizeof *reply);
  reply->batch = batch;
  reply->buffers[1] = numbers;
  reply->numbers = (struct ArrowArray){.length = batch.length, .n_buffers = 2, .buffers = reply->buffers, .release = release_child};
  reply->columns[0] = &reply->numbers;
  reply->columns[1] = batch.children[0];
  struct ArrowSchema number = {.format = "i", .name = "row", .release = release_schema}, *fields[2] = {&number, schema.children[0]};
  struct ArrowSchema both = {.format = "+s", .name = "", .n_children = 2, .children = fields, .release = release_schema};
  struct ArrowArray array = {.length = batch.length, .n_buffers = 1, .n_children = 2, .buffers = &reply->nothing, .children = reply->columns, .release = release_reply, .private_data = reply};
  CHECK(transship_work_answer(work, &array, &both) == TRANSSHIP_OK);
  schema.release(&schema);
}

int main(int count, char **arguments) {
  char config[4096];
  CHECK(count == 3);
  snprintf(config, sizeof config, "{\"server\": \"databend/1\", \"root\": \"%s\", \"columns\": \"%s\", \"one_thread\": true}", arguments[1], arguments[2]);
  transship_server *server = NULL;
  CHECK(transship_server_new(config, &server) == TRANSSHIP_OK && transship_server_start(server) == TRANSSHIP_OK);
  transship_work *work = NULL;
  while (transship_next(server, -1, &work) == TRANSSHIP_OK) {
    transship_work_info info;
    transship_function function;
    CHECK(transship_work_info_of(work, &info) == TRANSSHIP_OK && transship_server_function(server, info.function, &function) == TRANSSHIP_OK);
    const int is_table = strcmp(function.kind, "table") == 0;
    if (strcmp(function.name, "fail") == 0) {
      CHECK(transship_work_fail(work, "user_code", "ValueError: three", NULL, 0) == TRANSSHIP_OK);
    } else if (strcmp(arguments[2], "arrow") == 0) {
      echo_arrow(work, is_table);
    } else if (strcmp(function.name, "add") == 0) {
      add(work, info.rows);
    } else if (strcmp(function.name, "pairs") == 0) {
      pairs(work, info.rows);
    } else if (strcmp(function.name, "seven") == 0) {
      int64_t *sevens = calloc(info.rows + 1, sizeof *sevens);
      for (size_t row = 0; row < info.rows; row++) sevens[row] = 7;
      const transship_column reply = {.format = 'l', .values = sevens};
      CHECK(transship_work_answer_columns(work, info.rows, &reply, 1) == TRANSSHIP_OK);
      free(sevens);
    } else {
      echo_plain(work, info.rows, is_table);
    }
  }
  transship_server_free(server);
  return 0;
}
