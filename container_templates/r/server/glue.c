/* transship_core.h for R: functions for .Call, on R's only thread. R leaves a function with longjmp when it runs out of memory, so what is
 * allocated here is R's own, and released by R. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <R.h>
#include <Rinternals.h>

#include "transship_core.h"

static transship_server *server;

static void check(transship_status status) {
  if (status < 0) Rf_error("%s", transship_message());
}

static SEXP text_of(const char *text) { return Rf_ScalarString(Rf_mkCharCE(text, CE_UTF8)); }

SEXP core_create(SEXP config) {
  check(transship_server_new(CHAR(STRING_ELT(config, 0)), &server));
  return R_NilValue;
}

/* The kinds and formats of results of all functions: list(name, kind, batch, format), each a vector. */
SEXP core_functions(void) {
  const size_t count = transship_server_functions(server);
  SEXP list = PROTECT(Rf_allocVector(VECSXP, 4));
  for (int i = 0; i < 4; i++) SET_VECTOR_ELT(list, i, Rf_allocVector(STRSXP, (R_xlen_t)count));
  for (size_t i = 0; i < count; i++) {
    transship_function function;
    check(transship_server_function(server, i, &function));
    const char *texts[] = {function.name, function.kind, function.batch, function.result_format};
    for (int j = 0; j < 4; j++) SET_STRING_ELT(VECTOR_ELT(list, j), (R_xlen_t)i, Rf_mkCharCE(texts[j], CE_UTF8));
  }
  UNPROTECT(1);
  return list;
}

/* The manifest's text; `merging` has numbers of functions from 0. */
SEXP core_describe(SEXP merging) {
  const R_xlen_t count = XLENGTH(merging);
  size_t *numbers = (size_t *)R_alloc((size_t)count + 1, sizeof(size_t));
  for (R_xlen_t i = 0; i < count; i++) numbers[i] = (size_t)INTEGER(merging)[i];
  char *text = NULL;
  check(transship_server_describe(server, numbers, (size_t)count, &text));
  /* The process ends after this: what a longjmp would leak does not matter. */
  SEXP described = text_of(text);
  transship_text_free(text);
  return described;
}

SEXP core_start(void) {
  check(transship_server_start(server));
  return R_NilValue;
}

static transship_work *work_of(SEXP pointer) {
  transship_work *work = R_ExternalPtrAddr(pointer);
  if (!work) Rf_error("the work has ended");
  return work;
}

/* Waits for work: list(work, function, step, row_errors, exchange, rows), NULL at the end. */
SEXP core_next(void) {
  transship_work *work = NULL;
  transship_work_info info;
  /* What is allocated after the work is there could leave it unanswered. */
  SEXP pointer = PROTECT(R_MakeExternalPtr(NULL, R_NilValue, R_NilValue)), list = PROTECT(Rf_allocVector(VECSXP, 6));
  for (int i = 1; i < 6; i++) SET_VECTOR_ELT(list, i, Rf_ScalarReal(0));
  SET_VECTOR_ELT(list, 0, pointer);
  const transship_status status = transship_next(server, -1, &work);
  check(status);
  UNPROTECT(2);
  if (status != TRANSSHIP_OK) return R_NilValue;
  R_SetExternalPtrAddr(pointer, work);
  check(transship_work_info_of(work, &info));
  const double numbers[] = {(double)info.function, info.step, info.row_errors, (double)info.exchange, (double)info.rows};
  for (int i = 0; i < 5; i++) REAL(VECTOR_ELT(list, i + 1))[0] = numbers[i];
  return list;
}

static bool bit(const uint8_t *bits, size_t at) { return bits[at / 8] >> (at % 8) & 1; }

/* A column as logical, integer, integer64 (without its class), double, text, or raw (a list). A value that R cannot hold is NA; the attribute
 * "beyond" has the number of the first such row, from 1. */
