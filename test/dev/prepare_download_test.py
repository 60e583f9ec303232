#!/usr/bin/env python3
# prepare_download_test.py - dev/data/prepare with a server in this process: interrupted downloads, files that differ
# from the published ones, a full disk
import hashlib
import json
import resource
from unittest import mock

from prepare_support import LINES, Prepares, without_check
from run_support import main


class Downloads(Prepares):
    def setUp(self):
        super().setUp()
        self.web = self.server()
        self.files, self.everything = self.texts(30, 25)
        self.publish()

    def publish(self, **changes):
        listed = [{'type': 'directory', 'oid': '0', 'path': 'a/more'},
                  {'type': 'file', 'oid': '1', 'size': 5, 'path': 'a/README.md'}]
        for path in sorted(self.files.iterdir(), reverse=True):
            data = path.read_bytes()
            self.web.files[f'/files/{path.name}'] = data
            listed.append({'type': 'file', 'oid': '2', 'size': 134, 'path': f'a/{path.name}',
                           'lfs': {'oid': hashlib.sha256(data).hexdigest(), 'size': len(data), **changes}})
        self.web.files['/list'] = json.dumps(listed).encode()

    def arguments(self):
        return LINES, '--base', self.web.base + '/', '--shard-tokens', 400

    def test_a_set_is_downloaded_checked_and_split(self):
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)
        self.assertEqual(self.web.requested, [('/list', None), ('/files/0.txt', None), ('/files/1.txt', None)])
        self.made(*self.arguments())
        self.assertEqual(len(self.web.requested), 3)

    def test_download_only(self):
        said = self.made(*self.arguments(), '--download-only')
        self.assertTrue(said.endswith(f'{self.out}/downloads/1.txt\n'), said)
        self.web.files.clear()
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)

    def test_only_the_files_that_the_shards_need(self):
        self.made(*self.arguments(), '--shards', 2)
        self.assertEqual(self.web.requested, [('/list', None), ('/files/0.txt', None)])

    def test_a_download_resumes_where_it_was_interrupted(self):
        self.web.faults = [None, 100, 200, '503', 0, 50]
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)
        self.assertEqual([part for path, part in self.web.requested if path == '/files/0.txt'],
                         [None, 'bytes=100-', 'bytes=300-', 'bytes=300-', 'bytes=300-', 'bytes=350-'])
        self.assertEqual(self.slept, [1, 1, 2, 4, 1])

    def test_a_later_run_resumes_a_download(self):
        self.web.faults = [None, 100, '500', '429', 0]
        said = self.not_made(*self.arguments(), code=1)
        self.assertIn('/files/0.txt" is interrupted after 100 bytes, 4 times in a row; expected a file', said)
        self.assertEqual((self.out / 'downloads/0.txt.partial').stat().st_size, 100)
        self.assertFalse((self.out / 'downloads/0.txt').exists())
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)
        self.assertEqual(self.web.requested[5], ('/files/0.txt', 'bytes=100-'))

    def test_a_server_without_range(self):
        self.web.supports_range = False
        self.web.faults = [None, 100, 200]
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)

    def test_a_partial_file_that_is_too_long(self):
        (self.out / 'downloads').mkdir(parents=True)
        (self.out / 'downloads/0.txt.partial').write_bytes(bytes(100000))
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)

    def test_a_file_that_differs_from_the_published_one_is_rejected(self):
        right = self.web.files['/files/0.txt']
        for wrong, said in ((right[:-1] + b'!', 'is of SHA-256 '), (right + b'more', 'bytes long'),
                            (right[:50], 'is 50 bytes long')):
            self.web.files['/files/0.txt'] = wrong
            self.assertIn(said, self.not_made(*self.arguments(), code=1))
            self.assertFalse((self.out / 'downloads/0.txt').exists())
            self.assertEqual(list(self.out.glob('*.bin')), [])
            self.web.files['/files/0.txt'] = right
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)

    def test_wrong_lists_and_urls(self):
        for listed, said in ((None, 'answered with 404'), (b'<html>', 'is not JSON'), (b'[]', 'the number of files in'),
                             (b'{"error": "x"}', 'not a list of files with'),
                             (b'[{"type": "file", "size": 3, "path": "0.txt"}]', 'not a list of files with sizes')):
            self.web.files['/list'] = listed
            if listed is None: del self.web.files['/list']
            self.assertIn(said, self.not_made(*self.arguments(), code=2 if listed == b'[]' else 1))
        self.publish()
        del self.web.files['/files/1.txt']
        self.assertIn('/files/1.txt" is answered with 404', self.not_made(*self.arguments(), code=1))
        self.publish()
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)

    def test_no_server(self):
        with mock.patch('download.TRIES', 2):
            said = self.not_made(LINES, '--base', 'http://127.0.0.1:1', code=1)
        self.assertIn('"http://127.0.0.1:1/list" is unreachable ([Errno 111] Connection refused), 2 times in a', said)
        self.assertFalse(self.out.exists())

    def test_a_full_disk(self):
        with mock.patch('download.shutil.disk_usage', return_value=mock.Mock(free=10)):
            said = self.not_made(*self.arguments(), code=1)
        self.assertIn('is 10 bytes; expected ', said)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
        try:
            with without_check(): said = self.not_made(*self.arguments(), code=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assertIn('0.txt.partial" cannot be written: file too large; fix that and run this again', said)
        self.made(*self.arguments())
        self.check_shards('lines', self.everything, 400)
        self.assertEqual([part for path, part in self.web.requested if path == '/files/0.txt'], [None, 'bytes=700-'])


if __name__ == '__main__': main()
