"""What Spark's SQL gives for the functions of spark.py, by the module that transship wrote."""

import functions_for_spark
from pyspark.sql import SparkSession


def main():
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    functions_for_spark.register(spark)

    def check(query, expected):
        found = [tuple(row) for row in spark.sql(query).collect()]
        assert found == expected, f"{query} gave {found}, not {expected}"

    def check_refused(query, *parts):
        try:
            found = spark.sql(query).collect()
        except Exception as error:
            for part in parts:
                assert part in str(error), f"{query} gave {error}, without {part}"
        else:
            raise AssertionError(f"{query} gave {found}, not an error")

    check("SELECT sum(add(id, 1)), count(*) FROM range(100000)", [(sum(range(100000)) + 100000, 100000)])
    check("SELECT add(id, NULL), shout('Grün'), shout(CAST(NULL AS string)) FROM range(1)", [(None, "GRÜN", None)])
    check("SELECT CAST(day_after(TIMESTAMP_NTZ '2024-02-28 12:00:00.000001') AS string)", [("2024-02-29 12:00:00.000001",)])
    check("SELECT t.sum, t.count FROM (SELECT total(array(1.5D, 2.5D)) AS t)", [(4.0, 2)])
    check("SELECT count(*) FROM range(1000) WHERE fail_at(id + 14) % 2 = 0", [(500,)])
    # NULL arguments are not sent to a strict function; a function that is not strict gets them.
    nulls = "SELECT {}(IF(id % 3 = 0, NULL, id), IF(id % 5 = 0, NULL, id)) AS x FROM range(30)"
    check(f"SELECT count(x), count(*), sum(int(x)) FROM ({nulls.format('strict_is_null')})", [(16, 30, 0)])
    check(f"SELECT count(x), count(*), sum(int(x)) FROM ({nulls.format('is_null')})", [(30, 30, 14)])
    check("SELECT strict_is_null(NULL, id) FROM range(2)", [(None,), (None,)])
    check("SELECT id, strict_is_null(IF(id = 1, NULL, id), id) FROM range(3) ORDER BY id", [(0, False), (1, None), (2, False)])
    # numeric is a decimal, with which one can calculate.
    check("SELECT string(tenth(25.5BD) * 2), string(tenth(CAST(NULL AS decimal(4, 1))))", [("5.1000000000000000", None)])
    check_refused("SELECT tenth(CAST('1e30' AS decimal(38, 0)))", "'tenth' is 1", "decimal(38, 18) cannot hold")
    check("SELECT string(tenth(0.0000001BD)), string(tenth(25))", [("0.000000010000000000", "2.500000000000000000")])
    # A zoned timestamp is not one of UTC.
    check_refused("SELECT day_after(TIMESTAMP_LTZ '2024-02-28 12:00:00')", "argument 1 of container function 'day_after' is timestamp[us, tz=")
    # The attributes of a struct go by their names, in any order; others are refused, not made NULL.
    pair = "SELECT p.a, p.b FROM (SELECT swap(named_struct({})) AS p)"
    check(pair.format("'a', 1, 'b', 2"), [(2, 1)])
    check(pair.format("'b', 2, 'a', 1"), [(2, 1)])
    check_refused(pair.format("'c', 1, 'd', 2"), "argument 1 of container function 'swap' has the attributes c, d, not a, b")
    check("SELECT p.a, p.b FROM (SELECT swap(CAST(named_struct('c', 1, 'd', 2) AS struct<a: int, b: int>)) AS p)", [(2, 1)])
    # Errors name the function and the row, as it was among the rows with NULL.
    check_refused("SELECT fail_at(id) FROM range(0, 20, 1, 1)", "container function 'fail_at', row 13 of a batch", "13 is bad")
    check_refused("SELECT strict_fail_at(IF(id < 5, NULL, id)) FROM range(0, 20, 1, 1)", "container function 'strict_fail_at', row 13 of a batch")
    # A volatile function is refused in aggregates, unless the caller says that it is deterministic.
    check_refused("SELECT sum(fail_at(id)) FROM range(10)", "NONDETERMINISTIC")
    functions_for_spark.register(spark, deterministic=["fail_at"])
    check("SELECT sum(fail_at(id)) FROM range(10)", [(45,)])
    check_refused("SELECT sum(strict_fail_at(id)) FROM range(10)", "NONDETERMINISTIC")
    check("SELECT count(*) FROM range(10) AS r JOIN range(10) AS s ON fail_at(r.id) = s.id", [(10,)])
    spark.stop()


main()
