-- Every type that SQL Server sends to a script, both ways, at its boundaries and NULL: through Arrow's columns (pass_) and
-- through Python's values (echo_).
CREATE TABLE bits (v bit);
INSERT INTO bits VALUES (0), (1), (NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_bool"', @input_data_1 = N'SELECT v FROM bits';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_bool"', @input_data_1 = N'SELECT v FROM bits';

CREATE TABLE tiny (v tinyint, w tinyint NOT NULL);
INSERT INTO tiny VALUES (0, 0), (255, 1), (NULL, 255);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_int2" result_columns = ["tinyint"]', @input_data_1 = N'SELECT v FROM tiny';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_int8"', @input_data_1 = N'SELECT w FROM tiny';

CREATE TABLE small (v smallint);
INSERT INTO small VALUES (-32768), (0), (32767), (NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_int2"', @input_data_1 = N'SELECT v FROM small';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_float4"', @input_data_1 = N'SELECT v FROM small';

CREATE TABLE ints (v int);
INSERT INTO ints VALUES (-2147483648), (0), (2147483647), (NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_int4"', @input_data_1 = N'SELECT v FROM ints';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_float8"', @input_data_1 = N'SELECT v FROM ints';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric"', @input_data_1 = N'SELECT v FROM ints';

CREATE TABLE bigs (v bigint);
INSERT INTO bigs VALUES (-9223372036854775808), (9007199254740993), (9223372036854775807), (NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_int8"', @input_data_1 = N'SELECT v FROM bigs';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_int8" transport = "json"', @input_data_1 = N'SELECT v FROM bigs';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_numeric" result_columns = ["decimal(19)"]', @input_data_1 = N'SELECT v FROM bigs';

CREATE TABLE reals (v real, w float);
INSERT INTO reals VALUES (1.5, 0.1), (-0.0, -0.0), (3.4028235e38, 1.7976931348623157e308), (1e-45, 5e-324), (NULL, NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_float4"', @input_data_1 = N'SELECT v FROM reals';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_float8"', @input_data_1 = N'SELECT w FROM reals';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_float8"', @input_data_1 = N'SELECT v FROM reals';

CREATE TABLE decimals (v decimal(38, 10), w decimal(38), m money, s smallmoney, z decimal(38, 38));
INSERT INTO decimals VALUES (9999999999999999999999999999.9999999999, 99999999999999999999999999999999999999, 922337203685477.5807, 214748.3647, 0.99999999999999999999999999999999999999),
  (-0.0000000001, -1, -922337203685477.5808, -214748.3648, -0.00000000000000000000000000000000000001), (0, 0, 0, 0, 0), (NULL, NULL, NULL, NULL, NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_numeric"', @input_data_1 = N'SELECT v FROM decimals';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric" result_columns = ["decimal(38)"]', @input_data_1 = N'SELECT w FROM decimals';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric" result_columns = ["money"]', @input_data_1 = N'SELECT m FROM decimals';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric" result_columns = ["smallmoney"]', @input_data_1 = N'SELECT s FROM decimals';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric" result_columns = ["decimal(38, 38)"]', @input_data_1 = N'SELECT z FROM decimals';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric" result_columns = ["nvarchar(50)"]', @input_data_1 = N'SELECT v FROM decimals';

CREATE TABLE texts (v nvarchar(max), w varchar(max), c char(5), n nchar(5));
INSERT INTO texts VALUES (N'', '', '     ', N'     '), (N'Grüße 🚢 𐍈', 'plain', 'abc  ', N'äöü  '), (N'a	b
"\', 'it''s', 'x    ', N'🚢🚢 '), (NULL, NULL, NULL, NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_text"', @input_data_1 = N'SELECT v FROM texts';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_text" result_columns = ["varchar(max)"]', @input_data_1 = N'SELECT w FROM texts';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_text" result_columns = ["char(5)"]', @input_data_1 = N'SELECT c FROM texts';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_text" result_columns = ["nvarchar(5)"] transport = "json"', @input_data_1 = N'SELECT n FROM texts';

CREATE TABLE binaries (v varbinary(max), w binary(2));
INSERT INTO binaries VALUES (0x, 0x0000), (0x00ff0a, 0xffff), (NULL, NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_bytea"', @input_data_1 = N'SELECT v FROM binaries';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_bytea" result_columns = ["binary(2)"]', @input_data_1 = N'SELECT w FROM binaries';

CREATE TABLE times (d date, t datetime2(7), u datetime2(6), v datetime, s smalldatetime);
INSERT INTO times VALUES ('0001-01-01', '0001-01-01 00:00:00.0000001', '0001-01-01 00:00:00.000001', '1753-01-01 00:00:00.003', '1900-01-01 00:00:00'),
  ('2024-02-29', '2024-02-29 12:34:56.7654321', '1969-12-31 23:59:59.999999', '2024-02-29 12:34:56.997', '2079-06-06 23:59:00'),
  ('9999-12-31', '9999-12-31 23:59:59.9999999', '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.997', '2000-01-01 00:00:00'), (NULL, NULL, NULL, NULL, NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_date"', @input_data_1 = N'SELECT d FROM times';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_datetime2"', @input_data_1 = N'SELECT t FROM times';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_datetime2" transport = "json"', @input_data_1 = N'SELECT t FROM times';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_timestamp"', @input_data_1 = N'SELECT u FROM times';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_timestamp"', @input_data_1 = N'SELECT u FROM times';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_timestamp" result_columns = ["datetime"]', @input_data_1 = N'SELECT v FROM times';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_timestamp" result_columns = ["smalldatetime"]', @input_data_1 = N'SELECT s FROM times';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_datetime2"', @input_data_1 = N'SELECT s FROM times';

CREATE TABLE guids (v uniqueidentifier);
INSERT INTO guids VALUES ('00112233-4455-6677-8899-AABBCCDDEEFF'), ('00000000-0000-0000-0000-000000000000'), (NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_uuid"', @input_data_1 = N'SELECT v FROM guids';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_uuid" result_columns = ["nvarchar(36)"]', @input_data_1 = N'SELECT v FROM guids';

-- What SQL Server has no type for is text of the JSON form.
CREATE TABLE others (j nvarchar(max), z nvarchar(40), t nvarchar(16), i nvarchar(200), a nvarchar(max), r nvarchar(max), n nvarchar(50));
INSERT INTO others VALUES (N'{"a": [1, null]}', N'2013-01-01T05:15:00.123456Z', N'23:59:59.999999', N'{"months": 1, "days": -2, "microseconds": 3500000}',
  N'[1, null, -3]', N'{"x": 1.5, "y": null}', N'192.168.1.5/24'), (NULL, NULL, NULL, NULL, NULL, NULL, NULL);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_json"', @input_data_1 = N'SELECT j FROM others';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_timestamptz"', @input_data_1 = N'SELECT z FROM others';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_time"', @input_data_1 = N'SELECT t FROM others';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_interval"', @input_data_1 = N'SELECT i FROM others';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_ints"', @input_data_1 = N'SELECT a FROM others';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_point"', @input_data_1 = N'SELECT r FROM others';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_inet"', @input_data_1 = N'SELECT n FROM others';

-- Parameters of every kind, as arguments and as OUTPUT.
DECLARE @d decimal(38, 10), @w nvarchar(max), @b varbinary(10), @t datetime2(7), @g uniqueidentifier, @f bit;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric"', @params = N'@arg1 money, @o decimal(38, 10) OUTPUT', @arg1 = -1.2345, @o = @d OUTPUT;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_text"', @params = N'@arg1 nvarchar(20), @o nvarchar(max) OUTPUT', @arg1 = N'', @o = @w OUTPUT;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_bytea"', @params = N'@arg1 varbinary(20), @o varbinary(10) OUTPUT', @arg1 = 0x00ff, @o = @b OUTPUT;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_datetime2"', @params = N'@arg1 datetime2(7), @o datetime2(7) OUTPUT', @arg1 = '9999-12-31 23:59:59.9999999', @o = @t OUTPUT;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_bool"', @params = N'@arg1 bit, @o bit OUTPUT', @arg1 = 1, @o = @f OUTPUT;
SELECT @d, @w, @b, @t, @f;
-- The same parameter feeds the argument and takes the result; NULL both ways.
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_numeric"', @params = N'@arg1 decimal(38, 10) OUTPUT', @arg1 = @d OUTPUT;
SELECT @d;
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_datetime2"', @params = N'@arg1 datetime2(7) OUTPUT', @arg1 = NULL;
