/* Drives the library through its header alone, on one thread that waits for the descriptor as an event loop does. The Rust test
 * beside it (c_interface.rs) compiles this and is its client. interface FOLDER, which has manifest.json. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transship_core.h"

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "interface.c:%d: %s: %s\n", __LINE__, #condition, transship_message()); \
      exit(1); \
    } \
  } while (0)

static void release_schema(struct ArrowSchema *schema) { schema->release = NULL; }

/* A reply of columns of int64 that live as long as the program, without NULL. */
struct reply {
  struct ArrowArray columns[2], *column_pointers[2];
  struct ArrowSchema schemas[2], *schema_pointers[2];
  const void *buffers[2][2], *nothing;
  /* What the columns point into, if its release is set. */
  struct ArrowArray batch;
};

static void release_array(struct ArrowArray *array) {
  struct reply *reply = array->private_data;
  if (reply->batch.release) reply->batch.release(&reply->batch);
  free(reply);
  array->release = NULL;
}

static void release_child(struct ArrowArray *array) { array->release = NULL; }

static void make_reply(int count, int64_t rows, int64_t *values[2], struct ArrowArray *array, struct ArrowSchema *schema) {
  struct reply *reply = calloc(1, sizeof *reply);
  static struct ArrowSchema children[2], *pointers[2];
  for (int i = 0; i < count; i++) {
    reply->buffers[i][1] = values[i];
    reply->columns[i] = (struct ArrowArray){.length = rows, .n_buffers = 2, .buffers = reply->buffers[i], .release = release_child};
    reply->column_pointers[i] = &reply->columns[i];
    children[i] = (struct ArrowSchema){.format = "l", .name = "", .flags = ARROW_FLAG_NULLABLE, .release = release_schema};
    pointers[i] = &children[i];
  }
  *array = (struct ArrowArray){.length = rows, .n_buffers = 1, .n_children = count, .buffers = &reply->nothing, .children = reply->column_pointers, .release = release_array, .private_data = reply};
  *schema = (struct ArrowSchema){.format = "+s", .name = "", .n_children = count, .children = pointers, .release = release_schema};
}

/* The words of which a reply is a dictionary, in the library's plain form. */
static const int32_t word_ends[] = {0, 4, 7};
static const void *word_buffers[] = {NULL, word_ends, "evenodd"};
static struct ArrowArray words = {.length = 2, .n_buffers = 3, .buffers = word_buffers, .release = release_child};
static struct ArrowSchema word_schema = {.format = "z", .name = "", .release = release_schema};

static void check_null(void) {
  transship_server *server = (transship_server *)&server;
  CHECK(transship_server_new(NULL, &server) == TRANSSHIP_INVALID && server == NULL);
  CHECK(strcmp(transship_message(), "config is NULL") == 0);
  CHECK(transship_server_new("{}", NULL) == TRANSSHIP_INVALID);
  CHECK(transship_server_new("{}", &server) == TRANSSHIP_FAILED && server == NULL);
  CHECK(transship_server_new("{\"server\": \"x\", \"root\": \"/nowhere\"}", &server) == TRANSSHIP_FAILED);
  CHECK(strstr(transship_message(), "/nowhere/manifest.json") != NULL);
  CHECK(transship_server_functions(NULL) == 0 && transship_server_descriptor(NULL) == -1);
  CHECK(transship_server_start(NULL) == TRANSSHIP_INVALID && transship_server_stop(NULL) == TRANSSHIP_INVALID);
  transship_work *work = NULL;
  CHECK(transship_next(NULL, 0, &work) == TRANSSHIP_INVALID && transship_work_is_cancelled(NULL) == 0);
  CHECK(transship_work_answer(NULL, NULL, NULL) == TRANSSHIP_INVALID);
  struct ArrowArray array;
  struct ArrowSchema schema;
  CHECK(transship_work_next(NULL, 0, &array, &schema) == TRANSSHIP_INVALID && array.release == NULL && schema.release == NULL);
  CHECK(transship_server_concurrency(NULL, 0) == 1 && transship_server_argument(NULL, 0, 0) == NULL);
  CHECK(transship_work_fail(NULL, "user_code", "no", NULL, -1) == TRANSSHIP_INVALID);
  transship_table *table = (transship_table *)&table;
  CHECK(transship_work_table(NULL, "numbers", &table) == TRANSSHIP_INVALID && !table);
  transship_offer *offer = (transship_offer *)&offer;
  CHECK(transship_offer_open(NULL, &offer) == TRANSSHIP_INVALID && transship_offer_open("x", NULL) == TRANSSHIP_INVALID);
  CHECK(transship_offer_open("x", &offer) == TRANSSHIP_FAILED && !offer && !transship_offer_is_there(NULL));
  CHECK(transship_offer_table(NULL, "numbers", &table) == TRANSSHIP_INVALID && !table);
  transship_offer_close(NULL);
  CHECK(transship_table_rows(NULL) == 0 && transship_table_batches(NULL) == 0);
  CHECK(transship_table_schema(NULL, &schema) == TRANSSHIP_INVALID && transship_table_batch(NULL, 0, &array) == TRANSSHIP_INVALID);
  CHECK(transship_tables_serve(-1) == TRANSSHIP_INVALID && transship_tables_serve(0) == TRANSSHIP_FAILED);
  transship_table_close(NULL);
  transship_server_free(NULL);
  transship_text_free(NULL);
}

