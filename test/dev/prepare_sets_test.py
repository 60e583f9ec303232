#!/usr/bin/env python3
# prepare_sets_test.py - dev/data/prepare: every token of each data set's documents, every word of HellaSwag's file
import array
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import struct
import subprocess
import sys
import unittest
from unittest import mock

from prepare_support import BASE, Prepares, documents, hub, ids_of, needs_hub, shards, sources, stream_of
from run_support import ROOT, main
from tool_main import ToolError

HAS_PYARROW = importlib.util.find_spec('pyarrow') is not None

EXAMPLES = [
    {'ind': 24, 'ctx': 'A man is sitting on a roof. he', 'label': 3, 'endings': [
        'is using wrap to wrap a pair of skis.', 'is ripping level tiles off.', "is holding a rubik's cube.",
        'starts pulling up roofing on a roof.']},
    {'ind': 1, 'ctx': 'ä', 'label': 0, 'endings': ['', 'b', ' c', 'd<|endoftext|>']}]
# Computed with tiktoken.
GPT2_IDS = [[32, 582, 318, 5586, 319, 257, 9753, 13, 339],
            [318, 1262, 14441, 284, 14441, 257, 5166, 286, 1341, 271, 13],
            [318, 34759, 1241, 19867, 572, 13], [318, 4769, 257, 6437, 1134, 338, 23441, 13],
            [4940, 10427, 510, 9753, 278, 319, 257, 9753, 13]]


