#!/usr/bin/env python3
# prepare_test.py - dev/data/prepare: every token of the shards, runs that are killed at any time, wrong arguments; and
# with a stand-in for the hub: interrupted downloads, files that differ from the published ones, a full disk
import contextlib
import fcntl
import io
import itertools
import json
import os
import resource
import signal
import sys
from unittest import mock

from prepare_support import DRIP, LINES, Prepares, download, hub, needs_hub, prepare, shards, stream_of
from run_support import main


class Shards(Prepares):
    def test_documents_of_several_files_are_one_stream(self):
        folder, everything = self.texts(30, 1, 50)
        said = self.made(LINES, '--from', folder, '--shard-tokens', 300)
        names = self.check_shards('lines', everything, 300)
        self.assertGreater(len(names), 6)
        self.assertIn('0.txt: 30 documents, ', said)
        self.assertIn(f'validation: 300 tokens in 1 shard: {self.out}/lines_val_000000.bin\n', said)
        self.assertIn(f'in {len(names) - 1} shards: {self.out}/lines_train_000001.bin to {names[-1]}\n', said)

    def test_a_complete_run_is_not_repeated(self):
        folder, everything = self.texts(30, 20)
        self.made(LINES, '--from', folder, '--shard-tokens', 200)
        with mock.patch.object(shards.Tokenizer, 'cut', side_effect=AssertionError):
            self.assertIn('already exists', self.made(LINES, '--from', folder, '--shard-tokens', 200))
            os.truncate(self.out / 'lines_train_000003.bin', 1100)
            said = self.not_made(LINES, '--from', folder, '--shard-tokens', 200, code=1)
        self.assertIn('lines_train_000003.bin" is not a complete shard', said)
        (self.out / 'lines_train_000003.bin').unlink()
        self.made(LINES, '--from', folder, '--shard-tokens', 200)
        self.check_shards('lines', everything, 200)

    def test_the_first_shards_and_later_the_others(self):
        folder, everything = self.texts(30, 20, 40)
        self.assertNotIn('1.txt', self.made(LINES, '--from', folder, '--shard-tokens', 100, '--shards', 3))
        self.assertEqual(len(list(self.out.glob('*.bin'))), 3)
        self.made(LINES, '--from', folder, '--shard-tokens', 100)
        self.check_shards('lines', everything, 100)

    def test_existing_shards_are_not_mixed_with_others(self):
        folder, _ = self.texts(30, 20)
        self.made(LINES, '--from', folder, '--shard-tokens', 200)
        given = (LINES, '--shard-tokens', 200)
        self.assertIn('--shard-tokens is 300; expected 200, as in ',
                      self.not_made(LINES, '--from', folder, '--shard-tokens', 300))
        self.assertIn('SET is tinyshakespeare; expected lines', self.not_made('tinyshakespeare', '--shard-tokens', 200))
        self.out = self.folder / 'foreign'
        self.out.mkdir()
        (self.out / 'lines_train_000001.bin').write_bytes(b'')
        self.assertIn('is not written by this program', self.not_made(*given, '--from', folder))
        record = {'set': LINES, 'tokenizer': 'bytes', 'shard_tokens': 200, 'shards': None, 'files': []}
        for damaged in ('{"files": 1}', '[]', '"x"', '3', '{', '\xff', '[' * 10000, *(
                json.dumps({**record, key: value}) for key, value in (
                    ('files', {'prepare.json': 1}), ('files', 'x'), ('files', [3]), ('files', None), ('set', 3),
                    ('set', ['lines']), ('tokenizer', None), ('shard_tokens', '200'), ('shard_tokens', True)))):
            (self.out / 'prepare.json').write_text(damaged, encoding='latin-1')
            said = self.not_made(*given, '--from', folder)
            self.assertIn('not a record of dev/data/prepare', said, damaged)
        (self.out / 'prepare.json').write_text(json.dumps({**record, 'set': 'a\nb'}))
        self.assertIn('expected a\\x0ab, as in ', self.not_made(*given, '--from', folder))
        (self.out / 'prepare.json').unlink()
        os.mkfifo(self.out / 'prepare.json')
        self.assertIn('not a record of dev/data/prepare', self.not_made(*given, '--from', folder))

    def test_two_concurrent_runs(self):
        folder, _ = self.texts(3)
        self.out.mkdir()
        lock = os.open(self.out, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.assertIn('is in use', self.not_made(LINES, '--from', folder))
        os.close(lock)
        self.made(LINES, '--from', folder, '--shard-tokens', 50)

    def test_wrong_arguments(self):
        folder, everything = self.texts(3)
        empty = self.folder / 'empty'
        empty.mkdir()
        for words, said in ((('finweb',), 'SET is "finweb"; expected fineweb, fineweb-edu, '),
                            (('finweb',), 'did you mean fineweb?'), ((), 'the number of data sets is 0'),
                            (('fineweb', 'hellaswag'), 'the number of data sets is 2'),
                            ((LINES, '--shards', '0'), '--shards is "0"'),
                            ((LINES, '--shard-tokens', '1e0.5'), '--shard-tokens is "1e0.5"'),
                            (('hellaswag', '--shards', '2'), '--shards is set for hellaswag'),
                            ((LINES, '--from', folder, '--download-only'),
                             '--from is set together with --download-only'),
                            ((LINES, '--from', self.folder / 'none'), 'not a folder'),
                            (('tinystories', '--from', empty), 'TinyStories-train.txt in '),
                            ((LINES, '--from', empty), 'the number of files in '),
                            ((LINES, '--from', folder), 'expected more than the validation shard takes')):
            self.assertIn(said, self.not_made(*words), words)
        self.assertEqual(list(self.out.glob('*.bin')), [])
        self.assertIn('--tokenizer is "gpt3"', self.refused(prepare, LINES, '--tokenizer', 'gpt3'))
        said = self.refused(prepare, LINES, '--merges', folder / '0.txt', '--from', folder, '-o', self.out)
        self.assertIn('dev/tokenize, on a text: ', said)
        with mock.patch('shards.TOKENIZE', self.folder / 'none'):
            self.assertIn('build it with make', self.not_made(LINES, '--from', folder))
        for self.out, said in ((folder / '0.txt', 'file exists'), (folder / '0.txt/x', 'not a directory')):
            self.assertIn(said, self.not_made(LINES, '--from', folder))

    def test_the_error_of_the_tokenizer_is_reported(self):
        folder, _ = self.texts(3, 20000)
        self.out = self.folder / 'new' / 'out'
        script = self.folder / 'tokenize'
        script.write_text('#!/bin/sh\necho "dev/tokenize: error: no more" >&2\nexit 1\n')
        script.chmod(0o755)
        with mock.patch('shards.TOKENIZE', script), mock.patch('shards.Tokenizer.check'):
            said = self.not_made(LINES, '--from', folder, '--shard-tokens', 200, code=1)
        self.assertEqual(said, 'dev/tokenize, on 0.txt: no more')
        self.assertFalse(self.out.parent.exists())


TOUCHES = ('os.rename', 'os.remove', 'os.rmdir', 'os.mkdir', 'subprocess.Popen', 'open')


class Killed(Prepares):
    """A run that is killed repeatedly writes the same bytes."""

    def child(self, at, arguments):
        """Runs in a child process, killed before its `at`-th audit event on the folder. Returns its exit code."""
        process = os.fork()
        if process == 0:
            with contextlib.suppress(BaseException):
                left = itertools.count(1)
                folder = str(self.out)

                def hook(event, given):
                    if event not in TOUCHES: return
                    if event == 'open' and not (isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)):
                        return
                    if (event == 'subprocess.Popen' or folder in str(given[0])) and next(left) == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                sys.addaudithook(hook)
                with contextlib.redirect_stdout(io.StringIO()):
                    os._exit(prepare.tool_main(prepare.command_line(), prepare.run, arguments))
            os._exit(99)
        _, status = os.waitpid(process, 0)
        return os.waitstatus_to_exitcode(status)

    def test_at_any_time(self):
        folder, everything = self.texts(30, 25)
        arguments = [LINES, '--from', str(folder), '--shard-tokens', '500', '--tokenizer', 'bytes', '-o', str(self.out)]
        seen = []
        for at in itertools.count(1):
            code = self.child(at, arguments)
            if code == 0: break
            self.assertEqual(code, -signal.SIGKILL)
            seen.append({path.name for path in self.out.glob('*.bin')})
            # The validation shard is published last.
            whole = len(seen[-1]) == -(-len(stream_of(everything)) // 500)
            if 'lines_val_000000.bin' in seen[-1]: self.assertTrue(whole)
            # train_gpt2 refuses a part, by the mark of a shard that is not there.
            marked = {path.with_suffix('').name for path in self.out.glob('*.bin.partial-*')} - seen[-1]
            self.assertTrue(not seen[-1] or whole or any('_train_' in name for name in marked))
        self.assertGreater(len(seen), 10)
        self.assertIn({'lines_train_000002.bin', 'lines_train_000003.bin'}, seen)
        self.check_shards('lines', everything, 500)


@needs_hub
class Downloads(Prepares):
    def setUp(self):
        super().setUp()
        folder, self.everything = self.texts(30, 25)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        hub.publish('a/lines', 'part', self.files)
        chunks = mock.patch('huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE', 50)  # what it writes at once
        chunks.start()
        self.addCleanup(chunks.stop)
        self.arguments = LINES, '--shard-tokens', 400

    def check(self):
        self.made(*self.arguments)
        self.check_shards('lines', self.everything, 400)

    def test_only_the_files_that_the_shards_need(self):
        self.made(*self.arguments, '--shards', 2)
        self.assertEqual(hub.requested, [('0.txt', None)])

    def test_a_download_resumes_where_it_was_interrupted(self):
        hub.faults += [100, 200, 0]
        self.check()
        self.assertEqual(hub.requested, [('0.txt', None), ('0.txt', 'bytes=100-'), ('0.txt', 'bytes=300-'),
                                         ('0.txt', 'bytes=300-'), ('1.txt', None)])

    def test_a_later_run_resumes_a_download(self):
        hub.faults += [100, *download.TRIES * ['403']]
        self.assertIn('part/0.txt" is not downloaded (403 ', self.not_made(*self.arguments, code=1))
        hub.faults.clear()
        hub.requested.clear()
        self.check()
        self.assertEqual(hub.requested[0], ('0.txt', 'bytes=100-'))

    def test_a_file_that_differs_from_the_published_one_is_rejected(self):
        path = '/datasets/a/lines/resolve/main/part/0.txt'
        hub.files[path] = self.files['0.txt'][:-1] + b'!'
        self.assertIn('the SHA-256 of ', self.not_made(*self.arguments, code=1))
        self.assertEqual(list(self.out.glob('*.bin')), [])
        hub.files[path] = self.files['0.txt']
        self.check()

    def test_a_file_or_a_list_that_is_gone(self):
        del hub.files['/datasets/a/lines/resolve/main/part/1.txt']
        self.assertIn('"a/lines/part/1.txt" is not downloaded (404 ', self.not_made(*self.arguments, code=1))
        hub.publish('a/lines', 'part', {})
        self.assertIn('the number of files in the published data set is 0', self.not_made(*self.arguments))
        hub.listed.clear()
        self.assertIn('"a/lines/part" is not downloaded (404 ', self.not_made(*self.arguments, code=1))

    def test_servers_that_take_for_ever(self):
        for fault in DRIP, '429', '503':  # the latter with "Retry-After: 86400"
            hub.faults[:] = 100 * [fault]
            with mock.patch('download.LONGEST', 0.4):
                self.assertRegex(self.not_made(*self.arguments, code=1), 'part/0.txt" is not downloaded .'
                                 '(it has not grown in 0.4 s|HTTP Error|429|503).*; run this again to resume, set HF_')
        hub.faults.clear()
        self.check()

    def test_no_network(self):
        with mock.patch('urllib3.connection.HTTPConnection.connect', side_effect=OSError('refused')), \
                mock.patch('time.sleep'):
            said = self.not_made(*self.arguments, code=1)
        self.assertRegex(said, '^"a/lines/part" is not downloaded .*refused.* set HF_ENDPOINT to a mirror ')
        self.assertFalse(self.out.exists())

    def test_a_full_disk(self):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
        with mock.patch('shards.Tokenizer.check'): said = self.not_made(*self.arguments, code=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assertIn('part/0.txt" cannot be written: file too large; raise this process\' limit of the sizes of files '
                      '(ulimit -f) and run this again', said)
        self.check()

    def test_without_the_library(self):
        with mock.patch.dict(sys.modules, huggingface_hub=None), mock.patch.dict(os.environ, PIP_NO_INDEX='1'):
            code, _, err = self.run_tool(prepare, *self.arguments, '--tokenizer', 'bytes', '-o', self.out)
        self.assertEqual(code, 1)
        self.assertRegex(err, '^installing huggingface_hub==0.36.0 in build/python\ndev/data/prepare: error: .* '
                         'missing, and pip cannot install it .*; .* -m pip install huggingface_hub==0.36.0\n$')


if __name__ == '__main__': main()