/* Streams of the map function, each of which has one batch at a time, whenever it has come. */
struct stream {
  transship_work *work;
  uint64_t exchange;
  int64_t sum;
};
static struct stream streams[8];

static struct stream *find_stream(uint64_t exchange) {
  for (int i = 0; i < 8; i++) {
    if (streams[i].work && streams[i].exchange == exchange) return &streams[i];
  }
  return NULL;
}

/* Gives the running sums of the batches that are there. */
static void advance(struct stream *stream) {
  for (;;) {
    struct ArrowArray batch, array;
    struct ArrowSchema schema;
    const transship_status status = transship_work_next(stream->work, 0, &batch, &schema);
    if (status == TRANSSHIP_NOTHING) return;
    if (status == TRANSSHIP_ENDED) {
      CHECK(transship_work_answer(stream->work, NULL, NULL) == TRANSSHIP_OK);
    } else if (status == TRANSSHIP_UNWANTED) {
      fprintf(stderr, "interface: stream unwanted\n");
      CHECK(transship_work_fail(stream->work, "user_code", "cancelled", NULL, -1) == TRANSSHIP_OK);
    } else {
      CHECK(status == TRANSSHIP_OK);
      int64_t *sums[2] = {calloc(4096, 8), NULL};
      const int64_t *values = (const int64_t *)batch.children[0]->buffers[1] + batch.children[0]->offset;
      for (int64_t row = 0; row < batch.length; row++) sums[0][row] = stream->sum += values[row];
      make_reply(1, batch.length, sums, &array, &schema);
      batch.release(&batch);
      CHECK(transship_work_part(stream->work, &array, &schema) != TRANSSHIP_FAILED);
      continue;
    }
    fprintf(stderr, "interface: stream over\n");
    stream->work = NULL;
    return;
  }
}

/* The lengths of the names that the table "numbers" has for the keys, -1 where it has none; the error, or NULL. */
static const char *look_up(const transship_work *work, int64_t count, int64_t *keys, int64_t *lengths) {
  static char error[1000];
  struct ArrowArray array, rows, positions;
  struct ArrowSchema schema;
  transship_table *table = (transship_table *)&table;
  int64_t *columns[2] = {keys, keys};
  CHECK(transship_work_table(work, NULL, &table) == TRANSSHIP_INVALID && !table);
  CHECK(transship_work_table(work, "numbers", NULL) == TRANSSHIP_INVALID);
  CHECK(transship_work_table(work, "none", &table) == TRANSSHIP_FAILED && !table && strstr(transship_message(), "\"none\""));
  if (transship_work_table(work, "numbers", &table) != TRANSSHIP_OK) {
    snprintf(error, sizeof error, "%s", transship_message());
    return error;
  }
  CHECK(transship_table_schema(table, &schema) == TRANSSHIP_OK && schema.n_children == 2 && schema.metadata);
  CHECK(strcmp(schema.format, "+s") == 0 && strcmp(schema.children[1]->name, "name") == 0);
  schema.release(&schema);
  int64_t read = 0;
  for (size_t number = 0; number < transship_table_batches(table); number++) {
    CHECK(transship_table_batch(table, number, &rows) == TRANSSHIP_OK && rows.n_children == 2);
    read += rows.length;
    rows.release(&rows);
  }
  CHECK(read == transship_table_rows(table));
  CHECK(transship_table_batch(table, transship_table_batches(table), &rows) == TRANSSHIP_INVALID && !rows.release);
  /* The keys are released whatever is wrong. */
  make_reply(1, count, columns, &array, &schema);
  CHECK(transship_table_lookup(NULL, &array, &schema, NULL, &rows) == TRANSSHIP_INVALID && !array.release && !schema.release && !rows.release);
  make_reply(1, count, columns, &array, &schema);
  CHECK(transship_table_lookup(table, &array, &schema, NULL, NULL) == TRANSSHIP_INVALID && !array.release && !schema.release);
  make_reply(2, count, columns, &array, &schema);
  CHECK(transship_table_lookup(table, &array, &schema, &positions, &rows) == TRANSSHIP_FAILED && !array.release && !positions.release && !rows.release);
  CHECK(transship_table_lookup(table, NULL, NULL, NULL, &rows) == TRANSSHIP_FAILED && !rows.release);
  make_reply(1, count, columns, &array, &schema);
  CHECK(transship_table_lookup(table, &array, &schema, &positions, &rows) == TRANSSHIP_OK && positions.length == rows.length);
  for (int64_t row = 0; row < rows.length; row++) {
    const int32_t position = ((const int32_t *)positions.buffers[1])[positions.offset + row];
    const struct ArrowArray *key = rows.children[0];
    CHECK(keys[position] == ((const int64_t *)key->buffers[1])[key->offset + row]);
  }
  positions.release(&positions);
  rows.release(&rows);
  make_reply(1, count, columns, &array, &schema);
  const transship_status status = transship_table_lookup(table, &array, &schema, NULL, &rows);
  snprintf(error, sizeof error, "%s", transship_message());
  /* What was taken outlives the table. */
  transship_table_close(table);
  if (status != TRANSSHIP_OK) return error;
  CHECK(rows.length == count);
  for (int64_t row = 0; row < count; row++) {
    const uint8_t *validity = rows.buffers[0];
    const int64_t bit = rows.offset + row;
    const struct ArrowArray *name = rows.children[1];
    const int32_t *offsets = (const int32_t *)name->buffers[1] + name->offset;
    const int found = !validity || validity[bit / 8] >> bit % 8 & 1;
    lengths[row] = found ? offsets[row + 1] - offsets[row] : -1;
  }
  rows.release(&rows);
  return NULL;
}

