/* A language extension in C, against unixODBC's headers: gives back its input, or does what the script says, which is
 * something that no extension should do. It shows that the test host speaks C's ABI, and that it sees such things. */

#include <math.h>
#include <sql.h>
#include <sqlext.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(SQLGUID) == 16 && _Alignof(SQLGUID) == 4, "SQLGUID");
_Static_assert(sizeof(SQL_DATE_STRUCT) == 6 && _Alignof(SQL_DATE_STRUCT) == 2, "SQL_DATE_STRUCT");
_Static_assert(sizeof(SQL_TIMESTAMP_STRUCT) == 16 && offsetof(SQL_TIMESTAMP_STRUCT, fraction) == 12, "SQL_TIMESTAMP_STRUCT");
_Static_assert(sizeof(SQL_NUMERIC_STRUCT) == 19, "SQL_NUMERIC_STRUCT");
_Static_assert(sizeof(SQLULEN) == 8 && sizeof(SQLINTEGER) == 4 && sizeof(SQLSMALLINT) == 2, "numbers");
_Static_assert(SQL_C_BIT == -7 && SQL_C_UTINYINT == -28 && SQL_C_SSHORT == -15 && SQL_C_SLONG == -16, "codes");
_Static_assert(SQL_C_SBIGINT == -25 && SQL_C_FLOAT == 7 && SQL_C_DOUBLE == 8 && SQL_C_NUMERIC == 2, "codes");
_Static_assert(SQL_C_CHAR == 1 && SQL_C_WCHAR == -8 && SQL_C_BINARY == -2 && SQL_C_GUID == -11, "codes");
_Static_assert(SQL_C_TYPE_DATE == 91 && SQL_C_TYPE_TIMESTAMP == 93 && SQL_NULL_DATA == -1, "codes");
_Static_assert(SQL_PARAM_INPUT == 1 && SQL_PARAM_INPUT_OUTPUT == 2 && SQL_NO_NULLS == 0 && SQL_NULLABLE == 1, "codes");

static char script[64];
static SQLSMALLINT type;
static SQLULEN size;
static SQLULEN rows;
static int chunks;
static SQLPOINTER input;
static SQLPOINTER data[1];
static SQLINTEGER *lengths[1];
static double values[16];
static SQLINTEGER indicators[16];
static SQLINTEGER parameter = 0;

static int is(const char *what) { return strcmp(script, what) == 0; }

SQLUSMALLINT GetInterfaceVersion(void) { return 2; }

SQLRETURN Init(SQLCHAR *params, SQLULEN params_length, SQLCHAR *path, SQLULEN path_length, SQLCHAR *public_path,
               SQLULEN public_length, SQLCHAR *private_path, SQLULEN private_length) {
  (void)path, (void)path_length, (void)public_path, (void)public_length, (void)private_path, (void)private_length;
  return params_length == strlen((char *)params) ? SQL_SUCCESS : SQL_ERROR;
}

SQLRETURN InitSession(SQLGUID id, SQLUSMALLINT task, SQLUSMALLINT tasks, SQLCHAR *text, SQLULEN text_length,
                      SQLUSMALLINT columns, SQLUSMALLINT parameters, SQLCHAR *in, SQLUSMALLINT in_length, SQLCHAR *out,
                      SQLUSMALLINT out_length) {
  /* What the host passes by value and by register comes as it should. */
  if (id.Data1 != 0x7a655eed || id.Data2 != 1 || task != 0 || tasks != 1 || columns != 1 || parameters > 1) return SQL_ERROR;
  if (in_length != 12 || strcmp((char *)in, "InputDataSet") || out_length != 13 || strcmp((char *)out, "OutputDataSet"))
    return SQL_ERROR;
  snprintf(script, sizeof script, "%.*s", (int)text_length, text);
  return SQL_SUCCESS;
}

SQLRETURN InitColumn(SQLGUID id, SQLUSMALLINT task, SQLUSMALLINT number, SQLCHAR *name, SQLSMALLINT name_length,
                     SQLSMALLINT data_type, SQLULEN column_size, SQLSMALLINT digits, SQLSMALLINT nullable,
                     SQLSMALLINT partition, SQLSMALLINT order) {
  (void)id, (void)task;
  if (number != 0 || name_length != 1 || name[0] != 'x' || digits != 0 || nullable != 1 || partition != -1 || order != -1)
    return SQL_ERROR;
  type = data_type;
  size = column_size;
  return type == SQL_C_DOUBLE && size == 8 ? SQL_SUCCESS : SQL_ERROR;
}