static SEXP values_of(transship_column column, size_t rows, const char *kind) {
  const int64_t *integers = column.values;
  const int32_t *offsets = column.values;
  size_t beyond = 0;
  const bool is_logical = !strcmp(kind, "logical"), is_integer = !strcmp(kind, "integer"), is_integer64 = !strcmp(kind, "integer64");
  const bool is_double = !strcmp(kind, "double"), is_text = !strcmp(kind, "text");
  const char expected = is_logical ? 'b' : is_integer || is_integer64 ? 'l' : is_double ? 'g' : 'z';
  if (column.format != expected) Rf_error("a column has format %c, not %c", column.format, expected);
  const SEXPTYPE type = is_logical ? LGLSXP : is_integer ? INTSXP : is_integer64 || is_double ? REALSXP : is_text ? STRSXP : VECSXP;
  SEXP values = PROTECT(Rf_allocVector(type, (R_xlen_t)rows));
  for (size_t row = 0; row < rows; row++) {
    const R_xlen_t at = (R_xlen_t)row;
    const bool is_null = column.validity && !bit(column.validity, row);
    if (is_logical) {
      LOGICAL(values)[at] = is_null ? NA_LOGICAL : bit(column.values, row);
    } else if (is_integer) {
      if (!is_null && (integers[row] <= INT32_MIN || integers[row] > INT32_MAX) && !beyond) beyond = row + 1;
      INTEGER(values)[at] = is_null ? NA_INTEGER : (int)integers[row];
    } else if (is_integer64) {
      const int64_t value = is_null ? INT64_MIN : integers[row];
      if (!is_null && value == INT64_MIN && !beyond) beyond = row + 1;
      memcpy(&REAL(values)[at], &value, sizeof value);
    } else if (is_double) {
      REAL(values)[at] = is_null ? NA_REAL : ((const double *)column.values)[row];
    } else {
      const char *start = (const char *)column.bytes + offsets[row];
      const size_t size = (size_t)(offsets[row + 1] - offsets[row]);
      if (is_text) {
        const bool has_zero = !is_null && size > 0 && memchr(start, 0, size);
        if (has_zero && !beyond) beyond = row + 1;
        SET_STRING_ELT(values, at, is_null || has_zero ? NA_STRING : Rf_mkCharLenCE(start, (int)size, CE_UTF8));
      } else if (!is_null) {
        SEXP raw = Rf_allocVector(RAWSXP, (R_xlen_t)size);
        SET_VECTOR_ELT(values, at, raw);
        if (size > 0) memcpy(RAW(raw), start, size);
      }
    }
  }
  if (beyond) {
    SEXP number = PROTECT(Rf_ScalarReal((double)beyond));
    Rf_setAttrib(values, Rf_install("beyond"), number);
    UNPROTECT(1);
  }
  UNPROTECT(1);
  return values;
}

/* A column of a batch. */
SEXP core_column(SEXP pointer, SEXP number, SEXP rows, SEXP kind) {
  transship_column column;
  check(transship_work_column(work_of(pointer), (size_t)Rf_asReal(number), &column));
  return values_of(column, (size_t)Rf_asReal(rows), CHAR(STRING_ELT(kind, 0)));
}

SEXP core_is_cancelled(SEXP pointer) { return Rf_ScalarLogical(transship_work_is_cancelled(work_of(pointer))); }

static void set(uint8_t *bits, size_t at) { bits[at / 8] = (uint8_t)(bits[at / 8] | 1 << at % 8); }

