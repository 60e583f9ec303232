# tokenize_test.py - BPEs trained by dev/tokenize have the merges and ids of Hugging Face's tokenizers and transformers
import array
import importlib.util
import json
import subprocess
import unittest

from run_support import ROOT, WithFolder, main

if importlib.util.find_spec('tokenizers'): import tokenizers

IDS = 2000


@unittest.skipUnless(importlib.util.find_spec('tokenizers'), 'no tokenizers')
class Trained(WithFolder):
    def setUp(self):
        super().setUp()
        text = ''.join(path.read_text('utf-8') for path in sorted((ROOT / 'llmc').rglob('*.md')))
        self.text = text.replace('<|endoftext|>', '')  # in these libraries it is no text
        self.text += 'aaaaaaa aaaa \u65e5\u672c\u8a9e\u65e5\u672c \U0001f600\U0001f600' * 3
        file = self.folder / 'text.txt'
        file.write_bytes(self.text.encode())
        subprocess.run([ROOT / 'dev/tokenize', '-o', self.folder, '--hold-out', '0', '--tokenizer', f'bpe:{IDS}', file],
                       check=True, stdout=subprocess.DEVNULL)
        shard = (self.folder / 'text_train_000000.bin').read_bytes()
        self.ids = array.array('H', shard[1024:]).tolist()

    def test_merges_are_those_of_the_trainer(self):
        own = json.loads((self.folder / 'tokenizer.json').read_text('utf-8'))['model']['merges']
        pieces = tokenizers.pre_tokenizers
        theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
        theirs.pre_tokenizer = pieces.ByteLevel(add_prefix_space=False)
        theirs.train_from_iterator([self.text], tokenizers.trainers.BpeTrainer(
            vocab_size=IDS, min_frequency=2, show_progress=False, initial_alphabet=pieces.ByteLevel.alphabet(),
            special_tokens=['<|endoftext|>']))
        theirs = json.loads(theirs.to_str())['model']['merges']
        self.assertEqual([merge.split(' ') for merge in own], [list(merge) for merge in theirs])

    def test_ids_are_those_of_the_file(self):
        own = tokenizers.Tokenizer.from_file(str(self.folder / 'tokenizer.json'))
        self.assertEqual([IDS - 1, *own.encode(self.text).ids], self.ids)

    @unittest.skipUnless(importlib.util.find_spec('transformers'), 'no transformers')
    def test_ids_are_those_of_transformers(self):
        from transformers import AutoTokenizer
        own = AutoTokenizer.from_pretrained(self.folder)
        self.assertEqual([IDS - 1, *own(self.text)['input_ids']], self.ids)
        self.assertEqual(own.decode(self.ids[1:]), self.text)


if __name__ == '__main__': main()