/* 0 fails at the value 13, 1 is a table function, 2 an aggregate function, 3 waits until its client has gone, 4 gives its argument
 * back, 5 gives words as a dictionary, 6 is a map function, 7 looks its argument up. */
static void answer(transship_work *work) {
  transship_work_info info;
  CHECK(transship_work_info_of(work, NULL) == TRANSSHIP_INVALID);
  CHECK(transship_work_info_of(work, &info) == TRANSSHIP_OK);
  if (info.step == TRANSSHIP_END) {
    CHECK(transship_work_answer(work, NULL, NULL) == TRANSSHIP_OK);
    return;
  }
  if (info.step == TRANSSHIP_RESUME) {
    struct stream *stream = find_stream(info.exchange);
    CHECK(transship_work_answer(work, NULL, NULL) == TRANSSHIP_OK);
    if (stream) advance(stream);
    return;
  }
  struct ArrowArray batch, array;
  struct ArrowSchema schema;
  if (info.step == TRANSSHIP_MAP) {
    CHECK(info.function == 6 && info.rows == 0 && !find_stream(info.exchange));
    for (int i = 0; i < 8; i++) {
      if (streams[i].work) continue;
      streams[i] = (struct stream){.work = work, .exchange = info.exchange};
      advance(&streams[i]);
      return;
    }
    CHECK(!"a stream too many");
  }
  CHECK(transship_work_next(work, 0, &batch, &schema) == TRANSSHIP_INVALID);
  CHECK(transship_work_batch(work, NULL, NULL) == TRANSSHIP_INVALID);
  CHECK(transship_work_batch(work, &batch, &schema) == TRANSSHIP_OK);
  CHECK(strcmp(schema.format, "+s") == 0 && (size_t)batch.length == info.rows);
  const struct ArrowArray *first = batch.children[0];
  const int64_t *values = (const int64_t *)first->buffers[1] + first->offset;
  int64_t *columns[2] = {calloc(4096, 8), calloc(4096, 8)};
  schema.release(&schema);
  transship_status status = TRANSSHIP_OK;
  if (info.function == 0) {
    for (size_t row = 0; row < info.rows; row++) {
      if (values[row] == 13) {
        status = transship_work_fail(work, "user_code", "13 is bad", "in interface.c", (int64_t)row);
        goto end;
      }
      columns[0][row] = values[row] * 2;
    }
    make_reply(1, batch.length, columns, &array, &schema);
    status = transship_work_answer(work, &array, &schema);
  } else if (info.function == 1) {
    /* Each result in a part of its own. */
    for (int64_t i = 0; i < values[0]; i++) {
      columns[1][i] = i;
      int64_t *part[2] = {columns[0] + i, columns[1] + i};
      make_reply(2, 1, part, &array, &schema);
      CHECK(transship_work_part(work, &array, &schema) == TRANSSHIP_OK && array.release == NULL);
    }
    make_reply(2, 0, columns, &array, &schema);
    if (values[0] == 0) {
      /* As many parts as the client takes. */
      fprintf(stderr, "interface: up_to begun\n");
      int64_t *part[2] = {columns[0], columns[1]};
      array.release(&array);
      do make_reply(2, 1, part, &array, &schema);
      while ((status = transship_work_part(work, &array, &schema)) == TRANSSHIP_OK);
      CHECK(status == TRANSSHIP_UNWANTED && array.release == NULL);
      fprintf(stderr, "interface: unwanted\n");
      make_reply(2, 0, columns, &array, &schema);
    }
    status = transship_work_answer(work, &array, &schema);
  } else if (info.function == 2) {
    /* The columns are of another number than the reply's. */
    make_reply(1, batch.length, columns, &array, &schema);
    status = transship_work_answer(work, &array, &schema);
  } else if (info.function == 4) {
    /* Where its argument lies. */
    columns[0] = (int64_t *)values;
    make_reply(1, batch.length, columns, &array, &schema);
    ((struct reply *)array.private_data)->batch = batch;
    batch.release = NULL;
    CHECK(transship_work_answer(work, &array, &schema) == TRANSSHIP_OK);
    return;
  } else if (info.function == 5) {
    int32_t *numbers = (int32_t *)columns[0];
    for (size_t row = 0; row < info.rows; row++) numbers[row] = (int32_t)(values[row] & 1);
    make_reply(1, batch.length, columns, &array, &schema);
    array.children[0]->dictionary = &words;
    schema.children[0]->format = "i";
    schema.children[0]->dictionary = &word_schema;
    words.release = release_child;
    word_schema.release = release_schema;
    status = transship_work_answer(work, &array, &schema);
  } else if (info.function == 7) {
    memcpy(columns[1], values, info.rows * sizeof *values);
    const char *error = look_up(work, batch.length, columns[1], columns[0]);
    if (error) {
      status = transship_work_fail(work, "user_code", error, NULL, -1);
      goto end;
    }
    make_reply(1, batch.length, columns, &array, &schema);
    status = transship_work_answer(work, &array, &schema);
  } else {
    fprintf(stderr, "interface: wait begun\n");
    while (!transship_work_is_cancelled(work)) poll(NULL, 0, 1);
    fprintf(stderr, "interface: cancelled\n");
    status = transship_work_fail(work, "no such kind", "cancelled", NULL, -1);
    CHECK(status == TRANSSHIP_INVALID);
    status = TRANSSHIP_OK;
  }
end:
  CHECK(status == TRANSSHIP_OK);
  batch.release(&batch);
}