/* A column of results: a logical vector is b, doubles with the bits of an integer64 are l, doubles are g, texts and lists of raw are z. */
static void lend(SEXP values, char format, size_t rows, transship_column *column) {
  if ((size_t)XLENGTH(values) != rows) Rf_error("columns differ in length");
  const SEXPTYPE expected = format == 'b' ? LGLSXP : format == 'z' ? STRSXP : REALSXP;
  if (TYPEOF(values) != (int)expected && !(format == 'z' && TYPEOF(values) == VECSXP)) Rf_error("a column of results has another type");
  const size_t bytes = (rows + 7) / 8 + 1;
  uint8_t *validity = (uint8_t *)memset(R_alloc(bytes, 1), 0, bytes);
  *column = (transship_column){.format = format, .validity = validity};
  if (format == 'b') {
    uint8_t *bits = (uint8_t *)memset(R_alloc(bytes, 1), 0, bytes);
    for (size_t row = 0; row < rows; row++) {
      const int value = LOGICAL(values)[row];
      if (value != NA_LOGICAL) set(validity, row);
      if (value != NA_LOGICAL && value) set(bits, row);
    }
    column->values = bits;
  } else if (format == 'l' || format == 'g') {
    for (size_t row = 0; row < rows; row++) {
      int64_t integer;
      memcpy(&integer, &REAL(values)[row], sizeof integer);
      if (format == 'l' ? integer != INT64_MIN : !R_IsNA(REAL(values)[row])) set(validity, row);
    }
    column->values = REAL(values);
  } else {
    int32_t *offsets = (int32_t *)R_alloc(rows + 1, sizeof(int32_t));
    const char **starts = (const char **)R_alloc(rows + 1, sizeof(char *));
    int64_t size = 0;
    for (size_t row = 0; row < rows; row++) {
      offsets[row] = (int32_t)size;
      const SEXP value = TYPEOF(values) == STRSXP ? STRING_ELT(values, (R_xlen_t)row) : VECTOR_ELT(values, (R_xlen_t)row);
      starts[row] = NULL;
      if (value == NA_STRING || value == R_NilValue) continue;
      set(validity, row);
      starts[row] = TYPEOF(values) == STRSXP ? Rf_translateCharUTF8(value) : (const char *)RAW(value);
      size += TYPEOF(values) == STRSXP ? (int64_t)strlen(starts[row]) : (int64_t)XLENGTH(value);
      if (size > INT32_MAX) Rf_error("a column of results has more than 2 GiB");
    }
    offsets[rows] = (int32_t)size;
    char *all = R_alloc((size_t)size + 1, 1);
    for (size_t row = 0; row < rows; row++) {
      if (starts[row]) memcpy(all + offsets[row], starts[row], (size_t)(offsets[row + 1] - offsets[row]));
    }
    column->values = offsets;
    column->bytes = (const uint8_t *)all;
  }
}

/* Ends work with columns: a list, and their formats. */
SEXP core_answer(SEXP pointer, SEXP rows_value, SEXP columns, SEXP formats) {
  transship_work *work = work_of(pointer);
  const size_t rows = (size_t)Rf_asReal(rows_value), count = (size_t)XLENGTH(columns);
  transship_column *lent = (transship_column *)R_alloc(count + 1, sizeof *lent);
  for (size_t i = 0; i < count; i++) lend(VECTOR_ELT(columns, (R_xlen_t)i), CHAR(STRING_ELT(formats, (R_xlen_t)i))[0], rows, &lent[i]);
  R_ClearExternalPtr(pointer);
  /* A reply that cannot be read is an error that the client gets. */
  transship_work_answer_columns(work, rows, lent, count);
  return R_NilValue;
}

/* Ends work with an error; traceback may be NULL, and row below zero. */
SEXP core_fail(SEXP pointer, SEXP kind, SEXP message, SEXP traceback, SEXP row) {
  transship_work *work = work_of(pointer);
  const char *kind_text = CHAR(STRING_ELT(kind, 0)), *message_text = Rf_translateCharUTF8(STRING_ELT(message, 0));
  const char *traceback_text = traceback == R_NilValue ? NULL : Rf_translateCharUTF8(STRING_ELT(traceback, 0));
  R_ClearExternalPtr(pointer);
  transship_work_fail(work, kind_text, message_text, traceback_text, (int64_t)Rf_asReal(row));
  return R_NilValue;
}

static void *held_by(SEXP pointer) {
  void *held = R_ExternalPtrAddr(pointer);
  if (!held) Rf_error("the shared table is closed: its call has ended");
  return held;
}

/* Gives up a table or rows, once. */
SEXP core_close_table(SEXP pointer) {
  transship_table_close(R_ExternalPtrAddr(pointer));
  R_ClearExternalPtr(pointer);
  return R_NilValue;
}

SEXP core_free_rows(SEXP pointer) {
  transship_rows_free(R_ExternalPtrAddr(pointer));
  R_ClearExternalPtr(pointer);
  return R_NilValue;
}

static void finalize_table(SEXP pointer) { core_close_table(pointer); }
static void finalize_rows(SEXP pointer) { core_free_rows(pointer); }

/* A pointer to nothing yet, so that nothing is lost if R has no memory for one. The caller protects it. */
static SEXP holder(R_CFinalizer_t finalize) {
  SEXP pointer = PROTECT(R_MakeExternalPtr(NULL, R_NilValue, R_NilValue));
  R_RegisterCFinalizer(pointer, finalize);
  UNPROTECT(1);
  return pointer;
}

/* Opens a table of a call. */
SEXP core_open_table(SEXP work, SEXP name) {
  const char *text = Rf_translateCharUTF8(STRING_ELT(name, 0));
  SEXP pointer = PROTECT(holder(finalize_table));
  transship_table *table = NULL;
  check(transship_work_table(work_of(work), text, &table));
  R_SetExternalPtrAddr(pointer, table);
  UNPROTECT(1);
  return pointer;
}

