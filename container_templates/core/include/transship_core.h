/* The server's side of the Transship UDF protocol (docs/protocol.md), for a server in any language.
 *
 * A language makes a server of the manifest, finds a handler for each function, starts the server, and pulls work until there
 * is none: transship_next gives a unit of work, which transship_work_answer or transship_work_fail ends. All of the protocol is
 * the library's: connections, encodings, shared memory, exchanges, constants, errors of rows, limits, and the end on SIGTERM.
 *
 * Threads. Any thread may call any function with a server. As many threads as the language likes may pull at the same time, or
 * one alone, such as the main thread of Node or R. A thread that waits in transship_next answers connections meanwhile: it reads small
 * calls of scalar functions itself, and the thread that ends such work, which may be another, writes the reply. So no other thread is
 * woken for a small call. Both take time on the language's threads, wait for no client, and need 512 KiB of stack. Threads of the
 * library do everything else. They answer all connections while no thread waits: beside an event loop, which pulls with a timeout of 0,
 * and once all threads have been in handlers for some milliseconds. One unit of work belongs to one thread at a time. The library
 * keeps nothing for a thread between two calls but the text of transship_message.
 *
 * Processes. A process that a handler forks has a copy of the server that does nothing: what it answers goes nowhere, and
 * transship_next gives TRANSSHIP_ENDED there.
 *
 * Ownership. What a function gives through a pointer belongs to the caller, as said beside each function. Arrow structs follow
 * the Arrow C data interface: whoever receives one calls its release, and what a language hands over is released by the library,
 * also if the function fails. Texts that are taken are UTF-8 that ends with a zero, and are copied.
 *
 * Failure. No function panics, throws or ends the process. Each gives a transship_status; below zero, transship_message says why.
 * A pointer that must not be NULL is checked. Other invalid pointers, and work that has ended, are undefined behaviour.
 *
 * Lifetime. One server per process, from transship_server_new to the end of the process or transship_server_free. SIGTERM and
 * SIGINT are handled from transship_server_start on, and SIGPIPE is ignored. */
#ifndef TRANSSHIP_CORE_H
#define TRANSSHIP_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The Arrow C data interface, https://arrow.apache.org/docs/format/CDataInterface.html. */
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
  const char *format;
  const char *name;
  const char *metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema **children;
  struct ArrowSchema *dictionary;
  void (*release)(struct ArrowSchema *);
  void *private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void **buffers;
  struct ArrowArray **children;
  struct ArrowArray *dictionary;
  void (*release)(struct ArrowArray *);
  void *private_data;
};
#endif

/* The version of this interface. A function is added without a change of it; any other change raises it. */
#define TRANSSHIP_CORE_VERSION 1

typedef int32_t transship_status;
#define TRANSSHIP_OK 0
/* There was no work in time. */
#define TRANSSHIP_NOTHING 1
/* There will be no more work. */
#define TRANSSHIP_ENDED 2
/* Nobody waits for what was given. */
#define TRANSSHIP_UNWANTED 3
/* An argument is wrong. */
#define TRANSSHIP_INVALID (-1)
/* It could not be done. */
#define TRANSSHIP_FAILED (-2)
/* A fault of the library. */
#define TRANSSHIP_FAULT (-3)

typedef struct transship_server transship_server;
typedef struct transship_work transship_work;

/* A function of the manifest. The texts live as long as the server. */
typedef struct transship_function {
  const char *name;
  /* "scalar", "table", "aggregate" or "map". */
  const char *kind;
  /* How the manifest says that the handler takes rows: "row", "columns" or another name. */
  const char *batch;
  /* The result's type, as docs/types.md writes it. */
  const char *result;
  /* The format of a column of results in the Arrow C data interface; a nested type has "+l" or "+s" alone. */
  const char *result_format;
  size_t arguments;
} transship_function;

