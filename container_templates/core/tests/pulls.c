/* Threads that wait in transship_next, and so answer connections themselves. pulling.rs compiles this and is its client.
 * pulls FOLDER THREADS CONFIG, with more of the configuration. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transship_core.h"

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "pulls.c:%d: %s: %s\n", __LINE__, #condition, transship_message()); \
      _exit(1); \
    } \
  } while (0)

static transship_server *server;

/* Doubles the first column. */
static void answer(transship_work *work) {
  transship_work_info info;
  transship_column column;
  CHECK(transship_work_info_of(work, &info) == TRANSSHIP_OK && transship_work_column(work, 0, &column) == TRANSSHIP_OK);
  int64_t *values = calloc(info.rows + 1, sizeof *values);
  for (size_t row = 0; row < info.rows; row++) values[row] = 2 * ((const int64_t *)column.values)[row];
  const transship_column reply[] = {{.format = 'l', .validity = column.validity, .values = values}, {.format = 'z', .validity = calloc(info.rows / 8 + 1, 1), .values = calloc(info.rows + 1, 4)}};
  CHECK(transship_work_answer_columns(work, info.rows, reply, info.row_errors ? 2 : 1) == TRANSSHIP_OK);
  free(values);
}

static void *answer_later(void *work) {
  usleep(20000);
  answer(work);
  return NULL;
}

static void act(transship_work *work) {
  transship_work_info info;
  transship_function function;
  transship_column column = {0};
  CHECK(transship_work_info_of(work, &info) == TRANSSHIP_OK && transship_server_function(server, info.function, &function) == TRANSSHIP_OK);
  if (info.step == TRANSSHIP_END) {
    CHECK(transship_work_answer(work, NULL, NULL) == TRANSSHIP_OK);
    return;
  }
  CHECK(transship_work_column(work, 0, &column) == TRANSSHIP_OK);
  const int64_t first = info.rows && info.step == TRANSSHIP_CALL ? *(const int64_t *)column.values : 0;
  const char *name = function.name;
  if (strcmp(name, "thread") == 0) {
    const int64_t thread = syscall(SYS_gettid);
    const transship_column reply = {.format = 'l', .values = &thread};
    CHECK(info.rows == 1 && transship_work_answer_columns(work, 1, &reply, 1) == TRANSSHIP_OK);
  } else if (strcmp(name, "slow") == 0) {
    fprintf(stderr, "pulls: slow begun\n");
    CHECK(!transship_work_is_cancelled(work));
    usleep((useconds_t)first * 1000);
    answer(work);
  } else if (strcmp(name, "wait") == 0) {
    fprintf(stderr, "pulls: wait begun\n");
    while (!transship_work_is_cancelled(work)) usleep(1000);
    fprintf(stderr, "pulls: cancelled\n");
    answer(work);
  } else if (strcmp(name, "up_to") == 0) {
    const int32_t row = 0;
    for (int64_t i = 0; i < first; i++) {
      const transship_column part[] = {{.format = 'l', .values = &(int64_t){row}}, {.format = 'l', .values = &i}};
      CHECK(transship_work_part_columns(work, 1, part, 2) == TRANSSHIP_OK);
    }
    const transship_column none[] = {{.format = 'l'}, {.format = 'l'}};
    CHECK(transship_work_answer_columns(work, 0, none, 2) == TRANSSHIP_OK);
  } else if (strcmp(name, "total") == 0) {
    /* A state that is the number of rows so far. */
    static int64_t rows;
    if (info.step == TRANSSHIP_ACCUMULATE) {
      rows += (int64_t)info.rows;
      CHECK(transship_work_answer_columns(work, 0, NULL, 0) == TRANSSHIP_OK);
    } else {
      const int32_t ends[] = {0, 0};
      const uint8_t none = 0;
      const transship_column reply[] = {{.format = 'l', .values = &rows}, {.format = 'z', .validity = &none, .values = ends}};
      CHECK(info.rows == 1 && transship_work_answer_columns(work, 1, reply, 2) == TRANSSHIP_OK);
    }
  } else if (strcmp(name, "fork") == 0) {
    /* The copy answers as well, and pulls, which is nothing to the client. */
    const pid_t child = fork();
    if (child == 0) {
      transship_work *next = NULL;
      transship_work_fail(work, "user_code", "of the copy", NULL, -1);
      _exit(transship_next(server, 5000, &next) == TRANSSHIP_ENDED && transship_next(server, 0, &next) == TRANSSHIP_ENDED ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    answer(work);
  } else if (strcmp(name, "other") == 0) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, answer_later, work) == 0 && pthread_detach(thread) == 0);
  } else if (strcmp(name, "lines") == 0) {
    CHECK(transship_work_wants_lines(work) && transship_work_line(work, "a line") == TRANSSHIP_OK);
    answer(work);
  } else if (strcmp(name, "part") == 0) {
    /* A scalar function's reply has no parts: there is an answer, whatever becomes of them. */
    for (int i = 0; i < 9 && transship_work_part_columns(work, 1, &column, 1) == TRANSSHIP_OK; i++) {}
    answer(work);
  } else if (first == 13) {
    CHECK(transship_work_fail(work, "user_code", "13 is bad", NULL, 0) == TRANSSHIP_OK);
  } else if (first == 14) {
    transship_column bad = {.format = 'x', .values = &first};
    CHECK(transship_work_answer_columns(work, 1, &bad, 1) != TRANSSHIP_OK);
  } else {
    answer(work);
  }
}

static void *pull(void *is_last) {
  transship_work *work = NULL;
  for (;;) {
    const transship_status status = transship_next(server, is_last ? -1 : 50, &work);
    if (status == TRANSSHIP_ENDED) return NULL;
    CHECK(status == TRANSSHIP_OK || (status == TRANSSHIP_NOTHING && !is_last && !work));
    if (status == TRANSSHIP_OK) act(work);
  }
}

int main(int count, char **arguments) {
  char config[4096];
  CHECK(count == 4);
  snprintf(config, sizeof config, "{\"server\": \"pulls/1\", \"root\": \"%s\", \"columns\": \"plain\"%s}", arguments[1], arguments[3]);
  CHECK(transship_server_new(config, &server) == TRANSSHIP_OK && transship_server_start(server) == TRANSSHIP_OK);
  const int threads = atoi(arguments[2]);
  pthread_t others[64];
  for (int i = 1; i < threads; i++) CHECK(pthread_create(&others[i], NULL, pull, NULL) == 0);
  pull(server);
  for (int i = 1; i < threads; i++) CHECK(pthread_join(others[i], NULL) == 0);
  transship_server_free(server);
  fprintf(stderr, "pulls: ended\n");
  return 0;
}
