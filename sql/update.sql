-- An extension that was created by an older version has the same objects after an update.
CREATE DATABASE transship_update;
\c transship_update
CREATE EXTENSION transship VERSION '0.1.0';
ALTER EXTENSION transship UPDATE;
SELECT extversion FROM pg_extension WHERE extname = 'transship';
SELECT pg_describe_object(classid, objid, 0) AS object FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND classid <> 'pg_type'::regclass AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'transship')
ORDER BY pg_describe_object(classid, objid, 0) COLLATE "C";
\c transship_regression
SELECT pg_describe_object(classid, objid, 0) AS object FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND classid <> 'pg_type'::regclass AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'transship')
ORDER BY pg_describe_object(classid, objid, 0) COLLATE "C";
DROP DATABASE transship_update WITH (FORCE);
