"""Each format gives the same prompts; problems of the file's form come with file, line and value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunk_grpo.prompts import FieldNames, PromptSource, read_prompt_file
from tests.prompts.files import read, refused, write
from tests.prompts.policies import STRICT

TEXTS = ["a cat, asleep", 'a "red" kite', "café in Zürich 🎨"]


def csv_text(*rows: list[str]) -> str:
    return "".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n" for row in rows)


def as_txt(folder: Path) -> Path:
    return write(folder / "p.txt", "\n".join(TEXTS) + "\n")


def as_csv(folder: Path) -> Path:
    return write(folder / "p.csv", csv_text(["prompt"], *([text] for text in TEXTS)))


def as_jsonl(folder: Path) -> Path:
    return write(folder / "p.jsonl", "".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))


def as_array_of_texts(folder: Path) -> Path:
    return write(folder / "p.json", json.dumps(TEXTS, indent=1))


def as_array_of_objects(folder: Path) -> Path:
    return write(folder / "o.json", json.dumps([{"prompt": t, "rank": [1, 2]} for t in TEXTS], indent=0))


def as_parquet(folder: Path) -> Path:
    pq.write_table(pa.table({"image": [b"\xff"] * 3, "prompt": TEXTS}), folder / "p.parquet")
    return folder / "p.parquet"


FORMATS: list[tuple[Callable[[Path], Path], list[int]]] = [
    (as_txt, [1, 2, 3]),
    (as_csv, [2, 3, 4]),
    (as_jsonl, [1, 2, 3]),
    (as_array_of_texts, [2, 3, 4]),
    # "[", then the objects of "{", "prompt", "rank": "[", 1, 2, "]", "}": eight lines each, the comma on the last.
    (as_array_of_objects, [2, 9, 16]),
    (as_parquet, [1, 2, 3]),
]


class TestFormats:
    @pytest.mark.parametrize(("made", "lines"), FORMATS)
    def test_every_format_gives_the_same_prompts_with_its_lines(
        self, made: Callable[[Path], Path], lines: list[int], tmp_path: Path
    ) -> None:
        path = made(tmp_path)
        found = read_prompt_file(PromptSource(path), STRICT)
        assert [(row.text, row.line, row.source) for row in found.rows] == [
            (text, line, str(path)) for text, line in zip(TEXTS, lines, strict=True)
        ]
        assert (found.report.read, found.report.kept, found.report.findings) == (3, 3, ())

    @pytest.mark.parametrize("made", [as_txt, as_csv, as_jsonl, as_array_of_texts])
    def test_a_byte_order_mark_and_line_ends_of_windows_change_nothing(
        self, made: Callable[[Path], Path], tmp_path: Path
    ) -> None:
        path = made(tmp_path)
        plain = read_prompt_file(PromptSource(path), STRICT).rows
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        assert read_prompt_file(PromptSource(path), STRICT).rows == plain

    def test_a_url_of_an_object_store(self) -> None:
        files = fsspec.filesystem("memory")
        files.pipe("/prompts-test/p.txt", b"a cat\na dog\n")
        files.pipe("/prompts-test/p.parquet", b"")
        with files.open("/prompts-test/p.parquet", "wb") as file:
            pq.write_table(pa.table({"prompt": ["a cow"]}), file)
        try:
            assert read("memory://prompts-test/p.txt") == ["a cat", "a dog"]
            assert read("memory://prompts-test/p.parquet") == ["a cow"]
        finally:
            files.rm("/prompts-test", recursive=True)

    def test_the_last_line_needs_no_line_end(self, tmp_path: Path) -> None:
        assert read(write(tmp_path / "p.txt", "a cat\na dog")) == ["a cat", "a dog"]

    def test_a_second_line_end_is_an_empty_line(self, tmp_path: Path) -> None:
        assert "line 3: an empty prompt" in refused(write(tmp_path / "p.txt", "a cat\na dog\n\n"))

    def test_only_a_line_feed_ends_a_line(self, tmp_path: Path) -> None:
        """str.splitlines would find three lines more, and put the last prompt on line 5."""
        path = write(tmp_path / "p.txt", "a\u2028b\x0bc\x85d\na dog \n")
        message = refused(path)
        assert "line 1: the control character U+2028 at character 2" in message
        assert "line 2: whitespace before or after the prompt: 'a dog '" in message

    def test_letters_of_the_ending_may_be_capital(self, tmp_path: Path) -> None:
        assert read(write(tmp_path / "P.TXT", "a cat\n")) == ["a cat"]

    def test_a_name_without_a_known_ending_is_refused(self, tmp_path: Path) -> None:
        message = refused(write(tmp_path / "p.tsv", "a cat\n"))
        assert (
            "must end in .txt, .csv, .jsonl, .ndjson, .json, .parquet, got .tsv; rename the file. Of"
            in message
        )
        assert "name the file to read by `hub_file`" in refused("ymhao/HPDv2")

    @pytest.mark.parametrize("name", ["p.txt", "p.parquet"])
    def test_a_missing_file_is_named(self, name: str, tmp_path: Path) -> None:
        assert refused(tmp_path / name).startswith(f"{tmp_path / name}: no such file. Fix the path")

    @pytest.mark.parametrize(
        ("name", "content"), [("p.txt", ""), ("p.csv", "prompt\n"), ("p.jsonl", ""), ("p.json", "[ ]")]
    )
    def test_a_file_without_prompts_is_refused(self, name: str, content: str, tmp_path: Path) -> None:
        assert "must hold prompts, got none at all" in refused(write(tmp_path / name, content))


class TestFields:
    def test_drawbench(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "p.csv", csv_text(["Prompts", "Category", "", ""], ["A red car.", "Colors", "", ""])
        )
        found = read_prompt_file(PromptSource(path), STRICT)
        (row,) = found.rows
        assert (row.text, row.category, row.metadata) == ("A red car.", "Colors", {})
        assert found.report.notes == ()

    def test_fields_may_be_named(self, tmp_path: Path) -> None:
        record = {"prompt": "not this", "caption": "a cat", "kind": 7, "other": 1}
        path = write(tmp_path / "p.jsonl", json.dumps(record))
        found = read_prompt_file(PromptSource(path, fields=FieldNames("caption", "kind")), STRICT)
        (row,) = found.rows
        assert (row.text, row.category, row.metadata) == ("a cat", "7", {})
        assert found.report.notes == (f"{path}: fields that were not read: prompt, other",)

    def test_fields_of_parquet(self, tmp_path: Path) -> None:
        table = pa.table({"Prompt": ["a cat", "a dog"], "Category": ["x", None], "image": [b"0", b"1"]})
        pq.write_table(table, tmp_path / "p.parquet")
        found = read_prompt_file(PromptSource(tmp_path / "p.parquet"), STRICT)
        assert [(r.text, r.category, r.metadata) for r in found.rows] == [
            ("a cat", "x", {}),
            ("a dog", "", {}),
        ]
        assert found.report.notes == (f"{tmp_path / 'p.parquet'}: fields that were not read: image",)

    @pytest.mark.parametrize(
        ("header", "names", "rule"),
        [
            ("text,style", FieldNames(), "line 1: needs one field `prompt` with the prompt, got none among the fields "
             "'text', 'style'; name it by `prompt_field`"),
            ("prompt,Prompts", FieldNames(), "got 2 among the fields 'prompt', 'Prompts'"),
            ("prompt,style", FieldNames("caption"), "needs one field 'caption' with the prompt, got none"),
            ("prompt,style", FieldNames(category="kind"), "needs one field 'kind', got none among the fields "
             "'prompt', 'style'; name it by `category_field`"),
            ("prompt,Category,category", FieldNames(), "needs one field 'category', got 2 among the fields 'prompt', "
             "'Category', 'category'; name it by `category_field`"),
            ("prompt,style,style", FieldNames(), "the header has the column 'style' more than once"),
        ],
    )  # fmt: skip
    def test_a_field_that_is_not_there(
        self, header: str, names: FieldNames, rule: str, tmp_path: Path
    ) -> None:
        assert rule in refused(write(tmp_path / "p.csv", f"{header}\na,b,c\n"), fields=names)

    def test_fields_of_a_record_that_are_of_another_kind(self, tmp_path: Path) -> None:
        lines = ['{"prompt": 3, "kind": "x"}', '{"prompt": "a", "kind": [1]}', '{"text": "a"}', "[1]", "7"]
        lines.append('{"prompt": "a", "kind": true}')
        message = refused(write(tmp_path / "p.jsonl", "\n".join(lines)), fields=FieldNames(category="kind"))
        assert "6 problems (no prompt: 4, category of another kind: 2)" in message
        assert "line 1: 'prompt' must be text, got 3" in message
        assert (
            "line 2: 'kind' must be text or a whole number, got [1]; name another by `category_field`, or set that to "
            "null" in message
        )
        assert "line 3: needs one field `prompt` with the prompt, got none among the fields 'text'" in message
        assert "line 4: must be text or an object with a field for the prompt, got [1]" in message
        assert "line 5: must be text or an object with a field for the prompt, got 7" in message
        assert "line 6: 'kind' must be text or a whole number, got True" in message

    def test_a_category_of_another_kind_that_nobody_asked_for_is_ignored_and_told(
        self, tmp_path: Path
    ) -> None:
        lines = [
            '{"prompt": "a", "category": [1]}',
            '{"prompt": "b", "category": "x"}',
            '{"prompt": "c", "category": true}',
        ]
        found = read_prompt_file(PromptSource(write(tmp_path / "p.jsonl", "\n".join(lines))), STRICT)
        assert [(row.text, row.category) for row in found.rows] == [("a", ""), ("b", "x"), ("c", "")]
        (finding,) = found.report.findings
        assert (finding.action, finding.lines) == ("ignore", (1, 3))
        assert finding.examples[0].startswith("'category' must be text or a whole number, got [1]")
        assert (
            found.report.lines()[1]
            == f"{tmp_path / 'p.jsonl'}: category of another kind: 2 ignored (line 1, 3)"
        )

    def test_so_is_one_of_parquet(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"prompt": ["a", "b"], "category": [1.0, None]}), tmp_path / "p.parquet")
        found = read_prompt_file(PromptSource(tmp_path / "p.parquet"), STRICT)
        assert [(row.text, row.category) for row in found.rows] == [("a", ""), ("b", "")]
        assert [(f.action, f.lines) for f in found.report.findings] == [("ignore", (1,))]
        message = refused(tmp_path / "p.parquet", fields=FieldNames(category="category"))
        assert (
            "row 1: 'category' must be text or a whole number, got 1.0; name another by `category_field`"
            in message
        )

    def test_a_category_that_no_table_takes(self, tmp_path: Path) -> None:
        message = refused(write(tmp_path / "p.jsonl", '{"prompt": "a", "category": "\\ud800"}'))
        assert "line 1: category: half of a surrogate pair (U+D800) at character 1" in message


class TestEncodings:
    def test_every_line_of_another_encoding_is_told_with_its_byte(self, tmp_path: Path) -> None:
        message = refused(write(tmp_path / "p.txt", "a cat\ncafé\nna\u00efve\ncafé\n".encode("cp1252")))
        assert "4 problems (wrong encoding: 3, duplicates: 1)" in message
        assert "line 2: must be UTF-8, got the byte 0xe9 at character 4: b'caf\\xe9'" in message
        assert "line 3: must be UTF-8, got the byte 0xef at character 3" in message

    def test_a_bad_byte_is_one_problem(self, tmp_path: Path) -> None:
        """The quotation marks of Windows would be control characters of Latin-1, and all alike as question marks."""
        message = refused(write(tmp_path / "p.txt", b"a \x93cat\na \x94cat\na \x81cat\n"))
        assert "3 problems (wrong encoding: 3)" in message

    @pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.json"])
    def test_in_every_format(self, name: str, tmp_path: Path) -> None:
        content = {
            "p.csv": b"prompt,x\na,\xe9\n",
            "p.jsonl": b'"b"\n{"prompt": "a", "x": "\xe9"}',
            "p.json": b'[\n{"prompt": "a", "x": "\xe9"}]',
        }[name]
        assert "line 2: must be UTF-8, got the byte 0xe9" in refused(write(tmp_path / name, content))

    @pytest.mark.parametrize(
        ("encoding", "byte"), [("utf-16", "0xff"), ("utf-16-be", "0xfe"), ("utf-32", "0xff")]
    )
    def test_utf_16(self, encoding: str, byte: str, tmp_path: Path) -> None:
        mark = "\ufeff" if encoding == "utf-16-be" else ""
        message = refused(write(tmp_path / "p.txt", (mark + "a cat\n").encode(encoding)))
        assert f"line 1: must be UTF-8, got the byte {byte}, with which UTF-16 begins" in message

    def test_of_parquet(self, tmp_path: Path) -> None:
        texts = pa.array([b"a", b"caf\xe9", b"b"]).view(pa.string())
        pq.write_table(pa.table({"prompt": texts}), tmp_path / "p.parquet")
        assert "row 2: must be UTF-8, got the byte 0xe9: b'caf\\xe9'" in refused(tmp_path / "p.parquet")

    def test_a_column_that_is_not_asked_for_is_not_read(self, tmp_path: Path) -> None:
        other = pa.array([b"\xe9"]).view(pa.string())
        pq.write_table(pa.table({"prompt": ["a"], "other": other}), tmp_path / "p.parquet")
        assert read(tmp_path / "p.parquet") == ["a"]


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("content", "rule"),
        [
            ('["a",\n"b"\n"c"]', "line 3: must continue with , or ], got '\"c\"]'; reading ends here"),
            ('["a",\n"b"\n', "line 3: must continue with , or ], got the end of the file"),
            ('["a",\n]', "line 2: no JSON (Expecting value, character 1)"),
            ('["a",\n{"prompt":\n"b" 1}]', "line 3: no JSON (Expecting ',' delimiter, character 5)"),
            ('["a"]\n["b"]', "line 2: must end after the array, got '[\"b\"]'"),
            ('["a",\n{"x": 1, "x": 2}]', "line 2: no JSON (the key 'x' is repeated); reading"),
            ('["a",\n{"prompt": "b", "score": NaN}]', "line 2: no JSON (NaN is no JSON value)"),
            ('\n{"prompt": "a"}', "line 2: must be a JSON array of prompts, got '{\"prompt\": \"a\"}'"),
            ("", "line 1: must be a JSON array of prompts, got ''"),
            ("[" * 100_000, "line 1: no JSON (maximum recursion depth exceeded"),
        ],
    )  # fmt: skip
    def test_a_broken_array(self, content: str, rule: str, tmp_path: Path) -> None:
        assert rule in refused(write(tmp_path / "p.json", content))

    def test_what_stands_before_the_break_is_checked_too(self, tmp_path: Path) -> None:
        message = refused(write(tmp_path / "p.json", '["a",\n"a",\n""\n'))
        assert "3 problems (no JSON: 1, duplicates: 1, empty: 1)" in message

    def test_broken_json_lines(self, tmp_path: Path) -> None:
        message = refused(
            write(tmp_path / "p.jsonl", '"a"\n{"prompt": "b"\n"c"\n{"prompt": 1, "prompt": 2}\n"d" 1\n')
        )
        assert "line 2: no JSON (Expecting ',' delimiter, character 15): '{\"prompt\": \"b\"'" in message
        assert "line 4: no JSON (the key 'prompt' is repeated)" in message
        assert "line 5: no JSON (Extra data, character 5)" in message

    def test_broken_csv(self, tmp_path: Path) -> None:
        content = 'prompt,category\na cat, asleep,x\n"two\nlines",y\nshort\n"no end,z\nb,c\n'
        message = refused(write(tmp_path / "p.csv", content))
        assert (
            "line 2: 3 fields, but the header has 2 (text with a comma needs quotes): 'a cat, asleep,x'"
            in message
        )
        assert "line 3: a line feed (U+000A) at character 4: 'two\\nlines'" in message
        assert "line 5: 1 fields, but the header has 2" in message
        assert "line 6: no CSV (unexpected end of data); reading ends here" in message

    def test_a_csv_file_without_a_header(self, tmp_path: Path) -> None:
        assert "must begin with a header line" in refused(write(tmp_path / "p.csv", ""))

    def test_an_empty_line_of_csv(self, tmp_path: Path) -> None:
        assert "line 3: an empty prompt" in refused(write(tmp_path / "p.csv", "prompt,x\na,1\n\nb,2\n"))

    def test_a_damaged_parquet_file(self, tmp_path: Path) -> None:
        pq.write_table(
            pa.table({"prompt": [str(i) for i in range(1000)]}), tmp_path / "p.parquet", compression="gzip"
        )
        content = (tmp_path / "p.parquet").read_bytes()
        assert "corrupt, cut off, or no Parquet file" in refused(
            write(tmp_path / "cut.parquet", content[:-20])
        )
        damaged = content[:40] + bytes(200) + content[240:]
        assert "corrupt or cut off" in refused(write(tmp_path / "bad.parquet", damaged))

    def test_a_parquet_column_that_is_no_text(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"prompt": [1, 2]}), tmp_path / "p.parquet")
        assert "the column 'prompt' must be text, got int64" in refused(tmp_path / "p.parquet")

    def test_a_parquet_file_without_the_column(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"text": ["a"]}), tmp_path / "p.parquet")
        assert "needs one field `prompt` with the prompt, got none among the fields 'text'" in refused(
            tmp_path / "p.parquet"
        )

    def test_null_of_parquet_is_an_empty_prompt(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"prompt": ["a", None]}), tmp_path / "p.parquet")
        assert "row 2: an empty prompt" in refused(tmp_path / "p.parquet")
