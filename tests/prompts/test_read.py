"""Each format gives the same prompts; problems of the file's form come with file, line or row, and value."""

import json
import os
import re
import time
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.prompts.files import LENIENT, STRICT, checked, read, refused, write

TEXTS = ["a cat, asleep", 'a "red" kite', "café in Zürich 🎨"]


def csv_text(*rows: list[str]) -> str:
    return "".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n" for row in rows)


CONTENTS = {
    "p.txt": ("\n".join(TEXTS) + "\n", [1, 2, 3]),
    "p.csv": (csv_text(["prompt"], *([text] for text in TEXTS)), [2, 3, 4]),
    "p.tsv": ("prompt\tnote\n" + "".join(f"{text}\t\n" for text in TEXTS), [2, 3, 4]),
    "quoted.tsv": (csv_text(["prompt"], *([text] for text in TEXTS)), [2, 3, 4]),
    "p.jsonl": ("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS), [1, 2, 3]),
    "p.json": (json.dumps(TEXTS, indent=1), [1, 2, 3]),
    "objects.json": (json.dumps([{"prompt": t, "rank": [1, 2]} for t in TEXTS], indent=0), [1, 2, 3]),
}


def parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


class TestFormats:
    @pytest.mark.parametrize("name", CONTENTS)
    def test_every_text_format_gives_the_same_prompts_with_its_lines(self, name: str, tmp_path: Path) -> None:
        content, lines = CONTENTS[name]
        path = write(tmp_path / name, content)
        found = checked(path)
        assert [(row.text, row.line, row.source) for row in found.rows] == [
            (text, line, str(path)) for text, line in zip(TEXTS, lines, strict=True)
        ]
        assert (found.report.read, found.report.kept, found.report.findings) == (3, 3, ())
        windows = b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")
        assert checked(write(path, windows)).rows == found.rows

    def test_parquet(self, tmp_path: Path) -> None:
        """Columns that are not asked for are not read: this one is no UTF-8."""
        other = pa.array([b"\xe9"] * 3).view(pa.string())
        path = parquet(tmp_path / "p.parquet", Prompt=TEXTS, Category=["x", None, "y"], other=other)
        found = checked(path, metadata_fields=())
        assert [(row.text, row.category, row.line) for row in found.rows] == list(
            zip(TEXTS, ["x", "", "y"], [1, 2, 3], strict=True)
        )
        assert found.report.unit == "row"
        assert found.report.notes == (f"{path}: fields that were not read: other",)

    def test_a_url_of_an_object_store(self) -> None:
        files = fsspec.filesystem("memory")
        files.pipe("/prompts-test/p.txt", b"a cat\na dog\n")
        with files.open("/prompts-test/p.parquet", "wb") as file:
            pq.write_table(pa.table({"prompt": ["a cow"]}), file)
        try:
            assert read("memory://prompts-test/p.txt") == ["a cat", "a dog"]
            assert read("memory://prompts-test/p.parquet") == ["a cow"]
        finally:
            files.rm("/prompts-test", recursive=True)

    def test_the_last_line_needs_no_line_end_and_a_second_one_is_an_empty_line(self, tmp_path: Path) -> None:
        assert read(write(tmp_path / "P.TXT", "a cat\na dog")) == ["a cat", "a dog"]
        assert "line 3: an empty prompt" in refused(write(tmp_path / "p.txt", "a cat\na dog\n\n"))

    def test_only_a_line_feed_ends_a_line(self, tmp_path: Path) -> None:
        """str.splitlines would find three lines more, and put the last prompt on line 5."""
        message = refused(write(tmp_path / "p.txt", "a\u2028b\x0bc\x85d\na dog \n"))
        assert "line 1: U+2028 at character 2" in message
        assert "line 2: whitespace before or after the prompt: 'a dog '" in message

    @pytest.mark.parametrize(
        ("name", "content", "line"),
        [
            ("p.txt", "a\n\n", "line 2"),
            ("p.csv", "prompt,x\na,1\n\nb,2\n", "line 3"),
            ("p.jsonl", '"a"\n\n{"prompt": null}\n', "line 3"),
            ("p.json", '["a",\n\nnull]', "row 2"),
        ],
    )
    def test_missing_text_is_an_empty_prompt(self, name, content, line, tmp_path):
        assert f"{line}: an empty prompt" in refused(write(tmp_path / name, content))
        assert "row 2: an empty prompt" in refused(parquet(tmp_path / "p.parquet", prompt=["a", None]))

    @pytest.mark.parametrize(
        ("name", "content"), [("p.txt", ""), ("p.csv", "prompt\n"), ("p.jsonl", ""), ("p.json", "[ ]")]
    )
    def test_a_file_without_prompts_is_refused(self, name: str, content: str, tmp_path: Path) -> None:
        assert refused(write(tmp_path / name, content)).startswith("must hold prompts, got none at all")


class TestDialects:
    """Files as spreadsheets and other programs write them."""

    def test_quotes_of_a_tsv_that_no_spreadsheet_wrote_are_text(self, tmp_path: Path) -> None:
        """Line 1562 of PartiPrompts.tsv begins with a quoted word."""
        content = 'Prompt\tCategory\n"G O" on a wall\tWriting\na "b"\tWriting\n'
        assert read(write(tmp_path / "p.tsv", content)) == ['"G O" on a wall', 'a "b"']
        quoted = 'Prompt\tCategory\n"""G O"" on a wall"\tWriting\n"a\tb"\tx\n'
        message = refused(write(tmp_path / "p.tsv", quoted))
        assert "line 3: U+0009 (a tab) at character 2" in message
        rules = STRICT.model_copy(update={"characters": "keep"})
        assert read(write(tmp_path / "p.tsv", quoted), rules) == ['"G O" on a wall', "a\tb"]

    @pytest.mark.parametrize("delimiter", [",", ";", "\t"])
    def test_the_header_shows_the_delimiter_of_csv(self, delimiter: str, tmp_path: Path) -> None:
        content = delimiter.join(("prompt", "text")) + "\n" + delimiter.join(('"a, b; c"', "x")) + "\n"
        path = write(tmp_path / "p.csv", content)
        assert [(row.text, row.metadata) for row in checked(path).rows] == [("a, b; c", {"text": "x"})]

    def test_a_row_with_too_many_fields_names_its_delimiter(self, tmp_path: Path) -> None:
        message = refused(write(tmp_path / "p.csv", "prompt;text\na;b;c\n"))
        assert "line 2: 3 fields, but the header has 2 (text with a semicolon needs quotes):" in message

    def test_many_lines_take_seconds(self, tmp_path: Path) -> None:
        lines = "".join(f'"a cat, number {number}",text {number}\n' for number in range(30_000))
        path = write(tmp_path / "p.csv", "prompt,text\n" + lines)
        start = time.process_time()
        assert len(checked(path).rows) == 30_000
        assert time.process_time() - start < 6


class TestMetadata:
    """Fields besides prompt and category reach scorers."""

    def test_json_keeps_its_types(self, tmp_path: Path) -> None:
        others = {"text": "OPEN", "count": 2, "share": 0.5, "parts": [{"of": None}], "is_new": True}
        path = write(tmp_path / "p.jsonl", json.dumps({"prompt": "a", "category": "x"} | others))
        found = checked(path)
        assert found.rows[0].metadata == others
        assert found.report.notes == (f"{path}: fields kept as metadata: text, count, share, parts, is_new",)
        assert checked(write(tmp_path / "p.txt", "a")).rows[0].metadata == {}

    def test_csv_has_texts(self, tmp_path: Path) -> None:
        path = write(tmp_path / "p.csv", "prompt,text,count\na,OPEN,2\nb,,3\n")
        rows = checked(path).rows
        assert [row.metadata for row in rows] == [{"text": "OPEN", "count": "2"}, {"text": "", "count": "3"}]

    def test_parquet_keeps_what_json_has(self, tmp_path: Path) -> None:
        path = parquet(
            tmp_path / "p.parquet",
            prompt=["a", "b"],
            count=[2, None],
            share=[0.5, float("nan")],
            parts=[[{"of": "x"}], []],
            kind=pa.array(["x", "y"]).dictionary_encode(),
            image=[{"bytes": b"\x89PNG", "path": "1.png"}] * 2,
            day=pa.array([0, 1], pa.date32()),
        )
        found = checked(path)
        assert [row.metadata for row in found.rows] == [
            {"count": 2, "share": 0.5, "parts": [{"of": "x"}], "kind": "x"},
            {"count": None, "share": None, "parts": [], "kind": "y"},
        ]
        assert found.report.notes == (
            f"{path}: fields kept as metadata: count, share, parts, kind",
            f"{path}: fields that were not read: image, day",
        )

    def test_fields_may_be_chosen(self, tmp_path: Path) -> None:
        path = write(tmp_path / "p.jsonl", json.dumps({"prompt": "a", "text": "x", "other": 1}))
        found = checked(path, metadata_fields=("text",))
        assert found.rows[0].metadata == {"text": "x"}
        assert found.report.notes[1] == f"{path}: fields that were not read: other"
        message = refused(path, metadata_fields=("txt",))
        assert "line 1: needs one field 'txt', got none among the fields 'prompt', 'text', 'other'" in message

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("p.csv", "prompt,x,x\na,1,2\n", "needs one field 'x', got 2 among the fields 'prompt', 'x', 'x'"),
            ("p.jsonl", '{"prompt": "a", "x": NaN}', "line 1: no JSON (NaN is no JSON)"),
        ],
    )
    def test_refuses_metadata_that_would_be_lost_or_changed(self, name, content, message, tmp_path):
        assert message in refused(write(tmp_path / name, content))