SQLRETURN InitParam(SQLGUID id, SQLUSMALLINT task, SQLUSMALLINT number, SQLCHAR *name, SQLSMALLINT name_length,
                    SQLSMALLINT data_type, SQLULEN param_size, SQLSMALLINT digits, SQLPOINTER value, SQLINTEGER indicator,
                    SQLSMALLINT direction) {
  (void)id, (void)task, (void)number, (void)digits, (void)direction;
  if (strncmp((char *)name, "@r_rowsPerRead", (size_t)name_length) == 0) return SQL_SUCCESS;
  if (name_length != 2 || name[1] != 'p' || data_type != SQL_C_SLONG || param_size != 4 || indicator != 0) return SQL_ERROR;
  parameter = *(SQLINTEGER *)value;
  return SQL_SUCCESS;
}

SQLRETURN Execute(SQLGUID id, SQLUSMALLINT task, SQLULEN count, SQLPOINTER *columns, SQLINTEGER **nulls,
                  SQLUSMALLINT *result_columns) {
  (void)id, (void)task;
  chunks++;
  if (is("hangs")) sleep(1000);
  if (is("fails")) return SQL_ERROR;
  if (is("crashes")) abort();
  rows = count;
  input = count > 0 ? columns[0] : NULL;
  for (SQLULEN i = 0; i < count && i < 16; i++) {
    indicators[i] = nulls[0][i];
    values[i] = ((double *)columns[0])[i];
  }
  if (is("reads too far")) values[0] = ((volatile double *)columns[0])[count];
  if (is("gives NaN")) values[0] = NAN;
  if (is("gives a strange length")) indicators[0] = -3;
  if (is("does not say the number of rows")) rows = (SQLULEN)-1;
  if (!is("does not say the number of columns")) *result_columns = is("drifts") && chunks > 1 ? 2 : 1;
  return SQL_SUCCESS;
}

SQLRETURN GetResultColumn(SQLGUID id, SQLUSMALLINT task, SQLUSMALLINT number, SQLSMALLINT *data_type, SQLULEN *column_size,
                          SQLSMALLINT *digits, SQLSMALLINT *nullable) {
  (void)id, (void)task;
  if (number != 0) return SQL_ERROR;
  *data_type = is("gives a strange type") ? 4711 : SQL_C_DOUBLE;
  *column_size = is("gives a wrong size") ? 4 : 8;
  *digits = 0;
  *nullable = is("says NOT NULL") ? SQL_NO_NULLS : is("says maybe NULL") ? SQL_NULLABLE_UNKNOWN : SQL_NULLABLE;
  if (is("is text")) *data_type = SQL_C_CHAR, *column_size = 3;
  if (is("is text of no size")) *data_type = SQL_C_CHAR, *column_size = 0;
  return SQL_SUCCESS;
}

SQLRETURN GetResults(SQLGUID id, SQLUSMALLINT task, SQLULEN *count, SQLPOINTER **columns, SQLINTEGER ***nulls) {
  (void)id, (void)task;
  if (is("reads too late")) values[0] = *(volatile double *)input;
  data[0] = is("gives no values") ? NULL : is("is not aligned") ? (char *)values + 1 : (char *)values;
  lengths[0] = is("gives no lengths") ? NULL : indicators;
  if (is("is text")) indicators[0] = 4;
  if (is("changes its mind")) rows++;
  *count = rows;
  *columns = data;
  *nulls = lengths;
  return SQL_SUCCESS;
}

SQLRETURN GetOutputParam(SQLGUID id, SQLUSMALLINT task, SQLUSMALLINT number, SQLPOINTER *value, SQLINTEGER *length) {
  (void)id, (void)task, (void)number;
  parameter++;
  *value = is("gives a parameter without value") ? NULL : &parameter;
  *length = is("gives a long parameter") ? 8 : 4;
  return SQL_SUCCESS;
}

SQLRETURN CleanupSession(SQLGUID id, SQLUSMALLINT task) { (void)id, (void)task; return SQL_SUCCESS; }

SQLRETURN Cleanup(void) { return SQL_SUCCESS; }
