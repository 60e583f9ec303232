// tokenizer_files.h - a tokenizer as files in a model's folder, which transformers' AutoTokenizer can load
//
//   tokenizer.json           the tokens, their merges and GPT-2's pieces; for bytes: 256 tokens, no merges
//   tokenizer_config.json    its class, the end of text, and the maximum number of positions of the model
//   generation_config.json   the ids with which generation starts and ends
//
// In these files "<|endoftext|>" in a text is the end of text, as everywhere in transformers; for Tokenizer it is text.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "llmc/text/tokenizer.h"

namespace llmc {

// The contents by file name. `positions`: the model's maximum; 0: of data, without a model. Empty if the tokenizer
// has no table.
using TokenizerFiles = std::map<std::string, std::string>;
TokenizerFiles tokenizer_files(const Tokenizer& tokenizer, int positions);

// The files of a model's own tokenizer in its folder, which may have added tokens; empty if they are not complete.
TokenizerFiles read_tokenizer_files(const std::filesystem::path& folder);

// The tokenizer of the folder of a model or of shards. For GPT-2's vocabulary it reads the first that exists of
// tokenizer.json, merges.txt and vocab.bpe in the folder, and the file of find_gpt2_merges(); other vocabularies use
// the folder's tokenizer.json if it has a BPE of this vocabulary (merges 0: with any merges), or tokenizer_for().
// Throws Error if such a file is damaged or has another table than GPT-2's.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder, Vocabulary vocabulary);

// The BPE of a file of merges (bpe_merges.h), or of a folder's tokenizer.json, merges.txt or vocab.bpe. Throws Error if
// there is none.
std::unique_ptr<Tokenizer> read_tokenizer(const std::filesystem::path& path);

}  // namespace llmc
