-- What goes wrong, and what the user reads.
CREATE TABLE t (id int NOT NULL, x bigint, f float, s nvarchar(20), n decimal(10, 2), d datetime2(7), e nvarchar(20));
INSERT INTO t VALUES (1, 1, 1.5, N'a', 1.25, '2024-01-01 00:00:00.1234560', N'{"a": 1}'), (2, 2, 2.5, N'b', 1.5, '2024-01-01 00:00:00.1234567', N'{');

-- Scripts that are none.
EXEC sp_execute_external_script @language = N'Container', @script = N'SELECT 1';
EXEC sp_execute_external_script @language = N'Container', @script = N'imagee = "regress:1.0"';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "no_such:1"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "samples:1.0" function = "nothing"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'server = "s"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'library = "nowhere"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "mean"', @input_data_1 = N'SELECT f FROM t';

-- Columns and parameters that do not fit, with a CAST that does.
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one"', @input_data_1 = N'SELECT f AS [my col] FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_float8"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_timestamptz"', @input_data_1 = N'SELECT d FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_time"', @input_data_1 = N'SELECT d FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_ints"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one" passthrough = ["y"]', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one"', @input_data_1 = N'SELECT x FROM t', @params = N'@y int', @y = 1;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "span"', @input_data_1 = N'SELECT x, x AS y FROM t', @params = N'@y int OUTPUT', @y = 1;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "running_total"', @input_data_1 = N'SELECT x FROM t', @params = N'@r_rowsPerRead int', @r_rowsPerRead = 1;
CREATE TABLE odd (t time, o datetimeoffset);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_text"', @input_data_1 = N'SELECT t FROM odd';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_text"', @input_data_1 = N'SELECT o FROM odd';

-- Values that would lose something, with their row.
CREATE TABLE bigger (x bigint);
INSERT INTO bigger VALUES (1), (255);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_timestamp"', @input_data_1 = N'SELECT d FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_json" result_columns = ["nvarchar(3)"]', @input_data_1 = N'SELECT e FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_ints"', @input_data_1 = N'SELECT e FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric" result_columns = ["decimal(5, 1)"]', @input_data_1 = N'SELECT n FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_arrow" result_columns = ["tinyint"]', @input_data_1 = N'SELECT x FROM bigger';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_datetime2" result_columns = ["datetime2(3)"]', @input_data_1 = N'SELECT d FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'
template = "python"
function = "nan"
source = ''''''
def nan(x: int) -> float:
    return float("nan") if x > 1 else x
''''''', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one_arrow"', @input_data_1 = N'SELECT x FROM t', @params = N'@o tinyint OUTPUT', @o = 1;

-- The function's own errors: the row counts over all chunks, and over rows that were not sent.
CREATE TABLE rows (x bigint, bad bigint);
INSERT INTO rows VALUES (1, 7), (2, 7), (3, 7), (4, 7), (5, 7), (6, 7), (7, 7), (8, 7);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "fail_at" max_batch_rows = 3', @input_data_1 = N'SELECT x, bad FROM rows';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "fail_at"', @input_data_1 = N'SELECT x, bad FROM rows', @params = N'@r_rowsPerRead int', @r_rowsPerRead = 5;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "exit_at"', @input_data_1 = N'SELECT x, bad FROM rows';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "wrong_type"', @input_data_1 = N'SELECT x FROM rows';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "too_few"', @input_data_1 = N'SELECT x FROM rows';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "wait_for" timeout_ms = 300', @params = N'@seconds float', @seconds = 5;
EXEC sp_execute_external_script @language = N'Container', @script = N'endpoint = "unix:/nowhere/at.all" function = "f"', @input_data_1 = N'SELECT x FROM rows';
EXEC sp_execute_external_script @language = N'Container', @script = N'endpoint = "ftp://h:1" function = "f"', @input_data_1 = N'SELECT x FROM rows';
