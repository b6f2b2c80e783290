-- Servers that speak other protocols than ours, published packages unmodified among them: sql/functions/dialect_servers.py.
\getenv databend DATABEND_ENDPOINT
\getenv singlestore SINGLESTORE_ENDPOINT
\getenv bigquery BIGQUERY_ENDPOINT
\getenv mlflow MLFLOW_ENDPOINT
\getenv azure_ml AZURE_ML_ENDPOINT
\getenv lambda LAMBDA_ENDPOINT
\getenv old_mlflow OLD_MLFLOW_ENDPOINT
\getenv recorded RECORDED_ENDPOINT
\getenv put_get PUT_GET_ENDPOINT
CREATE FUNCTION make_foreign(declaration text, result text, endpoint text, dialect text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION %s RETURNS %s LANGUAGE container STABLE AS %L', declaration, result,
    format('endpoint = "%s"', endpoint) || CASE WHEN dialect IS NULL THEN '' ELSE format(' dialect = "%s"', dialect) END);
END
$$;
-- Databend: found out by itself; its own Arrow types, decimals and JSON.
SELECT make_foreign('common_divisor(bigint, bigint)', 'bigint', :'databend'), make_foreign('reversed_text(text)', 'text', :'databend'),
  make_foreign('doubled(numeric)', 'numeric', :'databend'), make_foreign('keys_of(jsonb)', 'bytea', :'databend'),
  make_foreign('total_of(bigint[])', 'bigint', :'databend');
SELECT sum(common_divisor(x, 36)), sum(gcd(x, 36)) FROM numbers;
SELECT reversed_text('Grüße'), reversed_text(NULL), doubled(1.25), doubled(-0.01), keys_of('{"a": 1, "b": 2}'), total_of('{1,2,3}'), total_of(NULL);
SELECT code, message FROM failure('SELECT doubled(0.001)');
SELECT code, message FROM failure('SELECT reversed_text(''wrong'')');
SELECT code, detail FROM failure(format('SELECT make_foreign(%L, %L, %L)', 'common_divisor(text, int)', 'bigint', :'databend'));
-- SingleStore
SELECT make_foreign('multiplied(bigint, bigint)', 'bigint', :'singlestore', 'singlestore'), make_foreign('shouted(text)', 'text', :'singlestore', 'singlestore'),
  make_foreign('missing(text)', 'text', :'singlestore', 'singlestore');
SELECT sum(multiplied(x, 2)) = sum(x * 2) AS is_right, max(multiplied(4000000000, 2000000000)) FROM numbers;
SELECT shouted('Grüße'), shouted('');
SELECT code FROM failure('SELECT missing(''x'')');
-- BigQuery: integers that a double cannot hold travel as text.
SELECT make_foreign('incremented(bigint)', 'bigint', :'bigquery', 'bigquery'), make_foreign('incremented_text(text)', 'bigint', :'bigquery', 'bigquery');
SELECT incremented(9007199254740993), incremented(NULL), (SELECT sum(incremented(x)) - sum(x) FROM numbers);
SELECT code, message FROM failure('SELECT incremented_text(''x'')');
-- MLflow, in each of its input forms: columns by name, NaN as a bare word.
SELECT make_foreign('model_split(a float8, b float8)', 'float8', :'mlflow', 'mlflow'), make_foreign('model_records(a float8, b float8)', 'float8', :'mlflow', 'mlflow-records'),
  make_foreign('model_inputs(a float8, b float8)', 'float8', :'mlflow', 'mlflow-inputs');
