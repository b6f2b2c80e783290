-- How rows, columns and parameters reach a function, and how its results come back.
CREATE TABLE t (id int NOT NULL, x bigint, s nvarchar(20), k char(3) NOT NULL);
INSERT INTO t VALUES (1, 41, N'Grüße', 'abc'), (2, NULL, N'', 'de'), (3, -7, NULL, ''), (4, 9223372036854775806, N'🚢', 'xyz');

-- One argument, one result; WITH RESULT SETS gives the name and converts.
EXEC sp_execute_external_script @language = N'Container', @script = N'
image = "regress:1.0"
function = "add_one_arrow"
', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0"  function = "add_one_arrow"',
  @input_data_1 = N'SELECT x FROM t' WITH RESULT SETS ((y nvarchar(30) NULL));

-- A strict function is not called for NULL, and its results find their rows.
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_strict" passthrough = ["id"]',
  @input_data_1 = N'SELECT id, x FROM t';

-- Columns that pass through, wherever they stand, whatever their type.
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_strict" passthrough = ["k", "S", "id", "x"] bind = "name"',
  @input_data_1 = N'SELECT s, x, id, k FROM t' WITH RESULT SETS ((k char(3), s nvarchar(20), id int NOT NULL, x bigint, y bigint));

-- Arguments by name, in another order than the function's; columns that nobody asks for are left out.
CREATE TABLE pairs (b bigint, unused float, a bigint);
INSERT INTO pairs VALUES (1, 0, 100), (NULL, 0, 5), (3, 0, -3);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "span_arrow" bind = "name"',
  @input_data_1 = N'SELECT * FROM pairs' WITH RESULT SETS ((low bigint, high bigint, label nvarchar(100)));

-- A parameter feeds an argument in every row; OUTPUT parameters take the last row's values.
DECLARE @high bigint, @label nvarchar(50), @one smallint = 7;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "span"',
  @input_data_1 = N'SELECT x FROM t', @params = N'@b int, @high bigint OUTPUT, @LABEL nvarchar(50) OUTPUT', @b = 5, @high = @high OUTPUT, @label = @label OUTPUT;
SELECT @high, @label;

-- A text as long as its OUTPUT parameter.
DECLARE @three nvarchar(3);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_text"',
  @params = N'@arg1 nvarchar(3), @o nvarchar(3) OUTPUT', @arg1 = N'äöü', @o = @three OUTPUT;
SELECT @three;

-- Without an input query there is one call.
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "seven"';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_arrow"',
  @params = N'@x tinyint, @result smallint OUTPUT', @x = 255, @result = @one OUTPUT;
SELECT @one;

-- An input without rows has a result without rows; OUTPUT parameters are NULL then.
CREATE TABLE nothing (x bigint NOT NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_arrow"',
  @input_data_1 = N'SELECT x FROM nothing', @params = N'@y bigint OUTPUT', @y = @high OUTPUT WITH RESULT SETS ((y bigint NULL));
SELECT @high;

-- Table functions: any number of results per row, with what passes through.
CREATE TABLE texts (id int, t nvarchar(max));
INSERT INTO texts VALUES (1, N'one two three'), (2, N''), (3, N'four');
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "words" passthrough = ["id", "t"] bind = "name" ',
  @input_data_1 = N'SELECT id, t, t AS text FROM texts' WITH RESULT SETS ((id int, t nvarchar(max), position int, word nvarchar(100)));
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "divisors_arrow"',
  @params = N'@n int', @n = 12;

-- Map functions: a stream in, a stream out.
CREATE TABLE numbers (g int NOT NULL, x bigint);
INSERT INTO numbers VALUES (1, 10), (2, 20), (1, 30), (3, NULL), (2, 50);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "running_total"',
  @input_data_1 = N'SELECT x FROM numbers' WITH RESULT SETS ((x bigint, total bigint));
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "first_only"',
  @input_data_1 = N'SELECT x FROM numbers';

-- Partitions: one stream each.
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "running_total" bind = "name"',
  @input_data_1 = N'SELECT g, x FROM numbers', @input_data_1_partition_by_columns = N'g', @input_data_1_order_by_columns = N'x'
  WITH RESULT SETS ((x bigint, total bigint));

-- Streaming: chunk by chunk, with the schema of the first; the value of the last row counts.
DECLARE @last bigint;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_strict" passthrough = ["g"]',
  @input_data_1 = N'SELECT g, x FROM numbers', @params = N'@r_rowsPerRead int, @last bigint OUTPUT', @r_rowsPerRead = 2, @last = @last OUTPUT;
SELECT @last;

-- Parallel: each task has its share.
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_strict" passthrough = ["g"]',
  @input_data_1 = N'SELECT g, x FROM numbers', @parallel = 1;

-- Few rows per batch, many batches; and JSON.
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_strict" max_batch_rows = 1 passthrough = ["g"]',
  @input_data_1 = N'SELECT g, x FROM numbers';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "words" transport = "json" passthrough = ["id"]',
  @input_data_1 = N'SELECT id, t FROM texts';

-- Code in the script, with annotations and without.
EXEC sp_execute_external_script @language = N'Container', @script = N'
template = "python"
function = "double"
source = ''''''
def double(x: int) -> int:
    return 2 * x
''''''
', @input_data_1 = N'SELECT g FROM numbers';
EXEC sp_execute_external_script @language = N'Container', @script = N'
template = "python"
function = "up_to"
kind = "table"
arguments = ["n int4"]
returns = "(i int4, square float8)"
strict = true
source = ''''''
def up_to(n):
    for i in range(n):
        yield i, i * i
''''''
', @input_data_1 = N'SELECT g FROM numbers' WITH RESULT SETS ((i int, square float));

-- Types of the result columns that the script names.
EXEC sp_execute_external_script @language = N'Container', @script = N'
image = "regress:1.0"
function = "add_one_strict"
result_columns = ["tinyint"]', @input_data_1 = N'SELECT g FROM numbers';
