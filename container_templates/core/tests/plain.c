/* Answers calls with plain columns, on one thread: plain FOLDER MEMBERS, where the folder has manifest.json, and the configuration of the
 * server has the members, such as `, "tables": true`. The Rust test beside it (c_interface.rs) compiles
 * this and is its client. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transship_core.h"

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "plain.c:%d: %s: %s\n", __LINE__, #condition, transship_message()); \
      exit(1); \
    } \
  } while (0)

/* As runtimes do that end on their own. */
static void end_badly(int number) {
  (void)number;
  _exit(9);
}

/* The argument itself is the result. */
static void echo(transship_work *work, size_t rows) {
  transship_column column;
  CHECK(transship_work_columns(work) == 1 && transship_work_is_behind(work) == 0 && !transship_work_has_tables(work));
  CHECK(transship_work_column(work, 1, &column) == TRANSSHIP_INVALID && transship_work_column(work, 0, NULL) == TRANSSHIP_INVALID);
  CHECK(transship_work_column(work, 0, &column) == TRANSSHIP_OK);
  CHECK(transship_work_answer_columns(work, rows, &column, 1) == TRANSSHIP_OK);
}

/* Each value names another malformed reply, as the length of its text. */
static void answer_badly(transship_work *work) {
  transship_column given;
  CHECK(transship_work_column(work, 0, &given) == TRANSSHIP_OK);
  const int32_t *offsets = given.values, descending[] = {3, 1}, negative[] = {-1, 1}, far[] = {0, 5};
  const size_t length = (size_t)(offsets[1] - offsets[0]);
  const transship_column column = {
      .format = length == 0 ? 'x' : 'z',
      .values = length == 1 ? NULL : length == 2 ? descending : length == 3 ? negative : far,
      .bytes = length == 4 ? NULL : (const uint8_t *)"\xff\xff\xff\xff\xff",
  };
  if (length == 6) CHECK(transship_work_answer_columns(work, 1, NULL, 1) == TRANSSHIP_FAILED);
  /* What is malformed is refused here, and the client told; what is no text is the client's error alone. */
  else CHECK(transship_work_answer_columns(work, 1, &column, 1) == (length == 5 ? TRANSSHIP_OK : TRANSSHIP_FAILED));
}

/* Parts of one result each, as many as the client is ready to take. */
static void emit(transship_work *work, int64_t count) {
  const int64_t row = 0;
  for (int64_t i = 0; i < count; i++) {
    while (transship_work_is_behind(work)) usleep(100);
    const transship_column part[] = {{.format = 'l', .values = &row}, {.format = 'l', .values = &i}};
    CHECK(transship_work_part_columns(work, 1, part, 2) == TRANSSHIP_OK);
  }
  const transship_column rest[] = {{.format = 'l'}, {.format = 'l'}};
  CHECK(transship_work_answer_columns(work, 0, rest, 2) == TRANSSHIP_OK);
}

static void check_null_of_tables(void) {
  transship_rows *rows = (transship_rows *)&rows;
  transship_field field;
  transship_rows_info info;
  transship_column column;
  CHECK(transship_work_has_tables(NULL) == 0 && transship_table_fields(NULL) == 0 && transship_table_field(NULL, 0, &field) == TRANSSHIP_INVALID);
  CHECK(transship_table_lookup_columns(NULL, 0, NULL, 0, 0, &rows) == TRANSSHIP_INVALID && !rows);
  CHECK(transship_table_lookup_columns(NULL, 0, NULL, 0, 0, NULL) == TRANSSHIP_INVALID);
  CHECK(transship_table_batch_columns(NULL, 0, &rows) == TRANSSHIP_INVALID && !rows);
  CHECK(transship_rows_info_of(NULL, &info) == TRANSSHIP_INVALID && transship_rows_column(NULL, 0, &column) == TRANSSHIP_INVALID);
  transship_rows_free(NULL);
}

/* The message lives until the next call. */
static void fail_as_told(transship_work *work) {
  char message[1000];
  snprintf(message, sizeof message, "%s", transship_message());
  CHECK(transship_work_fail(work, "user_code", message, NULL, -1) == TRANSSHIP_OK);
}

static int has_bit(const uint8_t *bits, size_t at) { return bits[at / 8] >> (at % 8) & 1; }