/* What is to be done with a batch. */
typedef int32_t transship_step;
/* Answer calls of a scalar or table function. */
#define TRANSSHIP_CALL 0
/* The steps of an aggregate function (docs/protocol.md §4.7). The columns of the batch are the group (int64), the arguments, and
 * the state (bytes). The language keeps the states of an exchange by group. */
#define TRANSSHIP_ACCUMULATE 1
#define TRANSSHIP_MERGE 2
#define TRANSSHIP_FINISH 3
#define TRANSSHIP_STATE 4
#define TRANSSHIP_FORGET 5
/* The exchange is over: the language drops its groups. Whatever it answers is ignored. */
#define TRANSSHIP_END 6
/* Answer the stream of rows of a map function: the work has no batch, but transship_work_next gives one after the other. Results
 * go out at any time with transship_work_part, and the last with transship_work_answer. */
#define TRANSSHIP_MAP 7
/* There is something to take for the work of TRANSSHIP_MAP with this exchange, for which transship_work_next has given
 * TRANSSHIP_NOTHING. The language calls it again, unless that work has ended. Whatever it answers is ignored. */
#define TRANSSHIP_RESUME 8

typedef struct transship_work_info {
  /* The function's number, in the manifest's order. */
  size_t function;
  transship_step step;
  /* Whether rows on which the handler raises an error have an error of their own. Then the reply of TRANSSHIP_CALL has a second
   * column of text behind the results, with the error of each such row, whose result is NULL. It is asked of functions with
   * batch "row" alone; others fail as usual, and the library finds the rows. */
  int32_t row_errors;
  /* The number of an aggregate or map function's exchange. An aggregate function's exchange has one unit of work at a time, in
   * order. */
  uint64_t exchange;
  /* The rows of the batch. */
  size_t rows;
} transship_work_info;

/* TRANSSHIP_CORE_VERSION of the library. */
uint32_t transship_core_version(void);

/* Why the last function that this thread called failed; "" if it did not. It lives until the thread's next call. */
const char *transship_message(void);

/* Makes a server that does not listen yet. `config` is a JSON object:
 *   "server"   name and version, such as "transship-cpp/0.2.0", for the greeting
 *   "root"     the folder of manifest.json; if left out, $TRANSSHIP_ROOT or /opt/transship
 *   "columns"  "arrow" (if left out): columns have the types of docs/types.md;
 *              "plain": columns are bool, int64, float64, or bytes (binary), which hold text, and the JSON form of docs/types.md,
 *              without the quotes of a string, for types that are neither numbers, bool, text nor bytea. Replies have the same
 *              four types; what does not fit the declared type is an error that names the row.
 *   "lines"    whether the language gives lines that handlers write (transship_work_line); false if left out
 *   "tables"   whether handlers can read shared tables (transship_work_table); false if left out
 *   "one_thread" true if one thread pulls and runs handlers, as in Node or R. Nothing can interrupt a handler there: if all work that
 *              was pulled and not answered runs on 10 s after its clients have gone, and a client's work has waited for as long, the
 *              process ends. False if left out.
 * The environment says where to listen (docs/protocol.md §8). The caller ends the server with transship_server_free. */
transship_status transship_server_new(const char *config, transship_server **server);

/* How many functions the manifest has; 0 if `server` is NULL. */
size_t transship_server_functions(const transship_server *server);

/* Describes the function with this number. */
transship_status transship_server_function(const transship_server *server, size_t number, transship_function *function);

/* The type of an argument of the function with this number, as docs/types.md writes it, which lives as long as the server; NULL if there is
 * no such argument. */
const char *transship_server_argument(const transship_server *server, size_t number, size_t argument);

/* How many calls of a batch of the function with this number may be under way at a time, if its handler waits (`concurrency` in the
 * manifest); 1 if there is no such function. */
size_t transship_server_concurrency(const transship_server *server, size_t number);

/* Gives the manifest as JSON, in which the aggregate functions at these `count` numbers merge states: what the command `describe`
 * prints. The caller ends the text with transship_text_free. */
