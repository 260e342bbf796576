"""JSON lines: which lines are read, which are named in an error, and what a crash leaves."""

import pytest

from paper.json_lines import CutOffLine, append_json_line, mend_end, read_json_lines


def test_lines_are_numbered_as_editors_do(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes('\ufeff{"a": "b\u2028c"}\r\n\n  \n[1]\n'.encode())
    assert list(read_json_lines(path)) == [(1, {"a": "b\u2028c"}), (4, [1])]


@pytest.mark.parametrize("line", [b'{"a": ', b"{} {}", b'"\xe9"'])
def test_a_line_that_is_no_json_is_named(tmp_path, line):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"{}\n" + line + b"\n{}\n")
    with pytest.raises(ValueError, match=r"line 2 of .*lines.jsonl is no JSON") as caught:
        list(read_json_lines(path))
    assert not isinstance(caught.value, CutOffLine)


def test_a_last_line_that_was_cut_off_comes_after_all_others_and_is_mended(tmp_path):
    path = tmp_path / "lines.jsonl"
    append_json_line(path, b"1")
    path.write_bytes(path.read_bytes() + b'{"a": ')
    lines = read_json_lines(path)
    assert next(lines) == (1, 1)
    with pytest.raises(CutOffLine) as caught:
        next(lines)
    assert caught.value.number == 2
    mend_end(path)
    append_json_line(path, b"2")
    assert path.read_bytes() == b"1\n2\n"


def test_a_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"1\n2")
    mend_end(path)
    mend_end(path)
    assert path.read_bytes() == b"1\n2\n"
