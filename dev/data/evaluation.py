# evaluation.py - converts HellaSwag's examples to llm.c's evaluation file
#
#   256 little-endian int32   [0] = 20240522   [1] = version 1   [2] = number of examples   [3] = bytes of the longest
#                             [4] = vocabulary size   [5] = end-of-text id
#   uint16 per example        65535, bytes of the example, its index, its label, 4, then for the context and each ending
#                             the number of its tokens and the tokens
#
# An ending is encoded with a leading space, the context without what follows it.
#
# Source    karpathy/llm.c, dev/data/data_common.py, where the header from [4] on is unused.
import array
import json

from shards import header, new_file
from tool_main import fail, in_quotes

MAGIC, VERSION, ENDINGS, START = 20240522, 1, 4, 65535


def as_json(value, most=60):
    """A value of a file, shortened for a message."""
    text = json.dumps(value).replace('\x7f', '\\u007f')
    return text[:most] + ('...' if len(text) > most else '')


def examples(path):
    """[(context, endings, label)] of a file of JSON lines."""
    found = []
    with open(path, 'rb') as file:
        for number, line in enumerate(file, 1):
            where = f'{in_quotes(path)} line {number}'
            try:
                example = json.loads(line)
                context, endings, label = example['ctx'], example['endings'], example['label']
            except (ValueError, KeyError, TypeError, RecursionError):
                fail(where, in_quotes(line.decode('utf-8', 'replace').strip()[:60]), 'an object with "ctx", "endings" '
                     'and "label"; the test split has no labels')
            if not isinstance(context, str) or not context: fail(f'"ctx" in {where}', as_json(context), 'a text')
            if not isinstance(endings, list) or len(endings) != ENDINGS or \
                    not all(isinstance(ending, str) for ending in endings):
                fail(f'"endings" in {where}', as_json(endings), f'{ENDINGS} texts')
            if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < ENDINGS:
                fail(f'"label" in {where}', as_json(label), f'0 to {ENDINGS - 1}')
            found.append((context, endings, label))
    if not 0 < len(found) < START: fail(f'the number of lines in {in_quotes(path)}', len(found), f'1 to {START - 1}')
    return found


def encoded(texts, what, tokenizer, folder):
    """The ids of each text."""
    ids = array.array('H', b''.join(tokenizer.tokens(what, texts, folder)))
    begins = [i for i, token in enumerate(ids) if token == tokenizer.end_of_text] + [len(ids)]
    return [ids[begin + 1:end] for begin, end in zip(begins, begins[1:])]


def write_evaluation(found, what, tokenizer, folder, place):
    """Writes these examples() to a file; `folder` is for temporary files."""
    texts = encoded((text for context, endings, _ in found
                     for text in (context, *(' ' + ending for ending in endings))), what, tokenizer, folder)
    stream, longest = array.array('H'), 0
    for index, (_, _, label) in enumerate(found):
        rows = texts[index * (ENDINGS + 1):(index + 1) * (ENDINGS + 1)]
        size = 2 * (5 + sum(1 + len(row) for row in rows))
        if size >= START:
            fail(f'example {index} of {what}', f'{size} bytes of tokens', f'less than {START}, the limit of the format')
        longest = max(longest, size)
        stream.extend((START, size, index, label, ENDINGS))
        for row in rows:
            stream.append(len(row))
            stream.extend(row)
    with new_file(place) as file:
        file.write(header(MAGIC, VERSION, len(found), longest, tokenizer.vocabulary, tokenizer.end_of_text))
        file.write(stream.tobytes())
