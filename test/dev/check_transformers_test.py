#!/usr/bin/env python3
# check_transformers_test.py - dev/peers/check_transformers.py: which tokens of a shard it predicts and, if torch is
# installed, their loss compared with one computed token by token
import importlib.util
import io
import struct
import unittest
from contextlib import redirect_stdout
from types import SimpleNamespace

from run_support import WithFolder, main, program
from tool_main import ToolError

check_transformers = program('peers/check_transformers.py')
HAS_TORCH = all(importlib.util.find_spec(name) for name in ('numpy', 'torch'))


class Batches(unittest.TestCase):
    def test_every_target_is_in_one_batch_and_the_last_row_may_be_shorter(self):
        self.assertEqual(list(check_transformers.batches(20, 4, 2)), [(0, 8, 4), (8, 16, 4), (16, 20, 4)])
        self.assertEqual(list(check_transformers.batches(19, 4, 2)), [(0, 8, 4), (8, 16, 4), (16, 19, 3)])
        self.assertEqual(list(check_transformers.batches(23, 4, 2)), [(0, 8, 4), (8, 16, 4), (16, 20, 4), (20, 23, 3)])
        self.assertEqual(list(check_transformers.batches(3, 4, 2)), [(0, 3, 3)])


@unittest.skipUnless(HAS_TORCH, 'no torch')
class Shard(WithFolder):
    """A model whose logits depend only on the position in the row."""

    def loss(self, tokens, **options):
        import numpy
        import torch
        shard = self.folder / 'shard.bin'
        shard.write_bytes(struct.pack('<3i', 20240520, 1, len(tokens)).ljust(1024, b'\0') +
                          struct.pack(f'<{len(tokens)}H', *tokens))

        def model(rows):
            logits = torch.zeros(*rows.shape, 8)
            logits[..., 5] = torch.arange(rows.shape[1])
            return SimpleNamespace(logits=logits)
        model.config = SimpleNamespace(n_positions=4)
        arguments = SimpleNamespace(**{'shard': str(shard), 'seq_len': 0, 'batch': 2, 'val_tokens': 1 << 20,
                                       'expect_loss': None, 'tolerance': 1e-9, **options})
        said = io.StringIO()
        with redirect_stdout(said): good = check_transformers.shard_loss(arguments, model, numpy, torch)
        return good, said.getvalue()

    @staticmethod
    def token_by_token(tokens, targets):
        from math import exp, log
        places = [(t % 4, tokens[t + 1]) for t in range(targets)]
        return sum(log(7 + exp(place)) - (place if token == 5 else 0) for place, token in places) / targets

    def test_all_requested_tokens_are_predicted(self):
        tokens = [k * k % 8 if k % 3 else 5 for k in range(24)]
        for asked, targets in ((16, 16), (18, 18), (3, 3), (1000, 23)):
            good, said = self.loss(tokens, val_tokens=asked, expect_loss=self.token_by_token(tokens, targets))
            self.assertTrue(good, said)
            more = '' if asked == targets else ', the whole shard; 1000 were requested'
            self.assertIn(f' over {targets} tokens{more}\n', said)
        self.assertFalse(self.loss(tokens, val_tokens=18, expect_loss=self.token_by_token(tokens, 16))[0])

    def test_no_tokens(self):
        for tokens, options in (([1], {}), ([1, 2, 3], {'val_tokens': 0})):
            with self.assertRaisesRegex(ToolError, 'expected at least '): self.loss(tokens, **options)


if __name__ == '__main__': main()
