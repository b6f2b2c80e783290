-- complain if this script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION transship UPDATE TO '0.2.0'" to load this file. \quit

-- Whoever owns the schema, or may create in it, can put functions and operators there that this script, or the extension's users, would find.
DO $$
BEGIN
  IF EXISTS (
    SELECT FROM pg_catalog.pg_namespace n
    CROSS JOIN LATERAL (
      SELECT n.nspowner AS role
      UNION ALL SELECT a.grantee FROM pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
    ) mine
    LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) mine.role
    WHERE n.nspname OPERATOR(pg_catalog.=) '@extschema@' AND r.rolsuper IS NOT TRUE
      AND (r.rolname OPERATOR(pg_catalog.=) current_user) IS NOT TRUE
  ) THEN
    RAISE EXCEPTION 'a role that is no superuser owns schema "@extschema@", or may create in it'
      USING ERRCODE = 'insufficient_privilege',
      HINT = 'Drop the schema; or look at what it holds, and take it over with ALTER SCHEMA @extschema@ OWNER TO and REVOKE CREATE ON SCHEMA @extschema@.';
  END IF;
END
$$;

-- Map functions

CREATE FUNCTION map(function regproc, query text) RETURNS SETOF record
LANGUAGE c STRICT ROWS 1000 COST 1000 AS 'MODULE_PATHNAME', 'transship_map';

COMMENT ON FUNCTION map(regproc, text) IS 'the results of a map function for the rows of a query';

-- Servers that run elsewhere, with their credentials, and shared tables

CREATE FUNCTION fdw_handler() RETURNS fdw_handler
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_fdw_handler';

CREATE FUNCTION fdw_validator(text[], oid) RETURNS void
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_fdw_validator';

CREATE FOREIGN DATA WRAPPER transship HANDLER fdw_handler VALIDATOR fdw_validator;

COMMENT ON FOREIGN DATA WRAPPER transship IS 'servers of container functions, and shared tables';

-- Shared tables: which segments each has, and their bytes. What a snapshot sees of them is a version of the table.

CREATE SERVER transship_tables FOREIGN DATA WRAPPER transship;

COMMENT ON SERVER transship_tables IS 'shared tables of this database';

GRANT USAGE ON FOREIGN SERVER transship_tables TO PUBLIC;

CREATE TABLE table_segments (
  relation regclass NOT NULL, id uuid NOT NULL, digest bytea NOT NULL, rows bigint NOT NULL, keys bigint NOT NULL, bytes bigint NOT NULL,
  PRIMARY KEY (relation, id)
);

CREATE TABLE table_chunks (segment uuid NOT NULL, part int NOT NULL, data bytea NOT NULL, PRIMARY KEY (segment, part));

-- They would not become smaller, and are read as a whole.
ALTER TABLE table_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

SELECT pg_catalog.pg_extension_config_dump('@extschema@.table_segments', 'WHERE relation IN (SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relkind = ''f'' AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = ''pg_catalog.pg_class''::regclass AND d.objid = c.oid AND d.deptype = ''e''))');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.table_chunks', 'WHERE segment IN (SELECT id FROM @extschema@.table_segments WHERE relation IN (SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relkind = ''f'' AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = ''pg_catalog.pg_class''::regclass AND d.objid = c.oid AND d.deptype = ''e'')))');

-- Shared tables that follow a table: by which view, and which table. Which transaction of which database has made the row, if the extension has.
CREATE TABLE followed_tables (
  relation regclass PRIMARY KEY, view regclass NOT NULL UNIQUE, source regclass NOT NULL,
  made_by uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000'
);
CREATE INDEX ON followed_tables (source);

SELECT pg_catalog.pg_extension_config_dump('@extschema@.followed_tables', 'WHERE relation IN (SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relkind = ''f'' AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = ''pg_catalog.pg_class''::regclass AND d.objid = c.oid AND d.deptype = ''e''))');

CREATE FUNCTION refuse_replicated() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'transship_refuse_replicated';

COMMENT ON FUNCTION refuse_replicated() IS 'keeps logical replication from deleting the rows of shared tables';

