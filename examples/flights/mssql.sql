-- The demo's question to SQL Server. In SQL Server itself the table would be there already, and the language be made from
-- target/mssql/transship-mssql.zip by CREATE EXTERNAL LANGUAGE (docs/sqlserver.md).
CREATE TABLE flights (id int NOT NULL, distance float, dep_delay float, carrier nvarchar(2), month int, hour int, arr_delay float);
BULK INSERT flights FROM 'target/flights.csv';

EXEC sp_execute_external_script @language = N'Container',
     @script = N'
image = "flights:1.0"
function = "arrival_delay"
passthrough = ["id"]
', @input_data_1 = N'SELECT id, distance, dep_delay, carrier, month, hour FROM flights'
WITH RESULT SETS ((id int NOT NULL, arrival_delay float NULL));
