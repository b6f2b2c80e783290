-- A statement can be cancelled while a batch is out, and waits end at their deadlines.
SET statement_timeout = '200ms';
SELECT wait_for(30);
SELECT wait_for(30 + 0 * x) FROM numbers;
RESET statement_timeout;
-- The next statement does not wait for the cancelled one.
SET statement_timeout = '100s';
SELECT sum(add_one(x)) FROM numbers;
RESET statement_timeout;
SET transship.batch_timeout = '200ms';
SELECT code, message, hint FROM failure('SELECT wait_for(30)');
SELECT code, message, context FROM failure('SELECT wait_for(30 + 0 * x) FROM numbers');
RESET transship.batch_timeout;
-- Sets that never end: all their rows removed by a filter, or made by themselves.
SET statement_timeout = '500ms';
SELECT n.x, c FROM numbers n, count_to(n.x + 1000000000) c WHERE c < 0;
SELECT count(*) FROM count_to(1000000000);
RESET statement_timeout;
-- A function's own timeout.
CREATE FUNCTION impatient(seconds float8) RETURNS float8 LANGUAGE container VOLATILE AS $$
image = "regress:1.0"
function = "wait_for"
timeout_ms = 150
$$;
SELECT code, message FROM failure('SELECT impatient(30)');
SELECT sum(add_one(x)) FROM numbers;
DROP FUNCTION impatient;
-- pg_cancel_backend from another session, while a batch is out and while a single call is.
\! (for i in $(seq 100); do sleep 0.3; psql -qAtX -d transship_regression -c "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%wait_for(31%' AND pid <> pg_backend_pid()" | grep -q t && break; done) > /dev/null 2>&1 &
SELECT wait_for(31 + 0 * x) FROM numbers;
\! (for i in $(seq 100); do sleep 0.3; psql -qAtX -d transship_regression -c "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%wait_for(32%' AND pid <> pg_backend_pid()" | grep -q t && break; done) > /dev/null 2>&1 &
SELECT wait_for(32);
SELECT sum(add_one(x)) FROM numbers;