transship_status transship_server_describe(const transship_server *server, const size_t *merging, size_t count, char **text);
void transship_text_free(char *text);

/* Begins to listen. It returns once clients can connect. */
transship_status transship_server_start(transship_server *server);

/* A descriptor that is readable while work waits, and after the end, for event loops. It belongs to the server; a caller polls it,
 * and neither reads, writes nor closes it. -1 if `server` is NULL. */
int transship_server_descriptor(const transship_server *server);

/* Has the server end as SIGTERM does: no connection is taken any more, and calls that run are answered. */
transship_status transship_server_stop(transship_server *server);

/* Ends a server, once transship_next has given TRANSSHIP_ENDED or if it was not started, and no thread uses it. NULL is ignored. */
void transship_server_free(transship_server *server);

/* Gives the next unit of work, which the caller ends with transship_work_answer or transship_work_fail. It waits for at most so
 * many milliseconds, or below zero as long as it takes. TRANSSHIP_OK, TRANSSHIP_NOTHING or TRANSSHIP_ENDED; `work` is NULL but with
 * the first. */
transship_status transship_next(transship_server *server, int64_t timeout_ms, transship_work **work);

/* Says what the work is. */
transship_status transship_work_info_of(const transship_work *work, transship_work_info *info);

/* Gives the columns of the batch as an array of structs, and its schema. They may be read after the work has ended. The caller
 * releases both. Nobody writes to them: a reply may refer to them, and then the client reads its own copy. */
transship_status transship_work_batch(const transship_work *work, struct ArrowArray *columns, struct ArrowSchema *schema);

/* A plain column ("columns": "plain"), for languages that have no Arrow library: the layout of the Arrow columnar format, without its
 * structs. Bits begin with the lowest of the first byte, which is row 0. */
typedef struct transship_column {
  /* 'b': bits; 'l': int64; 'g': double; 'z': bytes. */
  char format;
  /* Bits, of which 0 is NULL; NULL if no row is. */
  const uint8_t *validity;
  /* Bits or numbers, one per row; of 'z', int32 offsets into `bytes`, one more than rows. The first need not be 0. Results: what stands
   * in the row of a NULL has no meaning. NULL is allowed if there are no rows. */
  const void *values;
  /* Of 'z' alone. */
  const uint8_t *bytes;
} transship_column;

/* How many columns the batch has. */
size_t transship_work_columns(const transship_work *work);

/* Gives a column of the batch. What it points to lives until the work ends. */
transship_status transship_work_column(const transship_work *work, size_t number, transship_column *column);

/* As transship_work_next, for plain columns: the functions above then tell of the batch that was taken, which lives until the next one
 * is, and which has so many rows. */
transship_status transship_work_next_columns(const transship_work *work, int64_t timeout_ms, size_t *rows);

/* As transship_work_part and transship_work_answer, with plain columns, which are copied and stay the caller's. */
transship_status transship_work_part_columns(transship_work *work, size_t rows, const transship_column *columns, size_t count);
transship_status transship_work_answer_columns(transship_work *work, size_t rows, const transship_column *columns, size_t count);

/* Takes the next batch of the work of TRANSSHIP_MAP, as transship_work_batch gives one. It waits for at most so many milliseconds,
 * or below zero as long as it takes. TRANSSHIP_OK with a batch; TRANSSHIP_ENDED if there are no more; TRANSSHIP_NOTHING if there was
 * none in time, after which a unit of work TRANSSHIP_RESUME comes once there is; TRANSSHIP_UNWANTED if nobody waits for the results
 * any more, as when the client has gone or has sent what is no batch: the work is to be failed with any message. `columns` and
 * `schema` are released structs but with the first. */
transship_status transship_work_next(const transship_work *work, int64_t timeout_ms, struct ArrowArray *columns, struct ArrowSchema *schema);

/* 1 if the client has gone: a language stops as soon as it can, and fails the work with any message. 0 otherwise. It may look at the client's
 * socket, once in a while. */
int32_t transship_work_is_cancelled(const transship_work *work);