class TestFields:
    def test_fields_may_be_named(self, tmp_path: Path) -> None:
        record = {"prompt": "not this", "caption": "a cat", "kind": 7, "other": 1}
        path = write(tmp_path / "p.jsonl", json.dumps(record))
        found = checked(path, prompt_field="caption", category_field="kind")
        (row,) = found.rows
        assert (row.text, row.category, row.metadata) == ("a cat", "7", {"prompt": "not this", "other": 1})
        assert found.report.notes == (f"{path}: fields kept as metadata: prompt, other",)

    @pytest.mark.parametrize(
        ("header", "names", "rule"),
        [
            ("text,style", {}, "line 1: needs one field 'prompt' with the prompt, got none among"),
            ("prompt,Prompts", {}, "got 2 among the fields 'prompt', 'Prompts'"),
            ("prompt,prompt", {"prompt_field": "prompt"}, "got 2 among the fields 'prompt', 'prompt'"),
            ("prompt,style", {"prompt_field": "caption"}, "needs one field 'caption' with the prompt, got none"),
            ("prompt,style", {"category_field": "kind"}, "needs one field 'kind', got none among the fields"),
            ("prompt,Category,category", {}, "needs one field 'category', got 2 among the fields"),
            ("", {}, "needs a header with the names of the fields, got an empty line or file"),
        ],
    )  # fmt: skip
    def test_a_field_that_is_not_there(self, header, names, rule, tmp_path):
        assert rule in refused(write(tmp_path / "p.csv", f"{header}\na,b,c\n"), **names)
        path = parquet(tmp_path / "p.parquet", text=["a"])
        assert refused(path).startswith("needs one field 'prompt' with the prompt, got none among the fields")

    def test_values_of_another_kind(self, tmp_path: Path) -> None:
        lines = ['{"prompt": 3, "kind": "x"}', '{"prompt": "a", "kind": [1]}', '{"text": "a"}', "[1]"]
        path = write(tmp_path / "p.jsonl", "\n".join([*lines, '{"prompt": "b", "kind": true}']))
        header, *said = refused(path, category_field="kind").splitlines()
        assert header == "5 problems (no prompt: 3, category of another kind: 2)"
        for line, rule in enumerate(
            [
                "'prompt' must be text, got 3",
                "'kind' must be text or a whole number, got [1]; name another by `category_field`",
                "needs one field 'prompt' with the prompt, got none among the fields 'text'",
                "must be text or an object with a field for the prompt, got [1]",
                "'kind' must be text or a whole number, got True; name another by `category_field`",
            ],
            start=1,
        ):
            assert said[line - 1].startswith(f"  line {line}: {rule}")
        assert "row 1: 'prompt' must be text, got 1" in refused(parquet(tmp_path / "p.parquet", prompt=[1]))

    def test_unrequested_invalid_category_is_ignored_and_reported(self, tmp_path: Path) -> None:
        path = parquet(tmp_path / "p.parquet", prompt=["a", "b"], Category=[1.0, None])
        found = checked(path)
        assert [(row.text, row.category) for row in found.rows] == [("a", ""), ("b", "")]
        (finding,) = found.report.findings
        assert (finding.action, finding.lines) == ("ignore", (1,))
        assert finding.messages == ("'Category' must be text or a whole number, got 1.0",)
        assert found.report.lines()[1] == f"{path}: category of another kind: 1 ignored (row 1)"
        assert "row 1: 'Category' must be" in refused(path, category_field="Category")


