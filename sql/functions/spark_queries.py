"""What Spark's SQL gives for the functions of spark.py, by the module that transship wrote."""

import functions_for_spark
from pyspark.sql import SparkSession


def main():
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    functions_for_spark.register(spark)

    def check(query, expected):
        found = [tuple(row) for row in spark.sql(query).collect()]
        assert found == expected, f"{query} gave {found}, not {expected}"

    check("SELECT sum(add(id, 1)), count(*) FROM range(100000)", [(sum(range(100000)) + 100000, 100000)])
    check("SELECT add(id, NULL), shout('Grün'), shout(CAST(NULL AS string)) FROM range(1)", [(None, "GRÜN", None)])
    check("SELECT CAST(day_after(TIMESTAMP_NTZ '2024-02-28 12:00:00.000001') AS string)", [("2024-02-29 12:00:00.000001",)])
    check("SELECT t.sum, t.count FROM (SELECT total(array(1.5D, 2.5D)) AS t)", [(4.0, 2)])
    check("SELECT count(*) FROM range(1000) WHERE fail_at(id + 14) % 2 = 0", [(500,)])
    try:
        spark.sql("SELECT fail_at(id) FROM range(20)").collect()
    except Exception as error:
        assert "13 is bad" in str(error), error
    else:
        raise AssertionError("the exception was lost")
    spark.stop()


main()
