#!/usr/bin/env python3
# parquet_lines.py - prints a column of text of Parquet tables as lines of JSON, for dev/tokenize
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
from sources import parquet_texts  # noqa: E402
from tool_main import Parser, tool_main  # noqa: E402

SAYS = 'Prints a column of text of Parquet tables as lines of JSON, one {"COLUMN": TEXT} per row.'
EXAMPLES = '  dev/data/parquet_lines.py --column body a.parquet | dev/tokenize -o data/a --format jsonl --field body -'
INCOMPLETE = 'incomplete: parquet_lines.py failed'  # as the last line; it is no JSON, so that dev/tokenize refuses it


def command_line():
    parser = Parser('dev/data/parquet_lines.py', SAYS, EXAMPLES)
    parser.add_argument('tables', metavar='FILE', nargs='+', help='a Parquet table')
    parser.add_argument('--column', default='text', metavar='NAME', help='column of the texts (default: text)')
    return parser


def run(options):
    sys.stdout.reconfigure(encoding='utf-8', errors='surrogatepass')
    try:
        for table in options.tables:
            for text in parquet_texts(table, options.column):
                print(json.dumps({options.column: text}, ensure_ascii=False))
    except BaseException:
        print(INCOMPLETE)
        raise


if __name__ == '__main__': sys.exit(tool_main(command_line(), run))
