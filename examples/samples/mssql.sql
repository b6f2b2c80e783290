-- The sample functions from SQL Server's side: target/release/exthost --extension target/release/libtransship_mssql.so FILE
CREATE TABLE ships (id int NOT NULL, name nvarchar(20), tonnage bigint);
INSERT INTO ships VALUES (1, N'Größe', 600851475143), (2, NULL, 97), (3, N'Vasa', NULL);

EXEC sp_execute_external_script @language = N'Container',
     @script = N'image = "samples:1.0" function = "shout" passthrough = ["id"]',
     @input_data_1 = N'SELECT id, name FROM ships'
WITH RESULT SETS ((id int NOT NULL, shouted nvarchar(30) NULL));

-- A parameter feeds an argument, and takes the last row's result.
DECLARE @factor bigint;
EXEC sp_execute_external_script @language = N'Container',
     @script = N'image = "samples:1.0" function = "largest_prime_factor"',
     @params = N'@n bigint, @factor bigint OUTPUT', @n = 600851475143, @factor = @factor OUTPUT;
SELECT @factor;