class Sets(Prepares):
    @unittest.skipUnless(HAS_PYARROW, 'no pyarrow')
    def test_fineweb_from_parquet(self):
        import pyarrow.parquet
        folder, everything = self.folder / 'parquet', documents(300, 7)
        folder.mkdir()
        for number, part in enumerate((everything[:100], everything[100:])):
            table = pyarrow.table({'id': [str(i) for i in range(len(part))], 'text': part})
            pyarrow.parquet.write_table(table, folder / f'00{number}_00000.parquet', row_group_size=64,
                                        compression='snappy')
        self.made('fineweb', '--from', folder, '--shard-tokens', 4000)
        self.check_shards('fineweb', everything, 4000)
        if importlib.util.find_spec('huggingface_hub'):
            self.out = self.folder / 'edu'
            hub.publish('HuggingFaceFW/fineweb-edu', 'sample/10BT', {p.name: p.read_bytes() for p in folder.iterdir()})
            self.made('fineweb-edu', '--shard-tokens', 4000)
            self.check_shards('edu_fineweb', everything, 4000)

    @needs_hub
    def test_ready_made_shards_of_fineweb(self):
        published = {}
        for name, ids in (('train_000001', [50256, 1, 2]), ('train_000002', [3, 4]), ('val_000000', [50256, 5])):
            published[f'fineweb_{name}.bin'] = shards.header(20240520, 1, len(ids)) + struct.pack(
                f'<{len(ids)}H', *ids)  # no vocabulary, as llm.c
        hub.publish('kjj0/fineweb10B-gpt2', '', published)

        def written():
            return {path.name: path.read_bytes() for path in self.out.glob('*.bin')}
        with mock.patch('shards.TOKENIZE', self.folder / 'none'):  # needs no tokenizer
            said = self.made('fineweb', '--tokenized', '--shards', 2, tokenizer='gpt2')
            self.assertEqual(hub.requested, [(f'fineweb_{name}.bin', None) for name in ('val_000000', 'train_000001')])
            self.assertEqual(written(), {name: data for name, data in published.items() if '000002' not in name})
            self.assertIn(f'validation: 2 tokens in 1 shard: {self.out}/fineweb_val_000000.bin\n', said)
            self.assertIn('vocabulary: 50257, end of text 50256\n', said)
            hub.requested.clear()
            self.made('fineweb', '--tokenized', tokenizer='gpt2')
            self.assertEqual((hub.requested, written()), ([('fineweb_train_000002.bin', None)], published))
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), sorted([*published, 'prepare.json']))
        for words, tokenizer, said in (
                (('fineweb',), 'gpt2', 'SET is fineweb; expected fineweb --tokenized, as in '),
                (('tinystories', '--tokenized'), 'gpt2', '--tokenized is set for tinystories; expected fineweb'),
                (('fineweb', '--tokenized'), 'bytes', '--tokenizer is bytes with --tokenized; expected gpt2'),
                (('fineweb', '--tokenized', '--shard-tokens', '9'), 'gpt2', '--shard-tokens is set together with'),
                (('fineweb', '--tokenized', '--from', self.folder), 'gpt2', '--from is set together with --tokenized'),
                (('fineweb', '--tokenized', '--shards', '1'), 'gpt2', '--shards is "1"; expected a whole number')):
            with mock.patch('shards.Tokenizer.check'): self.assertIn(said, self.not_made(*words, tokenizer=tokenizer))
        hub.listed.clear()
        self.out = self.folder / 'other'
        said = self.not_made('fineweb', '--tokenized', code=1, tokenizer='gpt2')
        self.assertEqual(('run this again to resume, set HF_ENDPOINT' in said, '--from' in said), (True, False))

    def test_tinystories(self):
        folder, train, val = self.folder / 'stories', documents(40, 1), ['Once.\n\nTwice.', 'a<|endoftex', 'ä']
        folder.mkdir()
        (folder / 'TinyStories-train.txt').write_text('\n<|endoftext|>\n'.join(['', *train]))
        (folder / 'TinyStories-valid.txt').write_text(' <|endoftext|>'.join(val) + '\n<|endoftext|>\n')
        self.made('tinystories', '--from', folder, '--shard-tokens', 300)
        train = stream_of(text.strip() for text in train if text.strip())
        got = [token for path in sorted(self.out.glob('tinystories_train_00000?.bin')) for token in ids_of(path)[1]]
        self.assertEqual(got, train)
        self.assertEqual(ids_of(self.out / 'tinystories_val_000000.bin')[1], stream_of(val))
        self.assertEqual(len(list(self.out.glob('*.bin'))), 1 + -(-len(train) // 300))

    def test_stories_across_read_boundaries(self):
        place, texts = self.folder / 'long', ['a' * (1 << 20), 'b' * (1 << 21), 'c']
        for shift in range(14):
            place.write_text('x' * shift + '<|endoftext|>' + '<|endoftext|>'.join(texts))
            self.assertEqual(list(sources.stories(place)), ['x' * shift] * (shift > 0) + texts)
        place.write_bytes(b'a<|endoftext|>b\xff')
        with self.assertRaisesRegex(ToolError, 'byte 15 of .* is not UTF-8'):
            list(sources.stories(place))

    def test_tinyshakespeare(self):
        folder = self.folder / 'plays'
        folder.mkdir()
        parts = [f'{name}:\n{text}' for name, text in zip(itertools.cycle(('First', 'All')), documents(1500, 3))]
        (folder / 'input.txt').write_text('\n\n'.join(parts))
        parts = '\n\n'.join(parts).split('\n\n')
        self.made('tinyshakespeare', '--from', folder)
        self.check_shards('tinyshakespeare', [part + '\n\n' for part in parts[:-1]] + parts[-1:], 100000000, 0, 32768)


class Parquet(Prepares):
    def tokenize(self, *words, field='text'):
        """(exit code, stderr) of parquet_lines.py, and of dev/tokenize that reads its lines."""
        lines = subprocess.run([sys.executable, ROOT / 'dev/data/parquet_lines.py', '--column', field, *words],
                               capture_output=True, check=False, timeout=60)
        command = [shards.TOKENIZE, '-o', self.out, '--hold-out', '0', '--tokenizer', 'bytes', '--format', 'jsonl']
        done = subprocess.run([*command, '--field', field, '-'], input=lines.stdout, capture_output=True, check=False,
                              timeout=60)
        return lines.returncode, lines.stderr.decode(), done.returncode, done.stderr.decode()

    @unittest.skipUnless(HAS_PYARROW, 'no pyarrow')
    def test_columns_are_tokenized(self):
        import pyarrow.parquet
        texts, file = [*documents(3000, 3), 'é\n"\\\x00😀', 'x' * 300000], self.folder / 'a.Parquet'
        pyarrow.parquet.write_table(pyarrow.table({'body': texts, 'id': list(range(len(texts)))}), file)
        self.assertEqual(self.tokenize(file, file, field='body'), (0, '', 0, ''))
        self.assertEqual(ids_of(self.out / 'text_train_000000.bin')[1], stream_of(2 * texts))
        self.out = self.folder / 'wrong'
        pyarrow.parquet.write_table(pyarrow.table({'text': ['a'] * 40000 + [None]}), self.folder / 'null.parquet')
        whole = file.read_bytes()
        (self.folder / 'cut.parquet').write_bytes(whole[:-9])
        for name, code, said in (('a.Parquet', 2, 'a.Parquet" is a table with columns "body", "id"; expected a table '
                                  'with a column "text"'), ('null.parquet', 2, 'the text in row 40001 of '),
                                 ('cut.parquet', 1, 'cut.parquet" is not a complete Parquet table'),
                                 ('none.parquet', 1, 'none.parquet"')):
            got, err, refused, why = self.tokenize(self.folder / name)
            self.assertEqual((got, err.count('\n'), refused), (code, 1, 2), err + why)
            self.assertIn(said, err)
            self.assertIn(' is not valid JSON: ', why)
            self.assertEqual(list(self.out.glob('*')), [])


class HellaSwag(Prepares):
    def write(self, *examples):
        folder = self.folder / 'examples'
        folder.mkdir(exist_ok=True)
        (folder / 'hellaswag_val.jsonl').write_text(''.join(json.dumps(example) + '\n' for example in examples))
        return folder

    def read_back(self):
        """The header's words and [(label, [ids of the context and of each ending])], every word of the file."""
        data = (self.out / 'hellaswag_val.bin').read_bytes()
        words, stream, at, found = struct.unpack('<256i', data[:1024]), array.array('H', data[1024:]), 0, []
        while at < len(stream):
            start, size, index, label, endings = stream[at:at + 5]
            self.assertEqual((start, index, endings), (65535, len(found), 4))
            end, rows = at + size // 2, []
            at += 5
            while at < end:
                rows.append(list(stream[at + 1:at + 1 + stream[at]]))
                self.assertEqual(len(rows[-1]), stream[at])
                at += 1 + stream[at]
            self.assertEqual((at, len(rows), size % 2), (end, 5, 0))
            found.append((label, rows))
        return words, found

    def test_every_word_of_the_file(self):
        said = self.made('hellaswag', '--from', self.write(*EXAMPLES))
        words, found = self.read_back()
        expected = [(example['label'], [list(text.encode()) for text in (
            example['ctx'], *(' ' + ending for ending in example['endings']))]) for example in EXAMPLES]
        self.assertEqual(found, expected)
        longest = max(2 * (5 + sum(1 + len(row) for row in rows)) for _, rows in expected)
        self.assertEqual(words, (20240522, 1, 2, longest, 257, 256) + 250 * (0,))
        self.assertIn('hellaswag_val.bin: 2 examples\nvocabulary: 257, end of text 256\n', said)
        self.assertIn('already exists', self.made('hellaswag', '--from', self.write(*EXAMPLES)))

    @unittest.skipUnless((ROOT / 'data/gpt2/vocab.bpe').exists(), "no merges of GPT-2's")
    def test_the_ids_of_gpt2(self):
        self.made('hellaswag', '--from', self.write(*EXAMPLES), tokenizer='gpt2')
        words, found = self.read_back()
        self.assertEqual(words[4:6], (50257, 50256))
        self.assertEqual(found[0], (3, GPT2_IDS))
        said = self.not_made('hellaswag', '--from', self.write(*EXAMPLES))
        self.assertIn('--tokenizer is bytes; expected gpt2, as in ', said)

    def test_examples_that_are_refused(self):
        def changed(**fields):
            return {**EXAMPLES[0], **fields}
        for wrong, said in ((changed(ctx=''), '"ctx" in '), (changed(endings=['a']), '"endings" in '),
                            (changed(endings=['a', 'b', 'c', 4]), '"endings" in '), (changed(label=4), '"label" in '),
                            (changed(label='3'), ' is "3"; expected 0 to 3'),
                            (changed(label=None), ' is null; expected 0 to 3'),
                            (changed(ctx=['\x7f']), ' is ["\\u007f"]; expected a text'),
                            (changed(endings='a' * 90), ' is "' + 'a' * 59 + '...; expected 4 texts'),
                            ({'ctx': 'a', 'endings': []}, 'no label'), (changed(ctx='a' * 40000), 'example 1 of ')):
            said_all = self.not_made('hellaswag', '--from', self.write(EXAMPLES[1], wrong))
            self.assertIn(said, said_all)
            self.assertFalse(self.out.exists())
        self.assertIn('the number of lines in ', self.not_made('hellaswag', '--from', self.write()))

    def test_it_is_downloaded(self):
        data = (self.write(*EXAMPLES) / 'hellaswag_val.jsonl').read_bytes()
        source = sources.SOURCES['hellaswag']
        for known, said in ((source.site.known, 'f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588, as published'),
                            ({'hellaswag_val.jsonl': hashlib.sha256(data).hexdigest()}, None)):
            for url in (f'{BASE}/none', BASE):
                site = sources.Web(url, known)
                with mock.patch.dict(sources.SOURCES, hellaswag=dataclasses.replace(source, site=site)):
                    if url != BASE: self.assertIn('404', self.not_made('hellaswag', code=1))
                    elif said: self.assertIn(said, self.not_made('hellaswag', code=1))
                    else: self.made('hellaswag')
                hub.files['/hellaswag_val.jsonl'] = data
        self.assertEqual(len(self.read_back()[1]), 2)


if __name__ == '__main__': main()