/* 1 if the caller asks for lines that the handler writes, 0 otherwise. */
int32_t transship_work_wants_lines(const transship_work *work);

/* Adds a line that the handler wrote for this work, in UTF-8; a line break in it begins another line. It travels with the next part
 * of the reply, or with the error. Lines beyond docs/protocol.md §4.11 are counted, and those nobody asks for are dropped. */
transship_status transship_work_line(const transship_work *work, const char *line);

/* 1 if transship_work_part would wait, because the client is behind. 0 otherwise. A language with one thread does something else
 * meanwhile. */
int32_t transship_work_is_behind(const transship_work *work);

/* Gives a part of a table or map function's reply that is not the last, an array of structs of row and result, or of the result
 * alone. It waits while the client is behind. TRANSSHIP_UNWANTED if nobody waits for the reply any more; the work is still to be ended. */
transship_status transship_work_part(transship_work *work, struct ArrowArray *columns, struct ArrowSchema *schema);

/* Ends work with its reply, an array of structs: for a scalar function the results, and the errors if info says so; for a table
 * function the number of the row, counted from 0 and ascending, and the result; for an aggregate function the result and the state;
 * for a map function the result. TRANSSHIP_ACCUMULATE, TRANSSHIP_MERGE, TRANSSHIP_FORGET, TRANSSHIP_END, TRANSSHIP_MAP and
 * TRANSSHIP_RESUME may have NULL for both.
 *
 * Results may be a dictionary-encoded column (Arrow's `dictionary`) of any integer indexes and of values as the column would have.
 * Dictionaries of texts reach clients that take them as they are, and spare the rest.
 *
 * Results that are an argument, or a slice of one, may point into the buffers of the batch; the array then keeps the batch's until
 * its release. Clients that allow it get a reference instead of a copy. `work` is no longer valid,
 * whatever the status; if the reply cannot be read, the client gets an error. */
transship_status transship_work_answer(transship_work *work, struct ArrowArray *columns, struct ArrowSchema *schema);

/* Ends work with an error (docs/protocol.md §5). `kind` is "user_code", "bad_result", "out_of_range" or "protocol_violation".
 * `traceback` may be NULL. `row` counts from 0 within the batch; below zero, no single row is to blame. `work` is no longer valid,
 * whatever the status. */
transship_status transship_work_fail(transship_work *work, const char *kind, const char *message, const char *traceback, int64_t row);

/* A shared table (docs/protocol.md §4.13, §10), as an offer has it, which never changes. Any thread may use it. */
typedef struct transship_table transship_table;

/* The tables that a client has offered together. Any thread may use it. */
typedef struct transship_offer transship_offer;

/* Opens a table that the caller of the work has given to it. The caller of this ends it with transship_table_close; it may outlive the
 * work. TRANSSHIP_FAILED if there is no such table. Any thread may call it, beside others that use the work, until the work ends. */
transship_status transship_work_table(const transship_work *work, const char *name, transship_table **table);

/* 1 if the caller of the work has given tables to it, 0 otherwise. */
int32_t transship_work_has_tables(const transship_work *work);

/* For servers that answer the protocol without this library: takes offers of tables on a Unix socket that listens, until the process ends.
 * It returns with TRANSSHIP_FAILED if that is impossible. A server of transship_server_start takes offers by itself if
 * its configuration says "tables". */
transship_status transship_tables_serve(int listener);

/* The same servers open the offer that a call names when the call begins, and close it when the call ends. The offer has its tables until then,
 * whatever its client does. TRANSSHIP_FAILED if there is none of this name: the call is refused, and its handler not called. */
transship_status transship_offer_open(const char *name, transship_offer **offer);

/* 1 until the client has ended the offer, 0 afterwards or if `offer` is NULL. Servers that keep an offer for later calls look before each. */
int32_t transship_offer_is_there(const transship_offer *offer);

/* Opens a table of the offer by its name. The table may outlive the offer. TRANSSHIP_FAILED if there is no such table. Any thread may call it,
 * beside others that use the offer. */