CREATE FUNCTION is_written_here() RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'transship_is_written_here';

COMMENT ON FUNCTION is_written_here() IS 'keeps logical replication from writing the rows of shared tables';

-- Of the extension's own tables. The triggers fire only where session_replication_role is replica, so nobody else pays for them.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['table_segments', 'table_chunks', 'followed_tables'] LOOP
    EXECUTE format('ALTER TABLE @extschema@.%I ADD CONSTRAINT is_written_here CHECK (@extschema@.is_written_here())', name);
    EXECUTE format('CREATE TRIGGER refuse_deleted BEFORE DELETE ON @extschema@.%I FOR EACH ROW EXECUTE FUNCTION @extschema@.refuse_replicated()', name);
    EXECUTE format('CREATE TRIGGER refuse_truncated BEFORE TRUNCATE ON @extschema@.%I FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.refuse_replicated()', name);
    EXECUTE format('ALTER TABLE @extschema@.%1$I ENABLE REPLICA TRIGGER refuse_deleted, ENABLE REPLICA TRIGGER refuse_truncated', name);
  END LOOP;
END
$$;

CREATE FUNCTION leave_segment() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'transship_leave_segment';

REVOKE EXECUTE ON FUNCTION leave_segment() FROM PUBLIC;

COMMENT ON FUNCTION leave_segment() IS 'leaves out rows of a dump that a followed table has got from its source';

CREATE TRIGGER leave_segment BEFORE INSERT ON table_segments FOR EACH ROW EXECUTE FUNCTION leave_segment();
ALTER TABLE table_segments ENABLE ALWAYS TRIGGER leave_segment;

CREATE FUNCTION follow_source() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'transship_follow_source';

COMMENT ON FUNCTION follow_source() IS 'gives the shared tables that follow a table what a statement has changed';

CREATE FUNCTION forget_view(relation oid) RETURNS void
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_forget_view';

REVOKE EXECUTE ON FUNCTION forget_view(oid) FROM PUBLIC;

CREATE FUNCTION forget_table(relation oid) RETURNS void
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_forget_table';

REVOKE EXECUTE ON FUNCTION forget_table(oid) FROM PUBLIC;

CREATE FUNCTION check_dropped_column(relation oid, number int, is_named boolean) RETURNS void
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_check_dropped_column';

REVOKE EXECUTE ON FUNCTION check_dropped_column(oid, int, boolean) FROM PUBLIC;

CREATE FUNCTION forget_dropped_tables() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM transship.forget_table(objid) FROM pg_event_trigger_dropped_objects() WHERE object_type = 'foreign table';
  PERFORM transship.forget_view(objid) FROM pg_event_trigger_dropped_objects() WHERE object_type = 'view';
  PERFORM transship.check_dropped_column(objid, objsubid, original) FROM pg_event_trigger_dropped_objects() WHERE object_type = 'foreign table column';
END
$$;

CREATE EVENT TRIGGER transship_forget_dropped_tables ON sql_drop EXECUTE FUNCTION forget_dropped_tables();
ALTER EVENT TRIGGER transship_forget_dropped_tables ENABLE ALWAYS;

CREATE FUNCTION share(name text, source text, key text DEFAULT NULL, dictionary text DEFAULT NULL, follow boolean DEFAULT false) RETURNS bigint
LANGUAGE c AS 'MODULE_PATHNAME', 'transship_share';

COMMENT ON FUNCTION share(text, text, text, text, boolean) IS 'makes a shared table of the rows of a query, or replaces the rows of one';

CREATE FUNCTION append(name regclass, source text) RETURNS bigint
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_append';

COMMENT ON FUNCTION append(regclass, text) IS 'adds the rows of a query to a shared table';

CREATE FUNCTION unshare(name regclass) RETURNS void
LANGUAGE plpgsql STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (
    SELECT FROM pg_foreign_table t
    JOIN pg_foreign_server s ON s.oid = t.ftserver
    JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw AND w.fdwname = 'transship'
    WHERE t.ftrelid = name
  ) THEN
    RAISE EXCEPTION '"%" is not a shared table', name USING ERRCODE = 'wrong_object_type';
  END IF;
  EXECUTE format('DROP FOREIGN TABLE %s', name);
