"""The joins of bench/tables in Spark. It reads requests from standard input, one JSON object a line, and answers each with a line."""

import json
import sys
import tempfile
import time

from pyspark.sql import SparkSession


def start(folder):
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "12g",
        "spark.driver.maxResultSize": "0",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": folder,
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def cache(spark, name, rows, columns):
    """A table in memory, at once and not with the first query."""
    options = "OPTIONS ('storageLevel' 'MEMORY_ONLY')"
    spark.sql(f"CACHE TABLE {name} {options} AS SELECT {columns} FROM (SELECT id AS i FROM range(1, {rows} + 1, 1, 2))")


def join(probes, side):
    """A query that sends one side to all."""
    return f"SELECT /*+ BROADCAST({side}) */ sum(d.a) FROM {probes} p JOIN dims d ON d.k = p.k"


def load(spark, dims, keys, probes, counts):
    """Which side of the join with each table of probes is the smaller one."""
    spark.catalog.clearCache()
    for name in ("dims", *counts):
        spark.catalog.dropTempView(name)
    cache(spark, "dims", keys, dims)
    smaller = {}
    for name, count in counts.items():
        cache(spark, name, count, f"i, {probes}")
        smaller[name] = "p" if count < keys else "d"
        plan = spark.sql("EXPLAIN " + join(name, smaller[name])).collect()[0][0]
        if "BroadcastHashJoin" not in plan or plan.count("Scan In-memory table") < 2:
            sys.exit(f"Spark plans otherwise:\n{plan}")
    return smaller


def main():
    with tempfile.TemporaryDirectory() as folder:
        spark = start(folder)
        for line in sys.stdin:
            request = json.loads(line)
            if "join" in request:
                began = time.perf_counter()
                total = spark.sql(join(request["join"], smaller[request["join"]])).collect()[0][0]
                answer = total, time.perf_counter() - began
            else:
                answer = smaller = load(spark, **request)
            print(json.dumps(answer), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
