"""What the comparison of PostgreSQL's tests takes for a difference, and what the list may excuse."""

import compare


def differences(tmp_path, plain, lifted, is_ordered=True):
    for name, lines in (("plain", plain), ("lifted", lifted)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return compare.differences(tmp_path / "plain", tmp_path / "lifted", is_ordered)


TWO = ["SELECT a;", " a ", "---", " 1", " 2", "(2 rows)", "", "SELECT b;", " b ", "---", " 3", "(1 row)", ""]


def test_rows_of_one_result_may_change_places_only_where_plans_are_parallel(tmp_path):
    moved = TWO[:3] + [" 2", " 1"] + TWO[5:]
    assert differences(tmp_path, TWO, moved, is_ordered=False) == []
    assert differences(tmp_path, TWO, moved) != []


def test_rows_do_not_move_to_another_result(tmp_path):
    moved = TWO[:3] + [" 3", " 2"] + TWO[5:10] + [" 1"] + TWO[11:]
    assert differences(tmp_path, TWO, moved, is_ordered=False) == [["- 1", "+ 3"], ["- 3", "+ 1"]]


def test_what_is_lost_is_told_per_statement(tmp_path):
    lost = TWO[:4] + ["(1 row)"] + TWO[6:10] + ["(0 rows)"] + TWO[12:]
    for is_ordered in (True, False):
        found = differences(tmp_path, TWO, lost, is_ordered)
        assert [sorted(statement) for statement in found] == [["+(1 row)", "- 2", "-(2 rows)"], ["+(0 rows)", "- 3", "-(1 row)"]]


def test_an_error_excuses_the_rows_of_its_own_statement_alone():
    excuse = compare.Excuse(r"^- beside ^\+ERROR:  refused$", True)
    assert excuse.covers("- 1", ["- 1", "-(1 row)", "+ERROR:  refused"])
    assert not excuse.covers("- 1", ["- 1", "-(1 row)", "+(0 rows)"])
    assert not excuse.covers("+ 1", ["+ 1", "+ERROR:  refused"])


def test_a_run_without_output_is_a_difference(tmp_path):
    (tmp_path / "plain").write_text("")
    assert compare.differences(tmp_path / "plain", tmp_path / "none", True) == [["(one of the runs has no output)"]]