SELECT bool_and(model_split(x, 1) = 2 * x + 1), bool_and(model_records(x, 1) = 2 * x + 1), bool_and(model_inputs(x, 1) = 2 * x + 1) FROM numbers WHERE x <= 500;
SELECT model_split('NaN', 1), model_split(1.5, 'NaN');
SELECT make_foreign('model_of_others(c float8)', 'float8', :'mlflow', 'mlflow');
SELECT code FROM failure('SELECT model_of_others(1)');
SELECT make_foreign('old_model(a float8, b float8)', 'float8', :'old_mlflow', 'mlflow-split');
SELECT old_model(1, 2.5), old_model('NaN', 1), (SELECT bool_and(old_model(x, 1) = 2 * x + 1) FROM numbers WHERE x <= 500);
-- Redshift's Lambda functions: Lambda's own runtime for Python, behind an emulator of its front.
SELECT make_foreign('redshift_sum(bigint, bigint)', 'bigint', :'lambda', 'redshift');
SELECT redshift_sum(1, 2), redshift_sum(NULL, 1), (SELECT sum(redshift_sum(x, x)) - 2 * sum(x) FROM numbers WHERE x > 14);
SELECT code, message FROM failure('SELECT redshift_sum(13, 1)');
SELECT code, message FROM failure('SELECT redshift_sum(14, 1)');
-- Functions on Azure, and Azure ML.
SELECT make_foreign('row_sum(float8, float8)', 'float8', :'recorded', 'array'), make_foreign('is_greater(float8, float8)', 'boolean', :'azure_ml', 'azure-ml');
SELECT row_sum(1, 2.5), row_sum('Infinity', 1), row_sum('NaN', 1), is_greater(2, 1), is_greater(1, 2);
-- Snowflake: results that are promised and asked for, with a secret header of the user's.
CREATE SERVER snowflake FOREIGN DATA WRAPPER transship OPTIONS (endpoint :'recorded', dialect 'snowflake');
SELECT split_part(:'recorded', ',', 1) || '/snowflake' AS snowflake_url \gset
ALTER SERVER snowflake OPTIONS (SET endpoint :'snowflake_url');
CREATE FUNCTION snowflake_length(text) RETURNS int LANGUAGE container STABLE AS 'server = "snowflake"';
SELECT code, message FROM failure('SELECT snowflake_length(''abc'')');
CREATE USER MAPPING FOR CURRENT_USER SERVER snowflake OPTIONS (headers 'X-Api-Key: s3cret');
SELECT snowflake_length('Grüße'), snowflake_length(NULL);
-- A busy server is asked again.
SELECT format('%s/busy', :'recorded') AS busy_url \gset
SELECT make_foreign('patient(bigint)', 'bigint', :'busy_url', 'array');
SELECT patient(42);
-- The paper's Flight servers: put a table, act, get the results.
SELECT make_foreign('put_get_sum(a float8, b float8)', 'float8', :'put_get', 'put-get');
SELECT sum(put_get_sum(x, 1)), sum(x + 1) FROM numbers;
-- Several equal servers: one that is not there is left alone.
SELECT format('endpoint = "grpc://127.0.0.1:1,%s" function = "common_divisor"', :'databend') AS body \gset
CREATE FUNCTION divisor_of_two(bigint, bigint) RETURNS bigint LANGUAGE container STABLE AS :'body';
SELECT sum(divisor_of_two(x, 36)) = sum(gcd(x, 36)) AS is_right FROM numbers;
SELECT sum(divisor_of_two(x, 36)) = sum(gcd(x, 36)) AS is_right FROM numbers;
-- What the definition says wrong is told.
\x on
SELECT code, message, detail, hint FROM failure('CREATE FUNCTION f(int) RETURNS int LANGUAGE container AS ''endpoint = "grpc://h:1" dialect = "oracle"''');
SELECT code, message, detail FROM failure('CREATE FUNCTION f(int) RETURNS int LANGUAGE container AS ''endpoint = "grpc://h:1" dialect = "mlflow"''');
SELECT code, message, detail, hint FROM failure('CREATE FUNCTION f(int) RETURNS int LANGUAGE container AS ''endpoint = "http://h:1/x"''');
SELECT code, message, hint FROM failure('CREATE FUNCTION f(int) RETURNS int LANGUAGE container AS ''image = "a:1" dialect = "mlflow"''');
SELECT code, message, hint FROM failure('CREATE SERVER s FOREIGN DATA WRAPPER transship OPTIONS (dialect ''oracle'')');
SELECT code, message, hint FROM failure('ALTER USER MAPPING FOR CURRENT_USER SERVER snowflake OPTIONS (SET headers ''no header'')');
CREATE FUNCTION foreign_set(int) RETURNS SETOF int LANGUAGE container AS 'endpoint = "http://127.0.0.1:1" dialect = "bigquery"';
SELECT code, message FROM failure('SELECT foreign_set(1)');
\x off
DROP SERVER snowflake CASCADE;