END
$$;

COMMENT ON FUNCTION unshare(regclass) IS 'drops a shared table';

CREATE FUNCTION lookup(name regclass, VARIADIC key "any") RETURNS SETOF record
LANGUAGE c STABLE STRICT PARALLEL SAFE ROWS 1 AS 'MODULE_PATHNAME', 'transship_lookup';

COMMENT ON FUNCTION lookup(regclass, "any") IS 'the rows of a key of a shared table';

CREATE VIEW shared_tables WITH (security_barrier) AS
SELECT c.oid AS relid, n.nspname AS schema, c.relname AS name, pg_catalog.pg_get_userbyid(c.relowner) AS owner,
  (SELECT o.option_value FROM pg_catalog.pg_options_to_table(t.ftoptions) o WHERE o.option_name = 'key') AS key,
  s.segments, s.rows, s.bytes,
  -- None if somebody has disabled or dropped triggers.
  (
    SELECT l.source::text FROM @extschema@.followed_tables l WHERE l.relation = c.oid AND (4, 2) = (
      SELECT count(*) FILTER (WHERE g.tgenabled = 'A'), count(*) FILTER (WHERE g.tgenabled = 'R') FROM pg_catalog.pg_trigger g
      WHERE g.tgrelid = l.source AND g.tgfoid = '@extschema@.follow_source()'::pg_catalog.regprocedure AND g.tgqual IS NULL
    )
  ) AS follows
FROM pg_catalog.pg_foreign_table t
JOIN pg_catalog.pg_foreign_server f ON f.oid = t.ftserver
JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = f.srvfdw AND w.fdwname = 'transship'
JOIN pg_catalog.pg_class c ON c.oid = t.ftrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
  SELECT count(*) AS segments, coalesce(sum(g.rows), 0)::bigint AS rows, coalesce(sum(g.bytes), 0)::bigint AS bytes
  FROM @extschema@.table_segments g WHERE g.relation = c.oid
) s
WHERE pg_catalog.has_table_privilege(c.oid, 'SELECT');

COMMENT ON VIEW shared_tables IS 'the shared tables that the user may read, and the bytes of their segments';

GRANT SELECT ON shared_tables TO PUBLIC;

-- Images

CREATE FUNCTION image_info(image text) RETURNS json
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_image_info';

COMMENT ON FUNCTION image_info(text) IS 'name, version and digest of an image';

CREATE FUNCTION image_ddl(image text, schema text, previous text DEFAULT '') RETURNS json
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_image_ddl';

COMMENT ON FUNCTION image_ddl(text, text, text) IS 'the statements that create all functions of an image, as an array';

