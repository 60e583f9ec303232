#!/usr/bin/env python3
# check_tokenizer.py - compares dev/tokenize with OpenAI's tiktoken, and opens a saved model's folder in transformers
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
from tool_main import Parser, ToolError, fail, in_quotes, tool_main  # noqa: E402

SAYS = "Compares dev/tokenize with OpenAI's tiktoken, and opens a saved model's folder in transformers."
EXAMPLES = """\
    dev/peers/check_tokenizer.py FILE...         compares the ids of dev/tokenize --tokenizer gpt2 with tiktoken's
    dev/peers/check_tokenizer.py --model FOLDER  AutoTokenizer, and pipeline("text-generation") if torch is installed

Needs tiktoken and numpy, or transformers, for example in a virtual environment. tiktoken gets GPT-2's ranks from
--merges, because it would download its own table. The comparison skips bytes that are not UTF-8, which tiktoken does
not accept. Exit codes: 0 equal, 1 different, 2 wrong arguments."""
END_OF_TEXT = 50256


def gpt2_of_tiktoken(merges):
    """tiktoken's encoding with these merges and tiktoken's pattern for GPT-2."""
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    symbols = {chr(byte) if byte in printable else chr(256 + index - len(printable)): byte
               for index, byte in enumerate(order)}
    ranks = {bytes([byte]): rank for rank, byte in enumerate(order)}
    for line in pathlib.Path(merges).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#version"):
            ranks[bytes(symbols[symbol] for symbol in line.replace(" ", ""))] = len(ranks)
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": END_OF_TEXT})


def ids_of_ours(tokenize, merges, file, threads):
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tokenize, "-o", folder, "--tokenizer", "gpt2", "--merges", merges, "--hold-out", "0",
                        "--format", "text", "--threads", str(threads), "--shard-tokens", "2000000000", file],
                       check=True, stdout=subprocess.DEVNULL)
        ids = numpy.fromfile(pathlib.Path(folder) / "text_train_000000.bin", dtype="<u2", offset=1024)
    if ids[0] != END_OF_TEXT: fail(f"the first token of {in_quotes(file)}", ids[0], END_OF_TEXT)
    return ids[1:]


def compare(files, merges, tokenize, threads):
    import numpy

    encoding = gpt2_of_tiktoken(merges)
    differing = 0
    for file in files:
        text = pathlib.Path(file).read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="ignore")
        with tempfile.NamedTemporaryFile(suffix=".txt") as valid:
            valid.write(text.encode())
            valid.flush()
            ours = ids_of_ours(tokenize, merges, valid.name, threads)
        theirs = numpy.array(encoding.encode_ordinary(text), dtype=numpy.uint16)
        count = min(len(ours), len(theirs))
        unequal = numpy.nonzero(ours[:count] != theirs[:count])[0]
        if len(unequal) == 0 and len(ours) == len(theirs):
            print(f"{file}: {len(text.encode())} bytes, {len(ours)} ids: equal")
            continue
        differing += 1
        at = int(unequal[0]) if len(unequal) else count
        around = slice(max(at - 3, 0), at + 5)
        print(f"{file}: {len(ours)} ids, tiktoken {len(theirs)}; from id {at}: {ours[around].tolist()},"
              f" tiktoken {theirs[around].tolist()} {encoding.decode(theirs[around].tolist())!r}")
    return differing


def check_model(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["Hello world", "In the beginning God created the heaven.\n\n  And\tthe earth",
             "caf\u00e9 \U0001f600 \u65e5\u672c", "don't 3.14 <x>", " \u2003 \u3000a\u0085b"]
    wrong = 0
    bytes_only = len(tokenizer) == 257
    encoding = None if bytes_only else gpt2_of_tiktoken(ROOT / "data/gpt2/vocab.bpe")
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        expected = list(text.encode()) if bytes_only else encoding.encode_ordinary(text)
        if ids != expected or tokenizer.decode(ids) != text:
            wrong += 1
            print(f"{text!r}: {ids}, expected {expected}; decoded {tokenizer.decode(ids)!r}")
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    if end != tokenizer.eos_token_id or end != (256 if bytes_only else END_OF_TEXT):
        wrong += 1
        print(f"the end-of-text id is {end}, eos_token_id {tokenizer.eos_token_id}")
    print(f"{folder}: {type(tokenizer).__name__}, {len(tokenizer)} ids, {len(texts)} texts, {wrong} wrong")
    try:
        import torch  # noqa: F401
    except ImportError:
        print("pipeline: skipped, torch is not installed")
        return wrong
    from transformers import pipeline
    made = pipeline("text-generation", model=folder)("In the beginning", max_new_tokens=20, do_sample=False)
    print(f"pipeline: {made[0]['generated_text']!r}")
    return wrong + (not made[0]["generated_text"].startswith("In the beginning"))


def command_line():
    parser = Parser("check_tokenizer.py", SAYS, EXAMPLES)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--model", metavar="FOLDER", help="a saved model")
    parser.add_argument("--merges", default=str(ROOT / "data/gpt2/vocab.bpe"), metavar="FILE")
    parser.add_argument("--tokenize", default=str(ROOT / "dev/tokenize"), metavar="PROGRAM")
    parser.add_argument("--threads", type=int, default=1, help="threads of dev/tokenize")
    parser.add_argument("-h", "--help", action="store_true", help="print this help and exit")
    return parser


def run(given):
    if not given.files and not given.model: fail("the number of files", 0, "files, or --model FOLDER", "see --help")
    wrong = 0
    try:
        if given.files: wrong += compare(given.files, given.merges, given.tokenize, given.threads)
        if given.model: wrong += check_model(given.model)
    except ImportError as error:
        raise ToolError(f"{error}; expected tiktoken and numpy, or transformers") from None
    if wrong: raise ToolError(f"{wrong} different", 1)


if __name__ == "__main__": sys.exit(tool_main(command_line(), run))
