#!/usr/bin/env python3
# prepare_download_test.py - dev/data/prepare with a stand-in for the hub: interrupted downloads, files that differ from
# the published ones, a full disk
import os
import sys
from unittest import mock

from prepare_support import DRIP, LINES, Prepares, download, hub, needs_hub
from run_support import full_disk, main


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

    def test_a_set_is_downloaded_checked_and_split(self):
        self.check()
        self.assertEqual(hub.requested, [('0.txt', None), ('1.txt', None)])
        self.assertIn('already exists', self.made(*self.arguments))

    def test_only_the_files_that_the_shards_need(self):
        self.made(*self.arguments, '--shards', 2)
        self.assertEqual(hub.requested, [('0.txt', None)])

    def test_a_download_resumes_where_it_was_interrupted(self):
        hub.faults += [100, 200, 0]
        self.check()
        self.assertEqual([part for name, part in hub.requested if name == '0.txt'],
                         [None, 'bytes=100-', 'bytes=300-', 'bytes=300-'])

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
        with mock.patch('shards.Tokenizer.check'), full_disk(700): said = self.not_made(*self.arguments, code=1)
        self.assertIn('part/0.txt" cannot be written: file too large; raise this process\' limit of the sizes of files '
                      '(ulimit -f) and run this again', said)
        self.check()

    def test_without_the_library(self):
        with mock.patch.dict(sys.modules, huggingface_hub=None), mock.patch.dict(os.environ, PIP_NO_INDEX='1'):
            code, _, err = self.run_set(*self.arguments, '-o', self.out)
        self.assertEqual(code, 1)
        self.assertRegex(err, '^installing huggingface_hub==0.36.0 in build/python\ndev/data/prepare: error: .* '
                         'missing, and pip cannot install it .*; .* -m pip install huggingface_hub==0.36.0\n$')


if __name__ == '__main__': main()