/* Answers with the column `name` of one row per key, which are the argument; or of all rows of all keys. */
static void look_up(transship_work *work, size_t count, const char *table_name, const char *name, int all) {
  transship_table *table = NULL;
  transship_column keys, column, twice[2];
  CHECK(transship_work_column(work, 0, &keys) == TRANSSHIP_OK);
  if (transship_work_table(work, table_name, &table) != TRANSSHIP_OK) {
    fail_as_told(work);
    return;
  }
  CHECK(transship_work_has_tables(work) == 1);
  size_t number = 0;
  transship_field field;
  CHECK(transship_table_field(table, transship_table_fields(table), &field) == TRANSSHIP_INVALID && transship_table_field(table, 0, NULL) == TRANSSHIP_INVALID);
  CHECK(transship_table_field(table, 0, &field) == TRANSSHIP_OK && field.key == 0 && field.format == keys.format);
  do CHECK(transship_table_field(table, ++number, &field) == TRANSSHIP_OK && field.key < 0);
  while (strcmp(field.name, name) != 0);
  transship_rows *rows = (transship_rows *)&rows, *batch = (transship_rows *)&batch;
  transship_rows_info info;
  /* All rows, as plain columns. */
  int64_t read = 0;
  for (size_t i = 0; i < transship_table_batches(table); i++) {
    CHECK(transship_table_batch_columns(table, i, &batch) == TRANSSHIP_OK && transship_table_batch_columns(table, i, NULL) == TRANSSHIP_INVALID);
    CHECK(transship_rows_info_of(batch, &info) == TRANSSHIP_OK && !info.validity && !info.positions);
    read += (int64_t)info.rows;
    for (size_t j = 0; j < transship_table_fields(table); j++) {
      CHECK(transship_table_field(table, j, &field) == TRANSSHIP_OK && transship_rows_column(batch, j, &column) == TRANSSHIP_OK);
      CHECK(column.format == field.format && column.values);
    }
    transship_rows_free(batch);
  }
  CHECK(read == transship_table_rows(table));
  CHECK(transship_table_batch_columns(table, transship_table_batches(table), &batch) == TRANSSHIP_INVALID && !batch);
  /* Keys of another number of columns, and of another format. */
  twice[0] = twice[1] = keys;
  CHECK(transship_table_lookup_columns(table, count, twice, 2, 0, &rows) == TRANSSHIP_FAILED && !rows && strstr(transship_message(), table_name));
  CHECK(transship_table_lookup_columns(table, count, NULL, 1, 0, &rows) == TRANSSHIP_FAILED && !rows);
  const double real = 1;
  const transship_column other = {.format = 'g', .values = &real};
  CHECK(transship_table_lookup_columns(table, 1, &other, 1, 0, &rows) == TRANSSHIP_FAILED && strstr(transship_message(), "the keys do not fit"));
  const transship_status status = transship_table_lookup_columns(table, count, &keys, 1, all, &rows);
  if (status != TRANSSHIP_OK) {
    CHECK(status == TRANSSHIP_FAILED && !rows);
    fail_as_told(work);
    transship_table_close(table);
    return;
  }
  /* What was found outlives the table. */
  transship_table_close(table);
  CHECK(transship_rows_info_of(rows, NULL) == TRANSSHIP_INVALID && transship_rows_column(rows, 0, NULL) == TRANSSHIP_INVALID);
  CHECK(transship_rows_info_of(rows, &info) == TRANSSHIP_OK && transship_rows_column(rows, 99, &column) == TRANSSHIP_INVALID);
  CHECK(transship_rows_column(rows, number, &column) == TRANSSHIP_OK && transship_rows_column(rows, number, &twice[1]) == TRANSSHIP_OK);
  CHECK(column.values == twice[1].values && column.validity == twice[1].validity);
  CHECK(transship_rows_column(rows, 0, &twice[0]) == TRANSSHIP_OK && twice[0].format == keys.format);
  if (all) {
    int64_t *positions = calloc(info.rows + 1, sizeof *positions);
    for (size_t row = 0; row < info.rows; row++) positions[row] = info.positions[row];
    const transship_column reply[] = {{.format = 'l', .values = positions}, column};
    CHECK(!info.validity && transship_work_answer_columns(work, info.rows, reply, 2) == TRANSSHIP_OK);
    free(positions);
  } else {
    CHECK(info.rows == count && !info.positions);
    for (size_t row = 0; row < count; row++) {
      /* The key of a row that was found is none that is NULL. */
      CHECK((!info.validity || has_bit(info.validity, row)) == (!twice[0].validity || has_bit(twice[0].validity, row)));
    }
    CHECK(transship_work_answer_columns(work, count, &column, 1) == TRANSSHIP_OK);
  }
  transship_rows_free(rows);
}

int main(int count, char **arguments) {
  char config[4096];
  CHECK(count == 3);
  snprintf(config, sizeof config, "{\"server\": \"plain/1\", \"root\": \"%s\", \"columns\": \"plain\", \"one_thread\": true%s}", arguments[1], arguments[2]);
  transship_server *server = NULL;
  CHECK(transship_work_columns(NULL) == 0 && transship_work_is_behind(NULL) == 0);
  CHECK(transship_work_answer_columns(NULL, 0, NULL, 0) == TRANSSHIP_INVALID);
  CHECK(transship_work_part_columns(NULL, 0, NULL, 0) == TRANSSHIP_INVALID);
  check_null_of_tables();
  CHECK(transship_server_new(config, &server) == TRANSSHIP_OK);
  signal(SIGTERM, end_badly);
  CHECK(transship_server_start(server) == TRANSSHIP_OK);
  transship_work *work = NULL;
  while (transship_next(server, -1, &work) == TRANSSHIP_OK) {
    transship_work_info info;
    transship_function function;
    transship_column column;
    CHECK(transship_work_info_of(work, &info) == TRANSSHIP_OK && transship_server_function(server, info.function, &function) == TRANSSHIP_OK);
    if (strcmp(function.name, "bad") == 0) {
      answer_badly(work);
    } else if (strcmp(function.name, "up_to") == 0) {
      CHECK(transship_work_column(work, 0, &column) == TRANSSHIP_OK);
      emit(work, *(const int64_t *)column.values);
    } else if (strcmp(function.name, "names") == 0) {
      look_up(work, info.rows, "numbers", "name", 0);
    } else if (strcmp(function.name, "all_names") == 0) {
      look_up(work, info.rows, "numbers", "name", 1);
    } else if (strcmp(function.name, "day_numbers") == 0) {
      look_up(work, info.rows, "days", "number", 0);
    } else if (strcmp(function.name, "day_parts") == 0) {
      look_up(work, info.rows, "days", "parts", 0);
    } else if (strcmp(function.name, "days_off") == 0) {
      look_up(work, info.rows, "days", "is_off", 0);
    } else if (strcmp(function.name, "stuck") == 0) {
      fprintf(stderr, "plain: stuck begun\n");
      for (;;) pause();
    } else {
      echo(work, info.rows);
    }
  }
  transship_server_free(server);
  return 0;
}