CREATE FUNCTION is_trusted(owner oid, in_schema text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT owner = me.oid OR r.rolsuper OR pg_has_role(r.oid, n.nspowner, 'USAGE') OR NOT me.rolsuper AND pg_has_role(r.oid, 'USAGE')
  FROM pg_roles r, pg_roles me, pg_namespace n
  WHERE r.oid = owner AND me.rolname = current_user AND n.nspname = in_schema
$$;

COMMENT ON FUNCTION is_trusted(oid, text) IS 'whether the user may leave code in a schema to this role: to itself, superusers, roles of its own, and whoever has the privileges of the schema''s owner';

CREATE FUNCTION import(image text, schema text DEFAULT current_schema(), previous text DEFAULT '') RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  statements text[];
  statement text;
  known text[];
  others oid[];
  theirs text;
  owner name;
BEGIN
  IF schema IS NULL THEN
    RAISE EXCEPTION 'no schema has been selected to create in' USING ERRCODE = 'invalid_schema_name';
  END IF;
  statements := ARRAY(SELECT json_array_elements_text(transship.image_ddl(image, schema, previous)));
  known := ARRAY(SELECT row(p.oid, p.xmin)::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = schema);
  others := ARRAY(
    WITH own AS (SELECT r.funcid FROM transship.registered(transship.image_info(image) ->> 'name', schema) r)
    SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = schema
    EXCEPT SELECT o.funcid FROM own o
    EXCEPT SELECT a.aggfnoid FROM pg_aggregate a JOIN own o ON o.funcid = a.aggtransfn
  );
  FOREACH statement IN ARRAY statements LOOP
    BEGIN
      EXECUTE statement;
    EXCEPTION WHEN duplicate_object THEN
      -- A composite type that an earlier import made.
      CONTINUE WHEN starts_with(statement, 'CREATE TYPE');
      RAISE;
    END;
    RETURN NEXT statement || ';';
  END LOOP;
  -- Whoever owns a function that was replaced can replace it again, and whoever owns a type can have code of theirs run for its values.
  FOR theirs, owner IN
    WITH RECURSIVE made AS (
      SELECT p.oid, p.proowner, p.prorettype || coalesce(p.proallargtypes, p.proargtypes::oid[]) AS types
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
      WHERE n.nspname = schema AND row(p.oid, p.xmin)::text <> ALL (known)
    ), used (type) AS (
      SELECT unnest(m.types) FROM made m
      UNION
      SELECT next.type FROM used u JOIN pg_type t ON t.oid = u.type
      CROSS JOIN LATERAL (
        SELECT t.typelem AS type WHERE t.typelem <> 0
        UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
      ) next
    )
    SELECT format('function %s', m.oid::regprocedure), pg_get_userbyid(m.proowner) FROM made m
    WHERE NOT transship.is_trusted(m.proowner, schema)
    UNION ALL
    SELECT format('type %s', t.oid::regtype), pg_get_userbyid(t.typowner) FROM used u JOIN pg_type t ON t.oid = u.type
    WHERE NOT transship.is_trusted(t.typowner, schema)
  LOOP
    RAISE EXCEPTION '% belongs to %', theirs, quote_ident(owner) USING ERRCODE = 'insufficient_privilege',
      DETAIL = 'Its owner could have code run by whoever calls the functions of the image.',
      HINT = 'Drop it, or give it to a role that you trust.';
  END LOOP;
  -- What an image calls its functions is no reason to replace somebody else's.
  SELECT p.oid::regprocedure INTO theirs FROM pg_proc p WHERE p.oid = ANY (others) AND row(p.oid, p.xmin)::text <> ALL (known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'function % is not of image %', theirs, quote_ident(image) USING ERRCODE = 'duplicate_function',
      DETAIL = 'The image has a function of the same name and arguments.',
      HINT = 'Drop it, or choose another schema.';
  END IF;
END
$$;

COMMENT ON FUNCTION import(text, text, text) IS 'creates all functions of an image, and says how';

CREATE FUNCTION function_body(function oid) RETURNS json
LANGUAGE c STRICT STABLE AS 'MODULE_PATHNAME', 'transship_function_body';

COMMENT ON FUNCTION function_body(oid) IS 'the body of a container function; NULL if it cannot be read';

CREATE VIEW functions AS
SELECT p.oid AS funcid, n.nspname AS schema, p.proname AS name,
  pg_catalog.pg_get_function_identity_arguments(p.oid) AS arguments, pg_catalog.pg_get_function_result(p.oid) AS result,
  pg_catalog.pg_get_userbyid(p.proowner) AS owner,
  b.body ->> 'image' AS image, b.body ->> 'digest' AS digest, b.body ->> 'template' AS template,
  b.body ->> 'server' AS server, b.body ->> 'endpoint' AS endpoint, b.body ->> 'transport' AS transport, b.body ->> 'previous' AS previous
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_language l ON l.oid = p.prolang AND l.lanname = 'container'
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
CROSS JOIN LATERAL (SELECT @extschema@.function_body(p.oid)) b (body);

GRANT SELECT ON functions TO PUBLIC;

-- Versions: what an image's functions are is made of the image, and what it no longer has is dropped.

CREATE FUNCTION registered(image_name text, in_schema text)
RETURNS TABLE (funcid oid, digest text, previous text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT f.funcid, f.digest, f.previous FROM transship.functions f
  WHERE f.schema = in_schema AND regexp_replace(f.image, ':[^:/]*$', '') = image_name
    AND transship.is_trusted((SELECT p.proowner FROM pg_proc p WHERE p.oid = f.funcid), in_schema)
$$;

COMMENT ON FUNCTION registered(text, text) IS 'the functions of an image, of whatever version, in a schema, of owners that the user trusts';

CREATE FUNCTION register(image text, schema text DEFAULT current_schema()) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  info json := transship.image_info(image);
  before text;
  stale text;
BEGIN
  -- One registration at a time, so that each sees what the one before left.
  PERFORM pg_advisory_xact_lock(hashtext('transship.register'), hashtext(schema));
  SELECT CASE r.digest WHEN info ->> 'digest' THEN r.previous ELSE r.digest END INTO before
  FROM transship.registered(info ->> 'name', schema) r ORDER BY r.digest = info ->> 'digest', r.funcid DESC LIMIT 1;
  RETURN QUERY SELECT transship.import(image, schema, coalesce(before, ''));
  FOR stale IN
    SELECT format('DROP AGGREGATE %s', a.aggfnoid::regprocedure) FROM pg_aggregate a
    JOIN transship.registered(info ->> 'name', schema) r ON r.funcid = a.aggtransfn
    WHERE r.digest IS DISTINCT FROM info ->> 'digest'
    UNION ALL
    SELECT format('DROP FUNCTION %s', r.funcid::regprocedure) FROM transship.registered(info ->> 'name', schema) r
    WHERE r.digest IS DISTINCT FROM info ->> 'digest'
  LOOP
    EXECUTE stale;
    RETURN NEXT stale || ';';
  END LOOP;
END
$$;

COMMENT ON FUNCTION register(text, text) IS 'creates or replaces all functions of an image, drops those that it no longer has, and says how';

CREATE FUNCTION rollback(image_name text, schema text DEFAULT current_schema()) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text;
BEGIN
  SELECT r.previous INTO before FROM transship.registered(image_name, schema) r WHERE r.previous IS NOT NULL ORDER BY r.funcid DESC LIMIT 1;
  IF before IS NULL THEN
    RAISE EXCEPTION 'no earlier version of image "%" was registered in schema "%"', image_name, schema USING ERRCODE = 'undefined_object';
  END IF;
  IF transship.image_info(before) ->> 'name' IS DISTINCT FROM image_name THEN
    RAISE EXCEPTION 'the earlier version % is not of image "%"', before, image_name USING ERRCODE = 'undefined_object';
  END IF;
  RETURN QUERY SELECT transship.register(before, schema);
END
$$;

COMMENT ON FUNCTION rollback(text, text) IS 'registers the version of an image that was registered before, and says how';

-- What runs, and what ran

CREATE FUNCTION manager_replicas() RETURNS json
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_manager_replicas';

REVOKE EXECUTE ON FUNCTION manager_replicas() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION manager_replicas() TO pg_monitor;

CREATE VIEW replicas AS
SELECT * FROM json_to_recordset(@extschema@.manager_replicas())
  AS r (name text, image text, digest text, state text, leases int, age_s bigint);

GRANT SELECT ON replicas TO pg_monitor;

CREATE FUNCTION manager_circuits() RETURNS json
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_manager_circuits';

REVOKE EXECUTE ON FUNCTION manager_circuits() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION manager_circuits() TO pg_monitor;

-- The images whose containers ended by themselves of late, and the functions that are called there.
CREATE VIEW circuits AS
WITH called AS MATERIALIZED (
  SELECT f.digest, array_agg(f.funcid::regprocedure ORDER BY f.funcid) AS functions FROM @extschema@.functions f GROUP BY f.digest
)
SELECT c.*, coalesce(d.functions, '{}') AS functions
FROM json_to_recordset(@extschema@.manager_circuits())
  AS c (image text, digest text, state text, endings int, wait_s bigint, last text)
LEFT JOIN called d ON d.digest = c.digest;

GRANT SELECT ON circuits TO pg_monitor;

CREATE FUNCTION statistics() RETURNS json
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_statistics';

CREATE VIEW stat_functions AS
SELECT p.oid AS funcid, n.nspname AS schema, p.proname AS name, s.exchanges, s.calls, s.rows, s.batches, s.bytes_sent,
  s.bytes_received, s.errors, s.retries, s.wait_time, s.compute_time, s.latency_mean, s.latency_p50, s.latency_p90, s.latency_p99
FROM json_to_recordset(@extschema@.statistics() -> 'functions')
  AS s (funcid oid, exchanges bigint, calls bigint, rows bigint, batches bigint, bytes_sent bigint, bytes_received bigint,
    errors bigint, retries bigint, wait_time float8, compute_time float8, latency_mean float8, latency_p50 float8,
    latency_p90 float8, latency_p99 float8)
JOIN pg_catalog.pg_proc p ON p.oid = s.funcid
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace;

COMMENT ON VIEW stat_functions IS 'what container functions have done; times in milliseconds, latencies per batch';

GRANT SELECT ON stat_functions TO PUBLIC;

CREATE FUNCTION stat_reset(function oid DEFAULT 0) RETURNS void
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_stat_reset';

COMMENT ON FUNCTION stat_reset(oid) IS 'forgets the counters of one function, or of all of the database';

REVOKE EXECUTE ON FUNCTION stat_reset(oid) FROM PUBLIC;

-- Kept results

CREATE FUNCTION cache_reset(function regprocedure) RETURNS void
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_cache_reset';

COMMENT ON FUNCTION cache_reset(regprocedure) IS 'forgets the kept results of a function';

CREATE FUNCTION cache_counters(function oid) RETURNS json
LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'transship_cache_counters';

COMMENT ON FUNCTION cache_counters(oid) IS 'what the store of results knows of a function';

CREATE VIEW stat_cache AS
SELECT f.funcid, f.schema, f.name, c.hits, c.disk_hits, c.misses, c.results, c.bytes, c.evictions,
  CASE
    WHEN f.volatility <> 'i' THEN 'the function is not IMMUTABLE'
    WHEN pg_catalog.current_setting('transship.cache', true) = 'off' THEN 'transship.cache is off'
    WHEN f.counters IS NULL THEN 'the store does not answer'
    WHEN c.is_too_cheap AND pg_catalog.current_setting('transship.cache', true) = 'auto' THEN 'calls are cheaper'
  END AS off_because
FROM (
  SELECT p.oid AS funcid, n.nspname AS schema, p.proname AS name, p.provolatile AS volatility,
    CASE WHEN pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
      AND (@extschema@.function_body(p.oid) ->> 'cache')::boolean THEN @extschema@.cache_counters(p.oid) END AS counters,
    CASE WHEN pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
      THEN (@extschema@.function_body(p.oid) ->> 'cache')::boolean END AS is_kept
  FROM pg_catalog.pg_proc p
  JOIN pg_catalog.pg_language l ON l.oid = p.prolang AND l.lanname = 'container'
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
) f
CROSS JOIN LATERAL json_to_record(coalesce(f.counters, '{}'))
  AS c (hits bigint, disk_hits bigint, misses bigint, results bigint, bytes bigint, evictions bigint, is_too_cheap boolean)
WHERE f.is_kept;

COMMENT ON VIEW stat_cache IS 'kept results of the container functions that the user may call';

GRANT SELECT ON stat_cache TO PUBLIC;

CREATE VIEW progress AS
SELECT r.pid, a.usename, p.oid AS funcid, n.nspname AS schema, p.proname AS name,
  timestamptz '2000-01-01 00:00+00' + r.started::float8 * interval '1 microsecond' AS started, r.calls, r.batches_sent,
  r.batches_received
FROM json_to_recordset(@extschema@.statistics() -> 'running')
  AS r (pid int, funcid oid, started bigint, calls bigint, batches_sent bigint, batches_received bigint)
JOIN pg_catalog.pg_stat_activity a ON a.pid = r.pid
JOIN pg_catalog.pg_proc p ON p.oid = r.funcid
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace;

COMMENT ON VIEW progress IS 'exchanges with containers that are running';

GRANT SELECT ON progress TO PUBLIC;
GRANT USAGE ON SCHEMA @extschema@ TO PUBLIC;
