-- pgvector's vector travels as float4[].
CREATE EXTENSION vector;
CREATE FUNCTION echo_vector(x vector) RETURNS vector LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "echo_float4s"';
CREATE FUNCTION pass_vector(x vector) RETURNS vector LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "pass_float4s"';
CREATE FUNCTION to_vector(x real[]) RETURNS vector LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "pass_float4s"';
CREATE TABLE vectors (v vector(3));
INSERT INTO vectors VALUES ('[1,2,3]'), ('[0.1,-1e-38,3.4028235e38]'), (NULL);
SELECT v, echo_vector(v) IS NOT DISTINCT FROM v AS echo, pass_vector(v) IS NOT DISTINCT FROM v AS pass FROM vectors;
SET transship.transport = json;
SELECT v, echo_vector(v) IS NOT DISTINCT FROM v AS echo, pass_vector(v) IS NOT DISTINCT FROM v AS pass FROM vectors;
RESET transship.transport;
SELECT to_vector('{1,2.5}') <-> '[1,2.5]' AS distance;
SELECT code, message FROM failure($$SELECT to_vector('{1,NULL}')$$);
SELECT code, message FROM failure($$SELECT to_vector('{1,NaN}')$$);
SELECT code, message FROM failure($$SELECT to_vector('{}')$$);