class TestLimit:
    @pytest.mark.parametrize(
        ("name", "content"),
        [("p.txt", "a\nb\n\nb\n"), ("p.csv", 'prompt\na\n"b"\nc,d\n'), ("p.jsonl", '"a"\n"b"\n{\n')],
    )
    def test_records_after_limit_are_not_checked_but_noted(self, name, content, tmp_path):
        path = write(tmp_path / name, content)
        found = checked(path, limit=2)
        assert [row.text for row in found.rows] == ["a", "b"]
        assert found.report.notes == (f"{path}: read up to the limit of 2; there is more",)
        assert re.match(r"line |2 problems ", refused(path))

    def test_limit_equal_to_file_length_gives_no_note(self, tmp_path: Path) -> None:
        path = parquet(tmp_path / "p.parquet", prompt=["a", "b"])
        assert checked(path, limit=2).report.notes == ()

    def test_unreadable_record_counts_towards_limit(self, tmp_path: Path) -> None:
        path = write(tmp_path / "p.jsonl", '"a"\n{\n"b"\n"b"\n')
        assert refused(path, limit=2).startswith("line 2: no JSON (")
        assert refused(path, limit=4).startswith("2 problems (no prompt: 1, duplicates: 1)")


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("p.txt", "a cat\ncafé\n".encode("cp1252"), "line 2: must be UTF-8, got the byte 0xe9. Save the file"),
            ("p.csv", b"prompt,x\na,\xe9\n", "line 2: must be UTF-8, got the byte 0xe9."),
            ("p.json", b'[\n{"prompt": "a", "x": "\xe9"}]', "line 2: must be UTF-8, got the byte 0xe9."),
            ("p.txt", "a cat\n".encode("utf-16"), "line 1: must be UTF-8, got the byte 0xff."),
            ("p.csv", b'prompt,x\na,1\n"no end,2\nb,3\n', "line 3: no CSV (unexpected end of data)."),
            ("p.json", b'["a",\n"b"\n"c"]', "must be one JSON array (Expecting ',' delimiter: line 3 column 1"),
            ("p.json", b'{"prompt": "a"}\n{"prompt": "b"}', "must be one JSON array (Extra data: line 2 column 1"),
            ("p.json", b'[{"x": 1, "x": 2}]', "must be one JSON array (a key is repeated: x, x)."),
            ("p.json", b'{"prompt": "a"}', "must be a JSON array of prompts, got {'prompt': 'a'}."),
            ("p.json", b"[" * 100_000, "must be one JSON array (maximum recursion depth exceeded"),
            ("p.parquet", b"a cat\n", "from row 1: no Parquet file, damaged, or not UTF-8 ("),
            ("p.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "this is a pointer of Git LFS"),
            ("p.csv", b"", "line 1: needs a header with the names of the fields, got an empty line or file"),
            ("p.xls", b"a cat\n", "must end in .txt, .csv, .tsv, .jsonl, .ndjson, .json, .parquet, got .xls. Rename"),
        ],
    )  # fmt: skip
    def test_a_file_of_another_form(self, name: str, content: bytes, message: str, tmp_path: Path) -> None:
        assert refused(write(tmp_path / name, content)).startswith(message)

    def test_broken_json_lines(self, tmp_path: Path) -> None:
        content = '"a"\n{"prompt": "b"\n"c"\n{"prompt": 1, "prompt": 2}\n"d" 1\n'
        assert refused(write(tmp_path / "p.jsonl", content)).splitlines()[:4] == [
            "3 problems (no prompt: 3)",
            "  line 2: no JSON (Expecting ',' delimiter): '{\"prompt\": \"b\"'",
            '  line 4: no JSON (a key is repeated: prompt, prompt): \'{"prompt": 1, "prompt": 2}\'',
            "  line 5: no JSON (Extra data): '\"d\" 1'",
        ]

    def test_rows_of_csv(self, tmp_path: Path) -> None:
        content = 'prompt,category\na cat, asleep,x\n"two\nlines",y\nshort\n'
        assert refused(write(tmp_path / "p.csv", content)).splitlines()[1:4] == [
            "  line 2: 3 fields, but the header has 2 (text with a comma needs quotes): 'a cat, asleep,x'",
            "  line 3: U+000A (a line feed) at character 4: 'two\\nlines'",
            "  line 5: 1 fields, but the header has 2 (text with a comma needs quotes): 'short'",
        ]

    def test_parquet(self, tmp_path: Path) -> None:
        texts = pa.array([b"a", b"caf\xe9", b"b"]).view(pa.string())
        message = refused(parquet(tmp_path / "p.parquet", prompt=texts))
        assert message.startswith("from row 2: no Parquet file, damaged, or not UTF-8 ('utf-8' codec")
        path = parquet(tmp_path / "p.parquet", prompt=[str(i) for i in range(1000)])
        content = path.read_bytes()
        for damaged in (content[:-20], content[:40] + bytes(200) + content[240:]):
            assert refused(write(path, damaged)).startswith("from row 1: no Parquet file, damaged, or not")

    @pytest.mark.parametrize("name", ["p.txt", "p.parquet"])
    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (lambda path: path, "no such file"),
            (Path.mkdir, "not a file"),
            (os.mkfifo, "not a file"),
            (lambda path: path.symlink_to(path), "no such file"),
        ],
        ids=["missing", "folder", "pipe", "link to itself"],
    )
    def test_rejects_non_file_without_hanging(self, make, reason, name, tmp_path):
        make(tmp_path / name)
        rest = "Fix the path; for a data set on the hub, set `hub_file` beside it."
        assert refused(tmp_path / name) == f"{reason}. {rest}"

    def test_a_line_without_end_is_refused_before_it_reaches_a_tokenizer(self, tmp_path: Path) -> None:
        path = write(tmp_path / "p.txt", "a cat\n" + "x" * 10_001 + "\n" + "y" * 10_000 + "\n")
        said = refused(path, LENIENT)
        assert said.startswith("line 2: must have at most 10,000 characters, got 10,001; is a line end")