transship_status transship_offer_table(const transship_offer *offer, const char *name, transship_table **table);

/* Closes an offer. NULL is nothing. */
void transship_offer_close(transship_offer *offer);

/* The number of rows; 0 if `table` is NULL. */
int64_t transship_table_rows(const transship_table *table);

/* The number of record batches; 0 if `table` is NULL. */
size_t transship_table_batches(const transship_table *table);

/* Gives the schema of the record batches. Its metadata "transship:key" has the positions of the key's columns, such as "1,2", or is empty.
 * Columns of text or byte strings may have dictionaries, with indexes of type int32; in look-ups, they have none. The caller releases it. */
transship_status transship_table_schema(const transship_table *table, struct ArrowSchema *schema);

/* Gives a record batch as an array of structs, whose buffers lie in the memory of all processes that read the table. Nobody writes to
 * them. The caller releases it; it may outlive the table. */
transship_status transship_table_batch(const transship_table *table, size_t number, struct ArrowArray *rows);

/* Looks for keys: an array of structs with a column for each column of the key, in the key's order, of the column's type. The library
 * releases `keys` and `schema`.
 *
 * If `positions` is NULL, `rows` has one row per key, in the order of the keys; it is NULL, with all its columns, where the table has no row
 * with the key, or a part of the key is NULL. A key of several rows is an error that names the first such key.
 * Otherwise `rows` has all rows of all keys, and `positions` (int32) for each of them the number of its key, counted from 0; both in the order
 * of the keys, and of the table. The caller releases what is given. */
transship_status transship_table_lookup(const transship_table *table, struct ArrowArray *keys, struct ArrowSchema *schema, struct ArrowArray *positions, struct ArrowArray *rows);

/* Ends the use of a table. NULL is ignored. */
void transship_table_close(transship_table *table);

/* A column of a table, for languages without an Arrow library. The texts live until the table is closed. */
typedef struct transship_field {
  const char *name;
  /* As docs/types.md writes it. */
  const char *type;
  /* The format of its plain columns: 'b', 'l', 'g' or 'z'. */
  char format;
  /* Its position among the columns of the key, counted from 0; below zero if the key does not have it. */
  int32_t key;
} transship_field;

/* The number of columns; 0 if `table` is NULL. */
size_t transship_table_fields(const transship_table *table);

/* Describes a column. */
transship_status transship_table_field(const transship_table *table, size_t number, transship_field *field);

/* Rows of a table as plain columns. They never change, and any thread may read them. */
typedef struct transship_rows transship_rows;

/* As transship_table_lookup, with `count` columns of `rows` keys, which stay the caller's. With `all` they are looked for as with
 * `positions`, otherwise as without. The caller ends what is found with transship_rows_free; it may outlive the table. */
transship_status transship_table_lookup_columns(const transship_table *table, size_t rows, const transship_column *keys, size_t count, int32_t all, transship_rows **found);

/* As transship_table_batch. The caller ends the rows with transship_rows_free; they may outlive the table. */
transship_status transship_table_batch_columns(const transship_table *table, size_t number, transship_rows **rows);

/* What its pointers lead to lives as long as the rows. */
typedef struct transship_rows_info {
  size_t rows;
  /* Of a look-up of one row per key: bits, of which 0 is a key without a row; NULL if each has one. */
  const uint8_t *validity;
  /* Of a look-up of all rows of all keys: for each row the number of its key. NULL of others, and allowed if there are no rows. */
  const int32_t *positions;
} transship_rows_info;

/* Says how many rows there are, and to which keys they belong. */
transship_status transship_rows_info_of(const transship_rows *rows, transship_rows_info *info);

/* Gives a column, one of those of transship_table_field. What it points to lives as long as the rows. */
transship_status transship_rows_column(const transship_rows *rows, size_t number, transship_column *column);

/* Ends the use of rows. NULL is ignored. */
void transship_rows_free(transship_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
