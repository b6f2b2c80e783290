/* Answers calls with plain columns, on one thread: plain FOLDER, which has manifest.json. The Rust test beside it (c_interface.rs) compiles
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
  CHECK(transship_work_columns(work) == 1 && transship_work_is_behind(work) == 0);
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

int main(int count, char **arguments) {
  char config[4096];
  CHECK(count == 2);
  snprintf(config, sizeof config, "{\"server\": \"plain/1\", \"root\": \"%s\", \"columns\": \"plain\", \"one_thread\": true}", arguments[1]);
  transship_server *server = NULL;
  CHECK(transship_work_columns(NULL) == 0 && transship_work_is_behind(NULL) == 0);
  CHECK(transship_work_answer_columns(NULL, 0, NULL, 0) == TRANSSHIP_INVALID);
  CHECK(transship_work_part_columns(NULL, 0, NULL, 0) == TRANSSHIP_INVALID);
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