int main(int count, char **arguments) {
  CHECK(count == 2 && transship_core_version() == TRANSSHIP_CORE_VERSION);
  check_null();
  char config[4096];
  snprintf(config, sizeof config, "{\"server\": \"interface/1\", \"root\": \"%s\", \"columns\": \"plain\", \"tables\": true}", arguments[1]);
  transship_server *server = NULL;
  CHECK(transship_server_new(config, &server) == TRANSSHIP_OK && server);
  CHECK(transship_server_functions(server) == 8);
  transship_function function;
  CHECK(transship_server_function(server, 8, &function) == TRANSSHIP_INVALID);
  CHECK(transship_server_function(server, 6, &function) == TRANSSHIP_OK && strcmp(function.kind, "map") == 0);
  CHECK(transship_server_concurrency(server, 3) == 5 && transship_server_concurrency(server, 0) == 1 && transship_server_concurrency(server, 8) == 1);
  CHECK(transship_server_function(server, 1, &function) == TRANSSHIP_OK);
  CHECK(strcmp(function.name, "up_to") == 0 && strcmp(function.kind, "table") == 0 && strcmp(function.batch, "row") == 0);
  CHECK(strcmp(function.result, "int4") == 0 && strcmp(function.result_format, "l") == 0 && function.arguments == 1);
  CHECK(strcmp(transship_server_argument(server, 1, 0), "int8") == 0);
  CHECK(!transship_server_argument(server, 1, 1) && !transship_server_argument(server, 8, 0));
  size_t merging = 2;
  char *text = NULL;
  CHECK(transship_server_describe(server, NULL, 1, &text) == TRANSSHIP_INVALID);
  CHECK(transship_server_describe(server, &merging, 1, &text) == TRANSSHIP_OK && strstr(text, "\"merges\":true"));
  transship_text_free(text);
  transship_work *work = NULL;
  CHECK(transship_next(server, 1, &work) == TRANSSHIP_NOTHING && !work);
  CHECK(transship_server_start(server) == TRANSSHIP_OK);
  CHECK(transship_server_start(server) == TRANSSHIP_FAILED);
  for (;;) {
    struct pollfd readable = {.fd = transship_server_descriptor(server), .events = POLLIN};
    /* A signal may interrupt it. */
    if (poll(&readable, 1, -1) < 0 && errno == EINTR) continue;
    CHECK(readable.revents == POLLIN);
    const transship_status status = transship_next(server, 0, &work);
    if (status == TRANSSHIP_ENDED) break;
    CHECK(status == TRANSSHIP_OK);
    answer(work);
  }
  transship_server_free(server);
  fprintf(stderr, "interface: ended\n");
  return 0;
}
