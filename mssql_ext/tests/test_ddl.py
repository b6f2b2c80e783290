"""The T-SQL that `transship ddl` writes: it parses, and it does what it says."""

import pytest
import sqlglot
from sqlglot import exp

from conftest import transship

IMAGES = ["samples:1.0", "regress:1.0"]


@pytest.mark.parametrize("image", IMAGES)
def test_every_batch_parses(image):
    batches = transship("ddl", "--engine", "mssql", image).split("\nGO\n")
    assert batches[-1] == "" and len(batches) > 4
    for batch in batches[:-1]:
        statements = sqlglot.parse(batch, dialect="tsql", error_level=sqlglot.ErrorLevel.RAISE)
        if "PROCEDURE" in batch:
            create = statements[0]
            assert isinstance(create, exp.Create) and create.kind == "PROCEDURE", batch


def test_a_procedure_takes_a_query_or_arguments(host):
    job = transship("ddl", "--engine", "mssql", "samples:1.0") + """
CREATE TABLE dbo.t (n bigint, s nvarchar(10), x float);
INSERT INTO t VALUES (91, N'ahoy', 0), (NULL, NULL, NULL), (97, N'Grüße', 1);
EXEC dbo.largest_prime_factor @query = N'SELECT n FROM dbo.t';
EXEC [dbo].[shout] @query = N'SELECT s FROM t';
EXEC dbo.shout @text = N'one call';
EXEC dbo.log1p_of @x = 0;
"""
    assert host(job).out == "largest_prime_factor\n13\n\n97\nshout\nAHOY!\n\nGRÜSSE!\nshout\nONE CALL!\nlog1p_of\n0.0\n"


def test_a_second_image_finds_the_language_and_the_role(host):
    both = transship("ddl", "--engine", "mssql", "samples:1.0") + transship("ddl", "--engine", "mssql", "--schema", "udf", "regress:1.0")
    assert both.count('"TRANSSHIP_ALLOWED":"samples:*"') == both.count('"TRANSSHIP_ALLOWED":"regress:*"') == 1
    assert both.count("IF NOT EXISTS (SELECT 1 FROM sys.external_languages WHERE language = N'Container')\nCREATE EXTERNAL LANGUAGE") == 2
    assert both.count("IF NOT EXISTS (SELECT 1 FROM sys.database_principals WHERE name = N'container_callers')\nCREATE ROLE") == 2
    assert host(both + "EXEC udf.seven;\n").out == "seven\n7\n"


def test_results_of_many_columns_have_theirs(host):
    job = transship("ddl", "--engine", "mssql", "--schema", "udf", "regress:1.0") + """
EXEC udf.span @a = 3, @b = 1;
EXEC udf.words @text = N'a b';
EXEC udf.pass_point @arg1 = N'{"x": 1, "y": 2}';
EXEC udf.seven;
"""
    assert host(job).out == "low,high,label\n1,3,3-1\nposition,word\n1,a\n2,b\nx,y\n1.0,2.0\nseven\n7\n"


def test_postgres_gets_its_own(host):
    text = transship("ddl", "samples:1.0")
    assert text.startswith("CREATE OR REPLACE FUNCTION public.add_one(x int8) RETURNS int8\nLANGUAGE container IMMUTABLE STRICT")
    assert "RETURNS text" in transship("ddl", "--engine", "postgres", "regress:1.0").split("pass_datetime2")[1]