/* list(rows, batches, names, types, formats, positions among the key's columns from 1 or 0). */
SEXP core_describe_table(SEXP pointer) {
  const transship_table *table = held_by(pointer);
  const size_t count = transship_table_fields(table);
  SEXP list = PROTECT(Rf_allocVector(VECSXP, 6));
  SET_VECTOR_ELT(list, 0, Rf_ScalarReal((double)transship_table_rows(table)));
  SET_VECTOR_ELT(list, 1, Rf_ScalarReal((double)transship_table_batches(table)));
  for (int i = 2; i < 5; i++) SET_VECTOR_ELT(list, i, Rf_allocVector(STRSXP, (R_xlen_t)count));
  SET_VECTOR_ELT(list, 5, Rf_allocVector(INTSXP, (R_xlen_t)count));
  for (size_t i = 0; i < count; i++) {
    transship_field field;
    check(transship_table_field(table, i, &field));
    const R_xlen_t at = (R_xlen_t)i;
    SET_STRING_ELT(VECTOR_ELT(list, 2), at, Rf_mkCharCE(field.name, CE_UTF8));
    SET_STRING_ELT(VECTOR_ELT(list, 3), at, Rf_mkCharCE(field.type, CE_UTF8));
    SET_STRING_ELT(VECTOR_ELT(list, 4), at, Rf_mkCharLenCE(&field.format, 1, CE_UTF8));
    INTEGER(VECTOR_ELT(list, 5))[at] = field.key < 0 ? 0 : field.key + 1;
  }
  UNPROTECT(1);
  return list;
}

/* Looks for so many keys, a list of columns with their formats. Rows. */
SEXP core_lookup(SEXP pointer, SEXP keys_value, SEXP columns, SEXP formats, SEXP all) {
  const size_t keys = (size_t)Rf_asReal(keys_value), count = (size_t)XLENGTH(columns);
  transship_column *lent = (transship_column *)R_alloc(count + 1, sizeof *lent);
  for (size_t i = 0; i < count; i++) lend(VECTOR_ELT(columns, (R_xlen_t)i), CHAR(STRING_ELT(formats, (R_xlen_t)i))[0], keys, &lent[i]);
  SEXP found = PROTECT(holder(finalize_rows));
  transship_rows *rows = NULL;
  check(transship_table_lookup_columns(held_by(pointer), keys, lent, count, Rf_asLogical(all), &rows));
  R_SetExternalPtrAddr(found, rows);
  UNPROTECT(1);
  return found;
}

/* The rows of a batch of a table, numbered from 0. */
SEXP core_batch(SEXP pointer, SEXP number) {
  SEXP found = PROTECT(holder(finalize_rows));
  transship_rows *rows = NULL;
  check(transship_table_batch_columns(held_by(pointer), (size_t)Rf_asReal(number), &rows));
  R_SetExternalPtrAddr(found, rows);
  UNPROTECT(1);
  return found;
}

/* list(how many, whether the first key has a row, the number of each row's key from 1 or NULL). */
SEXP core_describe_rows(SEXP pointer) {
  transship_rows_info info;
  check(transship_rows_info_of(held_by(pointer), &info));
  SEXP list = PROTECT(Rf_allocVector(VECSXP, 3));
  SET_VECTOR_ELT(list, 0, Rf_ScalarReal((double)info.rows));
  SET_VECTOR_ELT(list, 1, Rf_ScalarLogical(info.rows > 0 && (!info.validity || bit(info.validity, 0))));
  if (info.positions) {
    SEXP positions = Rf_allocVector(INTSXP, (R_xlen_t)info.rows);
    SET_VECTOR_ELT(list, 2, positions);
    for (size_t row = 0; row < info.rows; row++) INTEGER(positions)[row] = info.positions[row] + 1;
  }
  UNPROTECT(1);
  return list;
}

/* A column of rows, as core_column gives one of a batch. */
SEXP core_rows_column(SEXP pointer, SEXP number, SEXP rows, SEXP kind) {
  transship_column column;
  check(transship_rows_column(held_by(pointer), (size_t)Rf_asReal(number), &column));
  return values_of(column, (size_t)Rf_asReal(rows), CHAR(STRING_ELT(kind, 0)));
}
